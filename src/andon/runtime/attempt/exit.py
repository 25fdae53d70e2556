"""How an attempt leaves a run before the agent's code has ended.

An attempt leaves because the run is suspended, its worker drains, the lease is lost, or code and
journal diverge. From then on every operation raises Stopped, also for code that caught it once.
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
from andon.store.messages.stops import ProcessStarted, StopNotice
from andon.store.store import Append, Claimed
from andon.store.writer.writer import Writer

log = logging.getLogger("andon")

# Limit for the commit before an attempt's first process starts: even a busy disk needs less.
NOTE_SECONDS = 5.0
# Leaving for these reasons does not wait for the operation in hand.
AT_ONCE = frozenset({"fenced", "unavailable", "stopped", "cancelled", "killed"})
# Leaving for these reasons waits for the operation in hand, and for nothing else.
AT_BOUNDARY = frozenset({"drained", "paused"})
# The reason for which a run leaves, by the kind of a polite order.
_POLITE = {"pause": "paused", "cancel": "cancelled"}


class Host(Protocol):
    """The process an attempt runs in, as far as the attempt needs it."""

    store: Any
    writer: Writer
    clock: StoreClock
    threads: ThreadPoolExecutor
    worker_id: str
    draining: bool
    embedded: bool  # the worker runs inside the user's own program
    in_threads: set[Any]
    operations: int  # number of operations that have ended in this process
    settings: Settings

    @property
    def processes(self) -> Any:
        """The pool that executes steps in processes of their own."""
        ...

    @property
    def trusted(self) -> bool:
        """Whether the lease is certainly held, judged without asking the store."""
        ...

    async def ensure_trust(self) -> None:
        """Return once the lease is certainly held; raise Fenced if it is not."""
        ...

    @property
    def unwind_seconds(self) -> float:
        """How long code of a leaving attempt may take before it is cancelled again."""
        ...

    def carry(self, agent: Any) -> None: ...

    def cleanup_left(self) -> float:
        """Seconds left for cleaning up."""
        ...

    def new_mark(self) -> int:
        """A new mark, for the processes of one attempt."""
        ...

    def keep_in_mind(self, work: Any) -> None:
        """Track work that could not be ended: this process is not gone until it ends."""
        ...


class Hand(msgspec.Struct, kw_only=True, eq=False):
    """An operation in hand: one that is executing now."""

    name: str
    since: float
    task: Any
    cuttable: bool  # cutting it off leaves no doubt about the outside world
    cut: bool = False  # it was cut off: however it ends, that is not its outcome


class Wait(msgspec.Struct, kw_only=True):
    """Something a run waits for: an inbox message, a time, or the first of both."""

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
        self.left_waits: list[Wait] = []  # open waits at the moment it left
        self.hands: dict[Hand, None] = {}  # operations that are executing
        self.order: StopNotice | None = None  # the order that stops the run, if there is one
        self.ended = False  # none of the run's code may begin anything any more
        self.shields: dict[object, float] = {}  # open shields, each with the end of its limit
        self.tasks = branch.Tasks(self.consider_soon)
        # Processes and threads that the run's code has started.
        self.started = self.tasks.started = attribution.StartedProcesses(
            host.new_mark, self._note_started
        )
        self.root = branch.Branch(self.tasks, "")
        self.main: asyncio.Task[Any] | None = None  # the agent's own call
        self.turns = Turns(self.tasks, self.waits)
        self.left: asyncio.Future[None] = self.loop.create_future()  # done once it leaves
        self.cut = False  # leaving, and not waiting for operations in hand
        self.cut_short = False  # an operation or a shield was open when time was over
        self.touched = False  # an operation passed a boundary in this attempt
        self.recalled = False  # the run is to be given back at its next boundary
        self.ordered: asyncio.Future[None] = self.loop.create_future()  # done once ordered to stop
        self._last: asyncio.Future[Any] | None = None  # the last write that nobody awaits
        self._held: Append | None = None  # a result that waits for the next write: ctx.together
        self._holding: set[Any] = set()  # tasks that wait for other branches before they unwind
        self._movers: list[asyncio.Future[None]] = []

    def dissolve(self) -> None:
        """Break reference cycles of an attempt that is over, to free it without the collector."""
        self.main = None
        self.tasks.dissolve()

    def _note_started(self, *, threads: bool = False) -> None:
        """Record that the run starts a process or thread. Safe from any thread.

        On a store whose free lock shows only that a process is gone, other workers go by this
        record: there, a process is not started before the record is durable.
        """
        message = ProcessStarted(
            run_id=self.run.id,
            fence=self.fence.counter,
            mark=self.started.any_mark(),
            threads=threads or bool(self.started.threads),
        )

        if self.host.store.free_means == Sight.PROCESS:
            self._write_first(message)
            return

        def submit() -> None:
            # True even if another worker owns the run by the time this is written.
            self.host.writer.submit(message).add_done_callback(_retrieve)

        if threading.get_ident() == self._loop_thread:
            submit()
        else:
            with contextlib.suppress(
                RuntimeError
            ):  # the loop is closed: its process is about to end
                self.loop.call_soon_threadsafe(submit)

    def _write_first(self, message: ProcessStarted) -> None:
        try:
            self.host.writer.submit_from_thread(message).result(NOTE_SECONDS)
        except TimeoutError:
            raise StoreUnavailable(
                f"run {self.run.id} starts a process, which has to be written down first: the "
                f"store has not done that within {NOTE_SECONDS:g} s. The process was not started"
            ) from None

    async def end_started(self, *, at_once: bool) -> str:
        """End the processes that the run has started; return their names, "" if there were none.

        Raises TimeoutError if some cannot be ended.
        """
        remains = self.started.remains()
        return "" if remains is None else await attribution.end(remains, at_once=at_once)

    @property
    def active(self) -> int:
        """How many operations are executing."""
        return len(self.hands)

    def consider_soon(self) -> None:
        """Check soon whether the run does nothing but wait: something has changed."""

    async def written(self) -> None:
        """Wait for writes that were submitted without waiting."""

    def leave(self, reason: str, error: BaseException | None = None) -> None:
        """End this attempt without an outcome of the agent's code. The first reason stands.

        Only a kill replaces it: nothing that this process reports counts after a kill.
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
        """Cancel the run's tasks instead of waiting for operations in hand."""
        self.cut = True
        for task in self.tasks.all | self.tasks.inner:
            task.cancel()

    def stopped(self, reason: str) -> Stopped:
        """The Stopped that code receives; it names who stops the run, if somebody does."""
        told = self.order
        if told is None:
            return Stopped(reason)
        return Stopped(reason, kind=told.kind, by=told.by, why=told.why, order=told.stop_id)

    def stop(self, reason: str, error: BaseException | None = None) -> Stopped:
        """Leave, and return the exception that the operation in hand has to raise."""
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
        """Whether an operation may pass its boundary without waiting: the fast path of steps."""
        if self.reason is not None or self.recalled or self.order is not None or self.ended:
            return False
        if self.turns.replayed or self._last is not None or self._held is not None:
            return False
        if not self.host.trusted or self.host.draining:
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
        self.check()
        if self.ended:
            raise self.stopped("its run is over")
        if self.stopping and not self.shielded:
            raise await self.give_way()
        if not writes:
            await self.written()
        try:
            await self.host.ensure_trust()  # last, so that a freeze before it is noticed
        except (Fenced, StoreError) as error:
            raise self.stop(reason_of(error), error) from None
        self.check()
        self.touched = True

    def gives_way(self) -> bool:
        """The boundary of code that cannot await: leave if necessary; return whether it leaves."""
        if self.reason is None and self.stopping and not self.shielded and not self.hands:
            kind = None if self.order is None else self.order.kind
            self.leave("drained" if kind is None else _POLITE.get(kind, "killed"))
        return self.reason is not None

    # ── orders ────────────────────────────────────────────────────────────────────────────────

    @property
    def busy(self) -> bool:
        """Whether an operation is in hand that does more than wait for the other branches."""
        return any(hand.task not in self._holding for hand in self.hands)

    def _lasts(self, hand: Hand) -> bool:
        """Whether a polite order waits for this operation to end."""
        cancel = self.order is not None and self.order.kind == "cancel"
        return hand.task not in self._holding and not (cancel and hand.cuttable)

    def be_told(self, told: StopNotice) -> None:
        """Take an order that stops the run; the caller has compared it with any earlier order."""
        self.order = told
        if not self.ordered.done():
            self.ordered.set_result(None)
        self.move()

    def press(self) -> None:
        """Carry out a polite order as far as possible now; called until the run has left."""
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
        """Leave at a boundary, once other branches' operations have ended; return the exception."""
        if self.order is None:
            return self.stop("drained")
        await self.let_others_end()
        return self.stop(_POLITE.get(self.order.kind, "killed"))

    async def let_others_end(self) -> None:
        """Wait for operations of other branches: code that unwinds would cancel them."""
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
        """Return when something has changed, one of `also` has ended, or the time is over."""
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
    """Mark a failed write as seen: callers that need it report the failure."""
    if not done.cancelled():
        done.exception()
