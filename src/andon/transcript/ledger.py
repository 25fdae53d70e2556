"""What a ledger knows about a tool call, and what follows from it for the transcript.

Never a guess: a call of which nobody knows whether it acted is told to the model as exactly that.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Policy(StrEnum):
    """What happens to calls that have no result."""

    JOURNAL = "journal"  # by what the ledger knows; what certainly has not started is to be run
    RESTART = "restart"  # the last turn is taken back if nothing of it can have acted
    INTERRUPTED = "interrupted"  # nothing is run: every open call is answered now


class Open(StrEnum):
    """A call that is not done."""

    NOT_STARTED = "not started"  # certainly: its intent was never written
    IN_DOUBT = "in doubt"  # it was started, and nobody knows how it ended


NOT_STARTED, IN_DOUBT = Open.NOT_STARTED, Open.IN_DOUBT


@dataclass(frozen=True)
class Done:
    """A call that ended with this result: a text, blocks of the format, or any JSON value."""

    result: Any
    error: bool = False  # the tool itself said that it went wrong


@dataclass(frozen=True)
class Call:
    """A tool call of a transcript, and where it stands: message or item, and block in it."""

    id: str
    name: str
    arguments: Any
    message: int
    block: int | None = None


State = Done | Open
Ledger = Mapping[str, State] | Callable[[Call], State | None]


class Move(StrEnum):
    """What becomes of an open call that is not answered."""

    RUN = "run"
    CUT = "cut"


UNKNOWN = (
    "Outcome unknown: this tool call was interrupted while it was in hand. It may or may not have "
    "taken effect; assume neither. Check first, before relying on it or running it again."
)
NOT_EXECUTED = (
    "Not executed: the run was interrupted before this tool call started, so it had no effect."
)
STAND_INS = (UNKNOWN, NOT_EXECUTED)  # a real result that turns up later takes their place


def known(ledger: Ledger | None, call: Call) -> State | None:
    """What the ledger says of a call; None: nothing."""
    if ledger is None:
        return None
    return ledger(call) if callable(ledger) else ledger.get(call.id)


def next_move(state: State | None, policy: Policy, *, asked: bool, last: bool) -> Done | Move:
    """What becomes of a call without a result.

    `asked`: there is a ledger. `last`: the model has said nothing since; later than that, neither
    running the call nor taking it back would fit what the model has said.
    """
    if isinstance(state, Done):
        return state
    untouched = state is NOT_STARTED or (state is None and not asked)
    if policy is Policy.RESTART and last and untouched:
        return Move.CUT
    if state is not NOT_STARTED:  # silence is no proof that nothing happened
        return Done(UNKNOWN)
    return Move.RUN if policy is Policy.JOURNAL and last else Done(NOT_EXECUTED)
