"""What people type: values, name=value pairs, times."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from andon.control.stop.target import pair as pair  # noqa: PLC0414 (it is one of these)
from andon.core import duration
from andon.core.values import value
from andon.core.values.shape import ANY, OTHERS, misfit
from andon.core.values.shape import words as in_words
from andon.errors import BadInput

# What no word of everyday text begins with.
_JSON = ("[", "{", '"')


# What a decoder raises at text that is not JSON.
_NO_JSON = (msgspec.DecodeError, UnicodeError, RecursionError)


def parse(text: str, what: str = "", warn: Callable[[str], None] = lambda _: None) -> Any:
    """A value as people type it: JSON if it is JSON, else text, with a warning if it looks so."""
    try:
        return value.decode(text)
    except _NO_JSON as error:
        if text.lstrip()[:1] in _JSON:
            warn(f"{what} looks like JSON, but is not valid and is taken as text: {error}")
        return text


class Word(str):
    """A value as it was typed: what it means depends on the parameter it is for."""

    __slots__ = ()


def read(
    given: dict[str, Any], types: dict[str, Any], warn: Callable[[str], None]
) -> dict[str, Any]:
    """The arguments with what was typed read for its parameters; `types`: their shapes."""
    return {
        name: _read(name, str(found), types.get(name, types.get(OTHERS, ANY)), warn)
        if isinstance(found, Word)
        else found
        for name, found in given.items()
    }


def _read(name: str, text: str, shape: Any, warn: Callable[[str], None]) -> Any:
    """JSON where that fits, else text where that fits: for a str, 123 is text."""
    try:
        found = value.decode(text)
    except _NO_JSON as error:
        if shape == ANY:
            return parse(text, f"argument {name!r}", warn)
        if misfit(shape, text) is None:
            return text
        if text.lstrip()[:1] in _JSON:
            expected = f"argument {name!r}: expected {in_words(shape)}"
            raise BadInput(f"{expected}, found {text!r:.80}, which is not JSON: {error}") from None
        return text  # refused with every other that does not fit
    as_text = misfit(shape, found) is not None and misfit(shape, text) is None
    return text if as_text else found


def arguments(words: Sequence[str], document: str | None) -> dict[str, Any]:
    """The arguments of a run: a JSON object, and name=value words, which are still to be read."""
    given: dict[str, Any] = {}
    if document is not None:
        expected = 'the input: expected a JSON object, like {"orders": [1, 2]}'
        try:
            found = value.decode(document)
        except _NO_JSON as error:
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
    """A time: ISO 8601 (local, unless it says otherwise), or +30s, +5m, +2h, +1d from now."""
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
