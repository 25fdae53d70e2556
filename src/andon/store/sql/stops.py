"""Stops: orders, their targets, and latches.

An order is one commit: the latch, the fences and the target rows. The event that ends an attempt
(its settlement, its worker's word, the end of its process) proves the targets in its own commit and
gives the run the state the order asked for: paused, cancelled, killed, or queued to be undone.
"""

from __future__ import annotations

import json

from andon.core.run import TERMINAL, Event, State, advance
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
from andon.core.values.struct import Struct
from andon.errors import BadInput, NotFound
from andon.store.messages.stops import (
    Ended,
    Escalate,
    Heard,
    Order,
    Reauthorize,
    Resume,
    TargetReport,
    WorkerGone,
)
from andon.store.sql.processes import SqlStarted
from andon.store.sql.reads import build, fields

TYPE_CHECKING = False  # commands must not pay for imports they do not need
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from andon.core.journal import Entry

LONGEST_SECONDS = 1e9
GONE = "its process is gone"

# The new state, and the states of unexecuted runs that one query moves to it together.
_BULK = {
    Deed.HOLD: (State.PAUSED, (State.QUEUED, State.SUSPENDED)),
    Deed.PUT_AWAY: (
        State.KILLED,
        (State.QUEUED, State.SUSPENDED, State.PAUSED, State.STRANDED),
    ),
}
_WORDS = {StopKind.PAUSE: "Paused", StopKind.CANCEL: "Cancelled"}


class _Row(Struct):
    """The facts an order needs about a run."""

    id: str
    state: str
    worker: str | None
    fence: int
    head_seq: int
    head_hash: str
    parent_id: str | None
    stop: str | None
    owes: bool
    supervisor: str | None
    frozen: str | None  # the worker whose process, frozen by a pause, still holds the run


class SqlStops(SqlStarted):
    """Handles the messages about stops."""

    def _take_back(
        self, worker: str, state: str, how: str, *, interrupted: bool, limit: int, seen: float = 0.0
    ) -> int:
        raise NotImplementedError

    def _tell_parent(self, parent_id: str | None, child_id: str, state: str) -> None:
        raise NotImplementedError

    # ── orders ────────────────────────────────────────────────────────────────────────────────

    def _order(self, m: Order) -> str:
        m = m.but(id=storable(m.id), via=storable(m.via), **signed(m))
        kind, scope = StopKind(m.kind), StopScope(m.scope)
        if not 0 <= m.within <= LONGEST_SECONDS:
            raise BadInput(f"within {m.within}: expected seconds, 0 to {LONGEST_SECONDS:g}")
        self.q("lock_orders")
        self.q("lock_workers")
        known = self.q("stop_in_force", id=m.id, kind=kind, scope=scope, name=m.name, value=m.value)
        if known:
            return self._same(m, str(known[0][0]))
        whom = self._whom(m)
        holds = latches(kind, scope)
        self.q("insert_stop", **fields(m), polite=kind in POLITE, latched=holds)
        reached = set[str]()
        # Look again: a run may have started another one while the order waited for its lock.
        while new := [run_id for run_id in whom if run_id not in reached]:
            reached.update(new)
            self._reach(m, new)
            whom = [] if _childless(m, new) else self._whom(m)
        if kind is StopKind.HALT:
            self._aim_at_processes(m.id)
        self._note(f"stop.{kind}", **said(m), stop=m.id)
        self._close([m.id])
        return m.id

    def _same(self, m: Order, stop_id: str) -> str:
        """Answer an order that is in force already; shorten its window if this one is shorter."""
        if m.kind in POLITE and stop_id != m.id:
            self.q("shorten_window", id=stop_id, within=m.within)
        return stop_id

    def _whom(self, m: Order) -> list[str]:
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

    def _rows_of(self, run_ids: Iterable[str]) -> list[_Row]:
        rows = self.q("stop_rows", run_ids=json.dumps(list(run_ids)))
        return [build(_Row, row).but(owes=bool(row[8])) for row in rows]

    def _reach(self, m: Order, run_ids: Sequence[str]) -> None:
        """Apply the order to each of the runs."""
        kind, waiting = StopKind(m.kind), 0
        left = self._aim_at_started(m, run_ids) if kind is not StopKind.HALT else set()
        if kind is StopKind.CANCEL and not _childless(m, run_ids):  # their parents get messages
            ids = json.dumps(list(run_ids))
            self.q("lock_runs", run_ids=ids, ending=ids)
        rows = self._rows_of(run_ids)
        for row in rows:
            if row.id in left:
                self._hold_started(m, kind, row)
        rows = self._rows_of(run_ids) if left else rows
        over = [row for row in rows if _deed(kind, row) is Deed.END]
        owing = [row for row in rows if _deed(kind, row) is Deed.UNDO]
        waiting += self._end_all(m, kind, over) + self._undo_all(m, owing)
        for row in rows:
            if _deed(kind, row) not in (Deed.END, Deed.UNDO):
                self._reach_one(m, kind, row)
        for what, (state, states) in _BULK.items():
            if afterwards(kind, owes=False) is what and run_ids:
                held = self.q(
                    "hold_runs",
                    run_ids=json.dumps(list(run_ids)),
                    state=state,
                    states=json.dumps(states),
                    error=_error(kind, m.by, m.why, m.id),
                    undo_later=state is State.PAUSED,
                )
                waiting += len(held)
        if waiting:
            self.q("count_waiting", id=m.id, runs=waiting)

    def _reach_one(self, m: Order, kind: StopKind, row: _Row) -> None:
        """Apply the order to one run that a worker executes, or may execute."""
        if row.stop is not None and row.state != State.RUNNING:
            self._join(m, kind, row)
            return
        if _is_frozen(row) and kind is not StopKind.PAUSE:
            self._fence_frozen(m, kind, row)
            return
        match deed(kind, State(row.state), owes=row.owes):
            case Deed.ASK:
                self._aim(m.id, row, Stage.REQUESTED)
                if row.stop is None or replaces(kind, StopKind(json.loads(row.stop)["kind"])):
                    self.q("ask_run", run_id=row.id, stop=_mark(m.id, kind, m.by, m.why))
            case Deed.FENCE:
                self._aim(m.id, row, Stage.REQUESTED)
                # This order is severer than any under which a run may still execute.
                self._fence(row, _mark(m.id, kind, m.by, m.why))
            case _:
                pass

    def _fence_frozen(self, m: Order, kind: StopKind, row: _Row) -> None:
        """Fence a paused run with a frozen process; the end of that process must be proved too."""
        owner = next((one for one in self._workers(self.q) if one.id == row.frozen), None)
        supervisor = owner.supervisor if owner is not None else None
        self._aim(m.id, row.but(worker=row.frozen, supervisor=supervisor), Stage.FENCED)
        mark = _mark(m.id, kind, m.by, m.why)
        self.q("fence_frozen", run_id=row.id, fence=row.fence, stop=mark)

    def _hold_started(self, m: Order, kind: StopKind, row: _Row) -> None:
        """Mark a run that no worker executes but whose processes may act: it stops after them."""
        waits = row.state != State.RUNNING and row.stop is None and not _is_frozen(row)
        is_so = _BECOMES[afterwards(kind, owes=row.owes)] == row.state  # and stays so meanwhile
        if waits and (is_so or deed(kind, State(row.state), owes=row.owes) is not Deed.NOTHING):
            mark = _mark(m.id, kind, m.by, m.why)
            self.q("hold_started", run_id=row.id, fence=row.fence, stop=mark)

    def _end_all(self, m: Order, kind: StopKind, rows: Sequence[_Row]) -> int:
        """Cancel, in one go, unexecuted runs that owe no undo; return how many."""
        ends = [(row, _end_entry(row, kind, m.by, m.why, m.id)) for row in rows]
        if ends:
            entries = [(row.id, end.seq, end.hash, end.fence) for row, end in ends]
            body, runs = ends[0][1].body, json.dumps(entries)
            self.q("end_entries", runs=runs, body=body)
            self.q("end_runs", runs=runs, error=body)
            self.q("close_asks_of", runs=runs)
        ended = {row.id for row in rows}
        for row in rows:
            if row.parent_id not in ended:
                self._tell_parent(row.parent_id, row.id, State.CANCELLED)
        return len(rows)

    def _undo_all(self, m: Order, rows: Sequence[_Row]) -> int:
        """Queue unexecuted runs that owe an undo, for a worker to claim; return how many."""
        if rows:
            undoing, ids = _undoing(m.by, m.why), json.dumps([row.id for row in rows])
            self.q("undo_runs", run_ids=ids, undoing=undoing)
            self.q("insert_events", kind="run.undoing", run_ids=ids, body=undoing)
        return len(rows)

    def _join(self, m: Order, kind: StopKind, row: _Row) -> None:
        """Join another order that has fenced the run: both wait for the same proof."""
        self.q("join_targets", stop_id=m.id, run_id=row.id)
        assert row.stop is not None
        if replaces(kind, StopKind(json.loads(row.stop)["kind"])):
            self.q("fence_mark", run_id=row.id, stop=_mark(m.id, kind, m.by, m.why))

    def _aim(self, stop_id: str, row: _Row, stage: Stage) -> None:
        self.q(
            "insert_target",
            stop_id=stop_id,
            target=f"run:{row.id}",
            run_id=row.id,
            worker=row.worker,
            supervisor=row.supervisor,
            fence=row.fence,
            stage=stage,
            mark=None,
        )

    def _aim_at_processes(self, stop_id: str) -> None:
        """Add each live worker and supervisor as a target: any of them could start something."""
        self.q("lock_supervisors")
        for worker in self._workers(self.q):
            if worker.state == "live":
                self._aim_at(stop_id, "worker", worker.id, worker.id, worker.supervisor)
        for row in self.q("supervisors", since=None):
            self._aim_at(stop_id, "supervisor", row[0], None, row[0])

    def _aim_at(
        self, stop_id: str, what: str, name: str, worker: str | None, supervisor: str | None
    ) -> None:
        self.q(
            "insert_target",
            stop_id=stop_id,
            target=f"{what}:{name}",
            run_id=None,
            worker=worker,
            supervisor=supervisor,
            fence=0,
            stage=Stage.FENCED,
            mark=None,
        )

    def _fence(self, row: _Row, stop: str) -> None:
        """Take the run from its worker; no other worker gets it until the stop is proved."""
        if self.q("fence_run", run_id=row.id, fence=row.fence, stop=stop):
            self.q("end_attempt", run_id=row.id, fence=row.fence, ending="killed")
            self.q("fence_targets", run_id=row.id)

    def _escalate(self, m: Escalate | None = None) -> int:
        """Make polite orders hard whose window is over; return how many runs were fenced."""
        if m is not None:
            self.q("lock_orders")
        elif not self.q("try_orders")[0][0]:
            return 0  # an order is being given right now; the next look tries again
        overdue = [str(row[0]) for row in self.q("overdue_targets")]
        fenced = 0
        for row in self._rows_of(overdue):
            if row.state == State.RUNNING and row.stop is not None:
                self._fence(row, row.stop)
                mark = json.loads(row.stop)
                self._note("stop.overran", run_id=row.id, stop=mark["order"], next="kill")
                fenced += 1
        for (stop_id,) in self.q("end_windows"):
            self._close([stop_id])
        return fenced

    # ── proofs ────────────────────────────────────────────────────────────────────────────────

    def _heard(self, m: Heard) -> None:
        self.q("hear", worker_id=m.worker_id, run_ids=json.dumps(m.run_ids))

    def _ended(self, m: Ended) -> None:
        """Apply a worker's word to that attempt only: a newer one may be the one to stop by now."""
        stop_ids = self._word(m)
        if stop_ids:
            self._carry_out(m.run_id)
            self._close(stop_ids)

    def _bury(self, m: WorkerGone) -> int:
        """End a worker whose process is gone, even one that has departed: only this proves it."""
        limit, interrupted = m.interruption_limit, not m.ordered
        held = self._take_back(
            m.worker_id, "dead", m.evidence, interrupted=interrupted, limit=limit, seen=m.seen_at
        )
        if not held:
            self._prove_end(m.worker_id, "dead", m.evidence)
        return held

    def _report(self, m: TargetReport) -> bool:
        stage = Stage(m.stage)
        rows = self.q(
            "report_target",
            stop_id=m.stop_id,
            target=m.target,
            stage=stage,
            evidence=m.evidence or None,
            ends=stage in (Stage.VERIFIED, Stage.UNPROVED),
        )
        if m.body is not None:
            self.q("note_stop", id=m.stop_id, body=m.body)
        for run_id, fence, mark in rows:
            if mark is not None and stage is Stage.VERIFIED:
                self.q("quieten", run_id=run_id, fence=fence)
            if run_id is not None and stage in (Stage.VERIFIED, Stage.UNPROVED):
                self._carry_out(run_id)
        self._close([m.stop_id])
        return bool(rows)

    def _prove(self, run_id: str, fence: int, stage: Stage, evidence: str) -> None:
        """End the targets of a run that nobody executes any more, or of which nobody can know."""
        rows = self.q("end_run_targets", run_id=run_id, fence=fence, stage=stage, evidence=evidence)
        self._carry_out(run_id)
        self._close([stop_id for stop_id, _ in rows])

    def _prove_end(
        self, worker_id: str, state: str, evidence: str, held: Iterable[str] = ()
    ) -> None:
        """End the targets of a worker that ended: certainly (gone, dead) or presumably (silent).

        `held`: the runs it had, which this end gives back.
        """
        if state == "gone":
            self._left_by_itself(worker_id)
        stage = Stage.UNPROVED if state == "silent" else Stage.VERIFIED
        words = {
            "gone": "its worker has left, and executes nothing any more",
            "dead": f"{GONE}: {evidence.removeprefix(GONE)}".removesuffix(": "),
            "silent": f"fenced; nobody knows whether its process is gone: {evidence}",
        }[state]
        about = {"worker_id": worker_id, "stage": stage, "evidence": words}
        rows = self.q("end_worker_targets", **about, polite=state == "gone")
        if state == "dead":  # the processes it had started are gone too
            self.q("quieten_all", worker_id=worker_id)
        self._carry_out(*sorted({run_id for _, run_id in rows if run_id is not None} | set(held)))
        self._close([stop_id for stop_id, _ in rows])

    def _settled(self, run_id: str, fence: int, state: str, ending: str, also: str) -> None:
        """Prove the stop of a run whose attempt has ended by itself, in any way."""
        over = f"it had ended before: {state}"
        evidence = over if state in TERMINAL else f"its worker gave it back ({ending})"
        if also:
            evidence += f" and ended processes of it: {also}"
        self._prove(run_id, fence, Stage.VERIFIED, evidence)

    def _carry_out(self, *run_ids: str) -> None:
        """Move runs to the state the order asked for, unless over or possibly still executing."""
        for row in self._rows_of(run_ids) if run_ids else ():
            if row.stop is None:
                continue
            mark = json.loads(row.stop)
            if row.state in TERMINAL:
                self.q("clear_stop", run_id=row.id)
            elif row.state != State.RUNNING and not self.q("is_awaited", run_id=row.id):
                kind = StopKind(mark["kind"])
                self._become(row, kind, mark["by"], mark["why"], mark["order"])

    def _become(self, row: _Row, kind: StopKind, by: str, why: str, stop_id: str) -> None:
        what = afterwards(kind, owes=row.owes)
        state, end, undoing = _BECOMES[what], None, None
        if what is Deed.END:
            state = advance(State.QUEUED, Event.CANCEL)
            end = _end_entry(row, kind, by, why, stop_id)
            self.q("insert_entry", run_id=row.id, **fields(end))
        elif what is Deed.UNDO:
            undoing = _undoing(by, why)
            self._note("run.undoing", run_id=row.id, **json.loads(undoing))
        self.q(
            "stop_run",
            run_id=row.id,
            state=state,
            undoing=undoing,
            error=_error(kind, by, why, stop_id) if what is not Deed.UNDO else None,
            undo_later=state is State.PAUSED,
            seq=end.seq if end else None,
            hash=end.hash if end else None,
        )
        if state in TERMINAL:
            self.q("close_asks", run_id=row.id)
            self._tell_parent(row.parent_id, row.id, state)

    def _close(self, stop_ids: Iterable[str]) -> None:
        ids = sorted(set(stop_ids))
        if not ids:
            return
        self.q("lock_stops", ids=json.dumps(ids))
        for stop_id, kind, unproved in self.q("close_stops", ids=json.dumps(ids)):
            word = "unproved" if unproved else "proved"
            self._note(f"stop.{word}", stop=stop_id, order=kind)

    def _stop_newborn(self, run_id: str, parent_id: str | None) -> None:
        """Stop a new child whose parent is being stopped, in the same way."""
        if parent_id is None:
            return
        for parent in self._rows_of([parent_id]):
            if parent.stop is not None:
                mark = json.loads(parent.stop)
                [row] = self._rows_of([run_id])
                if row.state == State.QUEUED:
                    kind = StopKind(mark["kind"])
                    self._become(row, kind, mark["by"], mark["why"], mark["order"])


_BECOMES = {
    Deed.HOLD: State.PAUSED,
    Deed.END: State.CANCELLED,
    Deed.UNDO: State.QUEUED,
    Deed.PUT_AWAY: State.KILLED,
}


def signed(m: Order | Resume | Reauthorize) -> dict[str, Any]:
    """Return the order's `by` and `why` as text that databases can store."""
    return {"by": storable(m.by), "why": storable(m.why)}


def said(m: Order | Resume | Reauthorize) -> dict[str, str]:
    return {"scope": m.scope, "name": m.name, "value": m.value, "by": m.by, "why": m.why}


def _childless(m: Order, run_ids: Sequence[str]) -> bool:
    """Return whether the order's one run had no child when it was locked; now it starts none."""
    return m.scope == StopScope.RUN and list(run_ids) == [m.name]


def _mark(stop_id: str, kind: StopKind, by: str, why: str) -> str:
    return json.dumps({"order": stop_id, "kind": kind, "by": by, "why": why})


def _error(kind: StopKind, by: str, why: str, stop_id: str) -> str:
    """Build the error that people see in the stopped run."""
    word = _WORDS.get(kind, "Killed")
    message = (
        f"{word.lower()} by {by or 'an unnamed person'}{f': {why}' if why else ''} ({stop_id})"
    )
    return json.dumps({"type": word, "message": message})


def _is_frozen(row: _Row) -> bool:
    return row.frozen is not None and row.state in (State.PAUSED, State.QUEUED)


def _deed(kind: StopKind, row: _Row) -> Deed | None:
    """Return what the order does to a run that nobody executes; None if somebody may."""
    if row.stop is not None or _is_frozen(row):
        return None
    return deed(kind, State(row.state), owes=row.owes)


def _undoing(by: str, why: str) -> str:
    return json.dumps({"why": f"cancelled{f': {why}' if why else ''}", "by": by})


def _end_entry(row: _Row, kind: StopKind, by: str, why: str, stop_id: str) -> Entry:
    from andon.core.journal import Entry, EntryKind, chain

    entry = Entry(
        seq=row.head_seq + 1,
        kind=EntryKind.END,
        state=State.CANCELLED,
        body=_error(kind, by, why, stop_id),
        fence=row.fence,
    )
    entry.hash = chain(row.head_hash, entry)
    return entry
