"""Messages about runs, and the table of handlers: each message is a sequence of named queries.

The first query of a message checks everything that may refuse the message, and changes nothing if
it does. A refused message therefore leaves no trace although it shares its transaction with others.
"""

from __future__ import annotations

import json
import threading

from andon.core.run import TERMINAL, State
from andon.errors import (
    AndonError,
    BadInput,
    Conflict,
    Fenced,
    IllegalTransition,
    NotFound,
    Refused,
    StoreError,
    StoreUnavailable,
)
from andon.store.messages.graphs import (
    CopyThread,
    DropCheckpoints,
    DropThread,
    SaveCheckpoint,
    SaveWrites,
)
from andon.store.messages.stops import (
    Attend,
    Dismiss,
    Ended,
    Enlist,
    Escalate,
    Heard,
    Order,
    ProcessStarted,
    Reauthorize,
    Resume,
    StallReport,
    TargetReport,
    WorkerGone,
)
from andon.store.sql.graph_threads import SqlThreads
from andon.store.sql.reads import entries, fields
from andon.store.sql.workers import SqlFleet
from andon.store.store import (
    Append,
    AskDrain,
    Beat,
    Checkpoint,
    Claim,
    Deliver,
    Depart,
    Drain,
    FleetQuery,
    Log,
    MoveRun,
    NoteEvent,
    Promote,
    Recall,
    Register,
    SetLimit,
    Settle,
    Start,
)

TYPE_CHECKING = False  # commands must not pay for imports they do not need
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from typing import Any

    from andon.core.journal import Entry
    from andon.core.lease import Fence
    from andon.store.sql.reads import Rows
    from andon.store.store import Blob, Message, NewRun, Outcome

# States of a run that has not been resumed; if it stays there too long, its effects are undone.
UNRESUMED = frozenset({State.QUEUED, State.STRANDED, State.PAUSED, State.DEAD})
NUL = (
    "the text contains a NUL character (\\x00), which databases cannot keep in text; nothing was "
    "written. Remove it from the name, key, label or message."
)
HALTED = (
    "everything is halted (andon receipts says by whom and why). To allow starts again: "
    "andon reauthorize"
)
_DELIVERY = {"event": "receive an event", "answer": "be answered"}
_RINGS: tuple[type, ...] = (Start, Deliver, Drain, AskDrain, Depart, Settle, Register, MoveRun)
_RINGS += (Recall, SetLimit, Order, Ended, WorkerGone, TargetReport, Escalate, Resume, Reauthorize)


class SqlStore(SqlFleet, SqlThreads):
    """The part of a store that every SQL database shares."""

    url: str

    def __init__(self) -> None:
        self._writing = threading.Lock()
        self._do: dict[type, Callable[[Any], Any]] = {
            Register: self._register,
            Beat: self._beat,
            FleetQuery: self._look_around,
            Depart: self._depart,
            MoveRun: self._move,
            Recall: self._recall,
            Drain: self._drain,
            AskDrain: self._ask_drain,
            Promote: self._promote,
            SetLimit: self._set_limit,
            NoteEvent: self._write_note,
            Claim: self._claim,
            Start: self._start,
            Append: self._append,
            Settle: self._settle,
            Checkpoint: self._checkpoint,
            Deliver: self._deliver,
            Log: self._log,
            Order: self._order,
            Heard: self._heard,
            Ended: self._ended,
            ProcessStarted: self._started,
            WorkerGone: self._bury,
            TargetReport: self._report,
            StallReport: self._stall,
            Escalate: self._escalate,
            Resume: self._resume,
            Reauthorize: self._reauthorize,
            Enlist: self._enlist,
            Attend: self._attend,
            Dismiss: self._dismiss,
            SaveCheckpoint: self._save_checkpoint,
            SaveWrites: self._save_writes,
            DropThread: self._drop_thread,
            DropCheckpoints: self._drop_checkpoints,
            CopyThread: self._copy_thread,
        }

    # ── provided by each dialect ──────────────────────────────────────────────────────────────

    def ring(self) -> None:
        """Wake every listener. This is only a hint: a notification may be lost."""
        raise NotImplementedError

    def send(self, batch: Sequence[Message], *, behind: bool = False) -> Any:
        """Return None: without a network in between, sending ahead gains nothing."""
        return None

    def receive(self) -> tuple[list[tuple[list[Outcome], list[int]]], bool]:
        raise NotImplementedError

    def unsent(self) -> bool:
        return False

    def write_at_once(self, batch: Sequence[Message]) -> list[Outcome]:
        """Not implemented here: an event loop must not wait for a write over a network."""
        raise NotImplementedError

    def needs_upkeep(self) -> bool:
        return False

    # ── writes ────────────────────────────────────────────────────────────────────────────────

    def apply(self, message: Message) -> Outcome:
        """Carry out one message; return refusals as its outcome, raise errors of the database."""
        try:
            return self._do[type(message)](message)
        except StoreError:
            raise
        except AndonError as refusal:
            return refusal

    def announce(self, batch: Sequence[Message], outcomes: Sequence[Outcome]) -> None:
        """Wake listeners after a commit that concerns other processes."""
        for message, outcome in zip(batch, outcomes, strict=True):
            if outcome is None and isinstance(message, Append) and message.spawn is None:
                continue  # by far the most common message
            if not isinstance(outcome, Exception) and _concerns_others(message, outcome):
                self.ring()
                return

    def _start(self, m: Start) -> bool:
        return self._start_run(m.run)

    def _start_run(self, run: NewRun) -> bool:
        queries = starting(run)
        try:
            query = next(queries)
            while True:
                query = queries.send(self.q(query[0], **query[1]))
        except StopIteration as end:
            return bool(end.value)

    def _append(self, m: Append) -> None:
        if m.spawn is not None:
            _refuse_other_input(m.spawn, self.q("start_entry", run_id=m.spawn.id))
        if not self._advance(m.run_id, m.fence, m.entries, m.step):
            return
        for entry in m.entries:
            self.q("insert_entry", run_id=m.run_id, **fields(entry))
        self._write_along(m)

    def _write_along(self, m: Append) -> None:
        """Write everything of an append except its entries."""
        self._insert_blobs(m.blobs)
        for effect in m.effects:
            self.q("upsert_effect", run_id=m.run_id, **fields(effect))
        if m.ask is not None:
            self.q("insert_ask", run_id=m.run_id, **fields(m.ask))
        if m.close_ask is not None:
            self.q("answer_ask", run_id=m.run_id, id=m.close_ask, answer=None)
        if m.spawn is not None:
            self._spawn(m.spawn)
        if m.take is not None:
            self.q("take_message", id=m.take)
        if m.give_back is not None:
            self.q("give_message_back", id=m.give_back)
        if m.checkpoint_of is not None:
            self.q("drop_checkpoint", run_id=m.run_id, op=m.checkpoint_of)

    def _spawn(self, run: NewRun) -> None:
        try:
            self._start_run(run)
            self._stop_newborn(run.id, run.parent_id)
        except Refused as late:  # its entries are written already and must be rolled back
            raise StoreUnavailable(f"run {run.id!r} was started twice at once: {late}") from late

    def _advance(
        self, run_id: str, fence: Fence, entries: Sequence[Entry], step: str | None = None
    ) -> bool:
        """Check the fence and move the head; return False if the entries are already written."""
        last = entries[-1]
        if self.q(
            "advance_head",
            run_id=run_id,
            fence=fence.counter,
            epoch=fence.epoch,
            before=entries[0].seq - 1,
            seq=last.seq,
            hash=last.hash,
            step=step,
            progress=any(is_progress(entry) for entry in entries),
        ):
            return True
        self._refuse_unless_written(run_id, fence, last)
        return False

    def _refuse_unless_written(self, run_id: str, fence: Fence, last: Entry) -> None:
        """Raise Fenced, unless an earlier try with an unknown outcome has written the entry."""
        if self.q("entry_hash", run_id=run_id, seq=last.seq) != [(last.hash,)]:
            raise Fenced(run_id, fence)

    def _insert_blobs(self, blobs: Sequence[Blob]) -> None:
        for blob in blobs:
            self.q("insert_blob", name=blob.name, body=blob.body)

    def _settle(self, m: Settle) -> str:
        held = {"run_id": m.run_id, "fence": m.fence.counter}
        rows = self.q("settle_run", **settling(m))
        if not rows:
            if self.q("is_settled", **held, ending=m.ending):  # an earlier try, its answer lost
                return m.state
            raise Fenced(m.run_id, m.fence)
        for entry in m.entries:
            self.q("insert_entry", run_id=m.run_id, **fields(entry))
        self._insert_blobs(m.blobs)
        for effect in m.effects:
            self.q("upsert_effect", run_id=m.run_id, **fields(effect))
        self.q("end_attempt", **held, ending=m.ending)
        if m.cleared:
            self.q("quieten", run_id=m.run_id, fence=m.fence.counter)
        [(_, state, parent_id, stop)] = rows
        self._tell_of_settled(m, state, parent_id, stop)
        return str(state)

    def _tell_of_settled(
        self, m: Settle, state: str, parent_id: str | None, stop: str | None
    ) -> None:
        if state in TERMINAL:
            self._tell_parent(parent_id, m.run_id, state)
            if m.undone:  # the run no longer waits for answers
                self.q("close_asks", run_id=m.run_id)
        if stop is not None:
            self._settled(m.run_id, m.fence.counter, state, m.ending, m.also)

    def _checkpoint(self, m: Checkpoint) -> None:
        if not self.q(
            "save_checkpoint",
            run_id=m.run_id,
            op=m.op,
            body=m.body,
            progress=m.progress,
            fence=m.fence.counter,
            epoch=m.fence.epoch,
        ):
            raise Fenced(m.run_id, m.fence)

    def _deliver(self, m: Deliver) -> bool:
        rows = self.q("lock_runs", run_ids=json.dumps([m.run_id]), ending="[]")
        if not rows:
            raise NotFound(f"there is no run {m.run_id!r}")
        if self.q("is_delivered", run_id=m.run_id, message_id=m.message_id):
            return False
        if rows[0][1] in TERMINAL:
            raise IllegalTransition(m.run_id, rows[0][1], _DELIVERY[m.kind])
        if m.kind == "answer":
            self._answer(m)
        self.q("deliver", run_id=m.run_id)
        self.q(
            "insert_message",
            run_id=m.run_id,
            kind=m.kind,
            name=m.name,
            body=m.body,
            message_id=m.message_id,
        )
        return True

    def _answer(self, m: Deliver) -> None:
        if not self.q("answer_ask", run_id=m.run_id, id=m.name, answer=m.body):
            raise Conflict(
                f"run {m.run_id!r}: ask {m.name!r} is not open; it was answered or has expired"
            )

    def _move(self, m: MoveRun) -> None:
        last = m.entries[-1] if m.entries else None
        if not self.q(
            "move_run",
            run_id=m.run_id,
            seen=m.seen,
            state=m.state,
            undoing=m.undoing,
            version=m.version,
            trial=m.trial,
            fresh=m.fresh,
            forgets=m.forgets,
            undo_later=m.undoing is None and m.state in UNRESUMED,
            before=m.entries[0].seq - 1 if m.entries else None,
            seq=last.seq if last else None,
            hash=last.hash if last else None,
        ):
            raise Conflict(f"run {m.run_id!r} is not {m.seen} any more; look again: andon show")
        for entry in m.entries:
            self.q("insert_entry", run_id=m.run_id, **fields(entry))
        if m.note is not None:
            self._write_note(m.note)

    def _recall(self, m: Recall) -> None:
        if not self.q("recall_run", run_id=m.run_id, undoing=m.undoing):
            raise Conflict(f"run {m.run_id!r} is not running any more; look again: andon show")
        if m.note is not None:
            self._write_note(m.note)

    def _log(self, m: Log) -> None:
        for at, level, text in m.lines:
            self.q("insert_log", run_id=m.run_id, attempt=m.attempt, at=at, level=level, text=text)


def settling(m: Settle) -> dict[str, Any]:
    """Return the parameters of the query that settles a run."""
    last = m.entries[-1] if m.entries else None
    return {
        "run_id": m.run_id,
        "fence": m.fence.counter,
        "epoch": m.fence.epoch,
        "before": m.entries[0].seq - 1 if m.entries else None,
        "seq": last.seq if last else None,
        "hash": last.hash if last else None,
        "state": m.state,
        "sleeps": m.state == State.SUSPENDED,
        "awake_state": m.awake_state,
        "seen_inbox": m.seen_inbox,
        "returned": m.returned,
        "keeps_place": m.keeps_place,
        "version": m.version,
        "tried": m.tried,
        "over": m.state in TERMINAL,
        "undone": m.undone,
        "undo_later": m.state in UNRESUMED,
        "delay_seconds": m.delay_seconds,
        "waits": m.waits,
        "wake_at": m.wake_at,
        "error": m.error,
        "failed": int(m.failed),
    }


def starting(run: NewRun) -> Generator[tuple[str, dict[str, Any]], Rows, bool]:
    """Yield the queries that start a run: a generator suits sync and async connections alike."""
    labels = json.loads(run.labels) if "\\u0000" in run.labels else {}
    if any("\0" in f"{key}{value}" for key, value in labels.items()):
        raise BadInput(NUL)
    created = yield "start_run", begun(run)
    if not created:
        known = yield "start_entry", {"run_id": run.id}
        if not known:
            raise Refused(HALTED)
        _refuse_other_input(run, known)
        return False
    for blob in run.blobs:
        yield "insert_blob", fields(blob)
    yield "insert_entry", {"run_id": run.id, **fields(run.entry)}
    return True


def begun(run: NewRun) -> dict[str, Any]:
    """Return the parameters of the query that starts a run."""
    return {**fields(run), "root_id": run.root_id or run.id, "hash": run.entry.hash}


def _refuse_other_input(run: NewRun, rows: Rows) -> None:
    for found in entries(rows):
        if (found.name, found.digest) != (run.entry.name, run.entry.digest):
            raise Conflict(
                f"run {run.id!r} exists: agent {found.name!r} with another input. An id names one "
                "run for ever; start a different one under another id."
            )


def _concerns_others(message: Message, outcome: Outcome) -> bool:
    match message:
        case Append():
            return message.spawn is not None
        case Claim():
            return bool(outcome.returned)
        case _:
            return isinstance(message, _RINGS)


BARE = frozenset({"begun", "started", "retrying"})


def is_progress(entry: Entry) -> bool:
    """Return whether an entry brings the run further, rather than only recording a try."""
    return entry.state not in BARE
