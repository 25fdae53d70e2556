"""What people ask about workers: who is there, what each is about to do, and what holds it up."""

import json
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

from andon.control.runs.runs import STALLED, Surroundings, in_hand
from andon.core.fleet.rollout import overruns
from andon.errors import NotFound
from andon.runtime.worker.peers import is_gone, this_process
from andon.store.store import Store, WorkerRow

# Workers that have ended are of interest for a day.
RECENT_SECONDS = 86_400.0

SERVING, ASKED, DRAINING, EXITED, DIED, SILENT = (
    "serving",
    "asked",  # to drain, and it has not begun to
    "draining",
    "exited",  # it said so
    "died",
    "silent",  # neither alive nor certainly dead
)
LEAVING = frozenset({ASKED, DRAINING})
ENDED = {"gone": EXITED, "dead": DIED, "silent": SILENT}


def stand(worker: WorkerRow, around: Surroundings) -> str:
    """How a worker stands, also if nobody was there to notice its end."""
    if worker.state != "live":
        # It may have left its plain functions to the end of its process: that was no accident.
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


def standing(store: Store, worker: WorkerRow, around: Surroundings) -> tuple[WorkerRow, str]:
    """How a worker stands, and its row, which is not older than that.

    One that goes says so and ends its process; whoever had read its row before that would find the
    process gone and call it dead.
    """
    found = stand(worker, around)
    if found == DIED and worker.state == "live":
        rows = (row for row in store.fleet(around.now - RECENT_SECONDS) if row.id == worker.id)
        worker = next(rows, worker)
        found = stand(worker, around)
    return worker, found


def told_at(worker: WorkerRow) -> float | None:
    return worker.drain_asked_at if worker.drain_asked_at is not None else worker.draining_at


def carried(workers: Iterable[WorkerRow]) -> frozenset[tuple[str, str]]:
    """The agents and versions of some workers."""
    return frozenset((name, version) for one in workers for name, version in json.loads(one.agents))


def _read(text: str | None) -> Any:
    """What a worker or its supervisor wrote; as text if it is no JSON."""
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return text


def report_of(worker: WorkerRow) -> dict[str, Any]:
    """What a worker wrote about its drain; nothing if it wrote nothing that can be read."""
    try:
        found = json.loads(worker.drain or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def overrun(worker: WorkerRow, now: float) -> list[str]:
    """Which limits of its drain a worker has overrun."""
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
    """What a worker waits for before it can go, by the journal; the longest first."""
    found = []
    for run_id in run_ids:
        last = store.last_entry(run_id)
        since = now if last is None or not last.at else last.at
        found.append(
            {"run": run_id, "doing": in_hand(last), "seconds": round(max(now - since, 0.0), 3)}
        )
    return sorted(found, key=lambda one: -one["seconds"])


def workers(store: Store, *, everything: bool = False) -> list[dict[str, Any]]:
    """The workers that have not ended; with `everything` also those of the last day."""
    around = Surroundings(store)
    found = []
    for row in store.fleet(around.now - RECENT_SECONDS if everything else inf):
        worker, stands = standing(store, row, around)
        if stands == EXITED and not everything:
            continue
        held = [one.run_id for one in store.held_by(worker.id, inf)]
        found.append(
            {
                "id": worker.id,
                "host": worker.host,
                "pid": worker.pid,
                "state": stands,
                "in_hand": len(held),
                "concurrency": worker.concurrency,
                "agents": [
                    {"name": name, "version": version}
                    for name, version in sorted(carried([worker]))
                ],
                "started_at": worker.started_at,
                "asked_at": worker.drain_asked_at,
                "draining_at": worker.draining_at,
                "ended_at": worker.ended_at,
                "evidence": worker.evidence,
                "supervisor": worker.supervisor,
                "containment": _read(worker.containment),
                "stalled": _read(worker.stalled),
                "progress": _read(worker.progress),
                "heard_at": worker.beaten_at,
                "age_seconds": round(max(around.now - worker.started_at, 0.0), 3),
                "overran": overrun(worker, around.now),
            }
        )
    return found


# ── who is meant ──────────────────────────────────────────────────────────────────────────────


def find(store: Store, names: Sequence[str]) -> list[WorkerRow]:
    """Workers by id, host (all that are there) or the beginning of an id."""
    fleet = store.fleet(store.now() - RECENT_SECONDS)
    found: dict[str, WorkerRow] = {}
    for name in names:
        found |= {worker.id: worker for worker in _meant(fleet, name)}
    return list(found.values())


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
    """The live workers of this machine and pid namespace: of this container."""
    mine = this_process()
    return [
        worker
        for worker in live(store)
        if mine.boot and (worker.boot, worker.namespace) == (mine.boot, mine.namespace)
    ]
