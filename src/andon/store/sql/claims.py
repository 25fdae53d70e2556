"""Claims: a worker takes ready runs, after everything that is due before them.

No separate process looks for due work: each claim takes back the runs of a bounded number of dead
workers, wakes the runs that are due, and makes overdue orders hard.
"""

from __future__ import annotations

import json

from andon.core.stop import StopKind, StopScope
from andon.core.values.struct import Struct
from andon.store.messages.stops import stop_notices
from andon.store.sql.limits import wanted
from andon.store.sql.reads import build
from andon.store.store import Claimed, ClaimResult

TYPE_CHECKING = False  # commands must not pay for imports they do not need
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from andon.store.sql.events import EventHandler
    from andon.store.sql.limits import Held, LimitHandler
    from andon.store.sql.orders import OrderHandler
    from andon.store.sql.reads import Query, Rows
    from andon.store.sql.workers import WorkerHandler
    from andon.store.store import Claim

    # Claims in one query if nothing unusual is pending, else returns None.
    UsualClaim = Callable[[Claim], ClaimResult | None]

NO_CLAIM = -1
OVERDUE = json.dumps({"why": "it was not resumed in time", "by": ""})


class ClaimFacts(Struct):
    """The facts a claim reads before it takes runs."""

    drain: bool
    limited: bool
    overdue: bool
    due: bool
    unresumed: bool
    wake_in: float | None
    recalled: str  # JSON
    latched: str  # JSON
    ends_in: float | None  # seconds until an order becomes hard
    orders: str  # JSON
    repeated: bool


class ClaimHandler:
    """Handles claims. `usual` saves round trips, where a query is one."""

    def __init__(
        self,
        q: Query,
        events: EventHandler,
        limits: LimitHandler,
        orders: OrderHandler,
        workers: WorkerHandler,
        usual: UsualClaim,
    ) -> None:
        self.q, self._events, self._limits = q, events, limits
        self._orders, self._workers, self._claim_usual = orders, workers, usual

    def claim(self, m: Claim) -> ClaimResult:
        self.q("lock_worker", worker_id=m.worker_id)
        returned, seen = 0, dict(m.seen)
        for worker_id, evidence in m.dead:
            state, _, words = evidence.partition(":")
            returned += self._workers.take_back(
                worker_id,
                state,
                words,
                interrupted=True,
                limit=m.interruption_limit,
                seen=seen.get(worker_id, 0.0),
            )
        usual = self._claim_usual(m)
        if usual is not None:
            return usual.but(returned=returned)
        found = self.q("look", worker_id=m.worker_id, claim=m.number or NO_CLAIM)
        if not found:  # the worker never registered in this database
            return ClaimResult(runs=[], wake_in=None, returned=returned)
        return self._claim_after(m, build(ClaimFacts, found[0]), returned)

    def _claim_after(self, m: Claim, look: ClaimFacts, returned: int) -> ClaimResult:
        """Do all that must precede a claim, then claim within the limits and latches."""
        due, unresumed, window, repeated = look.due, look.unresumed, look.ends_in, look.repeated
        latches = json.loads(look.latched)
        # While the whole fleet is held, due runs stay asleep and nothing is undone.
        free = not any(scope == StopScope.FLEET for scope, *_ in latches)
        if window is not None and window <= 0:
            self._orders.escalate()
        if look.overdue and m.expire and self._may_expire(m):
            returned += self._expire(m)
        if due and free:
            self.q("wake_due", limit=100)
        if unresumed and free:
            for (run_id,) in self.q("give_up_overdue", limit=100, undoing=OVERDUE):
                self._events.note("run.undoing", run_id=run_id, **json.loads(OVERDUE))
        rows: list[Claimed] = []
        rate_in = None
        if m.limit > 0 and free:
            held = [(scope, name, value, 0) for scope, name, value, _ in latches]
            if repeated:  # its commit's outcome was unknown
                before = self.q("claimed_before", worker_id=m.worker_id, claim=m.number)
                rows = self._with_starts([claimed(row) for row in before])
            else:
                rows, rate_in = self._claim_runs(m, held, limited=look.limited or bool(held))
        # Each claim wakes a bounded number of runs, so more may be due: claim again at once.
        soon = look.wake_in if not (due or unresumed) else 0.0 if free else None
        return answer(look, rows, soon, rate_in, window, returned=returned)

    def _expire(self, m: Claim) -> int:
        """End workers whose lease is overdue; return how many runs that gives back."""
        why, limit = "its lease ended", m.interruption_limit
        return sum(
            self._workers.take_back(worker_id, "silent", why, interrupted=True, limit=limit)
            for (worker_id,) in self.q("overdue_workers")
        )

    def _may_expire(self, m: Claim) -> bool:
        """Return whether this worker may expire others.

        Uses the store's clock at the moment of the write, which may have waited out an outage.
        """
        from andon.core.lease import may_expire_others

        contact = self.q("contact", worker_id=m.worker_id, lease_seconds=m.lease_seconds)
        if not contact:
            return False
        [(since, now)] = contact
        return may_expire_others(since, now, m.lease_seconds)

    def _claim_runs(
        self, m: Claim, held: list[Held], *, limited: bool
    ) -> tuple[list[Claimed], float | None]:
        """Return the claimed runs, and the seconds until a rate lets the next one begin."""
        if limited:
            rows, rate_in = self._limits.claim_admitted(m, held)
        else:
            rows, rate_in = self.q("claim_runs", **wanted(m), limit=m.limit, chosen=None), None
        runs = [claimed(row) for row in rows]
        if runs:
            begun = [(run.id, run.fence.counter, run.attempt) for run in runs]
            self.q("begin_attempts", worker_id=m.worker_id, claim=m.number, runs=json.dumps(begun))
        return self._with_starts(runs), rate_in

    def _with_starts(self, runs: list[Claimed]) -> list[Claimed]:
        """Attach the start entry to each untouched run: its worker then need not load a journal."""
        untouched = [run.id for run in runs if (run.attempt, run.head_seq, run.inbox) == (1, 0, 0)]
        if not untouched:
            return runs
        from andon.core.journal import Entry

        rows = self.q("start_entries", run_ids=json.dumps(untouched))
        starts = {run_id: build(Entry, row) for run_id, *row in rows}
        return [run.but(start=starts.get(run.id)) for run in runs]


def orders_for(worker_id: str, rows: Rows) -> ClaimResult:
    """Return the orders that a claim would carry, for a worker that has stopped claiming."""
    if not rows:
        return ClaimResult(runs=[], wake_in=None, returned=0)
    return answer(build(ClaimFacts, rows[0])).but(drain=False, recalled=())


def answer(
    look: ClaimFacts, runs: Sequence[Claimed] = (), *times: float | None, returned: int = 0
) -> ClaimResult:
    """Build the answer to a claim; `times`: seconds after which there may be something to do."""
    return ClaimResult(
        runs=list(runs),
        wake_in=soonest(*times),
        returned=returned,
        drain=bool(look.drain),
        recalled=json.loads(look.recalled),
        notices=stop_notices(look.orders),
        halted=any(kind == StopKind.HALT for *_, kind in json.loads(look.latched)),
    )


def soonest(*times: float | None) -> float | None:
    return min((seconds for seconds in times if seconds is not None), default=None)


def claimed(row: Sequence[Any]) -> Claimed:
    from andon.core.lease import Fence

    run_id, agent, version, attempt, epoch, counter, *rest = row
    return build(Claimed, (run_id, agent, version, attempt, Fence(epoch, counter), *rest, None))
