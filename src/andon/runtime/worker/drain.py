"""The drain: a worker that has to stop returns all its runs, in order and in time.

`core.drain` divides the grace period. Each phase here lasts until it is done, its time is over, or
the worker is told to hurry. The record of the drain is stored in the worker's row.
"""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from andon.core.drain import OVERRUN, DrainPlan, Phase, plan
from andon.points import point
from andon.runtime.attempt.exit import log
from andon.runtime.worker.clock import own_time
from andon.store.store import Drain as DrainMessage

if TYPE_CHECKING:
    from andon.runtime.attempt.attempt import Attempt

# How long a worker with no runs waits for a claim in flight: an unavailable store must not keep it
# alive. Other workers take over anything the claim took when the process ends.
CLAIM_SECONDS = 2.0
# How often a phase checks whether a shield has ended.
LOOK_SECONDS = 0.02


class WorkerDrain:
    """The drain of one worker: `active` are its runs in hand, and their tasks."""

    def __init__(self, grace_seconds: float, active: "dict[Attempt, asyncio.Task[str]]") -> None:
        self._grace_seconds, self._active = grace_seconds, active
        self.why = ""
        self.begun_at = 0.0
        self.plan: DrainPlan = plan(grace_seconds)
        self.announced = asyncio.Event()  # the store knows
        self.announced_after: float | None = None
        self.phases: list[dict[str, Any]] = []
        self.unreturned = 0  # runs that the store did not take back
        self.endings: Counter[str] = Counter()  # of runs held when it began or claimed since
        self._unavailable = 0  # runs for whose return the store was unavailable
        self._settled_before: frozenset[Attempt] = frozenset()
        self._announced_as = ""
        self._hurry = asyncio.Event()
        self._lock = threading.Lock()

    @property
    def begun(self) -> bool:
        return self.why != ""

    def begin(self, why: str, grace_seconds: float | None) -> bool:
        """Start the grace period; False if it had started before. Safe from any thread."""
        with self._lock:
            if self.begun:
                return False
            self.begun_at = own_time()
            active = list(self._active)
            self._settled_before = frozenset(one for one in active if one.settled.done())
            self.plan = plan(min(grace_seconds or float("inf"), self._grace_seconds))
            self.why = why
        return True

    def announcement(self, worker_id: str) -> DrainMessage | None:
        """The message that others see, after which claims are not answered; once for each id."""
        with self._lock:
            if worker_id == self._announced_as:
                return None
            self._announced_as = worker_id
        body = {"why": self.why, "grace_seconds": self.plan.grace_seconds}
        return DrainMessage(
            worker_id=worker_id,
            drain=json.dumps(body),
            ago=max(own_time() - self.begun_at, 0.0),
            made_at=time.monotonic(),
        )

    def count(self, attempt: "Attempt", ending: str) -> None:
        """Count how a run ended, if the worker held it when the drain began."""
        self._unavailable += ending == "unavailable"
        if self.begun and attempt not in self._settled_before:
            self.endings[ending] += 1

    def hurry(self) -> None:
        """End the current phase now."""
        self._hurry.set()

    async def carry_out(
        self, claiming: "asyncio.Task[None]", clean_up: Callable[[], Awaitable[None]]
    ) -> None:
        """Go through the phases. `claiming` ends by itself; `clean_up` is the worker's own."""
        point("drain:announce")
        await self._phase(Phase.ANNOUNCE, self._announce(claiming))
        point("drain:boundary")
        await self._phase(Phase.BOUNDARY, self._reach_boundaries(claiming))
        point("drain:checkpoint")
        await self._phase(Phase.CHECKPOINT, self._cut_off())
        point("drain:compensate")
        await self._phase(Phase.COMPENSATE, self._give_up_shields())
        self.unreturned = len(self._unsettled()) + self._unavailable
        point("drain:cleanup")
        await self._phase(Phase.CLEANUP, self._clean_up(clean_up))
        if self.unreturned:
            log.error(
                "%d runs could not be requeued; other workers take them over", self.unreturned
            )

    async def _phase(self, phase: Phase, work: Awaitable[None]) -> None:
        began = own_time()
        limit = max(self.begun_at + self.plan.ends[phase] - began, 0.0)
        doing = asyncio.ensure_future(work)
        hurry = asyncio.ensure_future(self._hurry.wait())
        await asyncio.wait({doing, hurry}, timeout=limit, return_when="FIRST_COMPLETED")
        overran = not doing.done() and not hurry.done()
        # This early: keep the flag set, so that the next phase does not wait for steps either.
        if phase is not Phase.ANNOUNCE:
            self._hurry.clear()
        for task in (doing, hurry):
            task.cancel()
        await asyncio.wait({doing, hurry}, timeout=LOOK_SECONDS)
        if doing.done() and not doing.cancelled() and doing.exception() is not None:
            log.error("drain: %s failed", phase, exc_info=doing.exception())
        took = own_time() - began
        if overran and phase is not Phase.ANNOUNCE:
            log.warning("drain: %s took all its %.2f s; %s", phase, limit, OVERRUN[phase])
        self.phases.append(
            {"phase": phase, "took": round(took, 4), "limit": round(limit, 4), "overran": overran}
        )

    def _unsettled(self) -> "dict[Attempt, asyncio.Future[str]]":
        return {one: one.settled for one in self._active if not one.settled.done()}

    async def _announce(self, claiming: "asyncio.Task[None]") -> None:
        await self.announced.wait()
        await asyncio.wait({claiming})

    async def _reach_boundaries(self, claiming: "asyncio.Task[None]") -> None:
        """Return runs that execute nothing at once, and the others when their step has ended."""
        patience = own_time() + CLAIM_SECONDS
        while (unsettled := self._unsettled()) or (not claiming.done() and own_time() < patience):
            for attempt in unsettled:
                if not attempt.exit.hands and not attempt.exit.shielded:
                    attempt.exit.leave("drained")
            waited: set[asyncio.Future[Any]] = set(unsettled.values())
            if not claiming.done():
                waited.add(claiming)
            await asyncio.wait(waited, timeout=LOOK_SECONDS)

    async def _cut_off(self) -> None:
        """Cancel what has not ended; a shield holds that off for as long as its limit says."""
        while unsettled := self._unsettled():
            for attempt in unsettled:
                if not attempt.exit.shielded:
                    attempt.exit.leave("stopped")
            await asyncio.wait(unsettled.values(), timeout=LOOK_SECONDS)

    async def _give_up_shields(self) -> None:
        """Return the last runs now: their return sets the deadlines of what must be undone."""
        unsettled = self._unsettled()
        for attempt in unsettled:
            attempt.exit.leave("stopped")
        if unsettled:
            await asyncio.wait(unsettled.values())

    async def _clean_up(self, clean_up: Callable[[], Awaitable[None]]) -> None:
        """Clean up once the journal is written: first for the runs, then for the worker."""
        if self._active:
            await asyncio.wait(set(self._active.values()))
        await clean_up()

    def left(self) -> float:
        """Seconds until the process has to be gone; unlimited before the drain begins."""
        if not self.begun:
            return float("inf")
        return max(self.begun_at + self.plan.grace_seconds - own_time(), 0.0)

    @property
    def story(self) -> str:
        """The record of the drain, as JSON."""
        late = (Phase.CHECKPOINT, Phase.COMPENSATE, Phase.CLEANUP)
        overran = any(one["overran"] for one in self.phases if one["phase"] in late)
        return json.dumps(
            {
                "why": self.why,
                "grace_seconds": self.plan.grace_seconds,
                "announced_after": self.announced_after,
                "phases": self.phases,
                "exit": "overrun" if overran or self.unreturned else "clean",
                "unreturned": self.unreturned,
            }
        )

    def unwind_seconds(self, usual: float) -> float:
        """How long code that is unwinding may take before it is cancelled again."""
        return min(usual, self.plan.share[Phase.CHECKPOINT] / 8) if self.begun else usual
