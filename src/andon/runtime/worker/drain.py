"""The drain: a worker that was told to stop returns all its runs, in order and in time.

`core.drain` divides the grace period. Each phase here lasts until it is done, its time is over, or
the worker is told a second time. The record of the drain is stored in the worker's row.
"""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from andon.core.drain import OVERRUN, DrainPlan, Phase, plan
from andon.points import point
from andon.runtime.attempt.exit import log
from andon.runtime.worker import cleanup
from andon.runtime.worker.clock import own_time
from andon.store.store import Drain as DrainMessage

if TYPE_CHECKING:
    from andon.runtime.attempt.attempt import Attempt
    from andon.runtime.worker.worker import Worker

# How long a worker with no runs waits for a claim in flight: an unavailable store must not keep it
# alive. Other workers take over anything the claim took when the process ends.
CLAIM_SECONDS = 2.0
# How often a phase checks whether a shield has ended.
LOOK_SECONDS = 0.02


class WorkerDrain:
    """The drain of one worker."""

    def __init__(self, worker: "Worker") -> None:
        self.worker = worker
        self.why = ""
        self.told_at = 0.0
        self.plan: DrainPlan = plan(worker.settings.grace_seconds)
        self.announced_after: float | None = None
        self.phases: list[dict[str, Any]] = []
        self.unreturned = 0
        self.endings: Counter[str] = Counter()  # of runs held when it began or claimed since
        self._settled_before: frozenset[Attempt] = frozenset()
        self._announced_as = ""
        self._harder = asyncio.Event()
        self._telling = threading.Lock()

    @property
    def told(self) -> bool:
        return self.why != ""

    def begin(self, why: str, grace_seconds: float | None) -> bool:
        """Start the drain; False if it had started before. Safe from any thread."""
        with self._telling:
            if self.told:
                return False
            self.told_at = own_time()
            active = list(self.worker.active)
            self._settled_before = frozenset(one for one in active if one.settled.done())
            self.plan = plan(min(grace_seconds or float("inf"), self.worker.settings.grace_seconds))
            self.why = why
        self.worker.on_told()
        return True

    def announce(self) -> None:
        """Record the drain in the store: others see it, and our claims are no longer answered."""
        worker_id = self.worker.worker_id
        with self._telling:
            if worker_id == self._announced_as:
                return
            self._announced_as = worker_id
        body = {"why": self.why, "grace_seconds": self.plan.grace_seconds}
        message = DrainMessage(
            worker_id=worker_id,
            drain=json.dumps(body),
            ago=max(own_time() - self.told_at, 0.0),
            made_at=time.monotonic(),
        )
        self.worker.writer.submit_from_thread(message).add_done_callback(self._announced)

    def _announced(self, done: Any) -> None:
        if done.exception() is None:
            self.announced_after = own_time() - self.told_at
        self.worker.post(self.worker.announced.set)

    def count(self, attempt: "Attempt", ending: str) -> None:
        """Count how a run ended, if the worker held it when the drain began."""
        if self.told and attempt not in self._settled_before:
            self.endings[ending] += 1

    def harden(self) -> None:
        """End the current phase now, because the worker was told again."""
        self._harder.set()

    # ── the phases ────────────────────────────────────────────────────────────────────────────

    async def carry_out(self) -> None:
        worker = self.worker
        point("drain:announce")
        await self._phase(Phase.ANNOUNCE, self._announce())
        point("drain:boundary")
        await self._phase(Phase.BOUNDARY, self._reach_boundaries())
        point("drain:checkpoint")
        await self._phase(Phase.CHECKPOINT, self._cut_off())
        point("drain:compensate")
        await self._phase(Phase.COMPENSATE, self._give_up_shields())
        self.unreturned = len(self._unsettled()) + worker.unreturned
        point("drain:cleanup")
        await self._phase(Phase.CLEANUP, self._clean_up())
        if self.unreturned:
            log.error(
                "%d runs could not be requeued; other workers take them over", self.unreturned
            )

    async def _phase(self, phase: Phase, work: Awaitable[None]) -> None:
        began = own_time()
        limit = max(self.told_at + self.plan.ends[phase] - began, 0.0)
        doing = asyncio.ensure_future(work)
        told_again = asyncio.ensure_future(self._harder.wait())
        await asyncio.wait({doing, told_again}, timeout=limit, return_when="FIRST_COMPLETED")
        overran = not doing.done() and not told_again.done()
        # Told again this early: keep the flag set, so that the next phase does not wait for steps.
        if phase is not Phase.ANNOUNCE:
            self._harder.clear()
        for task in (doing, told_again):
            task.cancel()
        await asyncio.wait({doing, told_again}, timeout=LOOK_SECONDS)
        if doing.done() and not doing.cancelled() and doing.exception() is not None:
            log.error("drain: %s failed", phase, exc_info=doing.exception())
        took = own_time() - began
        if overran and phase is not Phase.ANNOUNCE:
            log.warning("drain: %s took all its %.2f s; %s", phase, limit, OVERRUN[phase])
        self.phases.append(
            {"phase": phase, "took": round(took, 4), "limit": round(limit, 4), "overran": overran}
        )

    def _unsettled(self) -> "dict[Attempt, asyncio.Future[str]]":
        return {one: one.settled for one in self.worker.active if not one.settled.done()}

    async def _announce(self) -> None:
        await self.worker.announced.wait()
        await asyncio.wait({self.worker.claiming})

    async def _reach_boundaries(self) -> None:
        """Return runs that execute nothing at once, and the others when their step has ended."""
        claiming = self.worker.claiming
        patience = own_time() + CLAIM_SECONDS
        while (unsettled := self._unsettled()) or (not claiming.done() and own_time() < patience):
            for attempt in unsettled:
                if not attempt.active and not attempt.shielded:
                    attempt.leave("drained")
            waited: set[asyncio.Future[Any]] = set(unsettled.values())
            if not claiming.done():
                waited.add(claiming)
            await asyncio.wait(waited, timeout=LOOK_SECONDS)

    async def _cut_off(self) -> None:
        """Cancel what has not ended; a shield holds that off for as long as its limit says."""
        while unsettled := self._unsettled():
            for attempt in unsettled:
                if not attempt.shielded:
                    attempt.leave("stopped")
            await asyncio.wait(unsettled.values(), timeout=LOOK_SECONDS)

    async def _give_up_shields(self) -> None:
        """Return the last runs now: their return sets the deadlines of what must be undone."""
        unsettled = self._unsettled()
        for attempt in unsettled:
            attempt.leave("stopped")
        if unsettled:
            await asyncio.wait(unsettled.values())

    async def _clean_up(self) -> None:
        """Clean up once the journal is written: first for the runs, then for the worker."""
        if self.worker.active:
            await asyncio.wait(set(self.worker.active.values()))
        if self.worker.only is None:
            await cleanup.of_worker(self.left)

    def left(self) -> float:
        """Seconds until the process has to be gone."""
        return max(self.told_at + self.plan.grace_seconds - own_time(), 0.0)

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


def unwind_seconds(drain: WorkerDrain, usual: float) -> float:
    """How long code that is unwinding may take before it is cancelled again."""
    if not drain.told:
        return usual
    return min(usual, drain.plan.share[Phase.CHECKPOINT] / 8)
