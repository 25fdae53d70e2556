"""Printing: stdout carries the answer, stderr progress and advice.

Text in the store was written by agents, and agents read the internet. It must not move the cursor,
change a title, or reorder or hide the text beside it: every character that is not plainly visible
is printed as an escape.
"""

from __future__ import annotations

import io
import json
import re
import sys
import time

from andon.cli.colour import Tinted, tinted
from andon.host.descriptors import open_standard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

SYMBOLS = {
    "queued": ("○", "."),
    "running": ("●", "*"),
    "suspended": ("◍", "o"),
    "paused": ("◐", "~"),
    "stranded": ("▲", "^"),
    "succeeded": ("✓", "+"),
    "failed": ("✗", "x"),
    "cancelled": ("■", "#"),
    "dead": ("☠", "X"),
    "killed": ("■", "#"),
    "stopping": ("◐", "~"),
    "stalled": ("▲", "^"),
    # stop orders
    "proved": ("■", "#"),
    "nothing": ("·", "-"),
    "unproved": ("!", "!"),
    # workers
    "serving": ("●", "*"),
    "asked": ("◐", "~"),
    "draining": ("◐", "~"),
    "exited": ("■", "#"),
    "died": ("☠", "X"),
    "silent": ("!", "!"),
    # commands
    "done": ("✓", "+"),
}
# Printed when a stop, or lifting one, leaves no worker that could continue the runs.
START_ONE = "To start one: andon work FILE, or andon up FILE, which starts it again when it ends"
_UNUSUAL = re.compile(r"[^\x20-\x7e\n]")  # a newline is only indentation


def prepare() -> None:
    """Make all text printable: characters that the terminal cannot show are escaped."""
    _keep_descriptors()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _keep_descriptors() -> None:
    """Fill closed descriptors 0 to 2: the store's file would get the number and be written to."""
    open_standard()
    sys.stdout = sys.stdout or io.TextIOWrapper(io.FileIO(1, "w", closefd=False))
    sys.stderr = sys.stderr or io.TextIOWrapper(io.FileIO(2, "w", closefd=False))


def say(text: str = "") -> None:
    """Print a line of the answer."""
    sys.stdout.write(text + "\n")


def note(text: str) -> None:
    """Print a line of progress or advice."""
    sys.stdout.flush()
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def document(value: Any) -> None:
    """Print the answer as one JSON document."""
    say(as_json(value, indent=2))


def as_json(value: Any, *, indent: int | None = None) -> str:
    """Encode as JSON, escaping characters that are invisible or that stdout cannot encode."""
    text = json.dumps(value, ensure_ascii=not speaks_unicode(), indent=indent)
    return _UNUSUAL.sub(_visible_in_json, text)


def _visible_in_json(found: re.Match[str]) -> str:
    character = found[0]
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def speaks_unicode() -> bool:
    try:
        "●✓☠".encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def state(word: str) -> Tinted:
    """Return a state as symbol and word, in its tint."""
    return tinted(f"{symbol(word)} {word}", word)


def symbol(word: str) -> str:
    pretty, plain = SYMBOLS.get(word, ("?", "?"))
    return pretty if speaks_unicode() else plain


def joined(parts: Sequence[str]) -> str:
    """Join several short facts into one line."""
    return (" · " if speaks_unicode() else ", ").join(parts)


def clock(at: float | None) -> str:
    """Format a time of the store in local time."""
    if at is None:
        return "-"
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return f"{at:.0f}"
