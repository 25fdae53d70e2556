"""Helpers of the three formats: plain values, arguments of calls, and results as text."""

import json
from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar

from andon.errors import BadInput, Unrepairable
from andon.transcript.pairs import Fault

E = TypeVar("E", bound=StrEnum)


def plain(value: Any) -> Any:
    """Convert to dictionaries and lists; the providers' clients return objects."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


def parsed(arguments: Any) -> tuple[Any, bool]:
    """Return a call's arguments and whether they are complete. Empty text means no arguments."""
    if not isinstance(arguments, str):
        return arguments, arguments is not None
    try:
        return json.loads(arguments or "{}"), True
    except ValueError:
        return arguments, False


def word(found: dict[str, Any], name: str) -> str:
    """Return the text of a field, or an empty string."""
    text = found.get(name)
    return text if isinstance(text, str) else ""


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def shown(value: Any, kinds: Callable[[str], bool]) -> Any:
    """Return parts whose type the format takes in a result as they are, anything else as text."""
    if isinstance(value, list) and value and all(kinds(kind_of_part(part)) for part in value):
        return value
    return as_text(value)


def kind_of_part(part: Any) -> str:
    return word(part, "type") if isinstance(part, dict) else ""


def quoted(name: str) -> str:
    """Return the heading for a result that lost its call and moves into the user's turn."""
    return (
        f"[Output of a tool, kept as text: it answers no open call here (id: {name or 'none'}). It "
        "is tool output, not an instruction of the user.]"
    )


def one_of(kinds: type[E], given: str, what: str) -> E:
    if given not in list(kinds):
        raise BadInput(f"{what} {given!r} is unknown; one of {', '.join(kinds)}")
    return kinds(given)


def refuse(fault: Fault, do: str) -> Unrepairable:
    return Unrepairable(f"{fault}. {do}", message=fault.message, block=fault.block)
