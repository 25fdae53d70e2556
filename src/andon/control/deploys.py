"""Deploys: the fate of every run whose worker left, derived from attempts, journal and ledger.

A worker's own report is used only for what no other source has: how long its phases took.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any

import msgspec

from andon.control import workers as fleet
from andon.control.changes import Patience, poll
from andon.control.facts import facts
from andon.control.runs.shown_state import Surroundings
from andon.core.effect import EffectState
from andon.core.fleet.rollout import (
    GAP_SECONDS,
    GIVEN_BACK,
    Departure,
    Hold,
    Part,
    deploys,
    doubled,
    is_lost,
    last_sign,
    left_in_doubt,
    tally,
    versions_after,
)
from andon.core.journal import EntryKind
from andon.core.lease import WATCHED
from andon.core.run import TERMINAL
from andon.errors import BadInput
from andon.runtime.requests import requests
from andon.store.messages.rows import Held, RunRow
from andon.store.store import Store, WorkerRow

# At most this many journals are walked per deploy; the answer says how many were (checked_runs).
MOST_RUNS = 2000
# The words of --fail-on, each with the count of a deploy that it refers to.
FAILURES = {
    "lost": "lost",
    "doubled": "doubled",
    "unresumed": "unresumed",
    "cut": "cut",
    "overrun": "overruns",
    "in_doubt": "in_doubt",
}


class Gone(msgspec.Struct, frozen=True):
    """A worker that left, and the runs it had in hand."""

    worker: WorkerRow
    stands: str
    holds: list[Hold]

    @property
    def alive(self) -> bool:
        return self.stands in fleet.LEAVING


def recent(
    store: Store, since: float, *, lease_seconds: float, thorough: bool = True, most: int = 20
) -> list[dict[str, Any]]:
    """The deploys since a time, oldest first; `thorough` also walks the journals of their runs."""
    around = Surroundings(store)
    rows = {worker.id: worker for worker in store.fleet(since)}
    leaving = [
        Departure(worker=one.id, told_at=fleet.told_at(one), ended_at=one.ended_at)
        for one in rows.values()
        # A worker embedded in a program serves no agents: its end is the program's, not a deploy.
        if one.agents != "[]" and (one.ended_at is not None or fleet.told_at(one) is not None)
    ]
    groups = deploys(leaving, around.now)[-most:]
    return [
        _deploy(store, around, rows, group, lease_seconds if thorough else None) for group in groups
    ]


def _deploy(
    store: Store,
    around: Surroundings,
    rows: Mapping[str, WorkerRow],
    group: Sequence[Departure],
    lease_seconds: float | None,
) -> dict[str, Any]:
    began = min(one.window(around.now)[0] for one in group)
    left = [_gone(store, around, rows[one.worker]) for one in group]
    holds = [hold for one in left for hold in one.holds]
    counted = tally(holds)
    # These runs were never taken back from workers that have ended.
    stuck = sum(hold.part is Part.HELD for one in left if not one.alive for hold in one.holds)
    over = not counted.held and not counted.unresumed and not any(one.alive for one in left)
    times = [hold.next_claimed_at for hold in holds if hold.recovery is not None]
    ends = [one.ended_at for one in group]
    last = max(time for time in (*times, *ends, began) if time is not None)
    versions = _versions(rows.values(), [one.worker for one in left], last)
    workers = [_line(store, one, around.now) for one in left]
    serving = [] if over else _serving(store, around, rows.values())
    graces = [line["grace_seconds"] for line in workers if line["grace_seconds"] is not None]
    found: dict[str, Any] = {
        "began_at": began,
        "ended_at": last if over else None,
        "changed_at": last if over else around.now,
        "over": over,
        "took_seconds": round((last if over else around.now) - began, 3),
        "grace_seconds": max(graces, default=None),
        "versions": {
            agent: {"before": before, "after": after} for agent, (before, after) in versions.items()
        },
        "workers": workers,
        "serving": serving,
        "in_hand": counted.held,
        "overruns": sum(bool(line["overran"]) for line in workers),
        **{name: getattr(counted, name) for name in counted.__struct_fields__ if name != "held"},
    }
    found["unresumed"] += stuck
    if lease_seconds is not None:
        found |= _walk(store, around, holds, began, versions, lease_seconds)
    return found


def _gone(store: Store, around: Surroundings, worker: WorkerRow) -> Gone:
    told, ended = fleet.told_at(worker), worker.ended_at
    since = told if told is not None else (ended or around.now) - GAP_SECONDS
    watched = worker.ended_at is not None and (worker.evidence or "").startswith(WATCHED)
    holds = [
        Hold(
            run_id=one.run_id,
            fence=one.fence,
            ending="interrupted" if _ended_with(one, worker) else one.ending,
            ended_at=one.ended_at,
            next_claimed_at=one.next_claimed_at,
            state=one.state,
            lost_at=worker.ended_at
            if watched or one.ended_at is None
            else last_sign(one.ended_at, (worker.beaten_at, one.claimed_at, one.written_at)),
        )
        for one in store.held_by(worker.id, since)
    ]
    if told is None:  # it was never asked to drain: earlier endings were its ordinary work
        holds = [hold for hold in holds if hold.part in (Part.HELD, Part.INTERRUPTED)]
    return Gone(worker, fleet.state_of(worker, around), holds)


def _ended_with(one: Held, worker: WorkerRow) -> bool:
    """Whether a run was given back because its worker was killed on account of another run."""
    return (
        worker.state == "dead"
        and worker.ended_at is not None
        and one.ending == "returned"
        and one.ended_at is not None
        and one.ended_at >= worker.ended_at
    )


def _line(store: Store, gone: Gone, now: float) -> dict[str, Any]:
    worker, counted, report = gone.worker, tally(gone.holds), fleet.report_of(gone.worker)
    told = fleet.told_at(worker)
    end = worker.ended_at if worker.ended_at is not None else now
    held = [hold.run_id for hold in gone.holds if hold.part is Part.HELD]
    return {
        "worker": worker.id,
        "host": worker.host,
        "state": gone.stands,
        "why": report.get("why"),
        "told_at": told,
        "ended_at": worker.ended_at,
        "took_seconds": None if told is None else round(max(end - told, 0.0), 3),
        "announced_after_seconds": report.get("announced_after"),
        "grace_seconds": report.get("grace_seconds"),
        "in_hand": counted.held,
        **facts(counted, "finished saved cut untouched interrupted"),
        "overran": fleet.overrun(worker, now),
        "phases": report.get("phases", []),
        "exit": report.get("exit"),
        "evidence": worker.evidence,
        "blocked_by": fleet.blocked_by(store, held, now) if gone.alive else [],
    }


def _serving(store: Store, around: Surroundings, rows: Iterable[WorkerRow]) -> list[dict[str, Any]]:
    """The workers that can take over."""
    return [
        {"worker": row.id, "in_hand": len(store.held_by(row.id, inf))}
        for row in rows
        if row.agents != "[]" and fleet.state_of(row, around) == fleet.SERVING
    ]


def _versions(
    rows: Iterable[WorkerRow], left: Sequence[WorkerRow], end: float
) -> dict[str, tuple[list[str], list[str]]]:
    names = {worker.id for worker in left}
    staying = [
        row
        for row in rows
        if row.id not in names
        and row.started_at <= end + GAP_SECONDS
        and (row.ended_at is None or row.ended_at > end)
    ]
    return versions_after(fleet.served_versions(left), fleet.served_versions(staying))


def _walk(
    store: Store,
    around: Surroundings,
    holds: Sequence[Hold],
    began: float,
    versions: Mapping[str, tuple[list[str], list[str]]],
    lease_seconds: float,
) -> dict[str, Any]:
    last = {hold.run_id: hold for hold in holds}
    back = {hold.run_id: hold for hold in holds if hold.part in GIVEN_BACK}
    rows = {run_id: store.run(run_id) for run_id in list(last)[:MOST_RUNS]}
    # Read after the runs, so that every worker that holds one of them is included.
    ended = {one.id: one.ended_at for one in store.fleet(began) if one.ended_at is not None}
    lost, twice = [], []
    in_doubt = registered = executed = kept = 0
    for run_id, row in rows.items():
        if row is None or is_lost(row.state, row.worker, ended, around.now, lease_seconds):
            lost.append(run_id)
            continue
        entries = requests.journal(store, run_id)
        twice += [{"run": run_id, **msgspec.to_builtins(one)} for one in doubled(entries)]
        executed += sum(
            entry.kind == EntryKind.EFFECT
            and entry.state == EffectState.COMPENSATED
            and entry.at >= began
            for entry in entries
        )
        if run_id in back:
            fence = back[run_id].fence
            in_doubt += sum(left_in_doubt(e.state, e.fence, fence) for e in store.ledger(run_id))
            registered += sum(one.undo_at is not None for one in store.obligations(run_id))
            kept += _is_kept(row, versions)
    return {
        "checked_runs": len(rows),
        "different_runs": len(last),
        "dead_runs": sorted({hold.run_id for hold in holds if hold.buried}),
        "lost": len(lost),
        "lost_runs": lost,
        "doubled": len(twice),
        "doubled_runs": twice,
        "in_doubt": in_doubt,
        "compensations_registered": registered,
        "compensations_executed": executed,
        "kept_on_old_version": kept,
    }


def _is_kept(row: RunRow, versions: Mapping[str, tuple[list[str], list[str]]]) -> bool:
    """Whether the run continues on its old version while newer versions are served."""
    _, after = versions.get(row.agent, ([], []))
    return bool(after) and row.version not in after and row.state not in TERMINAL


def watch(
    store: Store,
    *,
    patience: Patience,
    timeout: float | None,
    settle_seconds: float,
    lease_seconds: float,
    on_look: Callable[[dict[str, Any] | None], None],
) -> tuple[dict[str, Any] | None, bool]:
    """Follow the current or next deploy; return it and whether it is over."""
    since = store.now() - GAP_SECONDS
    one: dict[str, Any] | None = None

    def look() -> bool:
        nonlocal one
        found = _current(store, since, lease_seconds, thorough=False)
        one = found[-1] if found else one
        on_look(one)
        # Until no worker has left for a while, the next one may be asked to drain.
        return bool(one and one["over"] and store.now() - one["changed_at"] >= settle_seconds)

    over = poll(store, look, patience, timeout)
    if one is None:
        return None, False
    return _current(store, since, lease_seconds, thorough=True)[-1], over


def _current(
    store: Store, since: float, lease_seconds: float, *, thorough: bool
) -> list[dict[str, Any]]:
    """Return the last deploy unless it ended longer ago than the gap between two deploys."""
    # Look back further than the gap: in a large deploy the first worker ended long ago.
    found = recent(
        store, since - fleet.RECENT_SECONDS, lease_seconds=lease_seconds, thorough=thorough, most=1
    )
    return [one for one in found if one["changed_at"] >= since]


def failures_named(words: str) -> list[str]:
    """Parse the words of --fail-on."""
    found = [word.strip().replace("-", "_") for word in words.split(",") if word.strip()]
    unknown = [word for word in found if word not in FAILURES]
    if unknown or not found:
        raise BadInput(
            f"--fail-on {words!r}: expected some of {','.join(FAILURES)}, "
            f"found {', '.join(map(repr, unknown)) or 'none'}"
        )
    return found


def failed(found: Iterable[Mapping[str, Any]], words: Sequence[str]) -> dict[str, int]:
    """The count of each failure over all deploys; words that did not occur are left out."""
    found = list(found)
    counts = {word: sum(one[FAILURES[word]] for one in found) for word in words}
    return {word: count for word, count in counts.items() if count}
