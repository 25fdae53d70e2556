"""Parses values typed on a command line, by the type of the parameter they are for."""

from collections.abc import Callable
from typing import Any

import msgspec

from andon.core.values import value
from andon.core.values.shape import ANY, OTHERS, misfit
from andon.core.values.shape import words as in_words
from andon.errors import BadInput

# Everyday text does not begin with these.
_JSON = ("[", "{", '"')
# The errors that the decoder raises for text that is not JSON.
NO_JSON = (msgspec.DecodeError, UnicodeError, RecursionError)


def parse(text: str, what: str = "", warn: Callable[[str], None] = lambda _: None) -> Any:
    """Parse a typed value: JSON if valid, else text, with a warning if the text looks like JSON."""
    try:
        return value.decode(text)
    except NO_JSON as error:
        if text.lstrip()[:1] in _JSON:
            warn(f"{what} looks like JSON, but is not valid and is taken as text: {error}")
        return text


class Word(str):
    """A value as it was typed; its meaning depends on the parameter it is for."""

    __slots__ = ()


def read(
    given: dict[str, Any], types: dict[str, Any], warn: Callable[[str], None]
) -> dict[str, Any]:
    """Replace each Word among the arguments by its value; `types` holds the parameters' shapes."""
    return {
        name: _read(name, str(found), types.get(name, types.get(OTHERS, ANY)), warn)
        if isinstance(found, Word)
        else found
        for name, found in given.items()
    }


def _read(name: str, text: str, shape: Any, warn: Callable[[str], None]) -> Any:
    """Prefer JSON where it fits the shape, else text where that fits: for a str, 123 is text."""
    try:
        found = value.decode(text)
    except NO_JSON as error:
        if shape == ANY:
            return parse(text, f"argument {name!r}", warn)
        if misfit(shape, text) is None:
            return text
        if text.lstrip()[:1] in _JSON:
            expected = f"argument {name!r}: expected {in_words(shape)}"
            raise BadInput(f"{expected}, found {text!r:.80}, which is not JSON: {error}") from None
        return text  # the start refuses it, together with all other misfits
    as_text = misfit(shape, found) is not None and misfit(shape, text) is None
    return text if as_text else found
