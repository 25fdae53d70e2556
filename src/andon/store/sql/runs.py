"""Runs: they start, append to their journals, and settle.

The first query of a message checks everything that may refuse the message, and changes nothing if
it does. A refused message therefore leaves no trace although it shares its transaction with others.
"""

from __future__ import annotations

import json

from andon.core.run import TERMINAL, State
from andon.errors import BadInput, Conflict, Fenced, Refused, StoreUnavailable
from andon.store.sql.reads import entries, fields

TYPE_CHECKING = False  # commands must not pay for imports they do not need
if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from typing import Any

    from andon.core.journal import Entry
    from andon.core.lease import Fence
    from andon.store.sql.events import EventHandler
    from andon.store.sql.inbox import InboxHandler
    from andon.store.sql.reads import Query, Rows
    from andon.store.sql.targets import TargetHandler
    from andon.store.store import (
        Append,
        Blob,
        Checkpoint,
        Log,
        MoveRun,
        NewRun,
        Recall,
        Settle,
        Start,
    )

# States of a run that has not been resumed; if it stays there too long, its effects are undone.
UNRESUMED = frozenset({State.QUEUED, State.STRANDED, State.PAUSED, State.DEAD})
# States of entries that only record a try.
BARE = frozenset({"begun", "started", "retrying"})
NUL = (
    "the text contains a NUL character (\\x00), which databases cannot keep in text; nothing was "
    "written. Remove it from the name, key, label or message."
)
HALTED = (
    "everything is halted (andon receipts says by whom and why). To allow starts again: "
    "andon reauthorize"
)


class RunHandler:
    """Handles the messages about runs."""

    def __init__(
        self, q: Query, events: EventHandler, inbox: InboxHandler, targets: TargetHandler
    ) -> None:
        self.q, self._events, self._inbox, self._targets = q, events, inbox, targets

    def start(self, m: Start) -> bool:
        return self.start_run(m.run)

    def start_run(self, run: NewRun) -> bool:
        queries = starting(run)
        try:
            query = next(queries)
            while True:
                query = queries.send(self.q(query[0], **query[1]))
        except StopIteration as end:
            return bool(end.value)

    def append(self, m: Append) -> None:
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
            self.start_run(run)
            self._targets.stop_newborn(run.id, run.parent_id)
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

    def settle(self, m: Settle) -> str:
        held = {"run_id": m.run_id, "fence": m.fence.counter}
        rows = self.q("settle_run", **settling(m))
        if not rows:
            if self.q("is_settled", **held, ending=m.ending):  # written by an earlier try
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
        self.announce_settled(m, state, parent_id, stop)
        return str(state)

    def announce_settled(
        self, m: Settle, state: str, parent_id: str | None, stop: str | None
    ) -> None:
        if state in TERMINAL:
            self._inbox.notify_parent(parent_id, m.run_id, state)
            if m.undone:  # the run no longer waits for answers
                self.q("close_asks", run_id=m.run_id)
        if stop is not None:
            self._targets.settled(m.run_id, m.fence.counter, state, m.ending, m.also)

    def checkpoint(self, m: Checkpoint) -> None:
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

    def move(self, m: MoveRun) -> None:
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
            raise Conflict(f"run {m.run_id!r} is no longer {m.seen}; look again: andon show")
        for entry in m.entries:
            self.q("insert_entry", run_id=m.run_id, **fields(entry))
        if m.note is not None:
            self._events.write(m.note)

    def recall(self, m: Recall) -> None:
        if not self.q("recall_run", run_id=m.run_id, undoing=m.undoing):
            raise Conflict(f"run {m.run_id!r} is no longer running; look again: andon show")
        if m.note is not None:
            self._events.write(m.note)

    def log(self, m: Log) -> None:
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


def is_progress(entry: Entry) -> bool:
    """Return whether an entry brings the run further, rather than only recording a try."""
    return entry.state not in BARE
