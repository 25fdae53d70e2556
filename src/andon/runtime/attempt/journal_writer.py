"""Writes a run's journal: numbers, hashes and commits entries in the order in which things happen.

An entry gets its number at the moment it is handed to the writer, so that the hash chain follows
the order of the commits. While a transaction of the user is open, other entries wait behind a gate.
"""

import asyncio
import functools
import logging
import textwrap
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any

import msgspec

from andon.core.effect import EffectState
from andon.core.journal import ANSWERS, Entry, EntryKind, Mark, Replay, chain
from andon.core.values import value
from andon.errors import AndonError, Fenced, StoreError
from andon.runtime.attempt import branch
from andon.runtime.attempt.error_text import describe, reason_of
from andon.runtime.attempt.exit import AT_ONCE, Exit, log
from andon.runtime.attempt.host import Host
from andon.runtime.attempt.replay_order import Turns
from andon.runtime.attempt.tracebacks import trace
from andon.runtime.futures import retrieve, to_the_end
from andon.store.store import Append, Blob, Checkpoint, Claimed, EffectRow, Log

_HELD = frozenset({Mark.DONE, EffectState.CONFIRMED})
# The promise is at least one checkpoint a second; this leaves room for the commit.
CHECKPOINT_SECONDS = 0.5
# An attempt's first checkpoint comes sooner: a worker that is killed again and again must get
# further each time. A step that has ended by then writes none.
FIRST_CHECKPOINT_SECONDS = 0.05


class Draft(msgspec.Struct, kw_only=True):
    """A journal entry that has no number yet."""

    kind: str
    state: str
    place: str = ""
    name: str = ""
    key: str | None = None
    digest: str = ""
    body: bytes | None = None
    since: float = 0.0
    fields: dict[str, Any] = {}  # further fields of the message that appends it
    answers: int = 0  # number of the entry, if it answers an operation in replay order
    effect: Callable[[Entry], EffectRow] | None = None
    parts: tuple[Blob, ...] = ()  # parts of a snapshot's state that the store does not have


class Journal:
    """Writes the journal of one attempt, its checkpoints and its log lines."""

    def __init__(
        self, host: Host, run: Claimed, agent: Any, exit_: Exit, tasks: branch.Tasks, turns: Turns
    ) -> None:
        self._host, self._run, self._fence = host, run, run.fence
        self._exit, self._tasks, self._turns = exit_, tasks, turns
        self._is_async = agent.is_async
        self._loop = asyncio.get_running_loop()
        self.seq, self.head = run.head_seq, run.head_hash
        self.replay = Replay([], run_id=run.id)
        self.checkpoints: dict[str, str] = {}
        self.joining = 0  # number of open ctx.together blocks
        self._last: asyncio.Future[Any] | None = None  # the last write that nobody awaits
        self._held: Append | None = None  # a result that waits for the next write: ctx.together
        self._flying = 0  # number of appends that are being written
        self._gate: list[tuple[list[Draft], asyncio.Future[Any]]] | None = None
        self._dirty: dict[str, tuple[str, str | None]] = {}
        self._lines: list[tuple[float, str, str]] = []
        self._flushing: asyncio.TimerHandle | None = None
        self._first_checkpoint = True

    @property
    def pending(self) -> bool:
        """Whether entries are not yet durable that nobody awaits."""
        return self._last is not None or self._held is not None

    async def written(self) -> None:
        """Wait for writes that were submitted without waiting."""
        if self._held is not None:
            await self._write(self._message(()))
        if self._last is not None:
            await self.durable(self._last)

    @property
    def holds(self) -> bool:
        return self._held is not None

    def _may_hold(self, drafts: Sequence[Draft]) -> bool:
        """Whether results may wait: there is one branch, and the drafts carry only entries."""
        if len(self._tasks.living) > 1 or not self._is_async:
            return False
        plain = all(value is None for draft in drafts for value in draft.fields.values())
        return plain and all(draft.state in _HELD for draft in drafts)

    def _hold(self, message: Append) -> None:
        """Hold a message until the next write, but at most for this turn of the loop."""
        self._held = message
        self._loop.call_soon(self._submit_held)

    def _submit_held(self) -> None:
        if self._held is not None:
            self._last = self._host.writer.submit(self._message(()))
            self._last.add_done_callback(retrieve)

    def number(
        self, drafts: Sequence[Draft]
    ) -> tuple[tuple[Entry, ...], tuple[Blob, ...], tuple[EffectRow, ...]]:
        """Give the drafts numbers, times and hashes. Submit the result at once, in order."""
        blobs: list[Blob] = []
        entries: list[Entry] = []
        rows: list[EffectRow] = []
        for draft in drafts:
            entry = self._entry(draft, blobs)
            entries.append(entry)
            if draft.effect is not None:
                rows.append(draft.effect(entry))
        return tuple(entries), tuple(blobs), tuple(rows)

    def _entry(self, draft: Draft, blobs: list[Blob]) -> Entry:
        now = self._host.clock.now()
        raw, blob = draft.body, None
        blobs += draft.parts
        if raw is not None and len(raw) > value.INLINE_BYTES:
            blob = value.content_name(raw)
            blobs.append(Blob(name=blob, body=raw.decode()))
            raw = None
        self.seq += 1
        entry = Entry(
            seq=self.seq,
            kind=draft.kind,
            state=draft.state,
            place=draft.place,
            name=draft.name,
            key=draft.key,
            digest=draft.digest,
            body=None if raw is None else raw.decode(),
            blob=blob,
            fence=self._fence.counter,
            since=draft.since or now,
            at=now,
        )
        entry.hash = self.head = chain(self.head, entry)
        if len(self._tasks.living) > 1:
            self._turn_of(draft, entry)
        # If the code uses a key again, it gets the same answer as on replay. After a snapshot,
        # the key is new.
        if entry.key is not None or entry.kind == EntryKind.SNAPSHOT:
            self.replay.add(entry)
        return entry

    def _message(self, drafts: Sequence[Draft]) -> Append:
        entries, blobs, rows = self.number(drafts)
        fields = {name: value for draft in drafts for name, value in draft.fields.items()}
        if self._held is not None:
            held, self._held = self._held, None
            entries, blobs = (*held.entries, *entries), (*held.blobs, *blobs)
            rows = (*held.effects, *rows)
        return Append(
            run_id=self._run.id,
            fence=self._fence,
            entries=entries,
            blobs=blobs,
            effects=rows,
            **fields,
        )

    def _message_of(self, draft: Draft) -> Append:
        """Like `_message`, for one draft: the fast path of every step."""
        blobs: list[Blob] = []
        entry = self._entry(draft, blobs)
        given = {"run_id": self._run.id, "fence": self._fence, "entries": (entry,), **draft.fields}
        if blobs:
            given["blobs"] = tuple(blobs)
        if draft.effect is not None:
            given["effects"] = (draft.effect(entry),)
        return Append(**given)

    def append(self, *drafts: Draft) -> Awaitable[None]:
        """Make entries durable; then this process may act on them. Await the result at once."""
        if self._exit.reason in AT_ONCE:  # otherwise an operation in hand still records its end
            self._exit.check()
        if self._gate is None and not self.joining and len(self._tasks.living) <= 1:
            one = len(drafts) == 1 and self._held is None
            return self._write(self._message_of(drafts[0]) if one else self._message(drafts))
        return self._append_in_turn(drafts)

    async def _append_in_turn(self, drafts: Sequence[Draft]) -> None:
        try:
            if self._gate is not None:
                await self.durable(self._behind_gate(list(drafts)))
            elif self.joining and self._may_hold(drafts):
                self._hold(self._message(drafts))
            else:
                await self._write(self._message(drafts))
            for draft in drafts:
                if draft.answers:
                    await self._turns.take(draft.answers)
        finally:
            for draft in drafts:
                if draft.answers:
                    self._turns.leave(draft.answers)

    async def _write(self, message: Append) -> None:
        self._flying += 1
        try:
            # Branches, and runs of one worker, share a commit: one commit each would be slow.
            writer = self._host.writer
            if len(self._tasks.living) > 1 or writer.runs != 1:
                await writer.submit(message)
            else:
                await writer.write(message)
        except AndonError as error:
            raise self._exit.stop(reason_of(error), error) from None
        finally:
            self._flying -= 1

    def append_soon(self, draft: Draft) -> "asyncio.Future[Any]":
        """Submit an entry without waiting; writes that are awaited later come after it."""
        self._exit.check()
        if self._gate is not None:
            future = self._behind_gate([draft])
        else:
            future = self._host.writer.submit(self._message([draft]))
        future.add_done_callback(retrieve)
        self._last = future
        return future

    def _turn_of(self, draft: Draft, entry: Entry) -> None:
        """Enter an answer into the replay order, which is the order of the entries."""
        if draft.state in ANSWERS and draft.kind != EntryKind.VALUE and self._is_async:
            draft.answers = entry.seq
            self._turns.enter(entry.seq)

    async def durable(self, future: "asyncio.Future[Any]") -> None:
        """Wait for a write that was begun by append_soon."""
        try:
            await asyncio.shield(future)
        except AndonError as error:
            raise self._exit.stop(reason_of(error), error) from None
        if self._last is future:
            self._last = None

    def _behind_gate(self, drafts: list[Draft]) -> "asyncio.Future[Any]":
        assert self._gate is not None
        future: asyncio.Future[Any] = self._loop.create_future()
        self._gate.append((drafts, future))
        return future

    async def close_gate(self) -> None:
        """Hold back other branches' entries while a transaction writes an entry of its own."""
        while self._gate is not None:
            await self.durable(self._behind_gate([]))
        self._gate = []
        try:
            if self._last is not None:
                await self.durable(self._last)
            while self._flying:  # noqa: ASYNC110 (earlier appends go first; it takes one commit)
                await asyncio.sleep(0.001)
        except BaseException:
            self.open_gate()
            raise

    def open_gate(self) -> None:
        held, self._gate = self._gate or [], None
        for drafts, future in held:
            if future.done():
                continue
            if not drafts:
                future.set_result(None)
                continue
            submitted = self._host.writer.submit(self._message(drafts))
            submitted.add_done_callback(functools.partial(self._land, future))
            self._flying += 1

    def _land(self, future: "asyncio.Future[Any]", done: "asyncio.Future[Any]") -> None:
        self._flying -= 1
        _copy(done, future)

    async def transact(self, operation: Any, call: Callable[[Any], Any], decoder: Any) -> Any:
        """Commit a step's writes to the user's tables with its entry. Needs the gate closed."""
        back: Any = None

        def write(connection: Any) -> Append:
            nonlocal back
            what = f"the result of transaction {operation.name!r}"
            raw, back = value.encode_result(call(connection), what, decoder)
            return self._message([operation.draft(Mark.DONE, raw)])

        before = self.seq, self.head
        try:
            work = self._loop.run_in_executor(self._host.threads, self._host.store.transact, write)
            await to_the_end(work)
        except (Fenced, StoreError) as error:
            raise self._exit.stop(reason_of(error), error) from None
        except asyncio.CancelledError:  # the transaction has committed nevertheless
            self._turns.leave(self.seq)
            raise
        except BaseException:
            self._turns.leave(self.seq)
            self.seq, self.head = before  # the transaction was rolled back, with its entry
            raise
        await self._turns.take(self.seq)
        return back

    async def flush(self) -> None:
        """Make everything durable that was written without waiting."""
        self._submit_held()
        self._write_checkpoints()
        self._write_lines()
        last, self._last = self._last, None
        if last is not None:
            try:
                await asyncio.shield(last)
            except (Fenced, StoreError) as error:
                self._exit.leave(reason_of(error), error)

    def keep_partial(self, place: str, body: str, progress: str | None = None) -> None:
        """Keep an operation's latest partial value, written within a second. From any thread."""
        self.checkpoints[place] = body
        self._dirty[place] = body, progress
        self._loop.call_soon_threadsafe(self._flush_later)

    def drop_partial(self, place: str) -> str | None:
        """Forget a finished step's partial value; return its place if the store may keep one."""
        self._dirty.pop(place, None)
        return place if self.checkpoints.pop(place, None) is not None else None

    def add_line(self, level: str, text: str) -> None:
        self._lines.append((self._host.clock.now(), level, text))
        self._loop.call_soon_threadsafe(self._flush_later)

    def note_failure(
        self, error: BaseException, what: str, level: int = logging.WARNING
    ) -> dict[str, Any]:
        """Log an error and return it as the journal keeps it. `what`: "step 'pay' failed"."""
        described = {name: given for name, given in describe(error).items() if name != "traceback"}
        words = f"{what}: {described['type']}: {described['message']}"
        mode = self._host.settings.tracebacks
        shown = words
        if mode != "off":
            shown = f"{what}:\n{textwrap.indent(trace(error, brief=True), '  ')}"
        log.log(level, "run %s: %s", self._run.id, shown)
        if mode == "journal":
            words, described = shown, {**described, "traceback": trace(error)}
        # Written at once, so that it keeps its order with the journal's entries.
        self._lines.append((self._host.clock.now(), "error", words))
        self._write_lines()
        return described

    def _flush_later(self) -> None:
        if self._first_checkpoint and self._dirty:
            self._first_checkpoint = False
            self.end_flushing()  # a flush planned for log lines comes later than this one
            self._flushing = branch.call_later(FIRST_CHECKPOINT_SECONDS, self._flush_now)
        elif self._flushing is None:
            self._flushing = branch.call_later(CHECKPOINT_SECONDS, self._flush_now)

    def _flush_now(self) -> None:
        self._flushing = None
        if self._exit.reason is None:
            self._write_checkpoints()
            self._write_lines()

    def _write_checkpoints(self) -> None:
        dirty, self._dirty = self._dirty, {}
        for place, (body, progress) in dirty.items():
            message = Checkpoint(
                run_id=self._run.id, fence=self._fence, op=place, body=body, progress=progress
            )
            self._host.writer.submit(message).add_done_callback(retrieve)

    def _write_lines(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            message = Log(run_id=self._run.id, attempt=self._run.attempt, lines=tuple(lines))
            self._host.writer.submit(message).add_done_callback(retrieve)

    def end_flushing(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None


class Durable:
    """A write that the caller may await but need not."""

    def __init__(self, journal: Journal, future: "asyncio.Future[Any]") -> None:
        self._journal, self._future = journal, future

    def __await__(self) -> Generator[Any, None, None]:
        return self._journal.durable(self._future).__await__()


def _copy(done: "asyncio.Future[Any]", future: "asyncio.Future[Any]") -> None:
    if future.done():
        return
    error = done.exception()
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())
