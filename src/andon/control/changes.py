"""Waiting for a change in the store: by notification, and by polling, as these may be lost."""

from __future__ import annotations

import contextlib
import threading
import time

from andon.errors import StoreError, StoreUnavailable
from andon.runtime.requests.lookup import find

TYPE_CHECKING = False  # not typing's: that import would delay every stop
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TypeVar

    from andon.store.messages.rows import RunRow
    from andon.store.store import Store

    T = TypeVar("T")

# A change is noticed at most this late if its notification was lost.
POLL_SECONDS = 0.5


@contextlib.contextmanager
def until_change(store: Store) -> Iterator[Callable[[float], Any]]:
    """Yield a function that pauses until the store may have changed, or the time given is over."""
    changed = threading.Event()
    try:
        end = store.listen(changed.set)
    except (StoreError, OSError):  # without notifications, polling is enough

        def end() -> None:
            pass

    def pause(seconds: float) -> None:
        changed.wait(min(seconds, POLL_SECONDS))
        changed.clear()

    try:
        yield pause
    finally:
        end()


class Patience:
    """Queries a database that may be unavailable for a while."""

    def __init__(self, seconds: float, on_away: Callable[[StoreError], None]) -> None:
        self._seconds, self._on_away = seconds, on_away
        self._since: float | None = None

    def ask(self, question: Callable[[], T]) -> T | None:
        """The answer, or None if the database is away; raises once it is away for too long."""
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


def poll(
    store: Store,
    look: Callable[[], bool],
    patience: Patience,
    timeout: float | None,
    soon: Callable[[], float] = lambda: POLL_SECONDS,
) -> bool:
    """Call `look` until it answers true, at every change and after `soon` seconds at the latest.

    Returns whether it did in time.
    """
    until = None if timeout is None else time.monotonic() + timeout
    with until_change(store) as pause:
        while not patience.ask(look):
            left = POLL_SECONDS if until is None else until - time.monotonic()
            if left <= 0:
                return False
            pause(min(left, soon()))
    return True


def wait(
    store: Store,
    run_id: str,
    *,
    timeout: float | None,
    patience: Patience,
    on_look: Callable[[RunRow], None],
    reached: Callable[[RunRow], bool] | None = None,
) -> RunRow | None:
    """The run once it is over or `reached` accepts it; None if that takes longer than `timeout`."""
    from andon.runtime.requests.requests import is_over

    found: RunRow | None = None

    def look() -> bool:
        nonlocal found
        found = find(store, run_id)
        if is_over(found) or (reached is not None and reached(found)):
            return True
        on_look(found)
        return False

    return found if poll(store, look, patience, timeout) else None


def follow(
    store: Store, run_id: str, patience: Patience, on_line: Callable[[dict[str, Any]], None]
) -> None:
    """Pass on each line of a run's log as it is written, until the run is over."""
    from andon.control.runs import runs
    from andon.runtime.requests.requests import is_over

    after = 0

    def look() -> bool:
        nonlocal after
        # Read the row before the lines: every line written before the end is then seen.
        row = find(store, run_id)
        for line in runs.lines(store, run_id, after):
            on_line(line)
            after = line["id"]
        return is_over(row)

    poll(store, look, patience, None)
