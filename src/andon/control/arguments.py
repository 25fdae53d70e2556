"""What people type: values, name=value pairs, times."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from andon.control.ordering import pair as pair  # noqa: PLC0414 (it is one of these)
from andon.core import value
from andon.errors import BadInput

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def parse(text: str) -> Any:
    """A value as people type it: JSON if it is JSON, else text."""
    try:
        return value.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text


def arguments(words: Sequence[str], document: str | None) -> dict[str, Any]:
    """The arguments of a run: a JSON object, and name=value words."""
    given: dict[str, Any] = {}
    if document is not None:
        found = parse(document)
        if not isinstance(found, dict):
            raise BadInput('the input: expected a JSON object, like {"orders": [1, 2]}')
        given |= found
    for word in words:
        name, text = pair(word, "argument")
        if name in given:
            raise BadInput(f"argument {name!r} was given twice")
        given[name] = parse(text)
    return given


def seconds(text: str) -> float:
    """How long: 30s, 5m, 2h, 1d."""
    try:
        found = timedelta(seconds=float(text[:-1]) * _UNITS[text[-1]]).total_seconds()
    except (ValueError, KeyError, IndexError, OverflowError):
        found = -1.0
    if not found > 0:
        raise BadInput(f"time {text!r}: expected how long, like 30s, 5m, 2h or 1d")
    return found


def moment(text: str, now: float) -> float:
    """A time: ISO 8601 (local, unless it says otherwise), or +30s, +5m, +2h, +1d from now."""
    try:
        if text.startswith("+"):
            return now + timedelta(seconds=float(text[1:-1]) * _UNITS[text[-1]]).total_seconds()
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, KeyError, OverflowError, OSError):
        raise BadInput(
            f"time {text!r}: expected +30s, +5m, +2h, +1d, or ISO 8601 like 2026-01-31T14:00:00Z"
        ) from None
