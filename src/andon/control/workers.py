"""Queries about workers: which ones exist, their states, and the runs that delay their drain."""

import json
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

from andon.control.facts import facts
from andon.control.runs.activity import in_hand
from andon.control.runs.shown_state import STALLED, Surroundings
from andon.core.fleet.rollout import overruns
from andon.errors import NotFound
from andon.runtime.worker.peers import is_gone, this_process
from andon.store.store import Store, WorkerRow

# Workers that have ended stay in listings for a day.
RECENT_SECONDS = 86_400.0

SERVING, ASKED, DRAINING, EXITED, DIED, SILENT = (
    "serving",
    "asked",  # asked to drain, not draining yet
    "draining",
    "exited",  # ended, and reported its own end
    "died",
    "silent",  # lease expired, death not proved
)
LEAVING = frozenset({ASKED, DRAINING})
ENDED = {"gone": EXITED, "dead": DIED, "silent": SILENT}


def state_of(worker: WorkerRow, around: Surroundings) -> str:
    """The state of a worker; finds its death even if nothing has recorded it yet."""
    if worker.state != "live":
        # A worker that reported its exit may have left plain functions to the end of its process:
        # that is an exit and no accident.
        said = "exit" in report_of(worker)
        return EXITED if said else ENDED.get(worker.state, worker.state)
    if is_gone(around.here, worker):
        return DIED
    if not around.is_live(worker):
        return SILENT
    if worker.draining_at is not None:
        return DRAINING
    if worker.drain_asked_at is not None:
        return ASKED
    return STALLED if worker.stalled is not None else SERVING


def current(store: Store, worker: WorkerRow, around: Surroundings) -> tuple[WorkerRow, str]:
    """The state of a worker, and a row that is not older than that state.

    An exiting worker records its exit and then ends its process. A reader with a row from before
    the record would find the process gone and call the worker dead, so the row is read again.
    """
    found = state_of(worker, around)
    if found == DIED and worker.state == "live":
        rows = (row for row in store.fleet(around.now - RECENT_SECONDS) if row.id == worker.id)
        worker = next(rows, worker)
        found = state_of(worker, around)
    return worker, found


def told_at(worker: WorkerRow) -> float | None:
    return worker.drain_asked_at if worker.drain_asked_at is not None else worker.draining_at


def served_versions(workers: Iterable[WorkerRow]) -> frozenset[tuple[str, str]]:
    """The agents and versions of some workers."""
    return frozenset((name, version) for one in workers for name, version in json.loads(one.agents))


def _read(text: str | None) -> Any:
    """Decode JSON that a worker or its supervisor wrote; other text is returned as it is."""
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return text


def report_of(worker: WorkerRow) -> dict[str, Any]:
    """The worker's own report about its drain; empty if there is none that can be read."""
    try:
        found = json.loads(worker.drain or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def overrun(worker: WorkerRow, now: float) -> list[str]:
    """The limits of its drain that a worker has overrun."""
    report, told = report_of(worker), told_at(worker)
    took = None if told is None else (worker.ended_at or now) - told
    phases = [
        (str(phase.get("phase")), bool(phase.get("overran")))
        for phase in report.get("phases", ())
        if isinstance(phase, dict)
    ]
    ended, grace = report.get("exit"), report.get("grace_seconds")
    return overruns(phases, ended=ended, took=took, grace_seconds=grace)


def blocked_by(store: Store, run_ids: Sequence[str], now: float) -> list[dict[str, Any]]:
    """The runs that a worker must finish before it can exit, by the journal; longest first."""
    found = []
    for run_id in run_ids:
        last = store.last_entry(run_id)
        since = now if last is None or not last.at else last.at
        found.append(
            {"run": run_id, "doing": in_hand(last), "seconds": round(max(now - since, 0.0), 3)}
        )
    return sorted(found, key=lambda one: -one["seconds"])


def workers(store: Store, *, everything: bool = False) -> list[dict[str, Any]]:
    """The workers that have not exited; with `everything` also those that did in the last day."""
    around = Surroundings(store)
    found = []
    for row in store.fleet(around.now - RECENT_SECONDS if everything else inf):
        worker, stands = current(store, row, around)
        if stands == EXITED and not everything:
            continue
        held = [one.run_id for one in store.held_by(worker.id, inf)]
        found.append(
            {
                **facts(worker, "id host pid"),
                "state": stands,
                "in_hand": len(held),
                "concurrency": worker.concurrency,
                "agents": [
                    {"name": name, "version": version}
                    for name, version in sorted(served_versions([worker]))
                ],
                "started_at": worker.started_at,
                "asked_at": worker.drain_asked_at,
                **facts(worker, "draining_at ended_at evidence supervisor"),
                "containment": _read(worker.containment),
                "stalled": _read(worker.stalled),
                "progress": _read(worker.progress),
                "heard_at": worker.beaten_at,
                "age_seconds": round(max(around.now - worker.started_at, 0.0), 3),
                "overran": overrun(worker, around.now),
            }
        )
    return found


def find(store: Store, names: Sequence[str]) -> list[WorkerRow]:
    """Find workers by id, by host (all live workers on it) or by a unique prefix of an id."""
    fleet = store.fleet(store.now() - RECENT_SECONDS)
    found: dict[str, WorkerRow] = {}
    for name in names:
        found |= {worker.id: worker for worker in _meant(fleet, name)}
    return list(found.values())


def chosen(store: Store, names: Sequence[str], *, this: bool) -> list[WorkerRow]:
    """The workers with these names; without names those of this container, or every live one."""
    if names:
        return find(store, names)
    return here(store) if this else live(store)


def _meant(fleet: Sequence[WorkerRow], name: str) -> list[WorkerRow]:
    live = [worker for worker in fleet if worker.state == "live"]
    for some in (
        [worker for worker in fleet if worker.id == name],
        [worker for worker in live if worker.host == name],
    ):
        if some:
            return some
    begin = [worker for worker in live if name and worker.id.startswith(name)]
    if len(begin) == 1:
        return begin
    if begin:
        which = ", ".join(worker.id for worker in begin)
        raise NotFound(f"several workers begin with {name!r}: {which}")
    there = ", ".join(worker.id for worker in live) or "none"
    raise NotFound(f"there is no worker {name!r}; alive: {there}. Look: andon workers --old")


def live(store: Store) -> list[WorkerRow]:
    return store.fleet(inf)


def here(store: Store) -> list[WorkerRow]:
    """The live workers of this machine and pid namespace, that is, of this container."""
    mine = this_process()
    return [
        worker
        for worker in live(store)
        if mine.boot and (worker.boot, worker.namespace) == (mine.boot, mine.namespace)
    ]
