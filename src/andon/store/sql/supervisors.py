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
    SupervisorRow,
    said,
)
from andon.store.sql.reads import build, fields
from andon.store.sql.resume import SqlLifting
from andon.store.store import FleetQuery, FleetState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from andon.store.sql.reads import Rows

_TOLD: tuple[str, ...] = (
    "stop_id",
    "kind",
    "target",
    "run_id",
    "worker",
    "fence",
    "hard",
    "by",
    "why",
)
_TOLD += ("mark", "spare")


def _told(row: Sequence[Any]) -> StopNotice:
    named = dict(zip(_TOLD, row, strict=True))
    return StopNotice(**{**named, "hard": bool(named["hard"]), "spare": said(named["spare"])})


class SqlSupervisors(SqlLifting):
    """Handles the messages about supervisors, and what supervisors report about their workers."""

    def _enlist(self, m: Enlist) -> float:
        self.q("enlist", **fields(m.supervisor), lease_seconds=m.lease_seconds)
        self._note("supervisor.started", supervisor=m.supervisor.id, host=m.supervisor.host)
        now: float = self.q("now")[0][0]
        return now

    def _attend(self, m: Attend) -> Attendance:
        known = self.q("attend", **fields(m))
        for (other,) in self.q("overdue_supervisors", supervisor_id=m.supervisor_id):
            self._dismiss(Dismiss(supervisor_id=other, state="silent", evidence="its lease ended"))
        [[window]] = self.q("next_window")
        if window is not None and window <= 0:
            self._escalate()
            [[window]] = self.q("next_window")
        rows = self.q("told_supervisor", supervisor_id=m.supervisor_id)
        told = [_told(row) for row in rows]
        halts = [one for one in self._latches(self.q) if one.kind == StopKind.HALT]
        return Attendance(
            now=self.q("now")[0][0],
            known=bool(known),
            told=told,
            halt=halts[0] if halts else None,
            escalate_in=window,
        )

    def _look_around(self, _: FleetQuery) -> FleetState:
        return FleetState(
            workers=self._workers(self.q),
            supervisors=self._supervisors(self.q),
            busy=self._busy(self.q),
            waiting=bool(self.q("any_waiting")[0][0]),
            newest=next(iter(self.stops(1, self.q)), None),
        )

    def _dismiss(self, m: Dismiss) -> bool:
        found = self.q("dismiss", **fields(m))
        if found:
            self._note(
                "supervisor.ended", supervisor=m.supervisor_id, state=m.state, how=m.evidence
            )
            self._end_supervisor_targets(m)
        return bool(found)

    def _end_supervisor_targets(self, m: Dismiss) -> None:
        stage = Stage.UNPROVED if m.state == "silent" else Stage.VERIFIED
        target = f"supervisor:{m.supervisor_id}"
        rows = self.q(
            "end_named_targets", target=target, stage=stage, evidence=f"supervisor {m.evidence}"
        )
        self._close([stop_id for (stop_id,) in rows])

    def _stall(self, m: StallReport) -> bool:
        found = bool(self.q("stall_worker", worker_id=m.worker_id, stalled=m.stalled))
        if found:
            kind = "worker.moving" if m.stalled is None else "worker.stalled"
            self._note(kind, worker=m.worker_id, **json.loads(m.stalled or "{}"))
        return found

    def supervisors(self, since: float | None = None) -> list[SupervisorRow]:
        return self._supervisors(self.read, since)

    def _supervisors(
        self, ask: Callable[..., Rows], since: float | None = None
    ) -> list[SupervisorRow]:
        rows = ask("supervisors", since=since)
        return [build(SupervisorRow, row) for row in rows]
