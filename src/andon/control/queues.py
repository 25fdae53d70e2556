"""Queries and changes of queues, limits and agent versions, one function per request."""

import json
from collections.abc import Sequence
from typing import Any

from andon.control.facts import facts
from andon.control.runs.shown_state import Surroundings
from andon.core.limits import Bucket, Limit, LimitScope, LimitSlot, rate_of, tally
from andon.errors import BadInput, NotFound
from andon.runtime.requests.requests import write
from andon.runtime.requests.start import checked_queue
from andon.store.messages.rows import LimitRow
from andon.store.sql.limits import CODE
from andon.store.store import AgentRow, Promote, SetLimit, Store, WorkerRow

# Longer names do not fit into an index.
LONGEST_NAME = 200
_PERIODS = (("d", 86_400.0), ("h", 3600.0), ("m", 60.0), ("s", 1.0))


def queues(store: Store) -> list[dict[str, Any]]:
    """Every queue that has runs, an agent or a limit."""
    now, found = store.now(), {row.name: row for row in store.queues()}
    limits = {row.name: row for row in store.limits() if row.scope == LimitScope.QUEUE}
    names = found.keys() | limits.keys() | {row.queue for row in store.agents()}
    listed = []
    for name in sorted(names):
        row, limit = found.get(name), limits.get(name)
        counts = "waiting returned later running"
        oldest = None if row is None or row.oldest_at is None else max(now - row.oldest_at, 0.0)
        listed.append(
            {
                "queue": name,
                **(facts(row, counts) if row else dict.fromkeys(counts.split(), 0)),
                "oldest_seconds": None if oldest is None else round(oldest, 3),
                **_terms(limit),
            }
        )
    return listed


def limits(store: Store) -> list[dict[str, Any]]:
    """Every limit, with its current usage."""
    now, rows, usage = store.now(), store.limits(), store.usage()
    return [
        {
            "limit": f"{row.scope}:{row.name}",
            **_terms(row),
            **facts(row, "set_by set_at"),
            "used": _used(row.limit, tally(usage.running, [row.limit]), usage.buckets, now),
        }
        for row in rows
    ]


def _used(
    limit: Limit, running: dict[LimitSlot, int], buckets: dict[LimitSlot, Bucket], now: float
) -> list[dict[str, Any]]:
    """The usage of each slot: one per value of a label, a single one for any other limit."""
    slots = {slot for slot in buckets if (slot.scope, slot.name) == (limit.scope, limit.name)}
    slots |= running.keys()
    if limit.scope != LimitScope.LABEL:
        slots.add(LimitSlot(limit.scope, limit.name))
    found = []
    for slot in sorted(slots):
        bucket = limit.fill(buckets.get(slot), now) if limit.rate else None
        found.append(
            {
                "value": slot.value or None,
                "running": running.get(slot, 0),
                "may_begin": None if bucket is None else int(bucket.unspent + 1e-6),
                "next_in_seconds": None if bucket is None else round(limit.wait(bucket), 3),
            }
        )
    return found


def set_limit(
    store: Store, what: str, *, at_most: int | None, rate: str | None, off: bool, by: str
) -> dict[str, Any]:
    """Set or remove a limit; the part that is left out is unlimited."""
    scope, colon, name = what.partition(":")
    if scope not in set(LimitScope) or not colon or not name:
        raise BadInput(f"limit {what!r:.80}: expected queue:NAME, agent:NAME or label:NAME")
    if scope == LimitScope.QUEUE:
        checked_queue(name)
    if len(name) > LONGEST_NAME:
        raise BadInput(f"limit {what!r:.80}: expected a name of at most {LONGEST_NAME} characters")
    if off == (at_most is not None or rate is not None):
        raise BadInput("expected --at-most N, --rate N/TIME or both; or --off alone")
    count, seconds = (None, None) if rate is None else rate_of(rate)
    by = f"{by} (a person)" if by == CODE else by
    message = SetLimit(
        scope=scope, name=name, at_most=at_most, rate=count, per_seconds=seconds, by=by
    )
    if not write(store, message):
        raise NotFound(f"there is no limit {what!r}; andon limit lists them")
    left = next((row for row in store.limits() if (row.scope, row.name) == (scope, name)), None)
    return {"limit": what, **_terms(left), "set_by": left.set_by if left else None}


def _terms(row: LimitRow | None) -> dict[str, Any]:
    return {"at_most": row and row.at_most, "rate": row and _rate(row)}


def _rate(row: LimitRow) -> str | None:
    if row.rate is None or row.per_seconds is None:
        return None
    for unit, seconds in _PERIODS:
        if row.per_seconds >= seconds:
            return f"{row.rate}/{row.per_seconds / seconds:g}{unit}"
    return f"{row.rate}/{row.per_seconds:g}s"


def versions(store: Store, agent: str | None = None) -> list[dict[str, Any]]:
    """Every version of every agent, the promoted one first, with its workers and its runs."""
    rows = store.agents(agent)
    if agent is not None and not rows:
        known = ", ".join(sorted({row.name for row in store.agents()})) or "none"
        raise NotFound(f"agent {agent!r} is not known; known: {known}")
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for name, version, state, count in store.unfinished(agent):
        counts.setdefault((name, version), {})[state] = count
    around = Surroundings(store)
    serving = [one for one in around.live.values() if one.draining_at is None]
    promoted = {row.name: row.version for row in reversed(rows) if row.promoted_at is not None}
    return [
        {
            "agent": row.name,
            "version": row.version,
            "promoted": promoted.get(row.name) == row.version,
            "workers": [worker.id for worker in serving if _serves(worker, row)],
            "runs": counts.get((row.name, row.version), {}),
            "registered_at": row.registered_at,
        }
        for row in rows
    ]


def _serves(worker: WorkerRow, row: AgentRow) -> bool:
    return [row.name, row.version] in json.loads(worker.agents)


def promote(store: Store, version: str, *, agent: str | None, by: str) -> Sequence[str]:
    """Make new runs use this version; returns the agents that have it."""
    names: list[str] = write(store, Promote(version=version, agent=agent, by=by))
    return names
