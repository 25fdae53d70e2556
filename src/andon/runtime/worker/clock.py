"""Time: the store's, and this process's own.

Own time keeps running while the process is frozen or the machine sleeps, and never jumps; the
store's time is estimated from it, so that a changed wall clock changes no decision.
"""

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
ahead = 0.0  # seconds; only andon.testing.Clock moves it


def own_time() -> float:
    return time.clock_gettime(_CLOCK) + ahead


class StoreClock:
    """Estimate of the store's clock, so that it need not be asked each time."""

    def __init__(self) -> None:
        self._offset = time.time() - own_time()

    def set(self, store_now: float) -> None:
        self._offset = store_now - own_time()

    def now(self) -> float:
        return time.clock_gettime(_CLOCK) + ahead + self._offset  # own_time, inlined to save a call
