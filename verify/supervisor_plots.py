"""Plots about supervisors: they enlist, attend, leave, and freeze the processes of paused runs."""

import itertools
from typing import Any

from tests.store.parts import Held, agent_row, new_run, worker_row

from andon.core.run import State
from andon.store.messages.stops import (
    Attend,
    Dismiss,
    Ended,
    Enlist,
    Order,
    StallReport,
    SupervisorRow,
    TargetReport,
    WorkerGone,
)
from andon.store.store import MoveRun, Register, Start
from verify.machine import LEASE_SECONDS, Machine

FROZEN = [
    ("frozen", kind, scope, then)
    for kind, scope in (
        *itertools.product(("kill", "cancel"), ("run", "agent", "fleet")),
        ("pause", "run"),
        ("halt", "fleet"),
    )
    for then in ("is reported", "dies", "says so")
]
ATTENDS = [
    ("attends", how)
    for how in ("goes", "dies", "falls silent", "comes again", "is halted and goes", "is halted")
]
SUPERVISOR_PLOTS = [*FROZEN, *ATTENDS, ("thawed",), ("stalls",)]


class SupervisorPlots(Machine):
    """The messages of supervisors, and of the commands that use them."""

    def _enlist(self) -> str:
        name = f"sup{self.pair.clock.now:g}"
        row = SupervisorRow(
            id=name, host="here", boot="b", namespace="n", pid=7, start_ticks=8, home="/h"
        )
        self.send(Enlist(supervisor=row, lease_seconds=LEASE_SECONDS))
        return name

    def _attend(self, supervisor: str) -> Any:
        [found] = self.send(Attend(supervisor_id=supervisor, lease_seconds=LEASE_SECONDS))
        return found

    def _boxed(self, supervisor: str) -> Held:
        """A run whose worker has a supervisor."""
        worker, run_id = f"b{len(self.workers)}", f"s{len(self.runs)}"
        self.workers.append(worker)
        row = worker_row(worker).but(supervisor=supervisor)
        self.send(Register(worker=row, agents=(agent_row(),), lease_seconds=LEASE_SECONDS))
        self.runs.append(run_id)
        self.send(Start(run=new_run(run_id)))
        self.claim(len(self.workers) - 1, 9, None, False, only=(run_id,))
        return self.held[-1]

    def _freeze(self, held: Held) -> None:
        self.orders += 1
        pause = Order(id=f"o{self.orders}", kind="pause", scope="run", name=held.id, within=30.0)
        self.send(pause)
        self.send(held.settle(State.QUEUED, ending="frozen", returned=True))

    # ── the plots ─────────────────────────────────────────────────────────────────────────────

    def _frozen(self, kind: str, scope: str, then: str) -> None:
        """The process exists but is frozen: a stop of the run must end that process too."""
        supervisor = self._enlist()
        held = self._boxed(supervisor)
        worker = self.workers[-1]
        self._freeze(held)
        self._attend(supervisor)
        self.order(self.runs.index(held.id), kind, scope, 30.0)
        if kind == "halt":
            self.orders += 1
            self.send(Order(id=f"o{self.orders}", kind="halt", scope="fleet", name=""))
        for told in self._attend(supervisor).notices if then == "is reported" else ():
            report = TargetReport(stop_id=told.stop_id, target=told.target, stage="verified")
            self.send(report.but(evidence="it was ended"))
        if then == "dies":
            self.send(WorkerGone(worker_id=worker, evidence="it ended"))
        elif then == "says so":
            self.send(Ended(worker_id=worker, run_id=held.id, fence=held.fence.counter))
        self._attend(supervisor)
        self.send(MoveRun(run_id=held.id, seen="killed", state="queued", fresh=True))

    def _thawed(self) -> None:
        """The run resumes in the same process."""
        supervisor = self._enlist()
        held = self._boxed(supervisor)
        self._freeze(held)
        self.send(MoveRun(run_id=held.id, seen="paused", state="queued", fresh=True))
        self.claim(len(self.workers) - 1, 1, None, False, only=(held.id,))
        self.send(self.held[-1].append())
        self._attend(supervisor)

    def _attends(self, how: str) -> None:
        one, other = self._enlist(), self._enlist()
        self._boxed(one)
        if how.startswith("is halted"):
            self.orders += 1
            self.send(Order(id=f"o{self.orders}", kind="halt", scope="fleet", name=""))
        match how:
            case "goes" | "is halted and goes":
                self.send(Dismiss(supervisor_id=one))
            case "dies":
                self.send(Dismiss(supervisor_id=one, state="dead", evidence="its process ended"))
            case "comes again":
                self.send(Dismiss(supervisor_id=one))
                self._attend(one)
            case _:
                self.time_passes(LEASE_SECONDS * 1.5)
        self._attend(other)
        self._attend(one)

    def _stalls(self) -> None:
        supervisor = self._enlist()
        self._boxed(supervisor)
        for stalled in ('{"why": "it turns in circles"}', None):
            self.send(StallReport(worker_id=self.workers[-1], stalled=stalled))
        self.send(StallReport(worker_id="nobody", stalled="{}"))
        self._attend(supervisor)
