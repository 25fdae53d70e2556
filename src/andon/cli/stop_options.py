"""The options of the commands that stop something: one table with two parsers.

The parser in this module imports nothing and accepts only what is plainly right. Mistakes and
--help go to click, whose options are built from the same table and which prints the explanations.
"""

from __future__ import annotations

import os

from andon.core import duration
from andon.core.stop import WITHIN_SECONDS
from andon.core.values.struct import Struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

FLAG, TEXT, SECONDS = "flag", "text", "seconds"


class Option(Struct):
    """One option, and the argument of the command's function that it fills."""

    name: str
    field: str
    help: str
    kind: str = TEXT
    metavar: str | None = None
    default: Any = None
    environ: str | None = None  # the environment variable that sets it, too
    shown: bool = False  # whether the help shows its default
    old: tuple[str, ...] = ()  # earlier spellings, accepted but not shown


def _text(name: str, field: str, metavar: str, about: str, **more: Any) -> Option:
    return Option(name=name, field=field, metavar=metavar, help=about, **more)


def _flag(name: str, field: str, about: str) -> Option:
    return Option(name=name, field=field, kind=FLAG, default=False, help=about)


def _seconds(name: str, field: str, about: str, **more: Any) -> Option:
    return Option(name=name, field=field, kind=SECONDS, metavar="TIME", help=about, **more)


TARGET = (
    _text("--agent", "agent", "NAME", "All runs of this agent, and its children."),
    _text("--label", "label", "K=V", "All runs with this label, and its children."),
    _flag("--all", "fleet", "All runs of all agents."),
)
_CUT_OFF = "How long the current step may take before it is cut off."
WITHIN = (_seconds("--within", "within", _CUT_OFF, default=WITHIN_SECONDS, shown=True),)
_SPARE = "Do not end the process that executes them. Without that a kill cannot be proved."
_END = "End that process also if it is a program that uses andon as a library."
WORKERS = (
    _flag("--spare-worker", "spare_worker", _SPARE),
    _flag("--end-worker", "end_worker", _END),
)
_PROOF = "Wait at most this long for the proof, then exit 3."
WAIT = (
    _seconds("--timeout", "wait_seconds", _PROOF, old=("--wait",)),
    _flag("--no-wait", "no_wait", "Do not wait; exit 3 unless the stop is proved already."),
)
WHY = _text("--why", "why", "TEXT", "A reason, for the record.", default="")
BY = _text("--by", "by", "NAME", "Your name; else ANDON_BY, else your login.", environ="ANDON_BY")
SIGNED = (WHY, BY)
GLOBAL = (
    _text("--store", "store", "URL", "sqlite:///path or postgresql://… (ANDON_STORE)"),
    _flag("--json", "json", "Print the answer as one JSON document."),
)
VERBS = {
    "pause": (*TARGET, *WITHIN, *WAIT, *SIGNED),
    "cancel": (*TARGET, *WITHIN, *WAIT, *SIGNED),
    "kill": (*TARGET, *WORKERS, *WAIT, *SIGNED),
}
# The ways to name a target; one is enough, and two contradict each other.
_NAMES = ("run", "agent", "label", "fleet")


# Words that users of other tools type, and the commands that do the same here.
SIMILAR = {
    **dict.fromkeys(
        ("stop", "end", "terminate", "abort", "quit"), ("pause", "cancel", "kill", "halt")
    ),
    **dict.fromkeys(("rm", "remove", "delete", "del"), ("cancel", "dead drop")),
    **dict.fromkeys(("suspend", "hold", "freeze"), ("pause",)),
    **dict.fromkeys(("list", "ls", "runs", "jobs", "status", "stat"), ("ps",)),
    **dict.fromkeys(("watch", "monitor", "dashboard", "tui", "ui", "web"), ("top",)),
    **dict.fromkeys(("inspect", "describe", "get", "info"), ("show",)),
    **dict.fromkeys(("tail", "log", "attach"), ("logs",)),
    **dict.fromkeys(("continue", "unpause", "restart"), ("resume",)),
    **dict.fromkeys(("unhalt", "unlock", "reset"), ("reauthorize",)),
    **dict.fromkeys(("worker", "serve", "server"), ("work", "up")),
    **dict.fromkeys(("new", "create"), ("init", "start")),
    **dict.fromkeys(("approve", "reject", "respond"), ("answer",)),
    **dict.fromkeys(("undo", "rollback", "revert"), ("compensate",)),
    **dict.fromkeys(("retry", "redrive"), ("dead redrive",)),
    **dict.fromkeys(("health", "check", "config"), ("doctor",)),
    **dict.fromkeys(("asks", "questions"), ("ps", "answer")),
    "help": ("--help",),
}


def read(verb: str, words: Sequence[str]) -> dict[str, Any] | None:
    """Parse the words into values by field; None if click has to parse them instead."""
    options = {
        name: option for option in (*VERBS[verb], *GLOBAL) for name in (option.name, *option.old)
    }
    given: dict[str, Any] = {option.field: _default(option) for option in options.values()}
    given["run"] = None
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        option = options.get(name)
        if option is None and word and not word.startswith("-") and given["run"] is None:
            given["run"] = word
        elif option is not None and option.kind == FLAG and not equals:
            given[option.field] = True
        elif option is not None and option.kind != FLAG and (equals or rest):
            given[option.field] = _value(option, value if equals else rest.pop(0))
            if given[option.field] is None:
                return None
        else:
            return None
    return None if names_several(given) else given


def _default(option: Option) -> Any:
    found = os.environ.get(option.environ) if option.environ else None
    return found or option.default


def _value(option: Option, text: str) -> Any:
    if text.startswith("-"):  # perhaps the next option
        return None
    return duration.seconds(text) if option.kind == SECONDS else text


def names_several(given: dict[str, Any]) -> bool:
    return sum(given[name] not in (None, False) for name in _NAMES) > 1
