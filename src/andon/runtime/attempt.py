"""One attempt: a worker's hold on a run, from claim to settlement.

load → execute (replay, then new operations) → settle. Whatever ends an attempt before the agent's
code does is a *leaving* with a reason; from then on every operation raises Stopped, so that code
which catches it once is not free.
"""

import asyncio
import contextvars
import functools
import json
import logging
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import msgspec

from andon.core import value
from andon.core.journal import ANSWERS, GENESIS, Entry, EntryKind, Mark, Replay, chain, check_chain
from andon.core.lease import Fence
from andon.core.queue import Retry
from andon.core.run import Event, State, advance
from andon.errors import AndonError, Corrupt, Diverged, Fenced, StepFailed, Stopped, StoreError
from andon.errors import family as family_of
from andon.points import point
from andon.runtime import branch
from andon.runtime.clock import StoreClock
from andon.runtime.turns import Turns
from andon.store.store import Append, Blob, Checkpoint, Claimed, EffectRow, Letter, Loaded, Log, Settle
from andon.store.writer import Writer

log = logging.getLogger("andon")

# A wait shorter than this is cheaper in memory than a suspension and a new claim.
LINGER_SECONDS = 1.0
# "At least once a second", with room for the commit.
CHECKPOINT_SECONDS = 0.5
# How long code that is leaving may take to unwind before it is cancelled again.
UNWIND_SECONDS = 2.0
UNWIND_TRIES = 5
DAY_SECONDS = 86_400.0


# Leaving for these does not wait for the operation in hand.
_AT_ONCE = frozenset({"fenced", "unavailable", "stopped"})


class Host(Protocol):
    """What an attempt needs of the process it runs in."""

    store: Any
    writer: Writer
    clock: StoreClock
    threads: ThreadPoolExecutor
    worker_id: str
    draining: bool
    in_threads: set[Any]

    @property
    def trusted(self) -> bool:
        """Whether the lease is surely held, as far as is known without asking."""
        ...

    async def ensure_trust(self) -> None:
        """Return once the lease is surely held; raise Fenced if it is not."""
        ...

    def carry(self, agent: Any) -> None: ...
    def keep_in_mind(self, work: Any) -> None:
        """What goes on although it should not: until it ends, this process is not gone."""
        ...



class Wait(msgspec.Struct, kw_only=True):
    """Something a run waits for: a letter, a time, or whichever comes first."""

    kind: str
    name: str
    wake_at: float | None = None
    future: Any = None
    task: Any = None
    timer: Any = None


class Draft(msgspec.Struct, kw_only=True):
    """An entry before it has its number."""

    kind: str
    state: str
    place: str = ""
    name: str = ""
    key: str | None = None
    digest: str = ""
    body: bytes | None = None
    since: float = 0.0
    along: dict[str, Any] = {}
    answers: int = 0  # the entry, if it is the answer to an operation
    effect: Callable[[Entry], EffectRow] | None = None


class Attempt:
    """The state of one run in this process."""

    def __init__(self, host: Host, run: Claimed, agent: Any) -> None:
        self.host, self.run, self.agent = host, run, agent
        self.loop = asyncio.get_running_loop()
        self.fence: Fence = run.fence
        self.seq, self.head = run.head_seq, run.head_hash
        self.reason: str | None = None  # why the attempt leaves, once it does
        self.error: BaseException | None = None
        self.replay = Replay([], run_id=run.id)
        self.letters: list[Letter] = []
        self.waits: list[Wait] = []
        self.active = 0  # operations that are executing
        self.open_effects: dict[tuple[str, str], EffectRow] = {}
        self.ledger: tuple[str, dict[tuple[str, str], EffectRow]] | None = None  # see doubts
        self.leftovers: list[Draft] = []  # effects that were cut off, for whoever goes on
        self.checkpoints: dict[str, str] = {}
        self.cleanups: list[Callable[[], Any]] = []
        self.shields: dict[str, float] = {}  # name → when its limit ends
        self.tasks = branch.Tasks(self._consider_soon)
        self.root = branch.Branch(self.tasks, "")
        self.turns = Turns(self.tasks, lambda: {wait.task for wait in self.waits})
        self.sync = False
        self.ended = False  # no code of it is left that may begin anything
        self._left: asyncio.Future[None] = self.loop.create_future()  # done once it leaves
        self._cut = False  # leaving, and not waiting for operations in hand
        self.cancelled: set[str] = set()  # operations that the code has cancelled in this attempt
        self.keys: dict[str, asyncio.Lock] = {}  # of operations with a key
        self._taken: set[int] = set()  # letters that this attempt has used
        self._considering = False
        self._dirty: dict[str, str] = {}
        self._flushing: asyncio.TimerHandle | None = None
        self._last: asyncio.Future[Any] | None = None  # the last write that nobody awaits
        self._flying = 0  # appends that are being written
        self._gate: list[tuple[list[Draft], asyncio.Future[Any]]] | None = None
        self._loaded: Loaded | None = None
        self._restored: Any = None
        self._lines: list[tuple[float, str, str]] = []

    # ── the life of an attempt ────────────────────────────────────────────────────────────────

    async def carry_out(self) -> str:
        """Execute the run as far as it goes here; answers how the attempt ended."""
        try:
            await self._load()
            outcome = await self._execute()
        except (Exception, Stopped) as error:  # noqa: BLE001 (a worker must survive every run)
            outcome = None
            self.leave(_reason_of(error), error)
        try:
            return await self._settle(outcome)
        except (Fenced, StoreError, Stopped) as error:
            return await self._give_up(error)
        except Exception as error:
            log.exception("run %s: andon could not settle it", self.run.id)
            self.error = error
            return str(await self.host.writer.write(self._stranding()))
        finally:
            self._end_flushing()
            await self._clean_up()

    async def _load(self) -> None:
        untouched = self.run.attempt == 1 and self.run.head_seq == 0 and self.run.inbox == 0
        loaded: Loaded = await self.in_thread(
            lambda: self.host.store.load(self.run.id, untouched=untouched)
        )
        first = loaded.entries[0]
        base = GENESIS if first.kind == EntryKind.START else None
        head = check_chain(loaded.entries, run_id=self.run.id, previous=base)
        if head != self.run.head_hash:
            raise Corrupt(
                f"run {self.run.id}: its journal ends with {head[:12]}, expected "
                f"{self.run.head_hash[:12]}; entries are missing. Restore it from a backup."
            )
        self._loaded = loaded
        self.letters = list(loaded.letters)
        self.checkpoints = dict(loaded.checkpoints)
        self.replay = Replay(loaded.entries, run_id=self.run.id)
        if self.agent.is_async:  # threads come to rest at no point that could be seen
            self.turns.expect(self.replay.answers())
        if self.replay.snapshot is not None:
            self.root.restart(self.replay.root)
            entry = self.replay.snapshot
            self._restored = value.decode(await self.body_of(entry.body, entry.blob))
        point("attempt:loaded")

    async def _execute(self) -> tuple[str, Any] | None:
        from andon.runtime import doubts

        await doubts.look_back(self)
        context = contextvars.copy_context()
        context.run(branch.current.set, self.root)
        main = asyncio.Task(self.agent.call(self), loop=self.loop, context=context)
        self.tasks.add(main)
        await asyncio.wait({main, self._left}, return_when=asyncio.FIRST_COMPLETED)
        await self._join_others()
        await self._unwind()
        if self.reason is not None:
            log.debug("run %s: leaves (%s)", self.run.id, self.reason)
            return None
        if main.cancelled():
            return "error", asyncio.CancelledError("the agent's code cancelled itself")
        error = main.exception()
        if error is not None:
            return "error", error
        self.replay.check_end(self.root.number)
        return "result", main.result()

    async def _join_others(self) -> None:
        """No run is finished while an operation of it is still executing."""
        while self.active and self.reason is None and self.tasks.living:
            await asyncio.wait(
                {*self.tasks.living, self._left}, return_when=asyncio.FIRST_COMPLETED
            )

    async def _unwind(self) -> None:
        """Wait until the run's code has ended. What does not end by itself is cancelled.

        Again and again: a swallowed cancellation is not the last. Operations in hand may end,
        unless the attempt has to leave at once.
        """
        self.ended = True
        patient = self.reason is not None and not self._cut
        for _ in range(UNWIND_TRIES):
            if not patient:
                for task in list(self.tasks.living):
                    task.cancel()
            while self.tasks.living:
                done, _ = await asyncio.wait(self.tasks.living, timeout=UNWIND_SECONDS)
                if not done and not (self.active and not self._cut):
                    break
            if not self.tasks.living:
                break
            patient = False
        for task in self.tasks.living:
            log.error("run %s: code that cannot be cancelled goes on: %r", self.run.id, task)
            self.host.keep_in_mind(task)

    async def _settle(self, outcome: tuple[str, Any] | None) -> str:
        await self.flush()
        if self.reason == "fenced":
            raise Fenced(self.run.id, self.fence)
        if outcome is not None and self.open_effects:
            from andon.runtime import doubts

            if await doubts.ask_about_open(self):
                self.leave("suspended")
                outcome = None
        settle = self._settlement(outcome)
        point("attempt:before-settle")
        state = await self.host.writer.write(settle)
        point("attempt:settled")
        return str(state)

    def _settlement(self, outcome: tuple[str, Any] | None) -> Settle:
        if outcome is not None:
            kind, what = outcome
            if kind == "result":
                return self._success(what)
            return self._failure(what)
        match self.reason:
            case "suspended":
                return self._suspension()
            case "diverged":
                return self._stranding()
            case _:
                return self._return(self.leftovers)

    def _return(self, leftovers: "list[Draft] | None" = None) -> Settle:
        entries, blobs, rows = self.number(leftovers or [])
        return Settle(
            run_id=self.run.id,
            fence=self.fence,
            state=advance(State.RUNNING, Event.RETURN),
            ending="returned",
            entries=entries,
            blobs=blobs,
            effects=rows,
            returned=True,
        )

    async def _give_up(self, error: BaseException) -> str:
        """The store did not take how the attempt ended. The run must not be held for ever."""
        if isinstance(error, Fenced) or self.reason == "fenced":
            log.warning("run %s: fenced: %s", self.run.id, self.error or error)
            return "fenced"
        log.error("run %s: given up here: %s", self.run.id, self.error or error)
        while not self.host.draining:
            try:
                return str(await self.host.writer.write(self._return()))
            except Fenced:
                return "fenced"
            except StoreError:
                await asyncio.sleep(1)
        return "unavailable"

    def _success(self, result: Any) -> Settle:
        what = f"the result of agent {self.agent.name!r}"
        try:
            raw, _ = value.encode_result(result, what, self.agent.result_decoder)
        except Exception as error:  # noqa: BLE001 (a value's own code may raise anything)
            return self._failure(error, final=True)
        return self._end(Event.SUCCEED, raw)

    def _failure(self, error: BaseException, *, final: bool = False) -> Settle:
        described = describe(error)
        failures = self.run.failures + 1
        retry: Retry = self.agent.retry
        if retry.again(failures) and not final:
            delay = retry.delay(failures, random.random())  # noqa: S311 (not for secrets)
            reopened = [
                self._draft_retry(place, described, delay) for place in places_of(error)
            ] or [self._draft_retry("-", described, delay)]
            entries, blobs, _ = self.number(reopened)
            return Settle(
                run_id=self.run.id,
                fence=self.fence,
                state=advance(State.RUNNING, Event.RETRY),
                ending="failed",
                entries=entries,
                blobs=blobs,
                error=json.dumps(described),
                delay_seconds=delay,
                returned=True,
                failed=True,
            )
        event = Event.BURY if retry.retries and not final else Event.FAIL
        return self._end(event, msgspec.json.encode(described), failed=True)

    def _draft_retry(self, place: str, described: dict[str, Any], delay: float) -> Draft:
        body = msgspec.json.encode({**described, "delay_seconds": delay})
        return Draft(kind=EntryKind.RETRY, state=Mark.REOPENED, place=place, body=body)

    def _end(self, event: Event, body: bytes, *, failed: bool = False) -> Settle:
        state = advance(State.RUNNING, event)
        draft = Draft(kind=EntryKind.END, state=state, name=self.agent.name, body=body)
        entries, blobs, _ = self.number([draft])
        return Settle(
            run_id=self.run.id,
            fence=self.fence,
            state=state,
            ending=state,
            entries=entries,
            blobs=blobs,
            error=body.decode() if failed else None,
            failed=failed,
        )

    def _suspension(self) -> Settle:
        times = [wait.wake_at for wait in self._left_waits if wait.wake_at is not None]
        described = [
            {"kind": wait.kind, "name": wait.name, "until": wait.wake_at}
            for wait in self._left_waits
        ]
        return Settle(
            run_id=self.run.id,
            fence=self.fence,
            state=advance(State.RUNNING, Event.SUSPEND),
            ending="suspended",
            waits=json.dumps(described),
            wake_at=min(times, default=None),
            seen_inbox=self.run.inbox,
            awake_state=advance(State.RUNNING, Event.RETURN),
        )

    def _stranding(self) -> Settle:
        return Settle(
            run_id=self.run.id,
            fence=self.fence,
            state=advance(State.RUNNING, Event.STRAND),
            ending="stranded",
            error=json.dumps(describe(self.error)) if self.error else None,
        )

    # ── leaving ───────────────────────────────────────────────────────────────────────────────

    _left_waits: list[Wait] = []

    def leave(self, reason: str, error: BaseException | None = None) -> None:
        """End this attempt without a verdict of the agent's code. The first reason stands."""
        if reason in _AT_ONCE or (reason == "drained" and not self.active):
            self._cut_off()
        if self.reason is not None:
            return
        self.reason, self.error = reason, error
        self._left_waits = list(self.waits)
        for wait in self.waits:
            if not wait.future.done():
                wait.future.set_exception(Stopped(reason))
        self.turns.stop(Stopped(reason))
        if not self._left.done():
            self._left.set_result(None)

    def _cut_off(self) -> None:
        """Not to wait for the operations in hand."""
        self._cut = True
        for task in list(self.tasks.living):
            task.cancel()

    def stop(self, reason: str, error: BaseException | None = None) -> Stopped:
        """Leave, and answer what the operation in hand has to raise."""
        self.leave(reason, error)
        return Stopped(self.reason or reason)

    def check(self) -> None:
        """Raise if the attempt is leaving."""
        if self.reason is not None:
            raise Stopped(self.reason)

    @property
    def shielded(self) -> bool:
        """Whether a block that must end before a polite stop is open, within its limit."""
        return any(limit > self.loop.time() for limit in self.shields.values())

    async def boundary(self) -> None:
        """Between two operations: where polite stops take effect and the lease is looked at."""
        host, waits = self.host, self.turns.replayed or self.ended
        if not waits and self.reason is None and self._last is None:
            if host.trusted and not host.draining:
                return
        await self.turns.end()
        self.check()
        if self.ended:
            raise Stopped("its run is over")
        if self.host.draining and not self.shielded:
            raise self.stop("drained")
        try:
            await self.host.ensure_trust()
        except (Fenced, StoreError) as error:
            raise self.stop(_reason_of(error), error) from None
        self.check()
        if self._last is not None:
            await self._settled(self._last)

    # ── writing ───────────────────────────────────────────────────────────────────────────────

    def number(
        self, drafts: list[Draft]
    ) -> tuple[tuple[Entry, ...], tuple[Blob, ...], tuple[EffectRow, ...]]:
        """Give the drafts their numbers, times and hashes. Must be submitted at once, in order."""
        now = self.host.clock.now()
        entries: list[Entry] = []
        blobs: list[Blob] = []
        rows: list[EffectRow] = []
        for draft in drafts:
            body, blob = _placed_body(draft.body, blobs)
            self.seq += 1
            entry = Entry(
                seq=self.seq,
                kind=draft.kind,
                state=draft.state,
                place=draft.place,
                name=draft.name,
                key=draft.key,
                digest=draft.digest,
                body=body,
                blob=blob,
                fence=self.fence.counter,
                since=draft.since or now,
                at=now,
            )
            entry.hash = self.head = chain(self.head, entry)
            if len(self.tasks.living) > 1:
                self._turn_of(draft, entry)
            entries.append(entry)
            # A key that is used again is answered as on replay; after a snapshot it is new.
            if entry.key is not None or entry.kind == EntryKind.SNAPSHOT:
                self.replay.add(entry)
            if draft.effect is not None:
                rows.append(draft.effect(entry))
        return tuple(entries), tuple(blobs), tuple(rows)

    def _message(self, drafts: list[Draft]) -> Append:
        entries, blobs, rows = self.number(drafts)
        along: dict[str, Any] = {}
        for draft in drafts:
            along.update(draft.along)
        return Append(
            run_id=self.run.id, fence=self.fence, entries=entries, blobs=blobs, effects=rows, **along
        )

    async def append(self, *drafts: Draft) -> None:
        """Make entries durable. Afterwards this process may act on them."""
        if self.reason in _AT_ONCE:  # else it is how an operation in hand has ended
            self.check()
        try:
            if self._gate is not None:
                await self._settled(self._behind_gate(list(drafts)))
            else:
                await self._write(self._message(list(drafts)))
            for draft in drafts:
                if draft.answers:
                    await self.turns.take(draft.answers)
        finally:
            for draft in drafts:
                if draft.answers:
                    self.turns.leave(draft.answers)

    async def _write(self, message: Append) -> None:
        self._flying += 1
        try:
            await self.host.writer.write(message)
        except AndonError as error:
            raise self.stop(_reason_of(error), error) from None
        finally:
            self._flying -= 1

    def append_soon(self, draft: Draft) -> "asyncio.Future[Any]":
        """Write without waiting; whatever is awaited later is written after it."""
        self.check()
        if self._gate is not None:
            future = self._behind_gate([draft])
        else:
            future = self.host.writer.submit(self._message([draft]))
        future.add_done_callback(_retrieve)
        self._last = future
        return future

    def _turn_of(self, draft: Draft, entry: Entry) -> None:
        """Answers are given in the order in which they are written."""
        if draft.state in ANSWERS and draft.kind != EntryKind.VALUE and self.agent.is_async:
            draft.answers = entry.seq
            self.turns.enter(entry.seq)

    async def _settled(self, future: "asyncio.Future[Any]") -> None:
        try:
            await asyncio.shield(future)
        except AndonError as error:
            raise self.stop(_reason_of(error), error) from None
        if self._last is future:
            self._last = None

    def _behind_gate(self, drafts: list[Draft]) -> "asyncio.Future[Any]":
        assert self._gate is not None
        future: asyncio.Future[Any] = self.loop.create_future()
        self._gate.append((drafts, future))
        return future

    async def close_gate(self) -> None:
        """Hold other branches' entries back while a transaction writes one of its own."""
        while self._gate is not None:
            await self._settled(self._behind_gate([]))
        self._gate = []
        try:
            if self._last is not None:
                await self._settled(self._last)
            while self._flying:
                await asyncio.sleep(0.001)  # theirs come first; a commit takes no longer
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
            submitted = self.host.writer.submit(self._message(drafts))
            submitted.add_done_callback(functools.partial(self._land, future))
            self._flying += 1

    def _land(self, future: "asyncio.Future[Any]", done: "asyncio.Future[Any]") -> None:
        self._flying -= 1
        _copy(done, future)

    async def transact(self, operation: Any, call: Callable[[Any], Any], decoder: Any) -> Any:
        """A step's writes to the user's tables and its entry, in one commit. Behind the gate."""
        back: Any = None

        def write(connection: Any) -> Append:
            nonlocal back
            what = f"the result of transaction {operation.name!r}"
            raw, back = value.encode_result(call(connection), what, decoder)
            return self._message([operation.draft(Mark.DONE, raw)])

        before = self.seq, self.head
        try:
            work = self.loop.run_in_executor(self.host.threads, self.host.store.transact, write)
            await _to_the_end(work)
        except (Fenced, StoreError) as error:
            raise self.stop(_reason_of(error), error) from None
        except asyncio.CancelledError:  # and committed nevertheless
            self.turns.leave(self.seq)
            raise
        except BaseException:
            self.turns.leave(self.seq)
            self.seq, self.head = before  # rolled back, entry and all
            raise
        await self.turns.take(self.seq)
        return back

    async def flush(self) -> None:
        """Everything that was written without waiting, made durable."""
        self._write_checkpoints()
        self._write_lines()
        last, self._last = self._last, None
        if last is not None:
            try:
                await asyncio.shield(last)
            except (Fenced, StoreError) as error:
                self.leave(_reason_of(error), error)

    # ── partial progress and log lines ────────────────────────────────────────────────────────

    def keep_partial(self, place: str, body: str) -> None:
        """From any thread: the latest partial value of an operation, written within a second."""
        self.checkpoints[place] = body
        self._dirty[place] = body
        self.loop.call_soon_threadsafe(self._flush_later)

    def drop_partial(self, place: str) -> str | None:
        """The step is done. Answers its place if a partial value of it is kept in the store."""
        self._dirty.pop(place, None)
        return place if self.checkpoints.pop(place, None) is not None else None

    def add_line(self, level: str, text: str) -> None:
        self._lines.append((self.host.clock.now(), level, text))
        self.loop.call_soon_threadsafe(self._flush_later)

    def _flush_later(self) -> None:
        if self._flushing is None:
            self._flushing = branch.call_later(CHECKPOINT_SECONDS, self._flush_now)

    def _flush_now(self) -> None:
        self._flushing = None
        if self.reason is None:
            self._write_checkpoints()
            self._write_lines()

    def _write_checkpoints(self) -> None:
        dirty, self._dirty = self._dirty, {}
        for place, body in dirty.items():
            message = Checkpoint(run_id=self.run.id, fence=self.fence, op=place, body=body)
            self.host.writer.submit(message).add_done_callback(_retrieve)

    def _write_lines(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            message = Log(run_id=self.run.id, attempt=self.run.attempt, lines=tuple(lines))
            self.host.writer.submit(message).add_done_callback(_retrieve)

    def _end_flushing(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None

    # ── waiting ───────────────────────────────────────────────────────────────────────────────

    def take_letter(self, kind: str, name: str) -> Letter | None:
        for letter in self.letters:
            if (letter.kind, letter.name) == (kind, name):
                self.letters.remove(letter)
                self._taken.add(letter.id)
                return letter
        return None

    def put_back(self, letter: Letter) -> None:
        """Nobody used it after all."""
        self._taken.discard(letter.id)
        self.letters.insert(0, letter)

    async def wait_for(self, kind: str, name: str, wake_at: float | None = None) -> Letter | None:
        """A letter, or None when `wake_at` has come. The run may be suspended meanwhile."""
        if self.turns.replayed:
            await self.turns.end()
        letter = self.take_letter(kind, name)
        if letter is not None:
            return letter
        if wake_at is not None and wake_at <= self.host.clock.now():
            return None
        self.check()
        if self.host.draining and not self.shielded:
            raise self.stop("drained")
        wait = Wait(kind=kind, name=name, wake_at=wake_at, future=self.loop.create_future())
        wait.task = asyncio.current_task()
        self.waits.append(wait)
        self._ring_at(wait)
        point("wait:registered")
        self._consider_soon()
        try:
            found: Letter | None = await wait.future
        except asyncio.CancelledError:
            if wait.future.done() and not wait.future.cancelled() and wait.future.result():
                self.put_back(wait.future.result())
            raise
        finally:
            self.waits.remove(wait)
            if wait.timer is not None:
                wait.timer.cancel()
        return found

    def _ring_at(self, wait: Wait) -> None:
        """End the wait at its time. By the day: loops do not take timers that are further away."""
        if wait.wake_at is None or wait.future.done():
            return
        left = wait.wake_at - self.host.clock.now()
        if left <= 0:
            wait.future.set_result(None)
        else:
            wait.timer = branch.call_later(min(left, DAY_SECONDS), self._ring_at, wait)

    def receive(self, letters: list[Letter]) -> None:
        """New letters, for waits that are held in memory."""
        # What was read before its use was committed is not a second one.
        known = {letter.id for letter in self.letters} | self._taken
        self.letters += [letter for letter in letters if letter.id not in known]
        for wait in self.waits:
            if wait.future.done():
                continue
            letter = self.take_letter(wait.kind, wait.name)
            if letter is not None:
                wait.future.set_result(letter)
        self._consider_soon()

    def _consider_soon(self) -> None:
        if self.waits and self.reason is None and not self._considering:
            self._considering = True
            self.loop.call_soon(self._consider)

    def _consider(self) -> None:
        """Suspend the run if all it does is wait, and for long enough."""
        self._considering = False
        pending = [wait for wait in self.waits if not wait.future.done()]
        if self.active or self.reason is not None or not pending or len(pending) < len(self.waits):
            return
        if not self.sync and not self.tasks.all_wait({wait.task for wait in pending}):
            return
        soon = self.host.clock.now() + LINGER_SECONDS
        if any(wait.wake_at is not None and wait.wake_at < soon for wait in pending):
            return
        point("attempt:suspended")
        self.leave("suspended")

    def done_operating(self) -> None:
        self.active -= 1
        self._consider_soon()

    # ── the rest ──────────────────────────────────────────────────────────────────────────────

    async def in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        return await self.loop.run_in_executor(self.host.threads, function, *args)

    async def read(self, request: Callable[..., Any], *args: Any) -> Any:
        """Ask the store. A store that cannot answer interrupts the run and does not fail it."""
        try:
            return await self.in_thread(request, *args)
        except StoreError as error:
            raise self.stop("unavailable", error) from None

    async def body_of(self, body: str | None, blob: str | None) -> str:
        if blob is not None:
            found: str = await self.read(self.host.store.blob, blob)
            return found
        return body if body is not None else "null"

    def is_quiet(self, fence: int) -> bool:
        """Whether whoever held the run under that fence certainly executes nothing any more."""
        return self._loaded is not None and fence in self._loaded.quiet_fences

    @property
    def restored(self) -> Any:
        """The state of the last snapshot of earlier attempts."""
        return self._restored

    @property
    def start_body(self) -> tuple[str | None, str | None]:
        assert self._loaded is not None
        return self._loaded.start.body, self._loaded.start.blob

    async def _clean_up(self) -> None:
        """Once, in reverse order, each with a limit; an error is reported and stops nothing."""
        while self.cleanups:
            cleanup = self.cleanups.pop()
            try:
                done = cleanup()
                if isinstance(done, Awaitable):
                    await asyncio.wait_for(done, 5)
            except Exception:  # noqa: BLE001 (it is the user's)
                log.exception("run %s: a cleanup failed", self.run.id)


def describe(error: BaseException) -> dict[str, Any]:
    """An error as it is stored: never its traceback, which may hold what a prompt said."""
    if isinstance(error, StepFailed):
        return {
            "type": error.error,
            "message": f"{error.name}: {error.message}",
            "family": family_of(error),
            "step": error.name,
        }
    message = _words_of(error)
    if isinstance(error, BaseExceptionGroup):
        message = "; ".join(f"{type(one).__name__}: {_words_of(one)}" for one in error.exceptions)
    return {"type": type(error).__name__, "message": message[:10_000], "family": family_of(error)}


def _words_of(error: BaseException) -> str:
    """Its message, as text that can be stored, whatever the error's class makes of it."""
    try:
        return str(error).encode("utf-8", "backslashreplace").decode()
    except Exception:  # noqa: BLE001 (it is the user's)
        return "its message could not be read"


def places_of(error: BaseException) -> list[str]:
    """The places of the failed operations that an error came from."""
    found: list[str] = []
    seen: set[int] = set()

    def visit(one: BaseException | None) -> None:
        if one is None or id(one) in seen:
            return
        seen.add(id(one))
        if isinstance(one, StepFailed) and one.place:
            found.append(one.place)
        if isinstance(one, BaseExceptionGroup):
            for inner in one.exceptions:
                visit(inner)
        visit(one.__cause__)
        visit(one.__context__)

    visit(error)
    return found


def _placed_body(raw: bytes | None, blobs: list[Blob]) -> tuple[str | None, str | None]:
    if raw is None:
        return None, None
    if len(raw) <= value.INLINE_BYTES:
        return raw.decode(), None
    name = value.content_name(raw)
    blobs.append(Blob(name, raw.decode()))
    return None, name


def _reason_of(error: BaseException) -> str:
    match error:
        case Fenced():
            return "fenced"
        case Diverged() | Corrupt():
            return "diverged"
        case StoreError():
            return "unavailable"
        case Stopped():
            return "stopped"
        case _:
            return "diverged"  # a person has to look: to try again would lead here again


def _retrieve(future: "asyncio.Future[Any]") -> None:
    """Mark its error as seen: the next awaited write meets the same one."""
    if not future.cancelled():
        future.exception()


def _copy(done: "asyncio.Future[Any]", future: "asyncio.Future[Any]") -> None:
    if future.done():
        return
    error = done.exception()
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())


async def _to_the_end(future: "asyncio.Future[Any]") -> Any:
    """Wait for what cannot be cancelled, and be cancelled only after it."""
    cancelled = None
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as error:
            cancelled = error
        except BaseException:  # noqa: BLE001 (it is raised below)
            break
    if cancelled is not None and future.exception() is None:
        raise cancelled
    return future.result()
