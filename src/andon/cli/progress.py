"""One line of progress on stderr, redrawn while a person waits: how far, and for how long.

The line appears only on a terminal, never in a pipe, a log or with `--json`. Permanent lines are
printed above it, and it is erased when the wait ends. It has no thread of its own: each wait
redraws it.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from andon.cli.output import note
from andon.cli.table import cut, room
from andon.core.text import clean, length

# The shortest time between redraws: a slow connection must not slow down the work.
LEAST_SECONDS = 0.1
_CLEAR = "\r\x1b[K"


class ProgressLine:
    """The progress line and the permanent lines above it; without a terminal only the latter."""

    def __init__(self, *, shown: bool) -> None:
        self.shown = shown
        self._began = time.monotonic()
        self._drawn_at: float | None = None
        self._text = ""

    def show(self, text: str, done: int | None = None, total: int | None = None) -> None:
        """Show the current activity, and how much of it is done."""
        if not self.shown:
            return
        count = "" if done is None else f"{done:,}" if total is None else f"{done:,} of {total:,}"
        now = time.monotonic()
        if text == self._text and self._drawn_at and now - self._drawn_at < LEAST_SECONDS:
            return
        self._text, self._drawn_at = text, now
        most = (room(sys.stderr) or 80) - 1
        # The numbers come first, because a narrow terminal cuts the rest.
        parts = [length(now - self._began), count, clean(text)]
        sys.stderr.write(_CLEAR + cut("  ".join(filter(None, parts)), most))
        sys.stderr.flush()

    def note(self, text: str) -> None:
        """Print a permanent line."""
        self.clear()
        note(text)

    def above(self, say: Callable[[str], None]) -> Callable[[str], None]:
        """Wrap `say` so that its lines appear above this one."""

        def printed(text: str) -> None:
            self.clear()
            say(text)

        return printed

    def clear(self) -> None:
        if self._drawn_at is not None:
            self._drawn_at = None
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()


@contextlib.contextmanager
def line(*, json: bool = False) -> Iterator[ProgressLine]:
    """Provide a progress line while the block runs, and erase it afterwards."""
    found = ProgressLine(shown=sys.stderr.isatty() and not json)
    try:
        yield found
    finally:
        found.clear()
