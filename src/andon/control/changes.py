"""Waiting for a change in the store: by wake-ups, and by looking, as wake-ups may be lost."""

from __future__ import annotations

import contextlib
import threading
import time
from functools import partial

from andon.errors import StoreError, StoreUnavailable
from andon.runtime.requests.lookup import find

TYPE_CHECKING = False  # whoever waits for a stop waits for this import too
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TypeVar

    from andon.store.messages.rows import RunRow
    from andon.store.store import Store

    T = TypeVar("T")

# Wake-ups may be lost; then this is how late a change is seen.
POLL_SECONDS = 0.5


@contextlib.contextmanager
def rings(store: Store) -> Iterator[Callable[[float], Any]]:
    """A function that pauses until something may have changed, and no longer than it is told."""
    rung = threading.Event()
    try:
        end = store.listen(rung.set)
    except (StoreError, OSError):  # looking every now and then does it too

        def end() -> None:
            pass

    def pause(seconds: float) -> None:
        rung.wait(min(seconds, POLL_SECONDS))
        rung.clear()

    try:
        yield pause
    finally:
        end()


class Patience:
    """Ask a database that may be away for a while."""

    def __init__(self, seconds: float, on_away: Callable[[StoreError], None]) -> None:
        self._seconds, self._on_away = seconds, on_away
        self._since: float | None = None

    def ask(self, question: Callable[[], T]) -> T | None:
        """The answer; None if the database is away, which is borne only for so long."""
        try:
            answer = question()
        except StoreUnavailable as error:
            now = time.monotonic()
            if self._since is None:
                self._since = now
                self._on_away(error)
            if now - self._since > self._seconds:
                raise
            return None
        self._since = None
        return answer


def wait(
    store: Store,
    run_id: str,
    *,
    timeout: float | None,
    patience: Patience,
    on_look: Callable[[RunRow], None],
    reached: Callable[[RunRow], bool] | None = None,
) -> RunRow | None:
    """The run once it is over, or `reached` says that it is far enough; None if not in time."""
    from andon.runtime.requests.requests import is_over

    until = None if timeout is None else time.monotonic() + timeout
    with rings(store) as pause:
        while True:
            row = patience.ask(lambda: find(store, run_id))
            if row is not None and (is_over(row) or (reached is not None and reached(row))):
                return row
            if row is not None:
                on_look(row)
            left = POLL_SECONDS if until is None else until - time.monotonic()
            if left <= 0:
                return None
            pause(left)


def follow(
    store: Store, run_id: str, patience: Patience, on_line: Callable[[dict[str, Any]], None]
) -> None:
    """Every line of a run's log, as it comes, until the run is over."""
    from andon.control.runs import runs
    from andon.runtime.requests.requests import is_over

    after = 0
    with rings(store) as pause:
        while True:
            # Looked at before the lines: what was written before the end is then certainly read.
            row = patience.ask(lambda: find(store, run_id))
            for line in patience.ask(partial(runs.lines, store, run_id, after)) or ():
                on_line(line)
                after = line["id"]
            if row is not None and is_over(row):
                return
            pause(POLL_SECONDS)
