"""Leaving: an attempt ends before the agent's code has come to its end.

The run was suspended, its worker drains, the lease was lost, code and journal diverge. From then
on every operation raises Stopped: code that catches it once is not free.
"""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import msgspec

from andon.core.lease import Fence
from andon.errors import Fenced, Stopped, StoreError
from andon.runtime import branch
from andon.runtime.clock import StoreClock
from andon.runtime.describing import reason_of
from andon.runtime.turns import Turns
from andon.store.store import Claimed
from andon.store.writer import Writer

log = logging.getLogger("andon")

# Leaving for these does not wait for the operation in hand.
AT_ONCE = frozenset({"fenced", "unavailable", "stopped"})


class Host(Protocol):
    """What an attempt needs of the process it runs in."""

    store: Any
    writer: Writer
    clock: StoreClock
    threads: ThreadPoolExecutor
    worker_id: str
    draining: bool
    in_threads: set[Any]

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

    def keep_in_mind(self, work: Any) -> None:
        """What goes on although it should not: until it ends, this process is not gone."""
        ...


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
        self.fence: Fence = run.fence
        self.reason: str | None = None  # why the attempt leaves, once it does
        self.error: BaseException | None = None
        self.waits: list[Wait] = []
        self.left_waits: list[Wait] = []  # what it waited for when it left
        self.active = 0  # operations that are executing
        self.ended = False  # no code of it is left that may begin anything
        self.shields: dict[object, float] = {}  # when their limits end
        self.tasks = branch.Tasks(self.consider_soon)
        self.root = branch.Branch(self.tasks, "")
        self.main: asyncio.Task[Any] | None = None  # the agent's own call
        self.turns = Turns(self.tasks, lambda: {wait.task for wait in self.waits})
        self.left: asyncio.Future[None] = self.loop.create_future()  # done once it leaves
        self.cut = False  # leaving, and not waiting for operations in hand
        self.cut_short = False  # and an operation was in hand when time was over
        self.touched = False  # an operation was let through in this attempt
        self.recalled = False  # somebody wants the run to be given back

    def consider_soon(self) -> None:
        """Something has changed: perhaps all that the run does is wait."""

    async def written(self) -> None:
        """Wait for what was written without waiting."""

    def leave(self, reason: str, error: BaseException | None = None) -> None:
        """End this attempt without a verdict of the agent's code. The first reason stands."""
        if reason == "stopped" and not self.cut and (self.active or self.shields):
            self.cut_short = True
        if reason in AT_ONCE or (reason == "drained" and not self.active):
            self._cut_off()
        if self.reason is not None:
            return
        self.reason, self.error = reason, error
        self.left_waits = list(self.waits)
        for wait in self.waits:
            if not wait.future.done():
                wait.future.set_exception(Stopped(reason))
        self.turns.stop(Stopped(reason))
        if not self.left.done():
            self.left.set_result(None)

    def _cut_off(self) -> None:
        """Not to wait for the operations in hand."""
        self.cut = True
        for task in self.tasks.all:
            task.cancel()

    def stop(self, reason: str, error: BaseException | None = None) -> Stopped:
        """Leave, and answer what the operation in hand has to raise."""
        self.leave(reason, error)
        return Stopped(self.reason or reason)

    def check(self) -> None:
        """Raise if the attempt is leaving."""
        if self.reason is not None:
            raise Stopped(self.reason)

    def recall(self) -> None:
        """Give the run back at its next boundary."""
        self.recalled = True
        if not self.active and not self.shielded:
            self.leave("drained")

    @property
    def stopping(self) -> bool:
        """Whether the run is about to leave this process."""
        return self.reason is not None or self.host.draining or self.recalled

    @property
    def shielded(self) -> bool:
        """Whether a block that must end before a polite stop is open, within its limit."""
        return any(limit > self.loop.time() for limit in self.shields.values())

    @property
    def undisturbed(self) -> bool:
        return not (self.reason is not None or self.turns.replayed or self.ended or self.recalled)

    async def boundary(self) -> None:
        """Between two operations: where polite stops take effect and the lease is looked at."""
        host = self.host
        if self.undisturbed and host.trusted and not host.draining:
            self.touched = True
            return
        await self.turns.end()
        self.check()
        if self.ended:
            raise Stopped("its run is over")
        if self.stopping and not self.shielded:
            raise self.stop("drained")
        try:
            await self.host.ensure_trust()
        except (Fenced, StoreError) as error:
            raise self.stop(reason_of(error), error) from None
        self.check()
        await self.written()
        self.touched = True
