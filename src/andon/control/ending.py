"""Ending a worker's process from this host, where no supervisor does it."""

from __future__ import annotations

import os
import time
from math import inf

from andon.core.struct import Struct
from andon.runtime.finding import write
from andon.runtime.liveness import is_gone, start_ticks, this_process
from andon.store.orders import Bury

TYPE_CHECKING = False  # whoever waits for a stop waits for this import too
if TYPE_CHECKING:
    from collections.abc import Callable

    from andon.store.store import Store, WorkerRow
    from andon.supervisor.reach import Killing

# For the worker to end the attempt by itself, since it was fenced.
GRACE_SECONDS = 0.2
# A process that the kernel holds (a disk that hangs) is not waited for longer.
GONE_SECONDS = 5.0


class Outcome(Struct):
    """What became of a process; `why_not` if it is not gone."""

    evidence: str = ""
    why_not: str = ""


class Enders:
    """Knows which workers this command may end: here, and owned by nobody who would."""

    def __init__(self, store: Store, verb: str) -> None:
        self._store, self._verb, self._here = store, verb, this_process()
        self.tried: dict[str, Outcome] = {}

    def outcome_of(self, worker_id: str | None) -> Outcome | None:
        """What was tried with it, if anything was."""
        return self.tried.get(worker_id or "")

    def is_gone(self, worker: WorkerRow) -> bool:
        """Whether its process is certainly gone, as seen from here."""
        return is_gone(self._here, worker) is True

    def is_ours(self, worker: WorkerRow) -> bool:
        """Whether its process can be seen from here, and nobody else ends it."""
        return is_gone(self._here, worker) is not None and not self._has_supervisor(worker)

    def _has_supervisor(self, worker: WorkerRow) -> bool:
        if worker.supervisor is None:
            return False
        for owner in self._store.supervisors():
            if owner.id == worker.supervisor:
                same = (owner.boot, owner.namespace) == (self._here.boot, self._here.namespace)
                return not same or start_ticks(owner.pid) == owner.start_ticks
        return False

    def end(self, worker: WorkerRow, say: Callable[[str], None], runs: set[str]) -> None:
        """Kill it and give back what it held; `runs` are those that are meant."""
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
            write(self._store, Bury(worker_id=worker.id, evidence=outcome.evidence))

    def _kill(self, worker: WorkerRow) -> Outcome:
        if is_gone(self._here, worker):
            return Outcome(evidence="process gone, seen by its start time")
        foreign = _foreign(worker.pid)
        if foreign:
            return Outcome(why_not=foreign)
        from andon.supervisor.reach import Killing

        killing = Killing({worker.pid: worker.start_ticks}, {os.getpid()})
        until = time.monotonic() + GONE_SECONDS
        while not killing.strike():
            if time.monotonic() > until:
                return Outcome(why_not=self._why_alive(killing))
            time.sleep(0.002)
        below = len(killing.known) - 1
        with_them = f" and {below} below it" if below else ""
        return Outcome(evidence=f"SIGKILL by andon {self._verb}, process{with_them} gone")

    def _why_alive(self, killing: Killing) -> str:
        pids = ", ".join(map(str, killing.survivors))
        return f"SIGKILL did not end {pids} within {GONE_SECONDS:g} s: the kernel holds them"


def _foreign(pid: int) -> str:
    """Why we may not end it."""
    try:
        owner, me = os.stat(f"/proc/{pid}").st_uid, os.geteuid()
    except OSError:
        return ""
    if me in (0, owner):
        return ""
    return f"process {pid} belongs to user {owner}: give the same order as that user or as root"


def workers_of(store: Store, ids: set[str]) -> dict[str, WorkerRow]:
    """Those workers, also if they have ended."""
    return {row.id: row for row in store.fleet(0.0) if row.id in ids} if ids else {}
