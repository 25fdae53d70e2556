"""A worker inside the user's own program: a web server, a service, a test.

It installs no signal handlers, because the program has its own, and it ends with its block.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from andon.runtime.agent import Agent
from andon.runtime.futures import close
from andon.runtime.worker.embedded_latch import EmbeddedLatch, refuse_if_pulled
from andon.runtime.worker.worker import Worker
from andon.settings import Settings, load
from andon.store import open_store


class serving:  # noqa: N801 (it is written like the function it stands for)
    """Serve agents inside a program, until the end of the block.

    Use `async with andon.serving(refunds):`, or `lifespan=andon.serving(refunds)` in an ASGI app.
    At the end of the block the worker drains within its grace period. When everything is halted the
    worker leaves at once and the program continues without it.
    """

    def __init__(
        self, *agents: Agent, store: str | None = None, settings: Settings | None = None
    ) -> None:
        self._agents = list(agents)
        self._settings = settings or load({"store": store})
        if store is not None:
            self._settings = self._settings.but(store=store)
        self._leaving: EmbeddedLatch | None = None

    async def __aenter__(self) -> Worker:
        refuse_if_pulled()
        opened = await asyncio.to_thread(open_store, self._settings.store)
        worker = Worker(opened, self._agents, self._settings)
        try:
            await worker.__aenter__()
        except BaseException:
            await close(opened)
            raise
        self._leaving = EmbeddedLatch(worker)
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
        """Support ASGI frameworks, which call their lifespan with the app."""
        async with self:
            yield
