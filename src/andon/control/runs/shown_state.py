"""Facts that the shown state of a run depends on: its workers, the latches, and the time.

A run that no worker will take shows as stranded, not as queued. A run never shows as killed or
cancelled before that is proved.
"""

import json
from collections.abc import Sequence
from typing import Any

from andon.control.runs import command_run
from andon.core.run import TERMINAL, State
from andon.core.stop import StopKind
from andon.runtime.requests import scope_latches
from andon.runtime.worker.peers import is_gone, this_process
from andon.store.messages.rows import RunRow
from andon.store.messages.stops import StopRow
from andon.store.read_api import ALLOWANCE_SECONDS
from andon.store.store import Store, WorkerRow

# States that are shown, but never stored.
STOPPING = "stopping"  # ordered to stop, not proved yet
STALLED = "stalled"  # its worker makes no progress


class Surroundings:
    """A snapshot that shown states of runs depend on: time, live workers, latches, progress."""

    def __init__(self, store: Store) -> None:
        self.store, self.now, self.here = store, store.now(), this_process()
        self.workers = store.workers()
        self.live = {worker.id: worker for worker in self.workers if self.is_live(worker)}
        serving = [worker for worker in self.live.values() if worker.draining_at is None]
        lately = [one for one in store.fleet(self.now - ALLOWANCE_SECONDS) if self._has_left(one)]
        self._served = _Served(serving)
        self._served_lately = _Served(lately)
        self.latches, self.progress = store.latches(), store.progress()

    def serves(self, agent: str) -> bool:
        """Whether a live worker serves any version of the agent."""
        return agent in {name for name, _ in self._served.versions}

    def serves_version(self, agent: str, version: str) -> bool:
        return (agent, version) in self._served.versions

    def is_served(self, row: RunRow) -> bool:
        return self._served.takes(row)

    def lacks_worker(self, row: RunRow) -> bool:
        """Whether the run is ready, but no live worker has it or would take it."""
        ready = row.state in (State.QUEUED, State.RUNNING) and row.worker not in self.live
        return ready and not self.is_served(row)

    def is_stranded(self, row: RunRow) -> bool:
        """Whether the run has been forsaken for longer than a restart of workers takes."""
        since = row.available_at if row.state == State.QUEUED else row.changed_at
        lasts = self.now - since >= ALLOWANCE_SECONDS and not self._served_lately.takes(row)
        return lasts and self.lacks_worker(row)

    def state_of(self, row: RunRow) -> str:
        """The state that is shown.

        A run that no worker will take shows as stranded, not as queued. A run never shows as killed
        or cancelled before that is proved.
        """
        if row.stop is not None and row.state not in TERMINAL:
            return STOPPING
        latch = self.latch_on(row)
        if latch is not None:
            return scope_latches.SHOWN[StopKind(latch.kind)]
        if self.is_stranded(row):
            return State.STRANDED
        return STALLED if self.stall_of(row) else row.state

    def latch_on(self, row: RunRow) -> StopRow | None:
        """The latch that keeps a waiting run from continuing, if any."""
        waits = row.state in (State.QUEUED, State.SUSPENDED)
        return scope_latches.on_path(self.latches, row) if waits else None

    def stall_of(self, row: RunRow) -> dict[str, Any]:
        """Why the run's worker makes no progress; empty if it does."""
        worker = self.live.get(row.worker or "")
        if row.state != State.RUNNING or worker is None or worker.stalled is None:
            return {}
        found = json.loads(worker.stalled)
        runs = found.get("runs")
        return found if runs is None or row.id in runs else {}

    def missing_worker(self, row: RunRow) -> str:
        """A sentence that names the worker that a forsaken run needs."""
        if row.version == command_run.VERSION:
            return (
                f"no running worker executes this command; how to continue it: andon show {row.id}"
            )
        what = f"{row.agent} (version {row.version})"
        if (row.agent, row.version) in self._served.versions:
            return f"no running worker serves {what} from queue {row.queue}"
        return f"no running worker serves {what}"

    def _has_left(self, worker: WorkerRow) -> bool:
        at = worker.ended_at if worker.draining_at is None else worker.draining_at
        return at is not None and at > self.now - ALLOWANCE_SECONDS

    def is_live(self, worker: WorkerRow) -> bool:
        """Whether a worker is live: its lease holds, and its process is not known to be gone."""
        in_time = worker.state == "live" and worker.lease_until >= self.now
        return in_time and not is_gone(self.here, worker)


class _Served:
    """The versions and queues that a set of workers takes runs of."""

    def __init__(self, workers: Sequence[WorkerRow]) -> None:
        self.versions: set[tuple[str, str]] = set()
        self._taken: set[tuple[str, str, str | None]] = set()
        for worker in workers:
            for name, version in json.loads(worker.agents):
                self.versions.add((name, version))
                for queue in json.loads(worker.queues) if worker.queues else [None]:
                    self._taken |= {(name, version, queue), (name, "", queue)}

    def takes(self, row: RunRow) -> bool:
        # A worker with any version of the agent may undo the run.
        version = row.version if row.undoing is None else ""
        return any((row.agent, version, queue) in self._taken for queue in (row.queue, None))
