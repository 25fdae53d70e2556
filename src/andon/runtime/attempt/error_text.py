"""Stored form of errors: type, message and family. `tracebacks` adds where they come from."""

from typing import Any

from andon.errors import Corrupt, Diverged, Fenced, StepFailed, Stopped, StoreError
from andon.errors import family as family_of


class Described(Exception):
    """An error of another process, as that process described it."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['type']}: {error['message']}")
        self.error = error


def describe(error: BaseException) -> dict[str, Any]:
    """The stored form of an error; only an error of another process may carry its traceback."""
    if isinstance(error, Described):
        return error.error
    if isinstance(error, StepFailed):
        return {
            "type": error.error,
            "message": f"{error.name}: {error.message}",
            "family": family_of(error),
            "step": error.name,
        }
    message = words_of(error)
    if isinstance(error, BaseExceptionGroup):
        message = "; ".join(f"{type(one).__name__}: {words_of(one)}" for one in error.exceptions)
    return {"type": type(error).__name__, "message": message[:10_000], "family": family_of(error)}


def words_of(error: BaseException) -> str:
    """The error's message as text that can be stored, even if its `__str__` misbehaves."""
    try:
        return str(error).encode("utf-8", "backslashreplace").decode()
    except Exception:  # noqa: BLE001 (the user's `__str__` may raise anything)
        return "its message could not be read"


def places_of(error: BaseException) -> list[str]:
    """The places of the failed operations that an error came from."""
    found: list[str] = []
    seen: set[int] = set()

    def visit(one: BaseException | None) -> None:
        if one is None or id(one) in seen:
            return
        seen.add(id(one))
        if isinstance(one, StepFailed) and one.place:
            found.append(one.place)
        if isinstance(one, BaseExceptionGroup):
            for inner in one.exceptions:
                visit(inner)
        visit(one.__cause__)
        visit(one.__context__)

    visit(error)
    return found


def reason_of(error: BaseException) -> str:
    match error:
        case Fenced():
            return "fenced"
        case Diverged() | Corrupt():
            return "diverged"
        case StoreError():
            return "unavailable"
        case Stopped():
            return "stopped"
        case _:
            return "diverged"  # a retry would end the same way: a person has to look
