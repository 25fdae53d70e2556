"""The ledger's knowledge about a tool call, and its consequence for the transcript.

Nothing is guessed: if nobody knows whether a call took effect, the model is told exactly that.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Policy(StrEnum):
    """How to treat calls that have no result."""

    JOURNAL = "journal"  # follow the ledger; a call that has certainly not started is to be run
    RESTART = "restart"  # take back the last turn if none of its calls can have taken effect
    INTERRUPTED = "interrupted"  # run nothing: answer every open call now


class Open(StrEnum):
    """The state of a call that is not done."""

    NOT_STARTED = "not started"  # certainly, because its intent was never recorded
    IN_DOUBT = "in doubt"  # it started, and nobody knows how it ended


NOT_STARTED, IN_DOUBT = Open.NOT_STARTED, Open.IN_DOUBT


@dataclass(frozen=True)
class Done:
    """A call that ended with this result: a text, blocks of the format, or any JSON value."""

    result: Any
    error: bool = False  # the tool itself reported an error


@dataclass(frozen=True)
class Call:
    """A tool call and its place in the transcript: message or item, and block in it."""

    id: str
    name: str
    arguments: Any
    message: int
    block: int | None = None


State = Done | Open
Ledger = Mapping[str, State] | Callable[[Call], State | None]


class CallMove(StrEnum):
    """The move for an open call that gets no answer."""

    RUN = "run"
    CUT = "cut"


UNKNOWN = (
    "Outcome unknown: this tool call was interrupted while it was in hand. It may or may not have "
    "taken effect; assume neither. Check first, before relying on it or running it again."
)
NOT_EXECUTED = (
    "Not executed: the run was interrupted before this tool call started, so it had no effect."
)
STAND_INS = (UNKNOWN, NOT_EXECUTED)  # replaced by a real result that turns up later


def known(ledger: Ledger | None, call: Call) -> State | None:
    """Return the ledger's state of a call, or None if it has none."""
    if ledger is None:
        return None
    return ledger(call) if callable(ledger) else ledger.get(call.id)


def next_move(state: State | None, policy: Policy, *, asked: bool, last: bool) -> Done | CallMove:
    """Return the result of a call that has none, or the move to make instead.

    `asked` means that there is a ledger. `last` means that the model has said nothing since the
    call; if it has, neither running the call nor taking it back would fit what it said.
    """
    if isinstance(state, Done):
        return state
    untouched = state is NOT_STARTED or (state is None and not asked)
    if policy is Policy.RESTART and last and untouched:
        return CallMove.CUT
    if state is not NOT_STARTED:  # silence does not prove that nothing happened
        return Done(UNKNOWN)
    return CallMove.RUN if policy is Policy.JOURNAL and last else Done(NOT_EXECUTED)
