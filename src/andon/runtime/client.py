"""The client: start, watch, answer and run runs from a program."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from andon.core.journal import Entry
from andon.core.run import State
from andon.core.stop import WITHIN_SECONDS
from andon.errors import Refused, StepFailed, StoreUnavailable, Unresolved
from andon.runtime.agent import Agent
from andon.runtime.attempt.journal import close
from andon.runtime.operations.steer_messages import Steer
from andon.runtime.requests import requests
from andon.runtime.requests import tool_ledger as ledger
from andon.runtime.requests.requests import Receipt, Run
from andon.runtime.requests.start import resolve
from andon.runtime.requests.waiters import POLL_SECONDS, Awaiting
from andon.runtime.worker.clock import StoreClock, own_time
from andon.runtime.worker.embedded_latch import Leaving, refuse_if_pulled
from andon.runtime.worker.worker import Worker
from andon.settings import Settings
from andon.settings import load as load_settings
from andon.store import open_store
from andon.store.messages.rows import Filter, RunRow
from andon.store.store import AgentRow, NewRun, Start
from andon.store.writer.writer import Writer
from andon.transcript import Call
from andon.transcript import State as ToolState

# For starts that nobody waits for any more.
CLOSE_SECONDS = 2.0
# How long the store's clock is known after it was asked; clocks drift less than a millisecond.
CLOCK_SECONDS = 10.0


class Client:
    """`async with andon.Client() as client:`; plain code: `with andon.Client.sync() as client:`"""

    def __init__(self, store: str | None = None, *, settings: Settings | None = None) -> None:
        self.settings = settings or load_settings({"store": store})
        if store is not None:
            self.settings = self.settings.but(store=store)
        self._store: Any = None
        self._leaving: Leaving | None = None  # the worker in this program
        self._starting = asyncio.Lock()
        self._writer: Writer | None = None
        self._asked: dict[str, asyncio.Task[AgentRow]] = {}  # which agents are meant, by name
        self._clock, self._clock_until = StoreClock(), 0.0  # until then it need not be asked

    @classmethod
    def sync(cls, store: str | None = None) -> AbstractContextManager[Any]:
        """The same client for plain code: every method waits instead of being awaited."""
        from andon.runtime.sync import blocking

        return blocking(lambda: cls(store))

    async def __aenter__(self) -> "Client":
        self._store = await asyncio.to_thread(open_store, self.settings.store)
        self._awaiting = Awaiting(self._store, patience_seconds=self.settings.patience_seconds)
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
            await self._awaiting.close()
            if self._writer is not None:
                self._writer.close(CLOSE_SECONDS)
            await close(self._store)

    async def _ask(self, request: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
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
        """Start a run, idempotently if it has an id, and answer its id.

        `connection`: a psycopg connection; the run then exists once its transaction commits.
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
        """Without asking the store, where that can be: programs start thousands of runs."""
        if own_time() > self._clock_until:
            await self._set_clock()
        meant = await self._resolve(agent) if isinstance(agent, str) else agent
        now = self._clock.now()
        return requests.prepare(self._store, meant, args, kwargs, **options, now=now)

    async def _resolve(self, name: str) -> AgentRow:
        """What is asked in one turn of the loop is asked once: a program may start thousands."""
        asked = self._asked.get(name)
        if asked is None:
            asked = self._asked[name] = asyncio.ensure_future(self._look_up(name))
            asked.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(asked)

    async def _look_up(self, name: str) -> AgentRow:
        del self._asked[name]  # who asks from now on may know that another version was promoted
        return await asyncio.to_thread(resolve, self._store, name)

    async def _set_clock(self) -> None:
        self._clock_until = own_time() + CLOCK_SECONDS  # one asks, the others need not wait
        self._clock.set(await asyncio.to_thread(self._store.now))

    def _writing(self) -> Writer:
        """What a program starts at the same time shares its commits."""
        if self._writer is None:
            self._writer = Writer(self._store, patience_seconds=0)
        return self._writer

    async def get(self, run_id: str) -> Run:
        run: Run = await self._ask(requests.get, run_id)
        return run

    async def list(
        self,
        *,
        states: tuple[str, ...] = (),
        agent: str | None = None,
        label: tuple[str, str] | None = None,
        limit: int = 100,
        before: Run | None = None,
    ) -> Sequence[Run]:
        """Runs, newest first; `before` is the last one of the page before."""
        cursor = None if before is None else (before.created_at, before.id)
        which = Filter(states=states, agent=agent, label=label, limit=limit, before=cursor)
        rows = await self._ask(requests.list_runs, which)
        return [await self._ask(requests.described, row) for row in rows]

    async def wait(self, run_id: str, *, timeout: float | None = None) -> Run:  # noqa: ASYNC109
        """The run once it is finished or stranded. Raises Unresolved after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                row = await self._find_patiently(run_id)
                if not requests.is_over(row):
                    row = await self._awaiting.end_of(row.id)
                run: Run = await self._ask(requests.described, row)
                return run
        except TimeoutError:
            raise Unresolved(f"run {run_id} was not finished within {timeout} s") from None

    async def _find_patiently(self, run_id: str) -> RunRow:
        """Whoever waits for a run waits for its database too, as the run itself does."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.settings.patience_seconds
        while True:
            try:
                row: RunRow = await self._ask(requests.find, run_id)
            except StoreUnavailable:
                if loop.time() > until:
                    raise
                await asyncio.sleep(POLL_SECONDS)
            else:
                return row

    async def send(
        self,
        run_id: str,
        name: str,
        payload: Any = None,
        *,
        id: str | None = None,  # noqa: A002
    ) -> bool:
        """Send an event to a run; with an `id`, at most once."""
        sent: bool = await self._ask(requests.send, run_id, name, payload, id=id)
        return sent

    async def steer(
        self,
        run_id: str,
        text: str | None = None,
        *,
        revise: str | None = None,
        retract: str | None = None,
        by: str = "",
    ) -> Steer:
        """Tell a run what it is to do from its next `ctx.steered` on; answers what was said.

        `revise`, `retract`: the id of what was said before, and holds no longer.
        """
        request = partial(requests.steer, revise=revise, retract=retract, by=by)
        word: Steer = await self._ask(request, run_id, text)
        return word

    async def answer(
        self,
        run_id: str,
        decision: str,
        value: Any = None,
        *,
        ask: str | None = None,
        by: str = "",
    ) -> str:
        """Answer an open ask: approve, edit, reject or respond; for an effect in doubt,
        happened or did_not_happen."""
        answered: str = await self._ask(requests.answer, run_id, decision, value, ask=ask, by=by)
        return answered

    async def resume(self, run_id: str, *, by: str = "", why: str = "") -> None:
        """Let a paused, killed or stranded run go on, if no latch holds it."""
        await self._ask(requests.resume, run_id, by=by, why=why)

    async def pause(
        self, run_id: str, *, by: str = "", why: str = "", within: float = WITHIN_SECONDS
    ) -> str:
        """Stop a run at its next boundary; `resume` lets it go on. Answers the receipt's id."""
        return await self._order(requests.pause, run_id, by, why, within)

    async def cancel(
        self, run_id: str, *, by: str = "", why: str = "", within: float = WITHIN_SECONDS
    ) -> str:
        """Stop a run for good; what it did is undone where that is possible."""
        return await self._order(requests.cancel, run_id, by, why, within)

    async def kill(
        self, run_id: str, *, by: str = "", why: str = "", within: float = WITHIN_SECONDS
    ) -> str:
        """Take a run from whoever executes it, at once."""
        return await self._order(requests.kill, run_id, by, why, within)

    async def _order(
        self, request: Callable[..., str], run_id: str, by: str, why: str, within: float
    ) -> str:
        receipt_id: str = await self._ask(request, run_id, by=by, why=why, within=within)
        return receipt_id

    async def receipt(self, receipt_id: str) -> Receipt:
        """How far a stop is proved."""
        found: Receipt = await self._ask(requests.receipt, receipt_id)
        return found

    async def journal(self, run_id: str) -> Sequence[Entry]:
        found: Sequence[Entry] = await self._ask(requests.journal, run_id)
        return found

    async def ledger(self, run_id: str) -> Callable[[Call], ToolState | None]:
        """What became of the tool calls of a run that acts no more, for `transcript.repair`."""
        found: Callable[[Call], ToolState | None] = await self._ask(ledger.read, run_id)
        return found

    # ── library mode ──────────────────────────────────────────────────────────────────────────

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
        """Start (or go on with) a run, execute it in this process, and return its result."""
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
            worker.only += Counter()  # without those that nobody asks for any more
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
        """What runs in this program is given back, or cut off, within so many seconds."""
        if self._worker is not None:
            self._worker.tell("its program released it", seconds)

    async def _wait_unless_halted(self, run_id: str, leaving: Leaving) -> Run:
        """The latch of this host is for the program that waits here too."""
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

    async def _embedded(self, agent: Agent) -> Leaving:
        """The worker inside this program: it executes what the program asked for, nothing else."""
        async with self._starting:
            if self._leaving is not None and self._leaving.halted.is_set():  # and lifted since
                await self._leaving.leave()
                self._leaving = None
            if self._leaving is None:
                worker = Worker(self._store, [agent], self.settings, only=Counter())
                await worker.__aenter__()
                self._leaving = Leaving(worker)
            self._leaving.worker.carry(agent)
        return self._leaving
