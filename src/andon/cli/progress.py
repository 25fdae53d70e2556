"""One line on stderr, drawn anew while a person waits: how far it is, and for how long already.

It is on a terminal and nowhere else: a pipe, a log and `--json` have nothing of it. Lines that stay
are printed above it, and its end leaves no trace. There is no thread behind it: each wait
draws it.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from andon.cli.output import note
from andon.cli.table import cut, room
from andon.core.text import clean, length

# Drawn no oftener: a slow connection must not slow down the work.
LEAST_SECONDS = 0.1
_CLEAR = "\r\x1b[K"


class Line:
    """The line, and what stays above it. Without a terminal only what stays is printed."""

    def __init__(self, *, shown: bool) -> None:
        self.shown = shown
        self._began = time.monotonic()
        self._drawn_at: float | None = None
        self._text = ""

    def show(self, text: str, done: int | None = None, total: int | None = None) -> None:
        """What is going on, and how much of it is done."""
        if not self.shown:
            return
        count = "" if done is None else f"{done:,}" if total is None else f"{done:,} of {total:,}"
        now = time.monotonic()
        if text == self._text and self._drawn_at and now - self._drawn_at < LEAST_SECONDS:
            return
        self._text, self._drawn_at = text, now
        most = (room(sys.stderr) or 80) - 1
        # The numbers come first: they are what a narrow terminal must still show.
        parts = [length(now - self._began), count, clean(text)]
        sys.stderr.write(_CLEAR + cut("  ".join(filter(None, parts)), most))
        sys.stderr.flush()

    def note(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        note(text)

    def above(self, say: Callable[[str], None]) -> Callable[[str], None]:
        """`say`, whose lines stay above this one."""

        def told(text: str) -> None:
            self.clear()
            say(text)

        return told

    def clear(self) -> None:
        if self._drawn_at is not None:
            self._drawn_at = None
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()


@contextlib.contextmanager
def line(*, json: bool = False) -> Iterator[Line]:
    """A line for as long as something lasts."""
    found = Line(shown=sys.stderr.isatty() and not json)
    try:
        yield found
    finally:
        found.clear()
