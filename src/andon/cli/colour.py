"""Colours on terminals: four tints, from the palette that the owner of the terminal has chosen.

Colour repeats what words and symbols say and never carries meaning alone. Red marks what is wrong
or not proved, and nothing else.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

# No yellow, white or black: each is unreadable on either a light or a dark background.
CODES = {"wrong": "31", "good": "32", "held": "35", "alive": "36", "quiet": "2", "head": "1"}
TINTS = {
    word: tint
    for tint, words in {
        "alive": "running serving suspended",
        "quiet": "queued exited cancelled nothing",
        "good": "succeeded proved done ok",
        "held": "paused killed stopping asked draining warn",
        "wrong": "failed dead stranded stalled unproved died silent fail",
    }.items()
    for word in words.split()
}


class Tinted(str):
    """Text with a tint, applied when it is printed; inside another string it is plain."""

    __slots__ = ("tint",)
    tint: str


def tinted(text: str, word: str) -> Tinted:
    """Return the text in the tint of a state."""
    found = Tinted(text)
    found.tint = TINTS.get(word, word)
    return found


def paint(text: str, stream: IO[str] | None = None) -> str:
    """Add colour codes if the stream shows them; the result must not be measured or cut."""
    code = CODES.get(getattr(text, "tint", ""))
    if code is None or not text or not shown_on(stream or sys.stdout):
        return str(text)
    return f"\x1b[{code}m{text}\x1b[0m"


def shown_on(stream: IO[str]) -> bool:
    """Whether a stream shows colours; NO_COLOR outranks FORCE_COLOR, as in Python itself."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return os.environ.get("TERM") != "dumb" and stream.isatty()
