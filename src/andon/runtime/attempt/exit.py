"""Leaving: an attempt ends before the agent's code has come to its end.

The run was suspended, its worker drains, the lease was lost, code and journal diverge. From then
on every operation raises Stopped: code that catches it once is not free.
"""

import asyncio
import contextlib
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import msgspec

from andon.core.effect import Sight
from andon.core.lease import Fence
from andon.errors import Fenced, Stopped, StoreError, StoreUnavailable
from andon.runtime.attempt import branch
from andon.runtime.attempt.error_text import reason_of
from andon.runtime.attempt.replay_order import Turns
from andon.runtime.processes import attribution
from andon.runtime.worker.clock import StoreClock
from andon.settings import Settings
from andon.store.messages.stops import Started, Told
from andon.store.store import Append, Claimed
from andon.store.writer.writer import Writer

log = logging.getLogger("andon")

# For the commit before the first process that an attempt starts: a busy disk needs less.
NOTE_SECONDS = 5.0
# Leaving for these does not wait for the operation in hand.
AT_ONCE = frozenset({"fenced", "unavailable", "stopped", "cancelled", "killed"})
# Leaving for these waits for it, and for nothing else.
AT_BOUNDARY = frozenset({"drained", "paused"})
# What an order makes of a run that leaves.
_POLITE = {"pause": "paused", "cancel": "cancelled"}


class Host(Protocol):
    """What an attempt needs of the process it runs in."""

    store: Any
    writer: Writer
    clock: StoreClock
    threads: ThreadPoolExecutor
    worker_id: str
    draining: bool
    embedded: bool  # in a program that is somebody else's
    in_threads: set[Any]
    operations: int  # that have ended in this process
    settings: Settings

    @property
    def processes(self) -> Any:
        """Where steps that run apart are executed."""
        ...

    @property
    def trusted(self) -> bool:
        """Whether the lease is surely held, as far as is known without asking."""
        ...

    async def ensure_trust(self) -> None:
        """Return once the lease is surely held; raise Fenced if it is not."""
        ...

    @property
    def unwind_seconds(self) -> float:
        """How long code that is leaving may take before it is cancelled once more."""
        ...

    def carry(self, agent: Any) -> None: ...

    def cleanup_left(self) -> float:
        """How many seconds there are for cleaning up."""
        ...

    def new_mark(self) -> int:
        """For the processes of one more attempt."""
        ...

    def keep_in_mind(self, work: Any) -> None:
        """What goes on although it should not: until it ends, this process is not gone."""
        ...


class Hand(msgspec.Struct, kw_only=True, eq=False):
    """An operation in hand."""

    name: str
    since: float
    task: Any
    cuttable: bool  # it may be cut off without a doubt about the world
    cut: bool = False  # and was: how it ends is no outcome


class Wait(msgspec.Struct, kw_only=True):
    """Something a run waits for: a letter, a time, or whichever comes first."""

    kind: str
    name: str
    wake_at: float | None = None
    future: Any = None
    task: Any = None
    timer: Any = None


class Leaving:
    """Whether a run may go on in this process, and why not."""

    def __init__(self, host: Host, run: Claimed, agent: Any) -> None:
        self.host, self.run, self.agent = host, run, agent
        self.loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self.fence: Fence = run.fence
        self.reason: str | None = None  # why the attempt leaves, once it does
        self.error: BaseException | None = None
        self.waits: list[Wait] = []
        self.left_waits: list[Wait] = []  # what it waited for when it left
        self.hands: dict[Hand, None] = {}  # operations that are executing
        self.order: Told | None = None  # of somebody who stops the run
        self.ended = False  # no code of it is left that may begin anything
        self.shields: dict[object, float] = {}  # when their limits end
        self.tasks = branch.Tasks(self.consider_soon)
        # Processes and threads that its code has started.
        self.started = self.tasks.started = attribution.Started(host.new_mark, self._note_started)
        self.root = branch.Branch(self.tasks, "")
        self.main: asyncio.Task[Any] | None = None  # the agent's own call
        self.turns = Turns(self.tasks, self.waits)
        self.left: asyncio.Future[None] = self.loop.create_future()  # done once it leaves
        self.cut = False  # leaving, and not waiting for operations in hand
        self.cut_short = False  # and an operation was in hand when time was over
        self.touched = False  # an operation was let through in this attempt
        self.recalled = False  # somebody wants the run to be given back
        self.ordered: asyncio.Future[None] = self.loop.create_future()  # done once it is told
        self._last: asyncio.Future[Any] | None = None  # the last write that nobody awaits
        self._held: Append | None = None  # what waits for the next write: see together
        self._holding: set[Any] = set()  # tasks that wait for the others before they unwind
        self._movers: list[asyncio.Future[None]] = []

    def dissolve(self) -> None:
        """Nothing of it executes any more: its parts end without a search for garbage."""
        self.main = None
        self.tasks.dissolve()

    def _note_started(self, *, threads: bool = False) -> None:
        """Write down that it starts something. From any thread.

        Where a free lock shows that only a process is gone, others go by what is written: there a
        process is not started before that is durable.
        """
        message = Started(
            run_id=self.run.id,
            fence=self.fence.counter,
            mark=self.started.any_mark(),
            threads=threads or bool(self.started.threads),
        )

        if self.host.store.free_means == Sight.PROCESS:
            self._write_first(message)
            return

        def submit() -> None:
            # Whoever owns the run by then: that something was started stays true.
            self.host.writer.submit(message).add_done_callback(_retrieve)

        if threading.get_ident() == self._loop_thread:
            submit()
        else:
            with contextlib.suppress(
                RuntimeError
            ):  # the loop is closed: its process is about to end
                self.loop.call_soon_threadsafe(submit)

    def _write_first(self, message: Started) -> None:
        try:
            self.host.writer.submit_from_thread(message).result(NOTE_SECONDS)
        except TimeoutError:
            raise StoreUnavailable(
                f"run {self.run.id} starts a process, which has to be written down first: the "
                f"store has not done that within {NOTE_SECONDS:g} s. The process was not started"
            ) from None

    async def end_started(self, *, at_once: bool) -> str:
        """End the processes that it has started; answers their names, nothing if there were none.

        Raises TimeoutError if some cannot be ended.
        """
        remains = self.started.remains()
        return "" if remains is None else await attribution.end(remains, at_once=at_once)

    @property
    def active(self) -> int:
        """How many operations are executing."""
        return len(self.hands)

    def consider_soon(self) -> None:
        """Something has changed: perhaps all that the run does is wait."""

    async def written(self) -> None:
        """Wait for what was written without waiting."""

    def leave(self, reason: str, error: BaseException | None = None) -> None:
        """End this attempt without a verdict of the agent's code. The first reason stands.

        But for a kill: then nothing that this process has to say is of interest any more.
        """
        if reason in ("stopped", "cancelled") and not self.cut and (self.active or self.shields):
            self.cut_short = True
        if reason in AT_ONCE or (reason in AT_BOUNDARY and not self.busy):
            self._cut_off()
        if self.reason is not None:
            self.reason = "killed" if reason == "killed" else self.reason
            return
        self.reason, self.error = reason, error
        self.left_waits = list(self.waits)
        for wait in self.waits:
            if not wait.future.done():
                wait.future.set_exception(self.stopped(reason))
        self.turns.stop(self.stopped(reason))
        if not self.left.done():
            self.left.set_result(None)
        self.move()

    def _cut_off(self) -> None:
        """Not to wait for the operations in hand."""
        self.cut = True
        for task in self.tasks.all | self.tasks.inner:
            task.cancel()

    def stopped(self, reason: str) -> Stopped:
        """What code gets to see of it: who stops the run, if somebody does."""
        told = self.order
        if told is None:
            return Stopped(reason)
        return Stopped(reason, kind=told.kind, by=told.by, why=told.why, order=told.stop_id)

    def stop(self, reason: str, error: BaseException | None = None) -> Stopped:
        """Leave, and answer what the operation in hand has to raise."""
        self.leave(reason, error)
        return self.stopped(self.reason or reason)

    def check(self) -> None:
        """Raise if the attempt is leaving."""
        if self.reason is not None:
            raise self.stopped(self.reason)

    def recall(self) -> None:
        """Give the run back at its next boundary."""
        self.recalled = True
        if not self.active and not self.shielded:
            self.leave("drained")

    @property
    def stopping(self) -> bool:
        """Whether the run is about to leave this process."""
        ordered = self.order is not None or self.recalled
        return self.reason is not None or self.host.draining or ordered

    @property
    def shielded(self) -> bool:
        """Whether a block that must end before a polite stop is open, within its limit."""
        return any(limit > self.loop.time() for limit in self.shields.values())

    def passes(self) -> bool:
        """Whether nothing stands at the boundary, seen without waiting: the way of every step."""
        if self.reason is not None or self.recalled or self.order is not None or self.ended:
            return False
        if self.turns.replayed or self._last is not None or self._held is not None:
            return False
        if not self.host.trusted or self.host.draining:
            return False
        self.touched = True
        return True

    async def boundary(self, *, writes: bool = False) -> None:
        """Between two operations: where polite stops take effect and the lease is looked at.

        `writes`: nothing is executed before something is written, which comes after all that is
        still to be written.
        """
        if self.passes():
            return
        await self.turns.end()
        self.check()
        if self.ended:
            raise self.stopped("its run is over")
        if self.stopping and not self.shielded:
            raise await self.give_way()
        if not writes:
            await self.written()
        try:
            await self.host.ensure_trust()  # the last thing: a freeze before it is noticed
        except (Fenced, StoreError) as error:
            raise self.stop(reason_of(error), error) from None
        self.check()
        self.touched = True

    def gives_way(self) -> bool:
        """A boundary of code that cannot wait: whether it has to leave, and then it does."""
        if self.reason is None and self.stopping and not self.shielded and not self.hands:
            kind = None if self.order is None else self.order.kind
            self.leave("drained" if kind is None else _POLITE.get(kind, "killed"))
        return self.reason is not None

    # ── orders ────────────────────────────────────────────────────────────────────────────────

    @property
    def busy(self) -> bool:
        """Whether an operation is in hand that does not just wait for the others."""
        return any(hand.task not in self._holding for hand in self.hands)

    def _lasts(self, hand: Hand) -> bool:
        """Whether a polite order waits for the end of this operation."""
        cancel = self.order is not None and self.order.kind == "cancel"
        return hand.task not in self._holding and not (cancel and hand.cuttable)

    def be_told(self, told: Told) -> None:
        """Somebody stops the run. Whoever tells it has looked at what was told before."""
        self.order = told
        if not self.ordered.done():
            self.ordered.set_result(None)
        self.move()

    def press(self) -> None:
        """Do what a polite order asks for, as far as it may be done now. Again and again."""
        if self.order is None or self.shielded or self.cut:
            return
        if self.order.kind == "cancel":
            for hand in self.hands:
                if hand.cuttable and hand.task not in self._holding:
                    hand.cut = True
                    hand.task.cancel()
        if not any(self._lasts(hand) for hand in self.hands):
            self.leave(_POLITE[self.order.kind])

    async def give_way(self) -> Stopped:
        """At a boundary: leave, once what has to end has ended; answers what is to be raised."""
        if self.order is None:
            return self.stop("drained")
        await self.let_others_end()
        return self.stop(_POLITE.get(self.order.kind, "killed"))

    async def let_others_end(self) -> None:
        """Code that unwinds cancels its other branches: not while they have something in hand."""
        task = asyncio.current_task()
        self._holding.add(task)
        try:
            self.move()
            while self.reason is None and any(self._lasts(hand) for hand in self.hands):
                try:
                    await self.moved()
                except asyncio.CancelledError:
                    if self.cut or self.order is None:
                        raise
        finally:
            self._holding.discard(task)

    async def moved(self, seconds: float | None = None, also: "set[Any] | None" = None) -> None:
        """Return when something has changed, one of these has ended, or the time is over."""
        mover: asyncio.Future[None] = self.loop.create_future()
        self._movers.append(mover)
        ends = {mover, *(also or ())}
        await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    def move(self) -> None:
        movers, self._movers = self._movers, []
        for mover in movers:
            if not mover.done():
                mover.set_result(None)


def _retrieve(done: "asyncio.Future[Any]") -> None:
    """What could not be written is said by those who needed it."""
    if not done.cancelled():
        done.exception()
