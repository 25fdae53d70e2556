"""A worker: claim → load → execute → settle → announce.

It claims runs and executes each as an attempt until it is stopped; then it drains. When it loses
its lease, it starts over under a new name.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from andon.core.lease import renew_every
from andon.core.queue import poll_after
from andon.errors import AndonError, BadInput, Fenced, StoreError
from andon.points import point
from andon.runtime.agent import Agent, by_identity
from andon.runtime.attempt import branch, settlement
from andon.runtime.attempt.attempt import Attempt
from andon.runtime.futures import to_the_end
from andon.runtime.operations import calls
from andon.runtime.processes import attribution
from andon.runtime.worker import cleanup
from andon.runtime.worker.clock import StoreClock, own_time
from andon.runtime.worker.drain import WorkerDrain
from andon.runtime.worker.lease import WorkerLease
from andon.runtime.worker.liveness import WorkerProgress, given_by_supervisor
from andon.runtime.worker.peers import NOTIFIED_SECONDS, Peers, mark_of, this_process
from andon.runtime.worker.stop_orders import WorkerStops
from andon.runtime.worker.stranded_events import Strandings
from andon.settings import Settings
from andon.store.messages.stops import StopNotice
from andon.store.postgres import capacity
from andon.store.store import (
    Claim,
    Claimed,
    ClaimResult,
    Depart,
    FleetQuery,
    FleetState,
    Register,
    WorkerRow,
)
from andon.store.writer.writer import Writer

if TYPE_CHECKING:
    from andon.runtime.processes.step_pool import Processes

log = logging.getLogger("andon")

LOOK_SHARE = 0.9  # sooner than the heartbeat thread would
CLOSE_SECONDS = 0.2  # beyond the grace period: for the last message and ends of threads
DEPART_SECONDS = 2.0  # for the last message; without it, others notice the process's end


class Worker:
    """Executes runs in this process until it is stopped."""

    def __init__(
        self,
        store: Any,
        agents: list[Agent],
        settings: Settings | None = None,
        *,
        only: Counter[str] | None = None,
        queues: Sequence[str] | None = None,
        promote: bool = True,
        promote_known: bool = False,
        on_settled: Callable[[str, str], None] | None = None,
        embedded: bool = True,
    ) -> None:
        self.settings = settings or Settings()
        self._look_every = LOOK_SHARE * renew_every(self.settings.lease_seconds)
        self.store = store
        self.agents = by_identity(agents)
        self.only = only  # if set, only these runs: library mode
        self.queues = tuple(queues) if queues else None  # if set, only runs in these queues
        self.promote, self._promote_known = promote, promote_known
        self.embedded = embedded  # in a user's program, which must not be ended for a run
        self.supervisor: str | None = None  # ends this process when necessary
        self.active: dict[Attempt, asyncio.Task[str]] = {}
        self.attempts: dict[str, Attempt] = {}
        self.draining = False  # set first on a stop
        self.drain = WorkerDrain(self.settings.grace_seconds, self.active)
        self._stopped = asyncio.Event()
        self.started = False  # registered, and a first claim was answered
        self.last_contact = time.monotonic()  # when the store last answered
        self.endings: Counter[str] = Counter()  # how attempts have ended here
        self.clock = StoreClock()
        self.worker_id = ""
        self.in_threads: set[Any] = set()  # plain functions still executing
        self.on_drain: Callable[[], None] = lambda: None
        self.on_halted: Callable[[StopNotice], None] = lambda order: None
        self.operations = 0  # that have ended in this process
        self._processes: Processes | None = None
        self.orders = WorkerStops(self)
        self.progress, self.strandings = WorkerProgress(self), Strandings(self)
        self._on_settled = on_settled or (lambda run_id, ending: None)
        self._dead: dict[str, tuple[str, float]] = {}  # evidence of death, and when it was seen
        self._claim_number = 1  # repeated until answered: the outcome may be unknown
        self._look_at = self._busy_at = 0.0
        self._notified = False  # since the peers were last refreshed
        self._refreshing: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> "Worker":
        if calls.reading:
            raise BadInput(
                "a file with a step for a process of its own starts executing runs when it is "
                "imported: put the code that starts the program under: if __name__ == '__main__':"
            )
        self.loop = asyncio.get_running_loop()
        branch.follow_tasks(self.loop)
        attribution.follow()
        self.woken = asyncio.Event()
        self.writer = Writer(self.store, patience_seconds=self.settings.patience_seconds)
        # One thread per run, one for loading, and some for steps that run in parallel.
        self.threads: ThreadPoolExecutor = attribution.Pool(
            self.settings.concurrency + 32, "andon-step"
        )
        try:
            await self._register()
        except BaseException:
            self.writer.close()
            self.threads.shutdown(wait=False)
            raise
        self.progress.begin()
        self._stop_listening = self.store.listen_on(self.loop, self._on_notification)
        self.claiming = self.loop.create_task(self._claim_for_ever(), name="andon-claim")
        if self.drain.begun:  # stopped while it was starting
            self._announce_drain()
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.tell("its program ends")
        # A second cancellation must not interrupt this: it would leave every run behind.
        await to_the_end(self.loop.create_task(self._leave(), name="andon-leave"))

    async def _leave(self) -> None:
        fetching = self.loop.create_task(self.orders.fetch_for_ever(), name="andon-orders")
        await self.drain.carry_out(self.claiming, self._clean_up)
        fetching.cancel()
        self.claiming.cancel()  # the departure takes back a claim in flight
        self.lease.ended.set()
        # In a thread of its own: the loop's may all be in use.
        if self._processes is not None:
            await self._processes.close()
        closing = self.loop.create_task(cleanup.call(self._close_listeners))
        await asyncio.wait({closing}, timeout=self.drain.left() / 2 + CLOSE_SECONDS / 2)
        await self._depart(self.drain.story)
        self.writer.close(min(self.drain.left(), DEPART_SECONDS) + CLOSE_SECONDS)
        self.threads.shutdown(wait=False)
        self.progress.end()

    async def _clean_up(self) -> None:
        if self.only is None:
            await cleanup.of_worker(self.drain.left)

    def _close_listeners(self) -> None:
        self._stop_listening()
        self._peers.close()

    async def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Work until stopped; `on_ready` is called once the worker is registered."""
        async with self:
            on_ready()
            stopped = self.loop.create_task(self._stopped.wait())
            await asyncio.wait({stopped, self.claiming}, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            if self.claiming.done() and not self.draining:
                self.claiming.result()

    def tell(self, why: str, grace_seconds: float | None = None) -> None:
        """Stop claiming and return the runs in hand. From any thread; later calls do nothing."""
        self.draining = True
        if self.drain.begin(why, grace_seconds):
            self.on_drain()
            if self.worker_id:
                self._announce_drain()

    def hurry(self) -> None:
        """End the current phase of the drain now. Safe from any thread."""
        self.post(self.drain.hurry)

    def _announce_drain(self) -> None:
        """Tell the store, and wake what waits for the drain."""
        message = self.drain.announcement(self.worker_id)
        if message is not None:
            self.writer.submit_from_thread(message).add_done_callback(self._on_announced)
        self.post(self._stopped.set)
        self.post(self.wake)

    def _on_announced(self, done: "Future[Any]") -> None:
        if done.exception() is None:
            self.drain.announced_after = own_time() - self.drain.begun_at
        self.post(self.drain.announced.set)

    def counts(self) -> dict[str, float]:
        """Return counters for /metrics."""
        return settlement.counted(self.endings)

    async def _register(self) -> None:
        row: WorkerRow = this_process()
        self.new_mark = attribution.marks_of(mark_of(row), put=not self.embedded)
        lock = await capacity.held(self.store, row.id, lambda: self.drain.begun)
        # An embedded worker takes only its program's runs, so it offers no agents.
        agents = [] if self.only is not None else [[name, version] for name, version in self.agents]
        row = row.but(
            lock=lock,
            agents=json.dumps(agents),
            concurrency=self.settings.concurrency,
            queues=json.dumps(self.queues) if self.queues else None,
            embedded=self.embedded,
            **given_by_supervisor(),
        )
        self.supervisor = row.supervisor
        lease = WorkerLease(
            row.id,
            self.settings.lease_seconds,
            self.writer,
            progress=self.progress.text,
            on_renewed=self._on_renewed,
            on_lost=self._on_lost,
        )
        asked_at = own_time()
        message = Register(
            worker=row,
            agents=tuple(agent.row for agent in self.agents.values()),
            lease_seconds=self.settings.lease_seconds,
            promote=self.promote,
            promote_known=self._promote_known,
        )
        try:
            _, now = await self.writer.write(message)
        except BaseException:
            self.store.release(row.id)
            raise
        self._promote_known = False  # once: after a lost lease, another version may be promoted
        self.worker_id = row.id
        lease.renewed(now, asked_at)
        self._peers = Peers(self.store, message.worker, partial(self.post, self._on_death))
        self.lease = lease
        lease.begin()

    def track(self, work: Any) -> None:
        """Track work that outlives its run: until it ends, this process is not gone."""
        self.in_threads.add(work)
        work.add_done_callback(self.in_threads.discard)

    @property
    def processes(self) -> "Processes":
        if self._processes is None:
            from andon.runtime.processes.step_pool import Processes

            self._processes = Processes()
        return self._processes

    def add_agent(self, agent: Agent) -> None:
        """Add an agent to an embedded worker; other workers get theirs at the start."""
        if self.only is not None:
            self.agents = by_identity([*self.agents.values(), agent])

    def _on_renewed(self, store_now: float) -> None:
        self.clock.set(store_now)
        self.last_contact = time.monotonic()

    def _on_lost(self, error: Fenced) -> None:
        """Abandon every run: this process no longer holds any."""
        for attempt in list(self.attempts.values()):
            attempt.exit.leave("fenced", error)
        self.wake()

    async def _start_over(self) -> None:
        """Finish the old incarnation after a lost lease, then register a new one."""
        if self.active:
            await asyncio.wait(set(self.active.values()))
        self._peers.close()
        await self._depart()
        await self._register()
        if self.drain.begun:  # meanwhile: the announcement under the old name does not count
            self._announce_drain()

    async def _depart(self, story: str | None = None) -> None:
        """Record that this incarnation has ended, unless some of its code still executes.

        A plain step goes on in its thread, and some code cannot be cancelled. Then the record would
        be false, and releasing the lock would make others conclude the same, so neither happens.
        """
        alive = bool(self.in_threads or self.active)
        message = Depart(worker_id=self.worker_id, drain=story, alive=alive)
        with contextlib.suppress(AndonError, TimeoutError):
            limit = min(self.drain.left(), DEPART_SECONDS) + CLOSE_SECONDS
            async with asyncio.timeout(limit if story else None):
                await self.writer.submit(message)
        if not alive:
            self.store.release(self.worker_id)

    def wake(self) -> None:
        self.woken.set()

    def post(self, function: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(RuntimeError, AttributeError):  # no loop, or a closed one
            self.loop.call_soon_threadsafe(function, *args)

    def _on_notification(self) -> None:
        self._notified = True
        self.wake()

    def _refresh_soon(self) -> None:
        """Refresh the peers, once for many notifications: a worker may have joined."""
        if self._notified and self._refreshing is None:
            self._notified = False
            self._refreshing = branch.call_later(NOTIFIED_SECONDS, self._refresh)

    def _refresh(self) -> None:
        self._refreshing = None
        self._peers.refresh()

    def _on_death(self, worker_id: str, evidence: str, seen_at: float = 0.0) -> None:
        log.info("worker %s is gone: %s", worker_id, evidence)
        self._dead[worker_id] = evidence, seen_at
        self.wake()

    async def _claim_for_ever(self) -> None:
        while not self.draining:
            self.woken.clear()
            self._busy_at = own_time() if self.active else self._busy_at
            every = self._look_every if self.store.notifies else None
            wait = poll_after(self.settings.poll_seconds, every, own_time() - self._busy_at)
            try:
                if self.lease.ended.is_set():
                    await self._start_over()
                    if self.draining:
                        break
                result, seen = await self._claim_and_look()
                if result.wake_in is not None:
                    wait = min(wait, max(result.wake_in, 0.001))
                await self._deliver_messages()
                if seen is not None:
                    self._peers.see(seen)
                    await self.strandings.look(seen)
            except StoreError as error:
                log.warning("worker %s: cannot claim: %s", self.worker_id, error)
            except Exception:  # it must not end quietly
                log.exception("worker %s: andon failed to claim", self.worker_id)
            self._refresh_soon()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self.woken.wait()

    async def _claim_and_look(self) -> tuple[ClaimResult, FleetState | None]:
        """Send the heartbeat and look in the claim's commit: an idle worker needs no other."""
        now = own_time()
        if now < self._look_at:
            return await self._claim(), None
        self._look_at = now + self._look_every
        self.lease.renew_soon()
        looking = self.writer.submit(FleetQuery())
        try:
            result = await self._claim()
        finally:
            await asyncio.wait([looking])
        failed = looking.cancelled() or looking.exception() is not None
        return result, None if failed else looking.result()

    async def _claim(self) -> ClaimResult:
        dead, self._dead = self._dead, {}
        message = Claim(
            worker_id=self.worker_id,
            agents=tuple(self.agents),
            limit=max(0, self.settings.concurrency - len(self.active)),
            only=None if self.only is None else tuple(sorted(self.only)),
            queues=self.queues,
            dead=tuple((one, evidence) for one, (evidence, _) in dead.items()),
            seen=tuple((one, seen_at) for one, (_, seen_at) in dead.items() if seen_at),
            expire=True,
            lease_seconds=self.settings.lease_seconds,
            interruption_limit=self.settings.interruption_limit,
            number=self._claim_number,
        )
        try:
            result: ClaimResult = await self.writer.write(message)
        except StoreError:
            self._dead = {**dead, **self._dead}
            raise
        self._claim_number += 1
        self.started, self.last_contact = True, time.monotonic()
        if result.runs:
            point("claim:claimed")
        for run in result.runs:
            self._begin(run)
        for run_id in result.recalled:
            if (attempt := self.attempts.get(run_id)) and attempt.run.undoing is None:
                attempt.exit.recall()
        self.orders.obey(result)
        if result.drain:
            self.tell("andon drain")
        return result

    def _begin(self, run: Claimed) -> None:
        agent = self.agents.get((run.agent, run.version))
        if agent is None:  # another version, which can undo what the run did
            agent = next(one for one in self.agents.values() if one.name == run.agent)
        attempt = self.attempts[run.id] = Attempt(self, run, agent)
        task = self.loop.create_task(attempt.carry_out(), name=f"andon-run-{run.id}")
        self.active[attempt] = task
        self.writer.runs = len(self.active)
        task.add_done_callback(lambda done: self._settled(attempt, done))

    def _settled(self, attempt: Attempt, done: "asyncio.Task[str]") -> None:
        run_id = attempt.run.id
        del self.active[attempt]
        if self.attempts.get(run_id) is attempt:  # unless claimed again meanwhile
            del self.attempts[run_id]
        self.writer.runs = len(self.active)
        ending = "fenced" if done.cancelled() or done.exception() else done.result()
        if not done.cancelled() and done.exception():
            log.error("run %s: andon failed", run_id, exc_info=done.exception())
        ended = settlement.ended_as(attempt.ending, ending)
        self.endings[ended] += 1
        self.drain.count(attempt, ended)
        self.orders.attempt_ended(attempt)
        if attempt.tasks.still:
            attempt.dissolve()
        self._on_settled(run_id, ending)
        if ending == "fenced" and not self.draining:
            self._checking = self.loop.create_task(self.lease.check())
        self.wake()  # a slot is free: claim now, not at the next poll

    async def _deliver_messages(self) -> None:
        """Deliver messages to runs that wait in memory because another of their branches works."""
        waiting = [run_id for run_id, attempt in self.attempts.items() if attempt.waits.open]
        if not waiting:
            return
        found = await self.loop.run_in_executor(self.threads, self.store.inbox, waiting)
        for run_id in waiting:
            if run_id in self.attempts:
                self.attempts[run_id].waits.receive(found.get(run_id, []))
