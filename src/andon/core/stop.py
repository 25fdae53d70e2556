"""Stops: what an order does to a run, how severe it is, and when it is proved.

An order has a kind and a scope. Polite ones (pause, cancel) ask whoever executes the run; hard ones
(kill, halt) raise its fence at once and do not ask. A polite order whose window is over becomes
hard. A stop is proved when every target is: until then the run is stopping, never stopped.
"""

from collections.abc import Iterable
from enum import StrEnum

from andon.core.run import TERMINAL, State

# How long a polite order waits for the step in hand before it becomes hard by itself.
WITHIN_SECONDS = 10.0


class Kind(StrEnum):
    """What is ordered, the mildest first."""

    PAUSE = "pause"  # resumable
    CANCEL = "cancel"  # final; what has an undo is undone
    KILL = "kill"  # from outside, at once; resumable after a reauthorization
    HALT = "halt"  # kill for everything


class Scope(StrEnum):
    """Whom it concerns; the children of all these too."""

    RUN = "run"
    AGENT = "agent"
    LABEL = "label"
    FLEET = "fleet"


class Stage(StrEnum):
    """How far the stop of one target is known to be."""

    REQUESTED = "requested"
    ACKNOWLEDGED = "acknowledged"  # whoever executes it has heard of it
    FENCED = "fenced"  # nothing it writes is taken any more
    VERIFIED = "verified"
    UNPROVED = "unproved"  # nobody can know any more; it is fenced, and its lease is over


class Deed(StrEnum):
    """What is done to one run, in the commit of the order."""

    NOTHING = "nothing"  # it is over, or stopped at least as firmly
    ASK = "ask"  # its worker, to stop at the next boundary
    FENCE = "fence"  # it is not its worker's any more
    HOLD = "hold"
    END = "end"
    UNDO = "undo"  # it ends once its effects are undone
    PUT_AWAY = "put away"  # nobody executes it, and nobody will


POLITE = frozenset({Kind.PAUSE, Kind.CANCEL})
OPEN = frozenset({Stage.REQUESTED, Stage.ACKNOWLEDGED, Stage.FENCED})
_SEVERITY = {kind: number for number, kind in enumerate(Kind)}
_WAITS = frozenset({State.QUEUED, State.SUSPENDED})


def severest(kinds: Iterable[str]) -> Kind | None:
    """The one in force when several latches lie on a run's path."""
    return max((Kind(kind) for kind in kinds), key=_SEVERITY.__getitem__, default=None)


def latches(kind: Kind, scope: Scope) -> bool:
    """Whether the order keeps holding its scope: whatever would begin in it does not.

    A run is held by its own state; and a cancelled scope may be used again.
    """
    return scope is not Scope.RUN and kind is not Kind.CANCEL


def lifted_by(kind: Kind) -> str:
    """The command that lifts a latch. After a hard stop that costs a name and a reason."""
    return "resume" if kind in POLITE else "reauthorize"


def deed(kind: Kind, state: State, *, owes: bool) -> Deed:
    """What an order means for a run in that state; `owes`: it has effects that can be undone."""
    if state in TERMINAL:
        return Deed.NOTHING
    if state is State.RUNNING:
        return Deed.ASK if kind in POLITE else Deed.FENCE
    if kind is Kind.CANCEL:
        return Deed.UNDO if owes else Deed.END
    if kind is Kind.PAUSE:
        return Deed.HOLD if state in _WAITS else Deed.NOTHING
    return Deed.NOTHING if state is State.KILLED else Deed.PUT_AWAY


def afterwards(kind: Kind, *, owes: bool) -> Deed:
    """What becomes of a run once nobody executes it any more."""
    match kind:
        case Kind.PAUSE:
            return Deed.HOLD
        case Kind.CANCEL:
            return Deed.UNDO if owes else Deed.END
        case _:
            return Deed.PUT_AWAY


def replaces(new: Kind, old: Kind) -> bool:
    """Whether a later order decides what becomes of a run that another one is stopping.

    The severer one does; and cancel, which is final, also after a kill.
    """
    return new is Kind.CANCEL or _SEVERITY[new] > _SEVERITY[old]


def ends_worker(spare: bool | None, *, embedded: bool) -> bool:
    """Whether a hard stop ends the whole process that executes a run.

    Nothing else proves that a run executes nothing there. A program that only uses andon is left
    alone, unless somebody says otherwise.
    """
    return not embedded if spare is None else not spare


def after_word(kind: Kind, *, ends: bool) -> Stage:
    """What a worker's word is worth: that nothing of a run executes in its process any more.

    It proves a polite stop. It never proves a hard one: until the process has ended the run is
    stopping, and if nobody is to end it, the stop stays unproved.
    """
    if kind in POLITE:
        return Stage.VERIFIED
    return Stage.FENCED if ends else Stage.UNPROVED


def verdict(stages: Iterable[str]) -> str:
    """`stopping` while a target is open, then `proved`, or `unproved` if only one is not."""
    found = {Stage(stage) for stage in stages}
    if found & OPEN:
        return "stopping"
    return "unproved" if Stage.UNPROVED in found else "proved"


def storable(text: str) -> str:
    """What somebody says, as every store takes it: no character keeps a stop from happening."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")
