"""Stops: the effect of an order on a run, its severity, and the condition for its proof.

An order has a kind and a scope. Polite orders (pause, cancel) ask the worker that executes the run;
hard orders (kill, halt) raise the run's fence at once without asking. A polite order becomes hard
when its window is over. A stop is proved when every target is; until then the run is stopping,
never stopped.
"""

from collections.abc import Iterable
from enum import StrEnum

from andon.core.run import TERMINAL, State

# How long a polite order waits for the step in hand before it becomes hard.
WITHIN_SECONDS = 10.0


class StopKind(StrEnum):
    """The kinds of orders, mildest first."""

    PAUSE = "pause"  # can be resumed
    CANCEL = "cancel"  # final; effects that have an undo are undone
    KILL = "kill"  # from outside, at once; can be resumed after a reauthorization
    HALT = "halt"  # a kill for everything


class StopScope(StrEnum):
    """The kinds of targets of an order; the children of each are included."""

    RUN = "run"
    AGENT = "agent"
    LABEL = "label"
    FLEET = "fleet"


class Stage(StrEnum):
    """How far the stop of one target has come."""

    REQUESTED = "requested"
    ACKNOWLEDGED = "acknowledged"  # its executor has received it
    FENCED = "fenced"  # its writes are refused from now on
    VERIFIED = "verified"
    UNPROVED = "unproved"  # can no longer be verified; the target is fenced and its lease is over


class Deed(StrEnum):
    """The action that the commit of an order takes on one run."""

    NOTHING = "nothing"  # the run is over, or stopped at least as firmly
    ASK = "ask"  # ask its worker to stop at the next boundary
    FENCE = "fence"  # take it away from its worker
    HOLD = "hold"
    END = "end"
    UNDO = "undo"  # it ends once its effects are undone
    PUT_AWAY = "put away"  # nobody executes it, and nobody will


POLITE = frozenset({StopKind.PAUSE, StopKind.CANCEL})
OPEN = frozenset({Stage.REQUESTED, Stage.ACKNOWLEDGED, Stage.FENCED})
_SEVERITY = {kind: number for number, kind in enumerate(StopKind)}
_WAITS = frozenset({State.QUEUED, State.SUSPENDED})


def severest(kinds: Iterable[str]) -> StopKind | None:
    """Return the order in force when several latches apply to a run."""
    return max((StopKind(kind) for kind in kinds), key=_SEVERITY.__getitem__, default=None)


def latches(kind: StopKind, scope: StopScope) -> bool:
    """Whether the order keeps holding its scope, so that nothing in it may begin.

    A single run is held by its own state, and a cancelled scope may be used again.
    """
    return scope is not StopScope.RUN and kind is not StopKind.CANCEL


def lifted_by(kind: StopKind) -> str:
    """Return the command that lifts a latch. After a hard stop it asks for a name and a reason."""
    return "resume" if kind in POLITE else "reauthorize"


def deed(kind: StopKind, state: State, *, owes: bool) -> Deed:
    """Return what an order does to a run in that state; `owes` means its effects can be undone."""
    if state in TERMINAL:
        return Deed.NOTHING
    if state is State.RUNNING:
        return Deed.ASK if kind in POLITE else Deed.FENCE
    if kind is StopKind.CANCEL:
        return Deed.UNDO if owes else Deed.END
    if kind is StopKind.PAUSE:
        return Deed.HOLD if state in _WAITS else Deed.NOTHING
    return Deed.NOTHING if state is State.KILLED else Deed.PUT_AWAY


def afterwards(kind: StopKind, *, owes: bool) -> Deed:
    """Return what happens to the run once no worker executes it."""
    match kind:
        case StopKind.PAUSE:
            return Deed.HOLD
        case StopKind.CANCEL:
            return Deed.UNDO if owes else Deed.END
        case _:
            return Deed.PUT_AWAY


def replaces(new: StopKind, old: StopKind) -> bool:
    """Whether a later order takes over a run that another one is stopping.

    The more severe order does, and so does cancel, which is final even after a kill.
    """
    return new is StopKind.CANCEL or _SEVERITY[new] > _SEVERITY[old]


def ends_worker(spare: bool | None, *, embedded: bool) -> bool:
    """Whether a hard stop ends the whole process that executes a run.

    Nothing else proves that the process executes nothing of the run. A program that embeds andon
    is spared unless the order says otherwise.
    """
    return not embedded if spare is None else not spare


def after_word(kind: StopKind, *, ends: bool) -> Stage:
    """Return the stage after a worker reports that its process executes nothing of the run.

    The report proves a polite stop, never a hard one. The run is stopping until the process has
    ended; if nobody is going to end it, the stop stays unproved.
    """
    if kind in POLITE:
        return Stage.VERIFIED
    return Stage.FENCED if ends else Stage.UNPROVED


def verdict(stages: Iterable[str]) -> str:
    """Return `stopping` while a target is open, else `unproved` if any target is, else `proved`."""
    found = {Stage(stage) for stage in stages}
    if found & OPEN:
        return "stopping"
    return "unproved" if Stage.UNPROVED in found else "proved"


def storable(text: str) -> str:
    """Return text that every store accepts, so that no character can prevent a stop."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")
