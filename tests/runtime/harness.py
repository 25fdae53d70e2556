"""A laboratory for the SDK: real stores, real workers and a real client, in one process.

A *replay* is made by suspending the run and waking it up; a *death* by reporting to a second worker
that the first is gone, while the first is held inside its step or effect.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any

from andon.core.journal import Entry
from andon.errors import StoreUnavailable
from andon.runtime.agent import Agent
from andon.runtime.client import Client
from andon.runtime.requests.requests import Run
from andon.runtime.worker.worker import Worker
from andon.settings import Settings
from andon.store import open_store
from andon.store.messages.rows import AskRow
from andon.store.store import EffectRow

# Generous: only a failing test reaches it.
LIMIT_SECONDS = 30.0
WORKER_OPTIONS = ("queues", "promote", "promote_known")


def agent(function: Callable[..., Any], **options: Any) -> Agent:
    """An agent named `agent`: its successors with other code have the same name."""
    return Agent(function, **{"name": "agent", **options})


class Lab:
    """One store, a client, and as many workers as a test starts."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.store: Any = open_store(url)
        self.client = Client(settings=Settings(store=url))

    async def __aenter__(self) -> "Lab":
        await self.client.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.client.__aexit__(kind, error, trace)

    @contextlib.asynccontextmanager
    async def working(self, *agents: Agent, **settings: Any) -> AsyncIterator[Worker]:
        """A worker with a store of its own, as another process would have."""
        store = open_store(self.url)
        options: dict[str, Any] = {"grace_seconds": 5.0, **settings}
        told = {name: options.pop(name) for name in WORKER_OPTIONS if name in options}
        found = Settings(store=self.url, **options)
        try:
            async with Worker(store, list(agents), found, **told) as worker:
                yield worker
        finally:
            store.close()

    async def reach(self, run_id: str, *states: str) -> Run:
        """Wait until the run is in one of the states."""
        run = await self.client.get(run_id)
        async with asyncio.timeout(LIMIT_SECONDS):
            while run.state not in states:
                if run.finished or run.state == "stranded":
                    raise AssertionError(f"expected {states}, found {run.state}: {run.error}")
                await asyncio.sleep(0.003)
                run = await self.client.get(run_id)
        return run

    async def end(self, run_id: str) -> Run:
        """Wait until the run is finished or stranded."""
        return await self.client.wait(run_id, timeout=LIMIT_SECONDS)

    async def reach_after_end(self, run_id: str, state: str) -> Run:
        """Wait until the run is in that state, even if it has finished in another one before."""
        run = await self.client.get(run_id)
        async with asyncio.timeout(LIMIT_SECONDS):
            while run.state != state:
                await asyncio.sleep(0.003)
                run = await self.client.get(run_id)
        return run

    async def reach_version(self, run_id: str, version: str) -> Run:
        """Wait until the run is on that version and not on trial."""
        async with asyncio.timeout(LIMIT_SECONDS):
            while (row := self.store.run(run_id)).version != version or row.trial is not None:
                await asyncio.sleep(0.003)
        return await self.client.get(run_id)

    async def result(self, run_id: str) -> Any:
        run = await self.end(run_id)
        assert run.state == "succeeded", run.error
        return run.result

    async def replayed(self, run_id: str, event: str = "go") -> Any:
        """Wake a run that is suspended at `ctx.event("go")`, which replays it; its result."""
        await self.reach(run_id, "suspended")
        await self.client.send(run_id, event)
        return await self.result(run_id)

    async def waits_for(self, run_id: str, what: str) -> None:
        """Wait until the run is suspended over a wait of that kind or name."""
        await until(lambda: f'"{what}"' in (self.store.run(run_id).waits or ""))

    async def asked(self, run_id: str) -> AskRow:
        """The open ask of a run that waits only for its answer."""
        await self.reach(run_id, "suspended")
        [ask] = self.store.asks(run_id)
        assert isinstance(ask, AskRow)
        return ask

    async def journal(self, run_id: str, kind: str | None = None) -> list[Entry]:
        entries = await self.client.journal(run_id)
        return [entry for entry in entries if kind in (None, entry.kind)]

    def effects(self, run_id: str) -> dict[str, str]:
        """The states of a run's effects by their names."""
        rows: list[EffectRow] = self.store.ledger(run_id)
        return {row.name: row.state for row in rows}


async def until(condition: Callable[[], Any]) -> Any:
    """Wait until `condition` is true, and return its value."""
    async with asyncio.timeout(LIMIT_SECONDS):
        while not (found := condition()):
            await asyncio.sleep(0.002)
    return found


async def claims_again(worker: Worker, times: int = 6) -> None:
    """Let a worker claim so often: nothing notifies it, and its polls are seconds apart."""
    number = worker._claim_number

    def claimed() -> bool:
        worker.wake()
        return worker._claim_number >= number + times

    await until(claimed)


def declare_lost(survivor: Worker, lost: Worker, evidence: str = "dead:the test says so") -> None:
    """Tell `survivor` that `lost` is gone: for certain (dead), or only not heard of (silent)."""
    survivor.post(survivor._on_death, lost.worker_id, evidence)


class Held:
    """A place inside user code that stops an execution until the test releases it.

    Only the first one: the execution of the next worker passes.
    """

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.release = asyncio.Event()

    async def here(self) -> None:
        if not self.reached.is_set():
            self.reached.set()
            await self.release.wait()


def by_thread(worker: Worker) -> None:
    """Let the writer's thread make every commit, by the store's `write`."""

    def refuse(batch: Any) -> Any:
        raise StoreUnavailable("the thread's to write")

    worker.store.send = lambda batch, **_: None
    worker.store.write_at_once = refuse
