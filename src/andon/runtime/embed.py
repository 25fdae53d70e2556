"""A worker inside a program of one's own: a web server, a service, a test.

No signal is touched: the program has its own ideas about them, and its end is the end of the block.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from andon.runtime.agent import Agent
from andon.runtime.attempt.journal import close
from andon.runtime.worker.embedded_latch import Leaving, refuse_if_pulled
from andon.runtime.worker.worker import Worker
from andon.settings import Settings, load
from andon.store import open_store


class serving:  # noqa: N801 (it is written like the function it stands for)
    """`async with andon.serving(refunds):`, or `lifespan=andon.serving(refunds)` of an ASGI app.

    At the end of the block the worker drains, within its grace period; when everything is halted
    it leaves at once, and the program goes on without it.
    """

    def __init__(
        self, *agents: Agent, store: str | None = None, settings: Settings | None = None
    ) -> None:
        self._agents = list(agents)
        self._settings = settings or load({"store": store})
        if store is not None:
            self._settings = self._settings.but(store=store)
        self._leaving: Leaving | None = None

    async def __aenter__(self) -> Worker:
        refuse_if_pulled()
        opened = await asyncio.to_thread(open_store, self._settings.store)
        worker = Worker(opened, self._agents, self._settings)
        try:
            await worker.__aenter__()
        except BaseException:
            await close(opened)
            raise
        self._leaving = Leaving(worker)
        return worker

    async def __aexit__(self, *_: Any) -> None:
        leaving, self._leaving = self._leaving, None
        assert leaving is not None
        try:
            await leaving.leave()
        finally:
            await close(leaving.worker.store)

    @contextlib.asynccontextmanager
    async def __call__(self, app: Any) -> AsyncIterator[None]:
        """As ASGI frameworks call what they are given as their lifespan."""
        async with self:
            yield
