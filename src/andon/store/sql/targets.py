"""The targets of stops: what each must prove, and what its run becomes once it is proved.

The event that ends an attempt (its settlement, its worker's report, the end of its process) proves
the targets in its own commit and gives the run the state the order asked for: paused, cancelled,
killed, or queued to be undone.
"""

from __future__ import annotations

import json
from contextlib import contextmanager

from andon.core.run import TERMINAL, Event, State, advance
from andon.core.stop import Deed, Stage, StopKind, afterwards
from andon.core.values.struct import Struct
from andon.store.sql.reads import build, fields

TYPE_CHECKING = False  # commands must not pay for imports they do not need
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from andon.core.journal import Entry
    from andon.store.messages.stops import Order, TargetReport
    from andon.store.sql.events import EventHandler
    from andon.store.sql.inbox import InboxHandler
    from andon.store.sql.reads import Query, Rows

GONE = "its process is gone"
BECOMES = {
    Deed.HOLD: State.PAUSED,
    Deed.END: State.CANCELLED,
    Deed.UNDO: State.QUEUED,
    Deed.PUT_AWAY: State.KILLED,
}
_ENDS = (Stage.VERIFIED, Stage.UNPROVED)
_WORDS = {StopKind.PAUSE: "Paused", StopKind.CANCEL: "Cancelled"}


class OrderRef(Struct):
    """The order about a run, as the run's row names it."""

    order: str
    kind: StopKind
    by: str
    why: str

    @classmethod
    def of(cls, m: Order) -> OrderRef:
        return cls(order=m.id, kind=StopKind(m.kind), by=m.by, why=m.why)

    @classmethod
    def parse(cls, text: str) -> OrderRef:
        found = json.loads(text)
        return cls(**{**found, "kind": StopKind(found["kind"])})

    def text(self) -> str:
        return json.dumps(fields(self))

    def error(self) -> str:
        """Return the error that people see in the stopped run."""
        word = _WORDS.get(self.kind, "Killed")
        why = f": {self.why}" if self.why else ""
        message = f"{word.lower()} by {self.by or 'an unnamed person'}{why} ({self.order})"
        return json.dumps({"type": word, "message": message})

    def undoing(self) -> str:
        """Return the reason for which the run's effects are undone."""
        why = f"cancelled{f': {self.why}' if self.why else ''}"
        return json.dumps({"why": why, "by": self.by})


class StoppedRun(Struct):
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

    def end_entry(self, ref: OrderRef) -> Entry:
        """Return the entry with which the order cancels the run."""
        from andon.core.journal import Entry, EntryKind, chain

        entry = Entry(
            seq=self.head_seq + 1,
            kind=EntryKind.END,
            state=State.CANCELLED,
            body=ref.error(),
            fence=self.fence,
        )
        entry.hash = chain(self.head_hash, entry)
        return entry


class TargetHandler:
    """Adds targets to orders, records what is known about them, and closes proved orders."""

    def __init__(self, q: Query, events: EventHandler, inbox: InboxHandler) -> None:
        self.q = q
        self._events, self._inbox = events, inbox
        self._closing: set[str] | None = None  # orders to close at the end of the batch

    def runs(self, run_ids: Iterable[str]) -> list[StoppedRun]:
        rows = self.q("stop_rows", run_ids=json.dumps(list(run_ids)))
        return [build(StoppedRun, row).but(owes=bool(row[8])) for row in rows]

    def add(
        self,
        stop_id: str,
        target: str,
        stage: Stage,
        *,
        run_id: str | None = None,
        worker: str | None = None,
        supervisor: str | None = None,
        fence: int = 0,
        mark: int | None = None,
    ) -> None:
        self.q(
            "insert_target",
            stop_id=stop_id,
            target=target,
            stage=stage,
            run_id=run_id,
            worker=worker,
            supervisor=supervisor,
            fence=fence,
            mark=mark,
        )

    def record(self, stop_id: str, target: str, stage: Stage, evidence: str | None) -> Rows:
        """Record the stage of a target; return its run, fence and mark if that was news."""
        return self.q(
            "report_target",
            stop_id=stop_id,
            target=target,
            stage=stage,
            evidence=evidence,
            ends=stage in _ENDS,
        )

    def report(self, m: TargetReport) -> bool:
        stage = Stage(m.stage)
        rows = self.record(m.stop_id, m.target, stage, m.evidence or None)
        if m.body is not None:
            self.q("note_stop", id=m.stop_id, body=m.body)
        for run_id, fence, mark in rows:
            if mark is not None and stage is Stage.VERIFIED:
                self.q("quieten", run_id=run_id, fence=fence)
            if run_id is not None and stage in _ENDS:
                self.carry_out(run_id)
        self.close([m.stop_id])
        return bool(rows)

    def settled(self, run_id: str, fence: int, state: str, ending: str, also: str) -> None:
        """Prove the stop of a run whose attempt has ended by itself, in any way.

        The attempt may have ended before its worker received the order. Then nobody has looked
        whether the processes and threads that it had started have ended too.
        """
        over = f"it had ended before: {state}"
        evidence = over if state in TERMINAL else f"its worker gave it back ({ending})"
        if also:
            evidence += f" and ended processes of it: {also}"
        about = {"run_id": run_id, "fence": fence}
        for (mark,) in self.q("left_behind", **about):
            more = "; a process or thread that it had started may go on"
            self.q("keep_targets", **about, mark=mark, evidence=evidence + more)
            self.carry_out(run_id)
            return
        rows = self.q("end_run_targets", **about, stage=Stage.VERIFIED, evidence=evidence)
        self.carry_out(run_id)
        self.close([stop_id for stop_id, _ in rows])

    def prove_end(
        self, worker_id: str, state: str, evidence: str, held: Iterable[str] = ()
    ) -> None:
        """End the targets of a worker that ended: certainly (gone, dead) or presumably (silent).

        `held`: the runs it had, which this end gives back.
        """
        stage = Stage.UNPROVED if state == "silent" else Stage.VERIFIED
        words = {
            "gone": "its worker has left and executes nothing",
            "dead": f"{GONE}: {evidence.removeprefix(GONE)}".removesuffix(": "),
            "silent": f"fenced; whether its process is gone is unknown: {evidence}",
        }[state]
        about = {"worker_id": worker_id, "stage": stage, "evidence": words}
        rows = self.q("end_worker_targets", **about, polite=state == "gone")
        if state == "dead":  # the processes it had started are gone too
            self.q("quieten_all", worker_id=worker_id)
        self.carry_out(*sorted({run_id for _, run_id in rows if run_id is not None} | set(held)))
        self.close([stop_id for stop_id, _ in rows])

    def carry_out(self, *run_ids: str) -> None:
        """Move runs to the state the order asked for, unless over or possibly still executing."""
        for row in self.runs(run_ids) if run_ids else ():
            if row.stop is None:
                continue
            if row.state in TERMINAL:
                self.q("clear_stop", run_id=row.id)
            elif row.state != State.RUNNING and not self.q("is_awaited", run_id=row.id):
                self._become(row, OrderRef.parse(row.stop))

    def stop_newborn(self, run_id: str, parent_id: str | None) -> None:
        """Stop a new child whose parent is being stopped, in the same way."""
        for parent in [] if parent_id is None else self.runs([parent_id]):
            if parent.stop is not None:
                [row] = self.runs([run_id])
                if row.state == State.QUEUED:
                    self._become(row, OrderRef.parse(parent.stop))

    def _become(self, row: StoppedRun, ref: OrderRef) -> None:
        what = afterwards(ref.kind, owes=row.owes)
        state, end, undoing = BECOMES[what], None, None
        if what is Deed.END:
            state = advance(State.QUEUED, Event.CANCEL)
            end = row.end_entry(ref)
            self.q("insert_entry", run_id=row.id, **fields(end))
        elif what is Deed.UNDO:
            undoing = ref.undoing()
            self._events.note("run.undoing", run_id=row.id, **json.loads(undoing))
        self.q(
            "stop_run",
            run_id=row.id,
            state=state,
            undoing=undoing,
            error=ref.error() if what is not Deed.UNDO else None,
            undo_later=state is State.PAUSED,
            seq=end.seq if end else None,
            hash=end.hash if end else None,
        )
        if state in TERMINAL:
            self.q("close_asks", run_id=row.id)
            self._inbox.notify_parent(row.parent_id, row.id, state)

    @contextmanager
    def closing_last(self) -> Iterator[None]:
        """Close orders only at the end of the batch: others may be about to close the same ones."""
        self._closing = closing = set[str]()
        try:
            yield
        finally:
            self._closing = None
        self.close(closing)

    def close(self, stop_ids: Iterable[str]) -> None:
        """Close those of the orders whose targets are all proved, or cannot be."""
        ids = sorted(set(stop_ids))
        if self._closing is not None:
            self._closing.update(ids)
        elif ids:
            self.q("lock_stops", ids=json.dumps(ids))
            for stop_id, kind, unproved in self.q("close_stops", ids=json.dumps(ids)):
                word = "unproved" if unproved else "proved"
                self._events.note(f"stop.{word}", stop=stop_id, order=kind)
