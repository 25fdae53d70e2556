"""The log of a process that lasts, on stderr."""

import logging
import sys

from andon.core.text import clean

LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


class Inert(logging.Formatter):
    """Names and messages of agents appear in log lines too."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(clean(line) for line in super().format(record).split("\n"))


def prepare_logging(verbose: int) -> None:
    # For everything, not only for andon: what libraries of the agent warn about belongs here too.
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(Inert("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[stream])
    logging.getLogger("andon").setLevel(LEVELS[min(verbose, len(LEVELS) - 1)])
