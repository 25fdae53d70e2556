"""Receipts: an order with one line per target, worst first, and everything that is not known."""

import json
from collections.abc import Sequence
from typing import Any

from andon.control.facts import facts
from andon.control.runs.activity import in_hand
from andon.control.runs.shown_state import Surroundings
from andon.control.stop.processes import workers_of
from andon.control.stop.proof import earlier_doubts
from andon.control.stop.target import find_order
from andon.core.effect import OPEN as EFFECT_OPEN
from andon.core.effect import EffectState
from andon.core.journal import EntryKind
from andon.core.stop import Stage, StopKind, StopScope, verdict
from andon.runtime.requests import requests, scope_latches
from andon.runtime.worker.peers import is_gone
from andon.store.messages.rows import RunRow
from andon.store.messages.stops import StopRow, TargetRow
from andon.store.store import Store, WorkerRow

_WORST = {stage: n for n, stage in enumerate((Stage.UNPROVED, Stage.REQUESTED, Stage.ACKNOWLEDGED))}


def listing(store: Store, limit: int, *, everything: bool) -> list[dict[str, Any]]:
    """Receipts, newest first: of the last day, still open, or with a latch that is in force."""
    now = store.now()
    found = []
    for row in store.stops(limit):
        holds = row.latched and row.lifted_at is None
        if everything or holds or row.closed_at is None or row.asked_at > now - 86_400:
            targets = store.targets(row.id)
            found.append(_head(row, targets or earlier_doubts(store, row)))
    return found


def receipt(store: Store, stop_id: str) -> dict[str, Any]:
    """Everything about one order."""
    row = find_order(store, stop_id)
    own = store.targets(row.id)
    targets = [*own, *earlier_doubts(store, row)]
    around = Surroundings(store)
    workers = workers_of(store, {one.worker for one in targets if one.worker})
    lines = [_line(row, one, around, workers.get(one.worker or "")) for one in targets]
    lines.sort(key=lambda line: _WORST.get(line["stage"], len(_WORST)))
    effects = [effect for one in own for effect in _effects_after(store, row, one)]
    return {
        **_head(row, targets),
        "run": _run(row, around),
        "targets": lines,
        "effects": effects,
        "measured": json.loads(row.body),
        "now": around.now,
    }


def has_ended_the_last_worker(store: Store, found: dict[str, Any]) -> bool:
    """Whether the stop of this receipt left no worker, nor a supervisor that starts one again."""
    ended = any(
        line["process"] and line["process"]["alive"] is False and not line["supervisor"]
        for line in found["targets"]
    )
    return ended and not Surroundings(store).live


def _head(row: StopRow, targets: Sequence[TargetRow]) -> dict[str, Any]:
    found = _verdict(row, targets)
    ends = [one.ended_at for one in targets if one.ended_at is not None]
    ended = max([*ends, row.asked_at]) if found != "stopping" else None
    return {
        "id": row.id,
        "order": row.kind,
        **facts(row, "scope name value"),
        "whom": scope_latches.called(row),
        **facts(row, "by why via epoch asked_at"),
        "within_seconds": row.within,
        "hard_at": row.escalate_at,
        "closed_at": row.closed_at,
        "verdict": found,
        "proved": found == "proved",
        "took_seconds": None if ended is None else round(ended - row.asked_at, 3),
        "stages": _counted(targets),
        "waiting": row.waiting,
        "latch": _latch(row),
    }


def _verdict(row: StopRow, targets: Sequence[TargetRow]) -> str:
    if row.closed_at is None:
        return "stopping"
    if row.kind != StopKind.HALT and not targets and not row.waiting:
        return "nothing"  # its runs had ended before the order: there is nothing to prove
    return verdict(one.stage for one in targets)


def _counted(targets: Sequence[TargetRow]) -> dict[str, int]:
    return {
        str(stage): count
        for stage in Stage
        if (count := sum(one.stage == stage for one in targets))
    }


def _latch(row: StopRow) -> dict[str, Any] | None:
    if not row.latched:
        return None
    return {
        "in_force": row.lifted_at is None,
        "lift": scope_latches.lift_command(row) if row.lifted_at is None else None,
        **facts(row, "lifted_at lifted_by lifted_why"),
    }


def _run(row: StopRow, around: Surroundings) -> dict[str, Any] | None:
    """The run of an order about a single run."""
    run = around.store.run(row.name) if row.scope == StopScope.RUN else None
    return _named(run, around) if run is not None else None


def _named(run: RunRow, around: Surroundings) -> dict[str, Any]:
    last = around.store.last_entry(run.id)
    return {
        **facts(run, "id agent"),
        "state": around.state_of(run),
        "undoing": run.undoing is not None,
        "in_hand": in_hand(last, run.version),
        "since": last.at if last is not None else run.created_at,
        "changed_at": run.changed_at,
    }


def _line(
    order: StopRow, row: TargetRow, around: Surroundings, worker: WorkerRow | None
) -> dict[str, Any]:
    run = around.store.run(row.run_id) if row.run_id is not None else None
    return {
        "target": row.target,
        "receipt": row.stop_id,  # an earlier order's, if that one left the target unproved
        "run": None if run is None else _named(run, around),
        **facts(row, "stage evidence fence"),
        "acknowledged_ms": _since(order, row.acknowledged_at),
        "fenced_ms": _since(order, row.fenced_at),
        "ended_ms": _since(order, row.ended_at),
        **facts(row, "worker supervisor"),
        "process": None if worker is None else _process(worker, around),
    }


def _since(order: StopRow, at: float | None) -> float | None:
    return None if at is None else round(max(at - order.asked_at, 0.0) * 1000, 1)


def _process(worker: WorkerRow, around: Surroundings) -> dict[str, Any]:
    gone = True if worker.state in ("gone", "dead") else is_gone(around.here, worker)
    return {
        **facts(worker, "pid host state"),
        "alive": None if gone is None else not gone,
        "lease_until": worker.lease_until,
        "heard_at": worker.beaten_at if worker.beaten_at is not None else worker.started_at,
    }


def _effects_after(store: Store, order: StopRow, row: TargetRow) -> list[dict[str, Any]]:
    """Effects that the stopped attempt had after the request, or may have had."""
    if row.run_id is None:
        return []
    found: dict[tuple[str, str | None], dict[str, Any]] = {}
    for entry in requests.journal(store, row.run_id):
        if entry.kind != EntryKind.EFFECT or entry.fence > row.fence:
            continue
        late = entry.at > order.asked_at and entry.state == EffectState.CONFIRMED
        if late or entry.state in EFFECT_OPEN:
            found[entry.name, entry.key] = {
                "run": row.run_id,
                "name": entry.name,
                "key": entry.key,
                "state": "confirmed" if late else "in doubt",
                "at": entry.at,
            }
        else:
            found.pop((entry.name, entry.key), None)
    ledger = {(one.name, one.key): one.state for one in store.ledger(row.run_id)}
    known = EFFECT_OPEN | {EffectState.CONFIRMED}
    return [
        one
        for (name, key), one in found.items()
        if one["state"] == "confirmed" or ledger.get((name, key or "")) in known
    ]
