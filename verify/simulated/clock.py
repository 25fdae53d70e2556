"""Virtual time: a clock that moves when the simulation moves it, and event loops driven by it.

Each simulated process has a loop of its own, and the simulation chooses whose next callback runs.
So a process can be frozen, or be gone, between any two callbacks.
"""

import asyncio
import contextlib
import heapq
import time
from asyncio import events
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

# The boot time of the simulated machines, by the store's clock. Any time will do.
BOOTED_AT = 1_800_000_000.0
# How often code that is gone may try to wait for something once more.
CLOSINGS = 20


class Clock:
    """The time of the simulated machines, and of the store, which may jump."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.offset = BOOTED_AT

    def store_now(self) -> float:
        return self.now + self.offset

    def _own_now(self, _: int = 0) -> float:
        return self.now

    @contextlib.contextmanager
    def everywhere(self) -> Iterator[None]:
        """Every caller of the `time` module reads this clock."""
        with (
            mock.patch.object(time, "monotonic", self._own_now),
            mock.patch.object(time, "clock_gettime", self._own_now),
            mock.patch.object(time, "time", self.store_now),
        ):
            yield


class Loop(asyncio.BaseEventLoop):
    """The event loop of one simulated process. Nothing in it waits, and nothing has a thread."""

    _ready: Any
    _scheduled: list[Any]

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._ended = False
        self.set_exception_handler(lambda loop, context: None)

    def time(self) -> float:
        return self._clock.now

    def _write_to_self(self) -> None:
        """No loop sleeps in `select`."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        """A thread that is as quick as the next callback."""
        future = self.create_future()

        def work() -> None:
            try:
                outcome = func(*args)
            except Exception as error:  # noqa: BLE001 (the caller gets it)
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(outcome)

        self.call_soon(work)
        return future

    def due(self) -> float | None:
        """When the next callback is to run; None if there is none."""
        if self._ready:
            return self._clock.now
        while self._scheduled and self._scheduled[0]._cancelled:
            heapq.heappop(self._scheduled)._scheduled = False
        return self._scheduled[0]._when if self._scheduled else None

    def step(self) -> None:
        """Runs the one callback that is due."""
        while self._scheduled and self._scheduled[0]._when <= self._clock.now:
            handle = heapq.heappop(self._scheduled)
            handle._scheduled = False
            self._ready.append(handle)
        handle = self._ready.popleft()
        if handle._cancelled:
            return
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            handle._run()
        finally:
            events._set_running_loop(before)

    def end(self) -> None:
        """Nothing of it runs any more; the clean-up code of its tasks runs now."""
        if self._ended:
            return
        self._ended = True
        _forget_done()
        gone: set[asyncio.Task[Any]] = set()
        while tasks := asyncio.all_tasks(self) - gone:  # also those created by the clean-up
            gone |= tasks
            for task in tasks:
                _close(task)
        self._ready.clear()
        self._scheduled.clear()


def _forget_done() -> None:
    """asyncio looks through all tasks of all loops, also those that wait for the collector."""
    for task in list(getattr(asyncio.tasks, "_all_tasks", ())):
        if task.done():
            asyncio.tasks._unregister_task(task)


def _close(task: "asyncio.Task[Any]") -> None:
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    asyncio.tasks._unregister_task(task)
    for _ in range(CLOSINGS):
        try:
            task.get_coro().close()
        except RuntimeError:  # its clean-up awaits something
            continue
        except BaseException:  # noqa: BLE001 (it is dead: no caller is left)
            pass
        return
