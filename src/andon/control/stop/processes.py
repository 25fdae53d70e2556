"""Kills processes of this host: workers without a supervisor, and processes that runs started."""

from __future__ import annotations

import os
from math import inf

from andon.core import mark as marks
from andon.core.lease import KILLED
from andon.core.stop import Stage
from andon.core.values.struct import Struct
from andon.host import proc
from andon.host.mark import own as own_mark
from andon.host.remains import Remains
from andon.runtime.requests.lookup import write
from andon.runtime.worker.peers import has_started_us, is_gone, mark_of, remains_of, this_process
from andon.store.messages.stops import TargetReport, WorkerGone

TYPE_CHECKING = False  # not typing's: that import would delay every stop
if TYPE_CHECKING:
    from collections.abc import Callable

    from andon.store.messages.stops import TargetRow
    from andon.store.store import Store, WorkerRow

# The time that a worker has, once fenced, to end the attempt by itself.
GRACE_SECONDS = 0.2
# The longest wait for a killed process: the kernel may hold it (a disk that hangs).
GONE_SECONDS = 5.0


class KillOutcome(Struct):
    """The result of a kill: evidence that the process is gone, or `why_not`."""

    evidence: str = ""
    why_not: str = ""


class WorkerKiller:
    """Kills the workers that this command may kill: on this host, and without a live supervisor."""

    def __init__(self, store: Store, verb: str) -> None:
        self._store, self._verb, self._here = store, verb, this_process()
        # By the id of a worker, or by the target whose processes were killed.
        self.tried: dict[str, KillOutcome] = {}

    def is_gone(self, worker: WorkerRow) -> bool:
        """Whether its process is certainly gone."""
        return is_gone(self._here, worker) is True

    def is_here(self, worker: WorkerRow) -> bool:
        """Whether the worker's processes are visible from this host and pid namespace."""
        return is_gone(self._here, worker) is not None

    def is_ours(self, worker: WorkerRow) -> bool:
        """Whether the worker's process is visible from here and no live supervisor owns it."""
        return self.is_here(worker) and not self._has_supervisor(worker)

    def _has_supervisor(self, worker: WorkerRow) -> bool:
        if worker.supervisor is None:
            return False
        for owner in self._store.supervisors():
            if owner.id == worker.supervisor:
                same = (owner.boot, owner.namespace) == (self._here.boot, self._here.namespace)
                return not same or proc.alive(owner.pid, owner.start_ticks)
        return False

    def end(self, worker: WorkerRow, say: Callable[[str], None], runs: set[str]) -> None:
        """Kill a worker and give back its runs; `runs` are the targets of the order."""
        others = [
            one.run_id for one in self._store.held_by(worker.id, inf) if one.run_id not in runs
        ]
        back = f"; back to the queue: {', '.join(others)}" if others else ""
        if self.is_gone(worker):
            say(f"process {worker.pid} of worker {worker.id} is gone{back}")
        else:
            say(f"ending process {worker.pid} of worker {worker.id} by SIGKILL{back}")
        outcome = self._kill(worker)
        self.tried[worker.id] = outcome
        if outcome.evidence:
            message = WorkerGone(worker_id=worker.id, evidence=outcome.evidence, ordered=True)
            write(self._store, message)

    def _kill(self, worker: WorkerRow) -> KillOutcome:
        gone = self.is_gone(worker)
        why_not = _inside(worker) or ("" if gone else _foreign(worker.pid))
        if why_not:
            return KillOutcome(why_not=why_not)
        remains = remains_of(worker)
        if not remains.end(GONE_SECONDS):
            return KillOutcome(why_not=_why_alive(remains))
        below = sorted(set(remains.known) - {worker.pid})
        names = f": {remains.named(below)}" if below else ""
        if gone:  # it ended without a signal from here: the evidence must not claim one
            ended = f"; ended what it had started{names}" if below else ""
            return KillOutcome(evidence=f"process gone, seen by its start time{ended}")
        with_them = f" and {len(below)} that it had started" if below else ""
        return KillOutcome(evidence=f"{KILLED} andon {self._verb}, process{with_them} gone{names}")

    def spare(self, worker: WorkerRow) -> None:
        """Record that a worker is spared, and name its processes that belong to no single run."""
        mark = mark_of(worker)
        strays = Remains(matches=lambda found: found == mark, spare={worker.pid})
        strays.look()
        named = f"; of no run alone: {_named(strays)}" if strays.survivors else ""
        text = f"process {worker.pid} was spared: only its worker's own report is known{named}"
        self.tried[worker.id] = KillOutcome(why_not=text)

    def clear(self, target: TargetRow, worker: WorkerRow, say: Callable[[str], None]) -> None:
        """Find the processes that an attempt has started on this host, and kill them."""
        assert target.mark is not None
        mark = target.mark
        remains = Remains(matches=lambda found: marks.belongs(found, mark))
        if marks.belongs(own_mark(), mark):
            self.tried[target.target] = KillOutcome(why_not=_inside(worker))
            return
        if remains.look():
            say(f"ending what {target.target.replace(':', ' ', 1)} had started: {_named(remains)}")
        if not remains.end(GONE_SECONDS):
            self.tried[target.target] = KillOutcome(why_not=_why_alive(remains))
            return
        ended = remains.named(sorted(remains.known)) or "nothing was left"
        text = f"looked on {worker.host} for what it had started: {ended}; none is left"
        self.tried[target.target] = KillOutcome(evidence=text)
        report = TargetReport(
            stop_id=target.stop_id, target=target.target, stage=Stage.VERIFIED, evidence=text
        )
        write(self._store, report)


def _why_alive(remains: Remains) -> str:
    return f"SIGKILL did not end {_named(remains)} within {GONE_SECONDS:g} s: the kernel holds them"


def _named(remains: Remains) -> str:
    return remains.named(remains.survivors)


def _inside(worker: WorkerRow) -> str:
    """Why this process cannot prove that nothing is left: the worker itself started it."""
    if not has_started_us(worker):
        return ""
    return "this command was itself started by a run of that worker: give the order outside of it"


def _foreign(pid: int) -> str:
    """Why this user may not kill the process; empty if it may."""
    try:
        owner, me = os.stat(f"/proc/{pid}").st_uid, os.geteuid()
    except OSError:
        return ""
    if me in (0, owner):
        return ""
    return f"process {pid} belongs to user {owner}: give the same order as that user or as root"


def workers_of(store: Store, ids: set[str]) -> dict[str, WorkerRow]:
    """The workers with these ids, including ended ones."""
    return {row.id: row for row in store.fleet(0.0) if row.id in ids} if ids else {}
