"""Limits: store them, and claim no more runs than they admit.

A worker that claims under limits counts the running runs and chooses among the waiting ones under
a lock, so that the limits hold across all workers. Without limits, claims skip all of this.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False  # commands must not pay for imports they do not need
if TYPE_CHECKING:
    from typing import Any

    from andon.core.limits import Admission, Candidate
    from andon.store.messages.rows import LimitRow
    from andon.store.sql.events import EventHandler
    from andon.store.sql.reads import Query, Reads, Rows
    from andon.store.store import AgentRow, Claim, SetLimit

TERMS = ("at_most", "rate", "per_seconds")
Held = tuple[str, str, str, int]  # scope, name, value, and whether only runs that begin
# `set_by` of limits declared in code. Code never changes a limit that a person has set.
CODE = "code"
# Extra candidates per page, as counting may rule out some of them.
PAGE = 100
# Each page may find more full slots; runs behind more than this many pages wait for the next claim.
PAGES = 20


class LimitHandler:
    """Handles the messages about limits, and claims that are subject to limits."""

    def __init__(self, q: Query, reads: Reads, events: EventHandler) -> None:
        self.q, self._reads, self._events = q, reads, events

    def set_limit(self, m: SetLimit) -> bool:
        """Set or drop a limit; return whether the limit exists now or existed before."""
        self.q("lock_workers")
        if m.at_most is None and m.rate is None:
            found = bool(self.q("drop_limit", scope=m.scope, name=m.name))
            if m.scope == "agent":
                self.declare({m.name})
        else:
            found = True
            self.q("set_limit", scope=m.scope, name=m.name, **_terms(m), set_by=m.by)
        self._events.note("limit.set", scope=m.scope, name=m.name, **_terms(m), by=m.by)
        return found

    def declare(self, names: set[str]) -> None:
        """Apply the limits that promoted versions declare in code, unless a person has set one."""
        known = {row.name: row for row in self._reads.limits() if row.scope == "agent"}
        for name in sorted(names):
            row, before = self._reads.agents(name)[:1], known.get(name)
            if not row or (before is not None and before.set_by != CODE):
                continue
            said = _terms(row[0])
            if said == (_terms(before) if before is not None else dict.fromkeys(TERMS)):
                continue
            self.q("lock_workers")
            if any(term is not None for term in said.values()):
                self.q("set_limit", scope="agent", name=name, **said, set_by=CODE)
            else:
                self.q("drop_limit", scope="agent", name=name)

    def claim_admitted(self, m: Claim, latched: list[Held]) -> tuple[Rows, float | None]:
        """Claim runs that the limits admit and no latch holds.

        Also returns the seconds until a rate lets another run begin, or None.
        """
        from andon.core.limits import admit, tally

        self.q("lock_limits")
        limits = [row.limit for row in self._reads.limits()]
        usage = self._reads.usage()
        now = self._reads.now()
        running, buckets = tally(usage.running, limits), dict(usage.buckets)
        stand = admit((), limits, running, buckets, now=now, room=0)
        chosen: list[Candidate] = []
        for _ in range(PAGES):
            room = m.limit - len(chosen)
            held = [*_held(stand), *latched]
            page = self._candidates(m, chosen, held, PAGE + room) if room else []
            stand = admit(page, limits, stand.running, buckets, now=now, room=room)
            buckets |= stand.buckets
            chosen += [run for run in page if run.id in stand.ids]
            if len(page) < PAGE + room:
                break
        rate_in = None
        if stand.spent and len(chosen) < m.limit:
            full = [*(slot for slot in _held(stand) if not slot[-1]), *latched]
            if self._candidates(m, chosen, full, 1):  # else no run waits for the rate
                rate_in = min(stand.spent.values())
        rows = {row[0]: row for row in self._claim_chosen(m, chosen)}
        begun = [run for run in chosen if run.id in rows]
        spent = admit(begun, limits, running, usage.buckets, now=now, room=len(begun)).buckets
        for slot, bucket in spent.items():
            self.q("fill_bucket", **slot._asdict(), **bucket._asdict())
        if spent.keys() - usage.buckets.keys():
            self.q("sweep_buckets")
        return [rows[run.id] for run in begun], rate_in

    def _candidates(
        self, m: Claim, chosen: list[Candidate], held: list[Any], limit: int
    ) -> list[Candidate]:
        """Return the runs the worker would claim next, except those chosen or held back."""
        from andon.core.limits import Candidate

        rows = self.q(
            "candidates",
            **wanted(m),
            taken=json.dumps([run.id for run in chosen]),
            held=json.dumps(held),
            limit=limit,
        )
        return [
            Candidate(run_id, queue, agent, json.loads(labels), bool(spends))
            for run_id, queue, agent, labels, spends in rows
        ]

    def _claim_chosen(self, m: Claim, chosen: list[Candidate]) -> Rows:
        if not chosen:
            return []
        ids = json.dumps([run.id for run in chosen])
        return self.q("claim_runs", **wanted(m), limit=len(chosen), chosen=ids)


def wanted(m: Claim) -> dict[str, Any]:
    """Return the query parameters that say which runs a claim may take."""
    from andon.core.queue import suspect_from

    return {
        "worker_id": m.worker_id,
        "agents": json.dumps(m.agents),
        "only": None if m.only is None else json.dumps(m.only),
        "queues": None if m.queues is None else json.dumps(m.queues),
        "suspect_from": suspect_from(m.interruption_limit),
    }


def _terms(limit: LimitRow | AgentRow | SetLimit) -> dict[str, Any]:
    return {name: getattr(limit, name) for name in TERMS}


def _held(stand: Admission) -> list[Held]:
    """Return the slots that hold runs back; a last value of 1 holds only runs that begin."""
    full = [(*slot, 0) for slot in sorted(stand.full)]
    return full + [(*slot, 1) for slot in sorted(stand.spent.keys() - stand.full)]
