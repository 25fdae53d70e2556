"""One attempt: a worker's hold on a run, from claim to settlement.

An attempt loads the run, executes its code (replay first, then new operations), settles it and
cleans up after it.
"""

import asyncio
import contextvars
import functools
import logging
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from andon.core.journal import GENESIS, EntryKind, Replay, check_chain
from andon.errors import Corrupt, Fenced, Stopped, StoreError
from andon.points import point
from andon.runtime.attempt import branch, settlement
from andon.runtime.attempt.error_text import reason_of
from andon.runtime.attempt.exit import Exit, log
from andon.runtime.attempt.host import Host
from andon.runtime.attempt.journal_writer import Journal
from andon.runtime.attempt.processes import RunProcesses
from andon.runtime.attempt.replay_order import Turns
from andon.runtime.attempt.waits import Wait, Waits
from andon.runtime.effects import compensation, in_doubt
from andon.runtime.effects.ledger import RunEffects
from andon.runtime.operations.snapshots import RunState
from andon.runtime.worker import cleanup
from andon.runtime.worker.stop_orders import AGAIN_SECONDS, HARD_SECONDS
from andon.store.messages.rows import Loaded
from andon.store.store import Claimed, Settle

_T = TypeVar("_T")

# How long code that is leaving may take to unwind before it is cancelled again.
UNWIND_SECONDS = 2.0
UNWIND_TRIES = 5
# After these reasons another worker continues the run, perhaps on another host.
_REQUEUED = frozenset({"drained", "stopped", "fenced", "unavailable"})


class Attempt:
    """The state of one run in this process."""

    journal_class: type[Journal] = Journal
    waits_class: type[Waits] = Waits

    def __init__(self, host: Host, run: Claimed, agent: Any) -> None:
        self.host, self.run, self.agent, self.fence = host, run, agent, run.fence
        self.loop = asyncio.get_running_loop()
        self.tasks = branch.Tasks()
        self.root = branch.Branch(self.tasks, "")
        self.turns = Turns(self.tasks)
        self.exit = Exit(host, self.tasks, self.turns)
        self.journal = self.journal_class(host, run, agent, self.exit, self.tasks, self.turns)
        self.waits = self.waits_class(
            host, self.exit, self.tasks, self.turns, plain=not agent.is_async
        )
        self.processes = RunProcesses(host, run, self.tasks)
        self.started = self.tasks.started = self.processes.started
        self.effects = RunEffects(self.journal)
        self.state = RunState(run.id)
        self.tasks.on_change = self.waits.consider_soon
        self.tasks.on_still = self.waits.consider_from_thread
        self.exit.on_leave = self.waits.stop
        self.keys: dict[str, asyncio.Lock] = {}  # one per operation with a key, by place
        self.cancelled: set[str] = set()  # places of operations that the code itself cancelled
        # Cancellations to be delivered to a task after the recorded outcome that it receives.
        self.postponed: dict[asyncio.Task[Any], Any] = {}
        self.unanswered: set[str] = set()  # open asks that hold up only the run's end
        self.invocations: Counter[str] = Counter()  # graph invocations by the run's code, by thread
        self.cleanups: list[Callable[[], Any]] = []
        self.touched = False  # an operation passed a boundary in this attempt
        self.ending: str | None = None  # the settlement that the attempt asked for
        self.settled: asyncio.Future[str] = self.loop.create_future()  # how it ended, for the drain
        self._loaded: Loaded | None = None
        self._scratch: Path | None = None

    def dissolve(self) -> None:
        """Break reference cycles of an attempt that is over, to free it without the collector."""
        self.tasks.dissolve()
        self.exit.on_leave = lambda: None

    async def carry_out(self) -> str:
        """Execute the run as far as it goes here; return how the attempt ended."""
        try:
            ended = await self._carry_out()
            self.settled.set_result(ended)
        finally:
            if not self.settled.done():
                self.settled.set_result("fenced")
            self.journal.end_flushing()
            self.started.close()
            await self._clean_up()
        return ended

    async def _carry_out(self) -> str:
        try:
            if self.host.draining:  # the drain began during the claim
                self.exit.leave("drained")
            self.exit.check()
            await self._load()
            self.exit.check()
            if self.run.trial is not None:
                from andon.runtime.attempt import rehearsal

                return await rehearsal.settle_trial(self)
            if self.run.undoing is not None or self.journal.replay.compensation is not None:
                return await self._compensate()
            await in_doubt.find_open(self)
            outcome = await self.play()
        except (Exception, Stopped) as error:  # noqa: BLE001 (a worker must survive every run)
            outcome = None
            self.exit.leave(reason_of(error), error)
        if self.exit.order is not None:
            await self._stand_still()
        elif self.exit.reason in _REQUEUED:
            await self.processes.end(at_once=self.exit.reason == "fenced")
        if self.exit.reason == "killed":  # the store accepts none of its writes any more
            return "killed"
        try:
            return await self._settle(outcome)
        except (Fenced, StoreError, Stopped) as error:
            return await self._give_up(error)
        except Exception as error:  # noqa: BLE001 (a worker must survive every run)
            log.exception("run %s: andon could not settle it", self.run.id)
            self.exit.error = error
            return str(await self.host.writer.write(settlement.stranding(self)))

    async def _load(self) -> None:
        if self.run.start is not None:
            loaded = Loaded.untouched(self.run.start)
        else:
            loaded = await self.in_thread(self.host.store.load, self.run.id)
        first = loaded.entries[0]
        trusted = GENESIS if first.kind == EntryKind.START else None
        head = check_chain(loaded.entries, run_id=self.run.id, previous=trusted)
        if head != self.run.head_hash:
            raise Corrupt(
                f"run {self.run.id}: its journal ends with {head[:12]}, expected "
                f"{self.run.head_hash[:12]}; entries are missing. Restore it from a backup."
            )
        if self.run.interruptions:
            await self.in_thread(cleanup.sweep, self.run.id)
        self._loaded = loaded
        self.state.unread = first.kind == EntryKind.SNAPSHOT
        self.waits.inbox = list(loaded.inbox)
        self.journal.checkpoints = dict(loaded.checkpoints)
        self.journal.replay = replay = Replay(loaded.entries, run_id=self.run.id)
        if self.agent.is_async:  # nothing shows when the thread of a plain agent is at rest
            self.turns.expect(replay.answers())
        if replay.snapshot is not None:
            self.root.restart(replay.root)
            await self.read(self.state.load, self.host.store, replay.snapshot)
        point("attempt:loaded")

    async def play(self) -> tuple[str, Any] | None:
        """Call the agent's code; return None if the attempt left before the code ended."""
        context = contextvars.copy_context()
        context.run(branch.current.set, self.root)
        main = asyncio.Task(self.agent.call(self), loop=self.loop, context=context)
        self.tasks.add(main)
        self.tasks.main = main
        await self._until_left({main})
        while self.exit.hands and self.exit.reason is None and self.tasks.all:
            # Operations still execute: the run must not finish before them.
            await self._until_left(self.tasks.all)
        await self._unwind()
        if self.exit.reason is not None:
            log.debug("run %s: leaves (%s)", self.run.id, self.exit.reason)
            return None
        if main.cancelled():
            return "error", asyncio.CancelledError("the agent's code cancelled itself")
        error = main.exception()
        if error is not None:
            return "error", error
        self.journal.replay.check_end(self.root.number)
        return "result", main.result()

    async def _until_left(self, tasks: "set[asyncio.Task[Any]]") -> None:
        """Return when one of the tasks has ended, or the attempt leaves."""
        ends: set[asyncio.Future[Any]] = {*tasks, self.exit.left}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)

    def passes(self) -> bool:
        """Whether an operation may pass its boundary without waiting: the fast path of steps."""
        leaves = self.exit
        if leaves.reason is not None or leaves.recalled or leaves.order is not None or leaves.ended:
            return False
        if self.turns.replayed or self.journal.pending:
            return False
        if not self.host.lease.trusted or self.host.draining:
            return False
        self.touched = True
        return True

    async def boundary(self, *, writes: bool = False) -> None:
        """Pass the point between two operations: polite stops take effect, the lease is checked.

        `writes`: the caller writes before it executes anything. That write follows all earlier
        ones, so the boundary does not wait for them.
        """
        if self.passes():
            return
        await self.turns.end()
        self.exit.check()
        if self.exit.ended:
            raise self.exit.stopped("its run is over")
        if self.exit.stopping and not self.exit.shielded:
            raise await self.exit.give_way()
        if not writes:
            await self.journal.written()
        try:
            await self.host.lease.ensure_trust()  # last, so that a freeze before it is noticed
        except (Fenced, StoreError) as error:
            raise self.exit.stop(reason_of(error), error) from None
        self.exit.check()
        self.touched = True

    async def _unwind(self) -> None:
        """Wait until the run's code has ended; cancel code that does not end by itself.

        Cancels repeatedly, because code can swallow a cancellation. Operations in hand may end,
        unless the attempt has to leave at once.
        """
        leaves = self.exit
        leaves.ended = True
        patient = leaves.reason is not None and not leaves.cut
        for _ in range(UNWIND_TRIES):
            if not patient:
                for task in self.tasks.all:
                    task.cancel()
            while self.tasks.all and not leaves.ordered.done():
                ends: set[asyncio.Future[Any]] = {*self.tasks.all, leaves.ordered}
                timeout = self.host.drain.unwind_seconds(UNWIND_SECONDS)
                done, _ = await asyncio.wait(
                    ends, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
                )
                if not done and not (leaves.hands and not leaves.cut):
                    break
            if not self.tasks.all or leaves.ordered.done():
                break
            patient = False
        if leaves.ordered.done():
            await self._come_to_rest()
        for task in self.tasks.all:
            log.error("run %s: code that cannot be cancelled continues: %r", self.run.id, task)
            self.host.track(task)

    async def _come_to_rest(self) -> None:
        """Wait until none of the run's code executes: only then may a stop be reported."""
        while not self.tasks.still:
            left = self.tasks.all | self.tasks.inner
            if self.exit.cut or not self.exit.hands:
                for task in left:
                    task.cancel()
            hard = self.exit.order is not None and self.exit.order.hard
            await self.exit.changed(HARD_SECONDS if hard else AGAIN_SECONDS, left)

    async def _stand_still(self) -> None:
        """Clean up a stopped run and wait until nothing of it executes.

        Cleanup functions are the run's own code: they have to end too, and a kill calls none.
        """
        await self._come_to_rest()
        point("stop:left")
        if self.exit.reason != "killed":
            await self._clean_up()
            await self._come_to_rest()
        while not await self._nothing_left():
            await self.exit.changed(AGAIN_SECONDS)  # the rest has to be ended from outside

    async def _nothing_left(self) -> bool:
        killed = self.exit.reason == "killed"
        if killed and self.exit.order is not None:
            await self.processes.report(self.exit.order)
        return await self.processes.end_all(at_once=killed)

    async def _settle(self, outcome: tuple[str, Any] | None) -> str:
        await self.journal.flush()
        if self.exit.reason == "fenced":
            raise Fenced(self.run.id, self.run.fence)
        if outcome is not None and self.effects.open and await in_doubt.ask_about_open(self):
            self.exit.leave("suspended")
            outcome = None
        if self.unanswered and outcome is not None and outcome[0] == "result":
            self.exit.leave("suspended")
            self.waits.left = [Wait(kind="answer", name=one) for one in sorted(self.unanswered)]
            outcome = None
        outcome = settlement.checked(self, outcome)
        failure = None
        if outcome is not None and outcome[0] != "result":
            what = f"agent {self.agent.name!r} failed"
            failure = self.journal.note_failure(outcome[1], what, logging.ERROR)
            if settlement.is_final_failure(self, outcome) and (
                await compensation.begin_after_failure(self, failure)
            ):
                return await self._compensate()
        state = await self.write_settlement(settlement.settlement(self, outcome, failure))
        point("attempt:settled")
        return state

    async def write_settlement(self, message: Settle) -> str:
        """Settle the run; return the state that it has then."""
        message = message.but(**self.processes.settled())
        self.ending = message.ending
        point("attempt:before-settle")
        return str(await self.host.writer.write(message))

    async def _compensate(self) -> str:
        """Undo the run's effects; then it ends as decided before, or waits for a person."""
        self.exit.ended = False
        self.turns.expect([])  # no agent code asks for recorded answers any more
        work = asyncio.ensure_future(compensation.carry_out(self))
        self.tasks.add(work)
        await self._until_left({work})
        await self._unwind()
        ended = work.done() and not work.cancelled() and not work.exception()
        if self.exit.reason is None or (ended and self.exit.reason != "killed"):
            message = work.result()
        elif self.exit.reason in ("fenced", "unavailable", "killed"):
            raise self.exit.stopped(self.exit.reason)
        else:  # the next worker that claims the run continues the compensation
            message = settlement.returning(self, self.effects.cut_off)
        await self.journal.flush()
        return await self.write_settlement(message)

    async def _give_up(self, error: BaseException) -> str:
        """Give the run back after the store refused its settlement, so that it is not held."""
        if self.exit.reason == "killed":
            return "killed"
        fenced = isinstance(error, Fenced) or self.exit.reason == "fenced"
        if fenced:
            log.warning("run %s: fenced: %s", self.run.id, self.exit.error or error)
        else:
            log.error("run %s: given up here: %s", self.run.id, self.exit.error or error)
        # The store refuses a fenced worker again, as it should. But this worker may still be the
        # owner (its last write never arrived, and later ones built on it): then the run must not
        # stay stuck.
        while not self.host.draining and self.exit.reason != "killed":
            try:
                state = str(await self.host.writer.write(settlement.returning(self)))
            except Fenced:
                return "fenced"
            except StoreError:
                await asyncio.sleep(1)
            else:
                return "fenced" if fenced else state
        return "killed" if self.exit.reason == "killed" else "unavailable"

    @property
    def scratch(self) -> Path:
        """A folder for files, deleted when the attempt ends."""
        if self._scratch is None:
            self._scratch = cleanup.scratch(self.run.id)
        return self._scratch

    async def _clean_up(self) -> None:
        if self.exit.reason == "killed":
            self.cleanups.clear()
        await cleanup.carry_out(self.cleanups, f"run {self.run.id}", self.host.drain.left)
        if self._scratch is not None:
            await self.in_thread(functools.partial(shutil.rmtree, self._scratch, True))

    async def in_thread(self, function: Callable[..., _T], *args: Any) -> _T:
        return await self.loop.run_in_executor(self.host.threads, function, *args)

    async def read(self, request: Callable[..., _T], *args: Any) -> _T:
        """Query the store; if it cannot answer, the run is interrupted, not failed."""
        try:
            return await self.in_thread(request, *args)
        except StoreError as error:
            raise self.exit.stop("unavailable", error) from None

    async def body_of(self, body: str | None, blob: str | None) -> str:
        if blob is not None:
            return await self.read(self.host.store.blob, blob)
        return body if body is not None else "null"

    async def receive_messages(self) -> None:
        """Read the run's inbox now instead of with the next claim."""
        found = await self.read(self.host.store.inbox, [self.run.id])
        self.waits.receive(found.get(self.run.id, []))

    def is_quiet(self, fence: int) -> bool:
        """Whether the worker that held the run under this fence certainly executes nothing."""
        return self._loaded is not None and fence in self._loaded.quiet_fences

    @property
    def start_body(self) -> tuple[str | None, str | None]:
        assert self._loaded is not None
        return self._loaded.start.body, self._loaded.start.blob
