"""Waits for the ends of runs: one listener and one query serve all waits of a client.

A listener for each wait would need its own thread and database connection, and every one of them
would query at every notification.
"""

import asyncio
import contextlib
import contextvars
from collections.abc import Iterable

from andon.errors import StoreError, StoreUnavailable
from andon.runtime.futures import to_the_end
from andon.runtime.requests import requests
from andon.store.messages.rows import RunRow
from andon.store.store import Store

# Notifications may be lost; this bounds how late the end of a run is then noticed.
POLL_SECONDS = 0.5


class RunEnds:
    """The waits of one client. It listens from the first wait until it is closed."""

    def __init__(self, store: Store, *, patience_seconds: float) -> None:
        self._store, self._patience_seconds = store, patience_seconds
        self._ends: dict[str, set[asyncio.Future[RunRow]]] = {}  # by run
        self._notified = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    async def end_of(self, run_id: str) -> RunRow:
        """Return the run once waiting for it is over."""
        end: asyncio.Future[RunRow] = asyncio.get_running_loop().create_future()
        ends = self._ends.setdefault(run_id, set())
        ends.add(end)
        try:
            self._look()
            return await end
        finally:
            ends.discard(end)
            if not ends and self._ends.get(run_id) is ends:
                del self._ends[run_id]

    def _look(self) -> None:
        self._notified.set()  # the run may have ended already
        if self._looking is None or self._looking.done():
            # Empty context: this task belongs to no run, although agents wait for runs too.
            context = contextvars.Context()
            self._looking = context.run(asyncio.ensure_future, self._look_for_ever())

    async def _look_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        # Not a task either: an ending loop would cancel it and leave the listener open for ever.
        listening = loop.run_in_executor(None, self._store.listen_on, loop, self._notified.set)
        try:
            await to_the_end(listening)
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS if self._ends else None):
                        await self._notified.wait()
                self._notified.clear()
                await self._look_once()
        except Exception as error:  # noqa: BLE001 (waiting callers must get the error)
            self._looking = None  # later waits start a new task
            self._fail(error)
        finally:
            if listening.exception() is None:
                await to_the_end(loop.run_in_executor(None, listening.result()))

    async def _look_once(self) -> None:
        """Resolve finished runs, retrying an unavailable store for as long as a run would."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._patience_seconds
        while self._ends:
            try:
                over = await asyncio.to_thread(requests.over, self._store, [*self._ends])
            except StoreUnavailable:
                if loop.time() > until:
                    raise
                await asyncio.sleep(POLL_SECONDS)
            else:
                for row in over:
                    for end in _open(self._ends.get(row.id, ())):
                        end.set_result(row)
                return

    def _fail(self, error: Exception) -> None:
        for ends in self._ends.values():
            for end in _open(ends):
                end.set_exception(error)

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking
        self._fail(StoreError("the store was closed"))


def _open(ends: "Iterable[asyncio.Future[RunRow]]") -> "list[asyncio.Future[RunRow]]":
    return [end for end in ends if not end.done()]
