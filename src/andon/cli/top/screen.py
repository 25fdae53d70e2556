"""`andon top`: shows the fleet, redrawn every second and whenever the store changes.

A separate thread reads the store, so that a store that does not answer blocks neither the keys nor
the clock: the screen says NOT LIVE and how old it is, until the store answers again.
"""

import contextlib
import io
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from andon.cli.top import frame, terminal
from andon.cli.views import run_view
from andon.control.overview import overview
from andon.control.runs import runs
from andon.core.text import age, clean
from andon.core.values.struct import Struct
from andon.errors import AndonError, NotFound, StoreUnavailable
from andon.store import open_store, sqlite_file
from andon.store.store import Store

REFRESH_SECONDS = 1.0
# The shortest time between reads of a store that changes all the time.
LEAST_SECONDS = 0.1
# A picture older than this is marked as old; a store that is merely busy answers in time.
LIVE_SECONDS = 3.0
# Limit for the store's first answer, before the screen is taken over.
FIRST_SECONDS = 30.0
MOST_ROWS = 200
# More than any page has.
MOST_LINES = 1_000_000


class Fetched(Struct):
    """An answer of the store: the fleet, or the error."""

    fleet: dict[str, Any] | None = None
    run: dict[str, Any] | None = None  # the run whose page is open
    error: Exception | None = None


class Reader:
    """Reads the store in a thread until it is closed; reopens a store that went away."""

    def __init__(self, url: str, which: dict[str, Any], on_change: Callable[[], None]) -> None:
        self._url, self._which, self._on_change = url, which, on_change
        self._store: Store | None = None
        self._file: tuple[int, int] | None = None
        self._end_listening: Callable[[], None] | None = None
        self._changed, self._closed = threading.Event(), threading.Event()
        self._opened: str | None = None
        self.answers: queue.SimpleQueue[Fetched] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read_on, name="andon-top", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop reading without waiting for a store that hangs: the thread ends with the process."""
        self._closed.set()
        self._changed.set()
        self._thread.join(LEAST_SECONDS * 5)

    def show(self, run_id: str | None) -> None:
        """Include the details of this run in answers from now on."""
        self._opened = run_id
        self._changed.set()

    def _read_on(self) -> None:
        while not self._closed.is_set():
            self._changed.clear()
            self._answer()
            self._on_change()
            if not self._closed.wait(LEAST_SECONDS):
                self._changed.wait(REFRESH_SECONDS - LEAST_SECONDS)
        self._leave()

    def _answer(self) -> None:
        try:
            store = self._reached()
            fleet = overview(store, limit=MOST_ROWS, **self._which)
            opened = self._opened
            self.answers.put(Fetched(fleet=fleet, run=_page(store, opened)))
        except Exception as error:  # noqa: BLE001 (any error is shown, and the read retried)
            self._leave()
            self.answers.put(Fetched(error=error))

    def _reached(self) -> Store:
        """Return the store, reopened if its file was replaced."""
        file = sqlite_file(self._url)
        if file is not None and self._store is not None and _identity(file) != self._file:
            self._leave()
        if self._store is None:
            store: Store = open_store(self._url, create=False, look="long")
            self._store = store
            self._file = None if file is None else _identity(file)
            with contextlib.suppress(AndonError, OSError):  # polling suffices
                self._end_listening = store.listen(self._changed.set)
        return self._store

    def _leave(self) -> None:
        store, self._store = self._store, None
        end, self._end_listening = self._end_listening, None
        with contextlib.suppress(Exception):
            if end is not None:
                end()
        with contextlib.suppress(Exception):
            if store is not None:
                store.close()


def _identity(file: str) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except OSError as error:
        raise StoreUnavailable(f"{file}: {error.strerror or error}") from None
    return found.st_dev, found.st_ino


def _page(store: Store, run_id: str | None) -> dict[str, Any] | None:
    with contextlib.suppress(NotFound):
        return None if run_id is None else runs.show(store, run_id)
    return None


class _Paper(io.StringIO):
    """Captures what a command would print on this terminal."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return sys.__stdout__.encoding if sys.__stdout__ else "ascii"

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1


def _printed(found: dict[str, Any]) -> list[str]:
    """Return the output of `andon show` as lines; nothing else may print meanwhile."""
    paper = _Paper()
    with contextlib.redirect_stdout(paper), contextlib.redirect_stderr(paper):
        run_view.run(found)
    return paper.getvalue().rstrip("\n").split("\n")


class View:
    """The content of the screen: the table with a selected row, or the page of one run."""

    def __init__(self, first: dict[str, Any], ask: Callable[[str | None], None]) -> None:
        self._ask = ask
        self._fleet, self._seen_at, self._error = first, time.monotonic(), ""
        self._selected: str | None = None
        self._at = 0  # index of the selected row, kept after its run has left the list
        self._run: str | None = None
        self._found: dict[str, Any] | None = None
        self._scrolled = 0
        self._rows = 1

    def see(self, seen: Fetched) -> None:
        """Take over an answer of the store."""
        if seen.fleet is None:
            self._error = clean(seen.error or "no answer", 300)
            return
        self._fleet, self._seen_at, self._error = seen.fleet, time.monotonic(), ""
        if seen.run is not None and seen.run["id"] == self._run:
            self._found = seen.run

    def press(self, key: str) -> bool:
        """Handle a key; return whether to continue."""
        if self._run is None:
            return self._press_in_table(key)
        if key in ("q", terminal.ESCAPE, terminal.ENTER, terminal.LEFT):
            self._run = self._found = None
            self._ask(None)
        else:
            self._scrolled = self._moved(key, self._scrolled)
        return True

    def _press_in_table(self, key: str) -> bool:
        if key == "q":
            return False
        ids = [row["id"] for row in self._fleet["rows"]]
        if key in (terminal.ENTER, terminal.RIGHT) and self._selected in ids:
            self._run, self._scrolled = self._selected, 0
            self._ask(self._run)
        elif ids:
            self._at = min(self._moved(key, self._at), len(ids) - 1)
            self._selected = ids[self._at]
        return True

    def _moved(self, key: str, at: int) -> int:
        steps = {"j": 1, terminal.DOWN: 1, "k": -1, terminal.UP: -1}
        steps |= {" ": self._rows, terminal.PAGE_DOWN: self._rows, terminal.PAGE_UP: -self._rows}
        ends = {"g": 0, terminal.HOME: 0, "G": MOST_LINES, terminal.END: MOST_LINES}
        return ends.get(key, max(at + steps.get(key, 0), 0))

    def lines(self, size: frame.Size) -> list[str]:
        self._rows = max((size.rows or 24) - 6, 1)
        if self._run is None:
            return frame.frame(self._fleet, size, selected=self._select(), away=self._away())
        text = _printed(self._found) if self._found else [f"run {clean(self._run)} ..."]
        if self._away():
            text = [*frame.header(self._fleet, size, self._away())[:1], *text]
        text = frame.folded(text, size)
        self._scrolled = min(self._scrolled, frame.last_page(text, size))
        return frame.page(text, size, self._scrolled)

    def _select(self) -> str:
        """Return the selected run; if it has left the list, the one now in its place."""
        ids = [row["id"] for row in self._fleet["rows"]]
        if self._selected in ids:
            self._at = ids.index(self._selected)
        elif ids:
            self._at = min(self._at, len(ids) - 1)
            self._selected = ids[self._at]
        return self._selected or ""

    def _away(self) -> str:
        """Return how old the picture is and why, or nothing if it is live."""
        old = time.monotonic() - self._seen_at
        if not self._error and old < LIVE_SECONDS:
            return ""
        why = self._error or "the store does not answer"
        return f"this is {age(old)} old; {why}"


def run(url: str, which: dict[str, Any]) -> None:
    """Show the fleet until q or Ctrl-C."""
    waker: list[Callable[[], None]] = []

    def changed() -> None:
        for wake in waker:
            wake()

    reader = Reader(url, which, changed)
    reader.start()
    try:
        first = _first(reader)
        with terminal.taken() as taken:
            waker.append(taken.wake)
            try:
                _go_on(reader, View(first, reader.show), taken)
            finally:
                waker.clear()
    finally:
        reader.close()


def _first(reader: Reader) -> dict[str, Any]:
    """Return the first picture; an error before it fails the command."""
    try:
        seen = reader.answers.get(timeout=FIRST_SECONDS)
    except queue.Empty:
        raise StoreUnavailable(
            f"the store has not answered within {FIRST_SECONDS:g} s. Check that it is running"
        ) from None
    if seen.fleet is None:
        raise seen.error or StoreUnavailable("the store does not answer")
    return seen.fleet


def _go_on(reader: Reader, view: View, taken: terminal.Terminal) -> None:
    while True:
        with contextlib.suppress(queue.Empty):
            while True:
                view.see(reader.answers.get_nowait())
        taken.draw(view.lines(terminal.size()))
        keys = taken.wait(REFRESH_SECONDS)
        if keys is None or not all(view.press(key) for key in keys):
            return
