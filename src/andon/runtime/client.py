"""The client: start, watch, answer and execute runs from a program."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import msgspec

from andon.core.journal import Entry
from andon.core.run import State
from andon.core.stop import WITHIN_SECONDS, StopKind
from andon.errors import Refused, StepFailed, StoreUnavailable, Unresolved
from andon.runtime.agent import Agent
from andon.runtime.futures import close
from andon.runtime.operations.steer_messages import Steer
from andon.runtime.requests import requests
from andon.runtime.requests import tool_ledger as ledger
from andon.runtime.requests.requests import Receipt, Run
from andon.runtime.requests.start import resolve
from andon.runtime.requests.waiters import POLL_SECONDS, RunEnds
from andon.runtime.worker.clock import StoreClock, own_time
from andon.runtime.worker.embedded_latch import EmbeddedLatch, refuse_if_pulled
from andon.runtime.worker.worker import Worker
from andon.settings import Settings
from andon.settings import load as load_settings
from andon.store import open_store
from andon.store.messages.rows import Filter, RunRow
from andon.store.store import AgentRow, NewRun, Start
from andon.store.writer.writer import Writer
from andon.transcript import Call
from andon.transcript import State as ToolState

_T = TypeVar("_T")

# At close, for starts that no caller waits for any more.
CLOSE_SECONDS = 2.0
# How long one reading of the store's clock is used; clocks drift less than a millisecond in it.
CLOCK_SECONDS = 10.0


class Client:
    """A connection to a store, to start, watch, answer and stop runs.

    Use `async with andon.Client() as client:`, or in plain code `with andon.Client.sync() as
    client:`. Without `store`, the store of the settings is used.
    """

    def __init__(self, store: str | None = None, *, settings: Settings | None = None) -> None:
        self.settings = settings or load_settings({"store": store})
        if store is not None:
            self.settings = self.settings.but(store=store)
        self._store: Any = None
        self._leaving: EmbeddedLatch | None = None  # holds the worker inside this program
        self._starting = asyncio.Lock()
        self._writer: Writer | None = None
        self._asked: dict[str, asyncio.Task[AgentRow]] = {}  # lookups in flight, by agent name
        self._clock, self._clock_until = StoreClock(), 0.0  # no need to ask before then

    @classmethod
    def sync(cls, store: str | None = None) -> AbstractContextManager[Any]:
        """The same client for plain code: every method blocks instead of being awaited."""
        from andon.runtime.sync import blocking

        return blocking(lambda: cls(store))

    async def __aenter__(self) -> "Client":
        self._store = await asyncio.to_thread(open_store, self.settings.store)
        self._ends = RunEnds(self._store, patience_seconds=self.settings.patience_seconds)
        try:
            await self._set_clock()
        except BaseException:
            await close(self._store)
            raise
        return self

    async def __aexit__(self, *_: Any) -> None:
        try:
            if self._leaving is not None:
                await self._leaving.leave()
        finally:
            await self._ends.close()
            if self._writer is not None:
                self._writer.close(CLOSE_SECONDS)
            await close(self._store)

    async def _ask(self, request: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
        return await asyncio.to_thread(request, self._store, *args, **kwargs)

    async def start(
        self,
        agent: Agent | str,
        *args: Any,
        id: str | None = None,  # noqa: A002 (the word users know)
        priority: int = 0,
        queue: str | None = None,
        labels: dict[str, str] | None = None,
        at: float | datetime | None = None,
        connection: Any = None,
        **kwargs: Any,
    ) -> str:
        """Start a run and return its id; with an `id`, the call can be repeated.

        `queue` replaces the agent's own queue. With a psycopg `connection`, the run exists once
        that connection's transaction commits.
        """
        options = {"id": id, "priority": priority, "labels": labels, "at": at, "queue": queue}
        if connection is not None and not hasattr(connection, "__aenter__"):
            request = partial(requests.start, connection=connection)
            return str(await self._ask(request, agent, args, kwargs, **options))
        run = await self._prepare(agent, args, kwargs, options)
        if connection is not None:
            await self._store.start_on_async(connection, run)
        else:
            await self._writing().submit(Start(run=run))
        return run.id

    async def _prepare(
        self, agent: Agent | str, args: Any, kwargs: Any, options: dict[str, Any]
    ) -> NewRun:
        """Build the run, asking the store only if needed: programs start thousands of runs."""
        if own_time() > self._clock_until:
            await self._set_clock()
        meant = await self._resolve(agent) if isinstance(agent, str) else agent
        now = self._clock.now()
        return requests.prepare(self._store, meant, args, kwargs, **options, now=now)

    async def _resolve(self, name: str) -> AgentRow:
        """Share one lookup among callers in the same turn of the loop; programs start thousands."""
        asked = self._asked.get(name)
        if asked is None:
            asked = self._asked[name] = asyncio.ensure_future(self._look_up(name))
            asked.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(asked)

    async def _look_up(self, name: str) -> AgentRow:
        del self._asked[name]  # later callers may know of a promotion: they need a new lookup
        return await asyncio.to_thread(resolve, self._store, name)

    async def _set_clock(self) -> None:
        # Set before the await, so that concurrent callers do not ask as well.
        self._clock_until = own_time() + CLOCK_SECONDS
        self._clock.set(await asyncio.to_thread(self._store.now))

    def _writing(self) -> Writer:
        """One writer for all starts, so that starts made at the same time share commits."""
        if self._writer is None:
            self._writer = Writer(self._store, patience_seconds=0)
        return self._writer

    async def get(self, run_id: str) -> Run:
        """Return a run by its id, or by the unambiguous beginning of one."""
        return await self._ask(requests.get, run_id)

    async def list(
        self,
        *,
        states: tuple[str, ...] = (),
        agent: str | None = None,
        label: tuple[str, str] | None = None,
        limit: int = 100,
        before: Run | None = None,
    ) -> Sequence[Run]:
        """List runs, newest first; `before` is the last run of the previous page."""
        cursor = None if before is None else (before.created_at, before.id)
        which = Filter(states=states, agent=agent, label=label, limit=limit, before=cursor)
        rows = await self._ask(requests.list_runs, which)
        return [await self._ask(requests.described, row) for row in rows]

    async def wait(self, run_id: str, *, timeout: float | None = None) -> Run:  # noqa: ASYNC109
        """Return the run once finished or stranded; raises Unresolved after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                row = await self._find_patiently(run_id)
                if not requests.is_over(row):
                    row = await self._ends.end_of(row.id)
                return await self._ask(requests.described, row)
        except TimeoutError:
            raise Unresolved(f"run {run_id} was not finished within {timeout} s") from None

    async def _find_patiently(self, run_id: str) -> RunRow:
        """Find a run, retrying an unavailable store for as long as the run itself would."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.settings.patience_seconds
        while True:
            try:
                return await self._ask(requests.find, run_id)
            except StoreUnavailable:
                if loop.time() > until:
                    raise
                await asyncio.sleep(POLL_SECONDS)

    async def send(
        self,
        run_id: str,
        name: str,
        payload: Any = None,
        *,
        id: str | None = None,  # noqa: A002
    ) -> bool:
        """Send an event to a run; with an `id`, at most once. False if it was sent before."""
        return await self._ask(requests.send, run_id, name, payload, id=id)

    async def steer(
        self,
        run_id: str,
        text: str | None = None,
        *,
        revise: str | None = None,
        retract: str | None = None,
        by: str = "",
    ) -> Steer:
        """Give a run an instruction for its next `ctx.steered`, and return the instruction.

        `revise` and `retract` take the id of an earlier instruction that no longer holds.
        """
        return await self._ask(requests.steer, run_id, text, revise=revise, retract=retract, by=by)

    async def answer(
        self,
        run_id: str,
        decision: str,
        value: Any = None,
        *,
        ask: str | None = None,
        by: str = "",
    ) -> str:
        """Answer an open ask and return its id.

        `decision` is approve, edit, reject or respond; for an effect in doubt, happened or
        did_not_happen.
        """
        return await self._ask(requests.answer, run_id, decision, value, ask=ask, by=by)

    async def resume(self, run_id: str, *, by: str = "", why: str = "") -> None:
        """Let a paused, killed or stranded run continue, if no latch holds it."""
        await self._ask(requests.resume, run_id, by=by, why=why)

    async def pause(
        self, run_id: str, *, by: str = "", why: str = "", within: float = WITHIN_SECONDS
    ) -> str:
        """Stop a run at its next boundary; returns the receipt's id. `resume` continues it."""
        return await self._order(StopKind.PAUSE, run_id, by, why, within)

    async def cancel(
        self, run_id: str, *, by: str = "", why: str = "", within: float = WITHIN_SECONDS
    ) -> str:
        """Stop a run for good and undo its effects where possible; returns the receipt's id."""
        return await self._order(StopKind.CANCEL, run_id, by, why, within)

    async def kill(
        self, run_id: str, *, by: str = "", why: str = "", within: float = WITHIN_SECONDS
    ) -> str:
        """Take a run away from its worker at once; returns the receipt's id."""
        return await self._order(StopKind.KILL, run_id, by, why, within)

    async def _order(self, kind: StopKind, run_id: str, by: str, why: str, within: float) -> str:
        return await self._ask(requests.order, kind, run_id, by=by, why=why, within=within)

    async def receipt(self, receipt_id: str) -> Receipt:
        """Return how far a stop has been proved."""
        return await self._ask(requests.receipt, receipt_id)

    async def journal(self, run_id: str) -> Sequence[Entry]:
        """Return the whole journal of a run."""
        return await self._ask(requests.journal, run_id)

    async def ledger(self, run_id: str) -> Callable[[Call], ToolState | None]:
        """Return the outcomes of a stopped run's tool calls, for `transcript.repair`."""
        return await self._ask(ledger.read, run_id)

    @property
    def _worker(self) -> Worker | None:
        return None if self._leaving is None else self._leaving.worker

    async def run(
        self,
        agent: Agent,
        *args: Any,
        id: str | None = None,  # noqa: A002 (the word users know)
        **kwargs: Any,
    ) -> Any:
        """Start or continue a run, execute it in this process, and return its result.

        Raises StepFailed if the run does not succeed, and Refused if this host's latch stops it.
        """
        refuse_if_pulled()
        run_id = await self.start(agent, *args, id=id, **kwargs)
        leaving = await self._embedded(agent)
        worker = leaving.worker
        assert worker.only is not None
        worker.only[run_id] += 1  # the program may ask for the same run twice
        worker.wake()
        try:
            run = await self._wait_unless_halted(run_id, leaving)
        finally:
            worker.only[run_id] -= 1
            worker.only += Counter()  # drops the entries at zero
        if run.state == State.SUCCEEDED:
            typed = agent.result_decoder
            return typed(msgspec.json.encode(run.result)) if typed else run.result
        error = run.error or {"type": run.state, "message": f"run {run_id} is {run.state}"}
        words, traceback = (str(error["type"]), str(error["message"])), error.get("traceback", "")
        failed = StepFailed(f"run {run_id}", *words, traceback=traceback)
        if traceback:
            failed.add_note(f"The run's own traceback:\n{traceback}")
        raise failed

    def let_go(self, seconds: float) -> None:
        """Release the runs executing in this program within `seconds`, then cut them off."""
        if self._worker is not None:
            self._worker.tell("its program released it", seconds)

    async def _wait_unless_halted(self, run_id: str, leaving: EmbeddedLatch) -> Run:
        """Wait for the run, and give up when this host's latch stops it."""
        waiting = asyncio.ensure_future(self.wait(run_id))
        halted = asyncio.ensure_future(leaving.halted.wait())
        try:
            await asyncio.wait({waiting, halted}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
            raise Refused(
                f"{leaving.why}: run {run_id} was stopped with it. To allow starts again: "
                "andon reauthorize"
            )
        finally:
            for task in (waiting, halted):
                task.cancel()
            await asyncio.wait({waiting, halted})

    async def _embedded(self, agent: Agent) -> EmbeddedLatch:
        """Return the worker in this program; it executes only runs that the program asked for."""
        async with self._starting:
            # The latch was lifted after it stopped the previous worker: start a new one.
            if self._leaving is not None and self._leaving.halted.is_set():
                await self._leaving.leave()
                self._leaving = None
            if self._leaving is None:
                worker = Worker(self._store, [agent], self.settings, only=Counter())
                await worker.__aenter__()
                self._leaving = EmbeddedLatch(worker)
            self._leaving.worker.add_agent(agent)
        return self._leaving
