"""The runs that a program waits for: one ear, and one look for all of them.

An ear for each would be a thread and a connection to the database for each, and all of them would
look at every ring.
"""

import asyncio
import contextlib
import contextvars
from collections.abc import Iterable
from typing import Any

from andon.errors import StoreError, StoreUnavailable
from andon.runtime.attempt.journal import to_the_end
from andon.runtime.requests import requests
from andon.store.messages.rows import RunRow

# Rings may be lost; then this is how late the end of a run is heard of.
POLL_SECONDS = 0.5


class Awaiting:
    """What one client waits for. It listens from the first wait on, until it is closed."""

    def __init__(self, store: Any, *, patience_seconds: float) -> None:
        self._store, self._patience_seconds = store, patience_seconds
        self._ends: dict[str, set[asyncio.Future[RunRow]]] = {}  # by the run
        self._rung = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    async def end_of(self, run_id: str) -> RunRow:
        """The run of that id, once waiting for it is over."""
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
        self._rung.set()  # it may have ended already
        if self._looking is None or self._looking.done():
            # In no run's context: agents wait for runs too, and this is not a task of theirs.
            context = contextvars.Context()
            self._looking = context.run(asyncio.ensure_future, self._look_for_ever())

    async def _look_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        # Neither is a task, which a loop that ends would cancel: then it would listen for ever.
        listening = loop.run_in_executor(None, self._store.listen_on, loop, self._rung.set)
        try:
            await to_the_end(listening)
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS if self._ends else None):
                        await self._rung.wait()
                self._rung.clear()
                await self._look_once()
        except Exception as error:  # noqa: BLE001 (whoever waits must hear of it)
            self._looking = None  # who waits from here on begins anew
            self._fail(error)
        finally:
            if listening.exception() is None:
                await to_the_end(loop.run_in_executor(None, listening.result()))

    async def _look_once(self) -> None:
        """Whoever waits for a run waits for its database too, as the run itself does."""
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
