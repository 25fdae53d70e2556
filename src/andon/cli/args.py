"""Parsing of what people type: values, name=value pairs, times."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from andon.control.runs.run_input import NO_JSON, Word
from andon.control.stop.target import pair as pair  # noqa: PLC0414 (re-exported)
from andon.core import duration
from andon.core.values import value
from andon.errors import BadInput


def arguments(words: Sequence[str], document: str | None) -> dict[str, Any]:
    """Parse a run's arguments: a JSON object, and name=value words that are decoded later."""
    given: dict[str, Any] = {}
    if document is not None:
        expected = 'the input: expected a JSON object, like {"orders": [1, 2]}'
        try:
            found = value.decode(document)
        except NO_JSON as error:
            raise BadInput(f"{expected}, found what is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise BadInput(expected)
        given |= found
    for word in words:
        name, text = pair(word, "argument")
        if name in given:
            raise BadInput(f"argument {name!r} was given twice")
        given[name] = Word(text)
    return given


def moment(text: str, now: float) -> float:
    """Parse a time: ISO 8601 (local unless it has an offset), or +30s, +5m, +2h, +1d from now."""
    try:
        if text.startswith("+"):
            later = duration.seconds(text[1:])
            if later is not None:
                return now + later
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise BadInput(
            f"time {text!r}: expected +30s, +5m, +2h, +1d, or ISO 8601 like 2026-01-31T14:00:00Z"
        ) from None
