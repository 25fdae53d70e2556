"""Logging of long-lived processes, to stderr."""

import logging
import sys

from andon.core.text import clean

LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


class Inert(logging.Formatter):
    """Escapes control characters: log lines contain names and messages of agents."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(clean(line) for line in super().format(record).split("\n"))


def prepare_logging(verbose: int) -> None:
    # The root logger, not only andon's: warnings of the agent's libraries belong in the log too.
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(Inert("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[stream])
    logging.getLogger("andon").setLevel(LEVELS[min(verbose, len(LEVELS) - 1)])
