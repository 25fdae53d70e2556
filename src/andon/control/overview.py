"""A snapshot of the fleet, for `andon top`: takes a store, returns plain values."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from andon.control import workers
from andon.control.facts import facts
from andon.control.runs.activity import doing
from andon.control.runs.runs import as_ask
from andon.control.runs.shown_state import STALLED, STOPPING, Surroundings
from andon.control.stop.target import UNFINISHED
from andon.core.run import TERMINAL, State
from andon.core.stop import StopKind, StopScope
from andon.host import home as homes
from andon.host.latch import Latch
from andon.runtime.requests import scope_latches
from andon.store.messages.rows import AskRow, Filter, RunRow
from andon.store.store import Store

# With more unfinished runs than this, they are counted by stored state and listed in part.
MOST_RUNS = 500
# An ended run stays on the screen for this long.
ENDED_SECONDS = 300.0
MOST_ENDED = 50

# Runs that need a person come first, runs that have ended come last.
_ORDER = {
    STALLED: 1,
    State.STRANDED: 1,
    STOPPING: 2,
    State.RUNNING: 3,
    State.SUSPENDED: 4,
    State.QUEUED: 5,
    State.PAUSED: 6,
    State.KILLED: 6,
}
_ENDED = 7


def overview(
    store: Store,
    *,
    agent: str | None = None,
    label: tuple[str, str] | None = None,
    limit: int = 100,
) -> dict[str, Any]:
    """Counts of runs and workers, and the first rows, those that need a person on top."""
    around = Surroundings(store)
    which = Filter(states=UNFINISHED, agent=agent, label=label, limit=MOST_RUNS)
    rows = store.runs(which)
    asks: dict[str, list[AskRow]] = {}
    for ask in store.asks():
        asks.setdefault(ask.run_id, []).append(ask)
    counted = Counter(around.state_of(row) for row in rows)
    if len(rows) == MOST_RUNS and label is None:
        counted = _stored(store, agent)
    shown = _sorted([*rows, *_ended(store, which, around)], around, asks)
    return {
        "at": around.now,
        "store": homes.without_password(store.url),
        "halted": _halted(around),
        "runs": dict(counted),
        "asked": sum(row.id in asks and around.state_of(row) == State.SUSPENDED for row in rows),
        "workers": _workers(store, around),
        "listed": len(shown),
        "rows": [_line(row, asks.get(row.id, ()), around) for row in shown[:limit]],
    }


def _stored(store: Store, agent: str | None) -> Counter[str]:
    found: Counter[str] = Counter()
    for _, _, state, count in store.unfinished(agent):
        found[state] += count
    return found


def _ended(store: Store, which: Filter, around: Surroundings) -> list[RunRow]:
    found = store.runs(which.but(states=tuple(TERMINAL), limit=MOST_ENDED))
    return [row for row in found if row.changed_at >= around.now - ENDED_SECONDS]


def _sorted(
    rows: Sequence[RunRow], around: Surroundings, asks: dict[str, list[AskRow]]
) -> list[RunRow]:
    """Rows in order of urgency; within the same urgency, newest first."""

    def rank(row: RunRow) -> int:
        if row.state in TERMINAL:
            return _ENDED
        return 0 if row.id in asks else _ORDER.get(around.state_of(row), _ENDED)

    newest = sorted(rows, key=lambda row: (row.created_at, row.id), reverse=True)
    return sorted(newest, key=rank)


def _line(row: RunRow, asks: Sequence[AskRow], around: Surroundings) -> dict[str, Any]:
    asked = [] if row.state in TERMINAL else list(asks)
    return {
        **facts(row, "id agent"),
        "state": around.state_of(row),
        "attempt": row.attempt,
        "age_seconds": round(max(around.now - row.created_at, 0.0), 3),
        "parent_id": row.parent_id,
        "progress": around.progress.get(row.id, []),
        "doing": doing(row, asked, around),
        "asks": [as_ask(ask) for ask in asked],
    }


def _workers(store: Store, around: Surroundings) -> dict[str, int]:
    """Counts of the workers that have not exited, by state."""
    found = Counter(workers.current(store, row, around)[1] for row in store.fleet(around.now))
    return {state_of: found[state_of] for state_of in sorted(found) if state_of != workers.EXITED}


def _halted(around: Surroundings) -> dict[str, Any] | None:
    """The order that stops the whole fleet, in the store or on this host.

    A kill or halt comes before a pause.
    """
    everything = [one for one in around.latches if one.scope == StopScope.FLEET]
    hard = [one for one in everything if one.kind != StopKind.PAUSE]
    if not hard:
        pulled = Latch(homes.find()).look()
        if pulled.unreadable:
            why = f"the halt latch of this host cannot be read: {pulled.unreadable}"
            return _order("halt", "", why, None, "andon doctor")
        if pulled.pulled:
            return _order("halt", pulled.by, pulled.why, pulled.at, "andon reauthorize")
    for one in (*hard, *everything):
        return _order(one.kind, one.by, one.why, one.asked_at, scope_latches.lift_command(one))
    return None


def _order(kind: str, by: str, why: str, at: float | None, lift: str) -> dict[str, Any]:
    return {"kind": str(kind), "by": by, "why": why, "at": at, "lift": lift}
