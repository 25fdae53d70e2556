"""Latches lifted after a stop: resume lifts pauses, reauthorize lifts hard latches."""

from __future__ import annotations

import json
import shlex

from andon.core.run import State
from andon.core.stop import POLITE, StopKind, StopScope
from andon.errors import BadInput, Conflict, NotFound, Refused
from andon.store.sql.orders import scope_of, signed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from andon.store.messages.stops import Reauthorize, Resume, StopRow
    from andon.store.sql.events import EventHandler
    from andon.store.sql.reads import Query, Reads

HARD = json.dumps([StopKind.KILL, StopKind.HALT])
PAUSES = json.dumps([StopKind.PAUSE])
NO_LATCH = "nothing there is held; andon receipts lists what was stopped"


class LatchHandler:
    """Handles the messages that lift latches."""

    def __init__(self, q: Query, reads: Reads, events: EventHandler) -> None:
        self.q, self._reads, self._events = q, reads, events

    def resume(self, m: Resume) -> int:
        m = m.but(**signed(m))
        self.q("lock_orders")
        self._refuse_latched(m)
        elsewhere = self._held_elsewhere(m)
        members = [row[0] for row in self.q("members", **_scope(m))]
        run_ids = json.dumps([run_id for run_id in members if run_id not in elsewhere])
        self.q("lock_runs", run_ids=run_ids, ending="[]")
        resumed = self.q("resume_runs", run_ids=run_ids, besides=json.dumps(m.besides))
        lifted = self.q("lift", **_scope(m), kinds=PAUSES, by=m.by, why=m.why)
        if lifted or resumed:
            self._events.note("stop.resumed", **scope_of(m), runs=len(resumed))
        return len(resumed)

    def _held_elsewhere(self, m: Resume) -> set[str]:
        """Return runs under another latch, perhaps through a parent: resume leaves them alone."""
        found = set[str]()
        for latch in self._reads.latches():
            same = _scope(latch) == _scope(m)
            if latch.scope != StopScope.FLEET and not same:  # under a fleet latch no run is claimed
                found.update(row[0] for row in self.q("members", **_scope(latch)))
        return found

    def _refuse_latched(self, m: Resume) -> None:
        for latch in self._reads.latches():
            same = _scope(latch) == _scope(m)
            if StopKind(latch.kind) not in POLITE and (same or latch.scope == StopScope.FLEET):
                by = latch.by or "an unnamed person"
                raise Refused(
                    f"{_called(latch)} is stopped by a {latch.kind} by {by} (receipt {latch.id}). "
                    f"Lift it first: {_reauthorize_command(latch)}"
                )

    def reauthorize(self, m: Reauthorize) -> int:
        m = m.but(**signed(m))
        if not m.by.strip() or not m.why.strip():
            raise BadInput(
                'A name and a reason are required: --by NAME --why "…". Nothing was lifted.'
            )
        self.q("lock_orders")
        self.q("lock_workers")
        newest = self.q("newest_latch", **_scope(m), kinds=HARD)
        if not newest:
            if self.q("is_lifted", **_scope(m), epoch=m.epoch, by=m.by, why=m.why):
                return 0  # an earlier try lifted it, and its answer was lost
            raise NotFound(f"{m.scope} {m.name}: {NO_LATCH}".replace("fleet : ", "the fleet: "))
        if newest[0][0] != m.epoch:
            raise Conflict(
                f"it was stopped again meanwhile: you saw stop {m.epoch}, the newest is "
                f"{newest[0][0]}. Nothing was lifted; look again: andon reauthorize"
            )
        message = "stopped; to continue it: andon resume"
        error = json.dumps({"type": "Held", "message": message})
        if m.scope == StopScope.FLEET:
            held = self.q("hold_all", error=error)
            self.q("forget_windows")
        else:
            ids = json.dumps([row[0] for row in self.q("members", **_scope(m))])
            self.q("lock_runs", run_ids=ids, ending="[]")
            held = self.q(
                "hold_runs",
                run_ids=ids,
                state=State.KILLED,
                states=json.dumps([State.QUEUED, State.SUSPENDED]),
                error=error,
                undo_later=False,
            )
        self.q("lift", **_scope(m), kinds=HARD, by=m.by, why=m.why)
        self._events.note("stop.reauthorized", **scope_of(m), held=len(held))
        return len(held)


def _scope(m: Resume | Reauthorize | StopRow) -> dict[str, str]:
    return {"scope": m.scope, "name": m.name, "value": m.value}


def _reauthorize_command(latch: StopRow) -> str:
    value = f"{latch.name}={latch.value}" if latch.scope == StopScope.LABEL else latch.name
    words = [] if latch.scope == StopScope.FLEET else [f"--{latch.scope}", value]
    return shlex.join(["andon", "reauthorize", *words])


def _called(latch: StopRow) -> str:
    if latch.scope == StopScope.FLEET:
        return "everything"
    return f"{latch.scope} {latch.name}{f'={latch.value}' if latch.value else ''}"
