"""Every error andon raises on purpose.

    AndonError
    ├── Refused                 the request was understood and may not be carried out
    │   ├── Fenced              a newer claim exists; this worker is no longer the owner
    │   ├── IllegalTransition   the run is not in a state that allows it
    │   ├── NotFound            no run, agent or ask of that name
    │   ├── Conflict            the same id or name already means something else
    │   ├── BadInput            an argument is missing, unknown or of the wrong kind
    │   ├── NotStorable         a value cannot be written to the journal
    │   └── Unrepairable        a transcript that no repair makes valid
    ├── Diverged                the code asks for something else than the journal has
    ├── Corrupt                 stored data does not match its hash chain
    ├── StepFailed              a step or effect ended with an error, after its retries
    ├── DidNotHappen            an effect certainly did not happen
    ├── Rejected                a person did not allow a tool to be called
    ├── Unresolved              a wait ended without an outcome: timed out or expired
    └── StoreError              the database could not answer; __cause__ has the driver's error
        └── StoreUnavailable    it may answer later: locked, full or away
            └── StoreFull       it has no connection left

    Stopped (BaseException)     unwinds agent code after a stop; let it pass

Messages say what was expected, what was found, and what to do.
"""

from __future__ import annotations

TYPE_CHECKING = False  # every command imports this, and none should wait for typing
if TYPE_CHECKING:
    from typing import Any


class AndonError(Exception):
    """andon could not do what was asked."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or type(self).__doc__)


class Refused(AndonError):
    """The request was understood and may not be carried out."""


class Fenced(Refused):
    """A newer claim exists; this worker is no longer the owner."""

    def __init__(self, run_id: str, fence: object = None, *, worker: str | None = None) -> None:
        held = "" if fence is None else f" (held: {fence})"
        what = f"run {run_id}" if worker is None else f"all runs of worker {worker}"
        super().__init__(
            f"{what}: this worker is no longer the owner{held}; nothing was written. "
            "Another worker has claimed the run, or its lease has ended."
        )
        self.run_id, self.fence = run_id, fence


class IllegalTransition(Refused):
    """The run is not in a state that allows it."""

    def __init__(self, run_id: str, state: str, event: str) -> None:
        super().__init__(f"run {run_id}: cannot {event} while {state}")
        self.run_id, self.state, self.event = run_id, state, event


class NotFound(Refused):
    """Nothing of that name exists."""


class Conflict(Refused):
    """The same id or name already means something else."""


class BadInput(Refused):
    """An argument is missing, unknown or of the wrong kind."""


class NotStorable(Refused):
    """A value cannot be written to the journal."""


class Unrepairable(Refused):
    """A transcript cannot be made one that the provider takes."""

    def __init__(self, text: str, *, message: int = 0, block: int | None = None) -> None:
        super().__init__(text)
        self.message, self.block = message, block  # where it stands


class Diverged(AndonError):
    """The code asks for something else than the journal has; nothing was executed."""


class Corrupt(AndonError):
    """Stored data does not match its hash chain; it was changed outside andon."""


class StepFailed(AndonError):
    """A step or an effect ended with an error, after its retries."""

    def __init__(
        self, name: str, error: str, message: str, place: str = "", traceback: str = ""
    ) -> None:
        super().__init__(f"{name}: {error}: {message}")
        self.name, self.error, self.message, self.place = name, error, message, place
        self.traceback = traceback  # of the error itself, as the journal keeps it


class Rejected(AndonError):
    """A person did not allow a tool to be called; it was not."""

    def __init__(self, name: str, *, by: str = "", why: object = None) -> None:
        who = f" by {by}" if by else ""
        reason = f": {why}" if why else ""
        super().__init__(f"the tool {name!r} was not called: it was rejected{who}{reason}")
        self.name, self.by, self.why = name, by, why


class Unresolved(AndonError):
    """A wait ended without an outcome."""


class StoreError(AndonError):
    """The database could not answer."""


class StoreUnavailable(StoreError):
    """The database cannot answer now and may answer later."""


class StoreFull(StoreUnavailable):
    """The database has no connection left for this process."""


class DidNotHappen(AndonError):
    """The effect certainly did not happen; raise it from an effect, or return it from a probe."""


class Stopped(BaseException):
    """The run leaves this process. Let it pass: catching it does not keep the run here."""

    def __init__(
        self,
        reason: str,
        *,
        kind: str | None = None,
        by: str | None = None,
        why: str | None = None,
        order: str | None = None,
    ) -> None:
        super().__init__(reason)
        # The order that caused it, if any: its kind, author and reason, and the id of the receipt.
        self.reason, self.kind, self.by, self.why, self.order = reason, kind, by, why, order


# A failed step must raise the same class when it is replayed as when it was executed, without
# importing anything by a stored name. So the error carries its nearest ancestor of this list.
_FAMILIES: tuple[type[Exception], ...] = (
    ZeroDivisionError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    FileNotFoundError,
    PermissionError,
    ConnectionError,
    TimeoutError,
    OSError,
    IndexError,
    KeyError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
_BY_NAME = {family.__name__: family for family in _FAMILIES}
_CLASSES: dict[str, type[StepFailed]] = {}


def family(error: BaseException) -> str:
    """The name of the built-in error that `error` is a kind of, or nothing."""
    return next((kind.__name__ for kind in _FAMILIES if isinstance(error, kind)), "")


def step_failed(name: str, error: dict[str, Any], place: str) -> StepFailed:
    """The error that `ctx.step` raises: a StepFailed that is also of the original's family."""
    kin = str(error.get("family", ""))
    if kin not in _CLASSES:
        parent = _BY_NAME.get(kin)
        bases: tuple[type, ...] = (StepFailed, parent) if parent else (StepFailed,)
        # KeyError shows its message quoted; ours is a sentence.
        members = {"__str__": StepFailed.__str__, "__doc__": StepFailed.__doc__}
        _CLASSES[kin] = type("StepFailed", bases, members)
    kind, message = str(error.get("type", "")), str(error.get("message", ""))
    return _CLASSES[kin](name, kind, message, place, str(error.get("traceback", "")))
