"""Exit: whether a run may go on in this process, and why not.

An attempt leaves because the run is suspended, its worker drains, the lease is lost, or code and
journal diverge. From then on every operation raises Stopped, also for code that caught it once.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from andon.errors import Stopped
from andon.runtime.attempt.branch import Tasks
from andon.runtime.attempt.host import Host
from andon.runtime.attempt.replay_order import Turns
from andon.store.messages.stops import StopNotice

log = logging.getLogger("andon")

# Leaving for these reasons does not wait for the operation in hand.
AT_ONCE = frozenset({"fenced", "unavailable", "stopped", "cancelled", "killed"})
# Leaving for these reasons waits for the operation in hand, and for nothing else.
AT_BOUNDARY = frozenset({"drained", "paused"})
# The reason for which a run leaves, by the kind of a polite order.
_POLITE = {"pause": "paused", "cancel": "cancelled"}


class Hand(msgspec.Struct, kw_only=True, eq=False):
    """An operation in hand: one that is executing now."""

    name: str
    since: float
    task: Any
    cuttable: bool  # cutting it off leaves no doubt about the outside world
    cut: bool = False  # it was cut off: however it ends, that is not its outcome


class Exit:
    """Decides when the attempt leaves: by orders, by its worker's drain, by errors."""

    def __init__(self, host: Host, tasks: Tasks, turns: Turns) -> None:
        self._host, self._tasks, self._turns = host, tasks, turns
        self._loop = asyncio.get_running_loop()
        self.reason: str | None = None  # why the attempt leaves, once it does
        self.error: BaseException | None = None
        self.order: StopNotice | None = None  # the order that stops the run, if there is one
        self.recalled = False  # the run is to be given back at its next boundary
        self.ended = False  # none of the run's code may begin anything any more
        self.cut = False  # leaving, and not waiting for operations in hand
        self.cut_short = False  # an operation or a shield was open when time was over
        self.left: asyncio.Future[None] = self._loop.create_future()  # done once it leaves
        self.ordered: asyncio.Future[None] = self._loop.create_future()  # done once ordered to stop
        self.hands: dict[Hand, None] = {}  # operations that are executing
        self.shields: dict[object, float] = {}  # open shields, each with the end of its limit
        self.on_leave: Callable[[], None] = lambda: None  # called once, when the attempt leaves
        self._yielding: set[Any] = set()  # tasks that wait for other branches before they unwind
        self._changes: list[asyncio.Future[None]] = []

    def leave(self, reason: str, error: BaseException | None = None) -> None:
        """End this attempt without an outcome of the agent's code. The first reason stands.

        Only a kill replaces it: nothing that this process reports counts after a kill.
        """
        if reason in ("stopped", "cancelled") and not self.cut and (self.hands or self.shields):
            self.cut_short = True
        if reason in AT_ONCE or (reason in AT_BOUNDARY and not self._busy):
            self.cut = True
            for task in self._tasks.all | self._tasks.inner:
                task.cancel()
        if self.reason is not None:
            self.reason = "killed" if reason == "killed" else self.reason
            return
        self.reason, self.error = reason, error
        self.on_leave()
        self._turns.stop(self.stopped(reason))
        self.left.set_result(None)
        self.notify()

    def stopped(self, reason: str) -> Stopped:
        """The Stopped that code receives; it names who stops the run, if somebody does."""
        order = self.order
        if order is None:
            return Stopped(reason)
        return Stopped(reason, kind=order.kind, by=order.by, why=order.why, order=order.stop_id)

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
        if not self.hands and not self.shielded:
            self.leave("drained")

    @property
    def stopping(self) -> bool:
        """Whether the run is about to leave this process."""
        ordered = self.order is not None or self.recalled
        return self.reason is not None or self._host.draining or ordered

    @property
    def shielded(self) -> bool:
        """Whether a block that must end before a polite stop is open, within its limit."""
        return any(limit > self._loop.time() for limit in self.shields.values())

    async def give_way(self) -> Stopped:
        """Leave at a boundary, once other branches' operations have ended; return the exception."""
        if self.order is None:
            return self.stop("drained")
        await self.let_others_end()
        return self.stop(_POLITE.get(self.order.kind, "killed"))

    def gives_way(self) -> bool:
        """The boundary of code that cannot await: leave if necessary; return whether it leaves."""
        if self.reason is None and self.stopping and not self.shielded and not self.hands:
            kind = None if self.order is None else self.order.kind
            self.leave("drained" if kind is None else _POLITE.get(kind, "killed"))
        return self.reason is not None

    def begin_operation(self, name: str, *, cuttable: bool = False) -> Hand:
        task = asyncio.current_task(self._loop)
        hand = Hand(name=name, since=self._loop.time(), task=task, cuttable=cuttable)
        self.hands[hand] = None
        return hand

    def end_operation(self, hand: Hand) -> None:
        del self.hands[hand]
        hand.task = None  # an error that ends the operation holds it, and with it this task
        self._host.operations += 1
        if self._tasks.waiting:
            self._tasks.on_change()
        if self.order is not None:
            self.notify()

    @property
    def _busy(self) -> bool:
        """Whether an operation is in hand that does more than wait for the other branches."""
        return any(hand.task not in self._yielding for hand in self.hands)

    def _holds_up(self, hand: Hand) -> bool:
        """Whether a polite order waits for this operation to end."""
        cancel = self.order is not None and self.order.kind == "cancel"
        return hand.task not in self._yielding and not (cancel and hand.cuttable)

    async def let_others_end(self) -> None:
        """Wait for operations of other branches: code that unwinds would cancel them."""
        task = asyncio.current_task()
        self._yielding.add(task)
        try:
            self.notify()
            while self.reason is None and any(self._holds_up(hand) for hand in self.hands):
                try:
                    await self.changed()
                except asyncio.CancelledError:
                    if self.cut or self.order is None:
                        raise
        finally:
            self._yielding.discard(task)

    def take_order(self, order: StopNotice) -> None:
        """Take an order that stops the run; the caller has compared it with any earlier order."""
        self.order = order
        if not self.ordered.done():
            self.ordered.set_result(None)
        self.notify()

    def press(self) -> None:
        """Carry out a polite order as far as possible now; called until the run has left."""
        if self.order is None or self.shielded or self.cut:
            return
        if self.order.kind == "cancel":
            for hand in self.hands:
                if hand.cuttable and hand.task not in self._yielding:
                    hand.cut = True
                    hand.task.cancel()
        if not any(self._holds_up(hand) for hand in self.hands):
            self.leave(_POLITE[self.order.kind])

    async def changed(self, seconds: float | None = None, also: "set[Any] | None" = None) -> None:
        """Return when something has changed, one of `also` has ended, or the time is over."""
        change: asyncio.Future[None] = self._loop.create_future()
        self._changes.append(change)
        ends = {change, *(also or ())}
        await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    def notify(self) -> None:
        """Wake the callers of `changed`."""
        changes, self._changes = self._changes, []
        for change in changes:
            if not change.done():
                change.set_result(None)
