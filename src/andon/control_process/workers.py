"""Workers of this supervisor: starts them, has them killed on the store's orders, records deaths.

A worker's death is recorded at once, so that its runs continue elsewhere without waiting for a
lease, but not before the last process it left behind is gone: that may still execute a step.
"""

import json
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from andon.control.stop.processes import WorkerKiller, workers_of
from andon.control_process import stalls
from andon.control_process.children import ChildRecord
from andon.core.lease import SUPERVISED_END
from andon.core.stop import POLITE, StopKind, ends_worker
from andon.runtime.worker.peers import end_remains, is_gone, remains_of, this_process
from andon.store.messages.stops import (
    Attend,
    Dismiss,
    StallReport,
    StopNotice,
    SupervisorRow,
    WorkerGone,
)
from andon.store.store import FleetState, Store, WorkerRow

if TYPE_CHECKING:
    from andon.control_process.main import ControlProcess

log = logging.getLogger("andon")

# The time that a worker has to end an attempt by itself, before its process is killed.
OWN_CHANCE_SECONDS = 0.2
# How often the processes that a dead worker left behind are polled.
LEFTOVER_SECONDS = 0.005


@dataclass(slots=True)
class EndedProcess:
    """A worker's process that has ended."""

    child: ChildRecord
    evidence: str
    seen_at: float


class SupervisedWorkers:
    """The workers of one supervisor, as its control process sees them."""

    def __init__(self, own: "ControlProcess", supervisor: SupervisorRow) -> None:
        self._own, self._supervisor = own, supervisor
        self._ended: list[EndedProcess] = []
        self._seen: dict[tuple[str, str], float] = {}  # orders, and when each was first seen
        self._killed: set[tuple[int, int]] = set()
        self._killed_with: dict[tuple[int, int], str] = {}  # killed together, by pid and start time
        self._stalled: dict[int, str] = {}  # by pid, until written to the store
        self._stuck: dict[str, int] = {}  # by worker: its event loop's tick at the stall
        self._shown: set[tuple[str, str]] = set()
        self._here = this_process()

    def wait(self) -> float:
        """Seconds until something is due."""
        if self._ended:
            return LEFTOVER_SECONDS
        now = time.monotonic()
        dues = [since + OWN_CHANCE_SECONDS - now for since in self._seen.values()]
        return max(0.0, min((due for due in dues if due > 0), default=1.0))

    def begin(self) -> None:
        """Let workers start, now that the store is reachable and knows their supervisor."""
        one = self._supervisor
        for child in self._own.children:
            if child.kind == "worker" and child.state in ("new", "waiting"):
                env = {"ANDON_SUPERVISOR": one.id}
                env["ANDON_CONTAINMENT"] = json.dumps(child.containment)
                env["ANDON_STACKS"] = stalls.stacks_file(one.home, one.id, child.name)
                self._own.channel.send("go", child=child.name, env=env)

    def ended(self, child: ChildRecord, event: dict[str, Any]) -> None:
        by = f", asked by {child.asked}" if child.asked else ""
        evidence = f"{SUPERVISED_END} ({child.how()}{by})"
        others = self._killed_with.pop((child.pid, child.ticks), "")
        evidence += f"; ended with it: {others}" if others else ""
        self._ended.append(EndedProcess(child, evidence, time.monotonic()))

    def record_deaths(self, store: Store) -> None:
        """Record ended workers once they have left no process, which gives back their runs."""
        quiet = [one for one in self._ended if one.child.quiet]
        if quiet:
            rows = store.workers()
            for one in quiet:
                ended, ordered = (one.child.pid, one.child.ticks), bool(one.child.order)
                for row in rows:
                    if (row.pid, row.start_ticks) == ended and self._is_ours(row):
                        self._record_death(row, one.evidence, seen_at=one.seen_at, ordered=ordered)
                self._ended.remove(one)
        if self._ended:
            self._own.poll_soon(LEFTOVER_SECONDS)

    def _is_ours(self, row: WorkerRow) -> bool:
        one = self._supervisor
        return (row.boot, row.namespace) == (one.boot, one.namespace)

    def _record_death(
        self, row: WorkerRow, evidence: str, *, seen_at: float = 0.0, ordered: bool = False
    ) -> None:
        """Record a worker's death, after killing what its runs started and escaped its tree."""
        state, _, words = end_remains(row, evidence).partition(":")
        if state != "dead":
            self._own.fleet_alerts.local("unproved", row.id, words)
            return  # not recorded: its lease must expire first
        limit = self._own.settings.interruption_limit
        message = WorkerGone(
            worker_id=row.id,
            evidence=words,
            interruption_limit=limit,
            seen_at=seen_at,
            ordered=ordered,
        )
        self._own.write(message)

    def inherited(self, seen: FleetState) -> list[StopNotice]:
        """Orders for workers of a dead supervisor that this one has adopted."""
        adopted = {child.pid for child in self._own.children if child.alive}
        others = {
            row.supervisor
            for row in seen.workers
            if row.supervisor and row.supervisor != self._supervisor.id and row.pid in adopted
        }
        found: list[StopNotice] = []
        for other in sorted(others):
            attendance = self._own.write(Attend(supervisor_id=other, lease_seconds=0.0))
            found += [one for one in attendance.notices if one.worker is not None]
        return found

    def obey(self, seen: FleetState, notices: list[StopNotice]) -> None:
        rows = {row.id: row for row in seen.workers}
        now = time.monotonic()
        wanted = {(one.stop_id, one.target): one for one in notices if self._is_wanted(one)}
        self._seen = {name: self._seen.get(name, now) for name in wanted}
        store = self._own.store
        assert store is not None
        enders = WorkerKiller(store, "")
        for name, one in wanted.items():
            row = rows.get(one.worker or "")
            if one.mark is not None or row is None:
                self._look_for(store, one, row, enders)
                continue
            child = self._own.children.of(row)
            if child is None or not ends_worker(one.spare, embedded=row.embedded):
                continue
            if one.kind in POLITE and now - self._seen[name] < OWN_CHANCE_SECONDS:
                self._own.poll_soon(OWN_CHANCE_SECONDS)
            elif (child.pid, child.ticks) not in self._killed:
                self._killed.add((child.pid, child.ticks))
                self._remember(row)
                self._own.channel.send("kill", child=child.name, pid=child.pid, order=one.stop_id)
        self._reconcile(self._dismiss(seen.supervisors), rows)
        self._look_for_stalls(rows)

    def _remember(self, row: WorkerRow) -> None:
        """Note the processes that a kill ends with a worker: they cannot be found afterwards."""
        remains = remains_of(row)
        pids = sorted(set(remains.look()) - {row.pid})
        self._killed_with[row.pid, row.start_ticks] = remains.named(pids)

    def _look_for(
        self, store: Store, one: StopNotice, row: WorkerRow | None, enders: WorkerKiller
    ) -> None:
        """Kill what an attempt had started, or record a worker that deregistered and is gone."""
        row = row or workers_of(store, {one.worker or ""}).get(one.worker or "")
        if row is None or not enders.is_here(row):
            return
        if one.mark is not None:
            target = next(t for t in store.targets(one.stop_id) if t.target == one.target)
            enders.clear(target, row, log.info)
        elif enders.is_gone(row):
            self._record_death(row, f"process {row.pid} is gone", ordered=True)

    def _is_wanted(self, one: StopNotice) -> bool:
        """Whether this process must act on an order. A halt is the supervisor's: it kills all."""
        runner = self._own.runner
        ours = one.worker is not None and (runner is None or not runner.concerns(one))
        return ours and one.hard and one.kind != StopKind.HALT

    def _reconcile(self, supervisors: list[SupervisorRow], rows: dict[str, WorkerRow]) -> None:
        """Record deaths that were missed while this process or a supervisor was not running."""
        others = {one.id for one in supervisors} - {self._supervisor.id}
        ended = {one.child.pid for one in self._ended}
        for row in rows.values():
            # Its supervisor is about to report how it ended, and the processes it left behind.
            known = self._own.children.of(row) or row.pid in ended
            if row.supervisor not in others and not known and is_gone(self._here, row):
                self._record_death(row, "its process is gone")

    def _dismiss(self, supervisors: list[SupervisorRow]) -> list[SupervisorRow]:
        """Record supervisors of this host that died, instead of waiting for their leases.

        Returns the others.
        """
        left = []
        for one in supervisors:
            if is_gone(self._here, _as_worker(one)):
                evidence = "its process is gone"
                message = Dismiss(supervisor_id=one.id, state="dead", evidence=evidence)
                self._own.write(message)
            else:
                left.append(one)
        return left

    def stalled(self, event: dict[str, Any]) -> None:
        """Handle a stall that the supervisor has seen; it kills the worker itself."""
        why, seconds = str(event.get("why")), float(event.get("seconds") or 0.0)
        path = str(event.get("evidence") or "")
        found = stalls.described(why, seconds, path, stalls.first_lines(path))
        self._stalled[int(event.get("pid") or 0)] = found
        name = event.get("child")
        text = f"{name} {why} for {seconds:.1f} s; its stack: {path}"
        self._own.fleet_alerts.local("stall", f"{name} {event.get('pid')}", text)

    def _look_for_stalls(self, rows: dict[str, WorkerRow]) -> None:
        for row in rows.values():
            known = self._stalled.pop(row.pid, "")
            if known:
                self._stuck[row.id] = stalls.tick(row)
                self._own.write(StallReport(worker_id=row.id, stalled=known))
            elif row.id in self._stuck:
                if stalls.tick(row) != self._stuck[row.id]:  # its event loop runs again
                    del self._stuck[row.id]
                    self._own.write(StallReport(worker_id=row.id, stalled=None))
            elif row.supervisor == self._supervisor.id:
                self._look_at_step(row)

    def _look_at_step(self, row: WorkerRow) -> None:
        found = stalls.overlong(row, self._own.settings.step_seconds)
        child = self._own.children.of(row)
        if found is None or child is None:
            if row.stalled is not None and found is None:
                self._own.write(StallReport(worker_id=row.id, stalled=None))
            return
        run_id, step, seconds = found
        if (row.id, f"{run_id} {step}") in self._shown:
            return
        self._shown.add((row.id, f"{run_id} {step}"))
        why = f"run {run_id} is in step {step}"
        home, owner = self._supervisor.home, self._supervisor.id
        path, lines = stalls.evidence(home, owner, child.name, child.pid)
        self._own.write(
            StallReport(worker_id=row.id, stalled=stalls.described(why, seconds, path, lines))
        )
        text = f"{child.name}: {why} for {seconds:.1f} s; its stack: {path}"
        self._own.fleet_alerts.local("stall", f"{row.id} {run_id}", text)
        if self._own.settings.on_stall == "restart":
            self._own.channel.send("kill", child=child.name, pid=child.pid, order="")

    def record_gone(self) -> None:
        """The supervisor died: record every process that is certainly gone."""
        store = self._own.store
        assert store is not None
        left = self._dismiss(store.supervisors())
        self._reconcile(left, {row.id: row for row in store.workers()})


def _as_worker(one: SupervisorRow) -> WorkerRow:
    """The supervisor's process as a worker's row, for `is_gone`."""
    names = ("id", "host", "boot", "namespace", "pid", "start_ticks")
    return WorkerRow(**{name: getattr(one, name) for name in names})
