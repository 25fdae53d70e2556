"""Messages of and about supervisors: enlist, attend, dismiss.

The answer to a heartbeat carries what the supervisor has to do, so nothing else has to reach it.
"""

from __future__ import annotations

import json

from andon.core.stop import Stage, StopKind
from andon.store.messages.stops import (
    Attend,
    Attendance,
    Dismiss,
    Enlist,
    StallReport,
    StopNotice,
    optional_flag,
)
from andon.store.sql.reads import fields
from andon.store.store import FleetQuery, FleetState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from andon.store.sql.events import EventHandler
    from andon.store.sql.orders import OrderHandler
    from andon.store.sql.reads import Query, Reads
    from andon.store.sql.targets import TargetHandler

# The columns of targets_of_supervisor, in order.
_NOTICE = ("stop_id", "kind", "target", "run_id", "worker", "fence", "hard", "by", "why", "mark")


def _notice(row: Sequence[Any]) -> StopNotice:
    *plain, spare = row
    named = dict(zip(_NOTICE, plain, strict=True))
    return StopNotice(**{**named, "hard": bool(named["hard"])}, spare=optional_flag(spare))


class SupervisorHandler:
    """Handles the messages about supervisors, and what supervisors report about their workers."""

    def __init__(
        self,
        q: Query,
        reads: Reads,
        events: EventHandler,
        orders: OrderHandler,
        targets: TargetHandler,
    ) -> None:
        self.q, self._reads, self._events = q, reads, events
        self._orders, self._targets = orders, targets

    def enlist(self, m: Enlist) -> float:
        self.q("enlist", **fields(m.supervisor), lease_seconds=m.lease_seconds)
        self._events.note("supervisor.started", supervisor=m.supervisor.id, host=m.supervisor.host)
        return self._reads.now()

    def attend(self, m: Attend) -> Attendance:
        known = self.q("attend", **fields(m))
        for (other,) in self.q("overdue_supervisors", supervisor_id=m.supervisor_id):
            self.dismiss(Dismiss(supervisor_id=other, state="silent", evidence="its lease ended"))
        [[window]] = self.q("next_window")
        if window is not None and window <= 0:
            self._orders.escalate()
            [[window]] = self.q("next_window")
        rows = self.q("targets_of_supervisor", supervisor_id=m.supervisor_id)
        halts = [one for one in self._reads.latches() if one.kind == StopKind.HALT]
        return Attendance(
            now=self._reads.now(),
            known=bool(known),
            notices=[_notice(row) for row in rows],
            halt=halts[0] if halts else None,
            escalate_in=window,
        )

    def look_around(self, _: FleetQuery) -> FleetState:
        reads = self._reads
        return FleetState(
            workers=reads.workers(),
            supervisors=reads.supervisors(),
            busy=reads.busy(),
            waiting=bool(self.q("any_waiting")[0][0]),
            newest=next(iter(reads.stops(1)), None),
        )

    def dismiss(self, m: Dismiss) -> bool:
        found = self.q("dismiss", **fields(m))
        if found:
            about = {"supervisor": m.supervisor_id, "state": m.state, "how": m.evidence}
            self._events.note("supervisor.ended", **about)
            self._end_targets(m)
        return bool(found)

    def _end_targets(self, m: Dismiss) -> None:
        stage = Stage.UNPROVED if m.state == "silent" else Stage.VERIFIED
        target, evidence = f"supervisor:{m.supervisor_id}", f"supervisor {m.evidence}"
        rows = self.q("end_named_targets", target=target, stage=stage, evidence=evidence)
        self._targets.close([stop_id for (stop_id,) in rows])

    def stall(self, m: StallReport) -> bool:
        found = bool(self.q("stall_worker", worker_id=m.worker_id, stalled=m.stalled))
        if found:
            kind = "worker.moving" if m.stalled is None else "worker.stalled"
            self._events.note(kind, worker=m.worker_id, **json.loads(m.stalled or "{}"))
        return found
