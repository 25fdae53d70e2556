"""Failures of an agent's code: printed by the worker, kept in the journal and in the run's log."""

import logging
import textwrap
from typing import TYPE_CHECKING, Any

from andon.runtime.attempt.error_text import describe
from andon.runtime.attempt.exit import log
from andon.runtime.attempt.tracebacks import trace

if TYPE_CHECKING:
    from andon.runtime.attempt.journal import Journaling


def noted(
    attempt: "Journaling", error: BaseException, what: str, level: int = logging.WARNING
) -> dict[str, Any]:
    """Log an error and return it as the journal keeps it. `what`: "step 'pay' failed"."""
    described = {name: given for name, given in describe(error).items() if name != "traceback"}
    words = f"{what}: {described['type']}: {described['message']}"
    mode = attempt.host.settings.tracebacks
    shown = words
    if mode != "off":
        shown = f"{what}:\n{textwrap.indent(trace(error, brief=True), '  ')}"
    log.log(level, "run %s: %s", attempt.run.id, shown)
    if mode != "journal":
        attempt.add_failure(words)
        return described
    attempt.add_failure(shown)
    return {**described, "traceback": trace(error)}
