"""Orders to stop: one commit with the latch, the fences and the targets of the receipt."""

from __future__ import annotations

import json
from functools import partial

from andon.core.run import State
from andon.core.stop import (
    POLITE,
    Deed,
    Stage,
    StopKind,
    StopScope,
    afterwards,
    deed,
    latches,
    replaces,
    storable,
)
from andon.errors import BadInput, NotFound
from andon.store.messages.stops import Escalate, Heard, Order, Reauthorize, Resume
from andon.store.sql.reads import fields
from andon.store.sql.targets import BECOMES, OrderRef, StoppedRun

TYPE_CHECKING = False  # commands must not pay for imports they do not need
if TYPE_CHECKING:
    from collections.abc import Sequence

    from andon.store.sql.events import EventHandler
    from andon.store.sql.inbox import InboxHandler
    from andon.store.sql.processes import ProcessHandler
    from andon.store.sql.reads import Query, Reads
    from andon.store.sql.targets import TargetHandler

LONGEST_SECONDS = 1e9

# The new state, and the states of unexecuted runs that one query moves to it together.
_BULK = {
    Deed.HOLD: (State.PAUSED, (State.QUEUED, State.SUSPENDED)),
    Deed.PUT_AWAY: (
        State.KILLED,
        (State.QUEUED, State.SUSPENDED, State.PAUSED, State.STRANDED),
    ),
}


class OrderHandler:
    """Handles the messages that give orders, and makes polite orders hard when their time ends."""

    def __init__(
        self,
        q: Query,
        reads: Reads,
        events: EventHandler,
        inbox: InboxHandler,
        processes: ProcessHandler,
        targets: TargetHandler,
    ) -> None:
        self.q, self._reads = q, reads
        self._events, self._inbox = events, inbox
        self._processes, self._targets = processes, targets

    def order(self, m: Order) -> str:
        m = m.but(id=storable(m.id), via=storable(m.via), **signed(m))
        kind, scope = StopKind(m.kind), StopScope(m.scope)
        if not 0 <= m.within <= LONGEST_SECONDS:
            raise BadInput(f"within {m.within}: expected seconds, 0 to {LONGEST_SECONDS:g}")
        self.q("lock_orders")
        self.q("lock_workers")
        known = self.q("stop_in_force", id=m.id, kind=kind, scope=scope, name=m.name, value=m.value)
        if known:
            return self._same(m, str(known[0][0]))
        found = self._runs_meant(m)
        holds = latches(kind, scope)
        self.q("insert_stop", **fields(m), polite=kind in POLITE, latched=holds)
        reached = set[str]()
        # Look again: a run may have started another one while the order waited for its lock.
        while new := [run_id for run_id in found if run_id not in reached]:
            reached.update(new)
            self._reach(m, new)
            found = [] if _childless(m, new) else self._runs_meant(m)
        if kind is StopKind.HALT:
            self._aim_at_fleet(m.id)
        self._events.note(f"stop.{kind}", **scope_of(m), stop=m.id)
        self._targets.close([m.id])
        return m.id

    def _same(self, m: Order, stop_id: str) -> str:
        """Answer an order that is in force already; shorten its window if this one is shorter."""
        if m.kind in POLITE and stop_id != m.id:
            self.q("shorten_window", id=stop_id, within=m.within)
        return stop_id

    def _runs_meant(self, m: Order) -> list[str]:
        match StopScope(m.scope), StopKind(m.kind):
            case StopScope.RUN, _:
                ids = json.dumps([m.name])
                ending = ids if m.kind == StopKind.CANCEL else "[]"
                if not self.q("lock_runs", run_ids=ids, ending=ending):
                    raise NotFound(f"there is no run {m.name!r}")
                rows = self.q("descendants", run_id=m.name, over=m.kind == StopKind.KILL)
            case StopScope.FLEET, StopKind.PAUSE | StopKind.KILL | StopKind.HALT:
                rows = self.q("executing")  # what waits is held by the latch
                if m.kind != StopKind.PAUSE:
                    rows = sorted({*map(tuple, rows), *map(tuple, self.q("frozen"))})
            case _:
                rows = self.q("members", scope=m.scope, name=m.name, value=m.value)
        return [str(row[0]) for row in rows]

    def _reach(self, m: Order, run_ids: Sequence[str]) -> None:
        """Apply the order to each of the runs."""
        ref, waiting = OrderRef.of(m), 0
        kind = ref.kind
        left = self._processes.add_targets(m, run_ids) if kind is not StopKind.HALT else set()
        if kind is StopKind.CANCEL and not _childless(m, run_ids):  # their parents get messages
            ids = json.dumps(list(run_ids))
            self.q("lock_runs", run_ids=ids, ending=ids)
        rows = self._targets.runs(run_ids)
        for row in rows:
            if row.id in left:
                self._hold_started(ref, row)
        rows = self._targets.runs(run_ids) if left else rows
        over = [row for row in rows if _deed(kind, row) is Deed.END]
        owing = [row for row in rows if _deed(kind, row) is Deed.UNDO]
        waiting += self._end_all(ref, over) + self._undo_all(ref, owing)
        for row in rows:
            if _deed(kind, row) not in (Deed.END, Deed.UNDO):
                self._reach_one(ref, row)
        for what, (state, states) in _BULK.items():
            if afterwards(kind, owes=False) is what and run_ids:
                held = self.q(
                    "hold_runs",
                    run_ids=json.dumps(list(run_ids)),
                    state=state,
                    states=json.dumps(states),
                    error=ref.error(),
                    undo_later=state is State.PAUSED,
                )
                waiting += len(held)
        if waiting:
            self.q("count_waiting", id=m.id, runs=waiting)

    def _reach_one(self, ref: OrderRef, row: StoppedRun) -> None:
        """Apply the order to one run that a worker executes, or may execute."""
        if row.stop is not None and row.state != State.RUNNING:
            self._join(ref, row, OrderRef.parse(row.stop))
            return
        if _is_frozen(row) and ref.kind is not StopKind.PAUSE:
            self._fence_frozen(ref, row)
            return
        match deed(ref.kind, State(row.state), owes=row.owes):
            case Deed.ASK:
                self._aim(ref.order, row, Stage.REQUESTED)
                if row.stop is None or replaces(ref.kind, OrderRef.parse(row.stop).kind):
                    self.q("ask_run", run_id=row.id, stop=ref.text())
            case Deed.FENCE:
                self._aim(ref.order, row, Stage.REQUESTED)
                # This order is severer than any under which a run may still execute.
                self._fence(row, ref.text())
            case _:
                pass

    def _fence_frozen(self, ref: OrderRef, row: StoppedRun) -> None:
        """Fence a paused run with a frozen process; the end of that process must be proved too."""
        owner = next((one for one in self._reads.workers() if one.id == row.frozen), None)
        supervisor = owner.supervisor if owner is not None else None
        self._aim(ref.order, row.but(worker=row.frozen, supervisor=supervisor), Stage.FENCED)
        self.q("fence_frozen", run_id=row.id, fence=row.fence, stop=ref.text())

    def _hold_started(self, ref: OrderRef, row: StoppedRun) -> None:
        """Mark a run that no worker executes but whose processes may act: it stops after them."""
        waits = row.state != State.RUNNING and row.stop is None and not _is_frozen(row)
        is_so = BECOMES[afterwards(ref.kind, owes=row.owes)] == row.state  # and stays so meanwhile
        acts = deed(ref.kind, State(row.state), owes=row.owes) is not Deed.NOTHING
        if waits and (is_so or acts):
            self.q("hold_started", run_id=row.id, fence=row.fence, stop=ref.text())

    def _end_all(self, ref: OrderRef, rows: Sequence[StoppedRun]) -> int:
        """Cancel, in one go, unexecuted runs that owe no undo; return how many."""
        if rows:
            ends = [(row.id, row.end_entry(ref)) for row in rows]
            entries = [(run_id, end.seq, end.hash, end.fence) for run_id, end in ends]
            body, runs = ref.error(), json.dumps(entries)
            self.q("end_entries", runs=runs, body=body)
            self.q("end_runs", runs=runs, error=body)
            self.q("close_asks_of", runs=runs)
        ended = {row.id for row in rows}
        for row in rows:
            if row.parent_id not in ended:
                self._inbox.notify_parent(row.parent_id, row.id, State.CANCELLED)
        return len(rows)

    def _undo_all(self, ref: OrderRef, rows: Sequence[StoppedRun]) -> int:
        """Queue unexecuted runs that owe an undo, for a worker to claim; return how many."""
        if rows:
            undoing, ids = ref.undoing(), json.dumps([row.id for row in rows])
            self.q("undo_runs", run_ids=ids, undoing=undoing)
            self.q("insert_events", kind="run.undoing", run_ids=ids, body=undoing)
        return len(rows)

    def _join(self, ref: OrderRef, row: StoppedRun, before: OrderRef) -> None:
        """Join another order that has fenced the run: both wait for the same proof."""
        self.q("join_targets", stop_id=ref.order, run_id=row.id)
        if replaces(ref.kind, before.kind):
            self.q("fence_mark", run_id=row.id, stop=ref.text())

    def _aim(self, stop_id: str, row: StoppedRun, stage: Stage) -> None:
        self._targets.add(
            stop_id,
            f"run:{row.id}",
            stage,
            run_id=row.id,
            worker=row.worker,
            supervisor=row.supervisor,
            fence=row.fence,
        )

    def _aim_at_fleet(self, stop_id: str) -> None:
        """Add each live worker and supervisor as a target: any of them could start something."""
        self.q("lock_supervisors")
        add = partial(self._targets.add, stop_id, stage=Stage.FENCED)
        for one in self._reads.workers():
            if one.state == "live":
                add(f"worker:{one.id}", worker=one.id, supervisor=one.supervisor)
        for supervisor in self._reads.supervisors():
            add(f"supervisor:{supervisor.id}", supervisor=supervisor.id)

    def _fence(self, row: StoppedRun, stop: str) -> None:
        """Take the run from its worker; no other worker gets it until the stop is proved."""
        if self.q("fence_run", run_id=row.id, fence=row.fence, stop=stop):
            self.q("end_attempt", run_id=row.id, fence=row.fence, ending="killed")
            self.q("fence_targets", run_id=row.id)

    def escalate(self, m: Escalate | None = None) -> int:
        """Make polite orders hard whose window is over; return how many runs were fenced."""
        if m is not None:
            self.q("lock_orders")
        elif not self.q("try_orders")[0][0]:
            return 0  # an order is being given right now; the next look tries again
        overdue = [str(row[0]) for row in self.q("overdue_targets")]
        fenced = 0
        for row in self._targets.runs(overdue):
            if row.state == State.RUNNING and row.stop is not None:
                self._fence(row, row.stop)
                order = OrderRef.parse(row.stop).order
                self._events.note("stop.overran", run_id=row.id, stop=order, next="kill")
                fenced += 1
        for (stop_id,) in self.q("end_windows"):
            self._targets.close([stop_id])
        return fenced

    def acknowledge(self, m: Heard) -> None:
        self.q("acknowledge_targets", worker_id=m.worker_id, run_ids=json.dumps(m.run_ids))


def signed(m: Order | Resume | Reauthorize) -> dict[str, str]:
    """Return the order's `by` and `why` as text that databases can store."""
    return {"by": storable(m.by), "why": storable(m.why)}


def scope_of(m: Order | Resume | Reauthorize) -> dict[str, str]:
    """Return what an event says about an order: its scope, by whom and why."""
    return {"scope": m.scope, "name": m.name, "value": m.value, "by": m.by, "why": m.why}


def _childless(m: Order, run_ids: Sequence[str]) -> bool:
    """Return whether the order's one run had no child when it was locked; now it starts none."""
    return m.scope == StopScope.RUN and list(run_ids) == [m.name]


def _is_frozen(row: StoppedRun) -> bool:
    return row.frozen is not None and row.state in (State.PAUSED, State.QUEUED)


def _deed(kind: StopKind, row: StoppedRun) -> Deed | None:
    """Return what the order does to a run that nobody executes; None if somebody may."""
    if row.stop is not None or _is_frozen(row):
        return None
    return deed(kind, State(row.state), owes=row.owes)
