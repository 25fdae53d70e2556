"""Executes an effect: records its start, calls it, records its outcome, resolves a doubt.

`core.effect` decides each next move. This module carries it out, and makes every outcome durable
before the next move.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from andon.core.effect import (
    OPEN,
    EffectMove,
    EffectState,
    Verdict,
    after_answer,
    next_move,
)
from andon.core.journal import Entry, Mark
from andon.core.queue import Retry
from andon.core.values import value
from andon.errors import DidNotHappen, NotStorable, Stopped
from andon.points import point
from andon.runtime.attempt.attempt import Attempt
from andon.runtime.attempt.error_text import describe
from andon.runtime.attempt.journal_writer import Draft
from andon.runtime.effects import in_doubt, ledger
from andon.runtime.effects.declaration import Declaration, Happened, Postponed
from andon.runtime.operations.calls import accepted, reference_of
from andon.runtime.operations.operation import Operation, invoke, is_async
from andon.store.messages.rows import InboxMessage
from andon.store.store import EffectRow

# A probe queries an outside system and may itself fail; after this many tries a person is asked.
PROBE_TRIES = 3


class _Effect:
    """One effect of a run, for the duration of one call of ctx.effect."""

    def __init__(
        self,
        operation: Operation,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        declared: Declaration,
        retries: int | Retry,
        timeout: float | None,
    ) -> None:
        self.operation, self.attempt = operation, operation.attempt
        self.function, self.args, self.kwargs = function, args, kwargs
        self.declared, self.timeout = declared, timeout
        self.policy = retries if isinstance(retries, Retry) else Retry(retries)
        # Unique in the world, so that it can serve as the provider's idempotency key.
        self.key = operation.key or f"{self.attempt.run.id}/{operation.place}"
        self.decoder = value.result_decoder(function)
        record = operation.record
        self.failures = record.failures if record else 0
        self.state = _state_of(record.state) if record else None
        self.standing = EffectState.PLANNED  # the state to record if it is cut short now
        self.outcome: tuple[str, bytes] | None = None  # mark and body of its end, once known
        self.cause: dict[str, Any] | None = None  # the error that led to the doubt
        self.asked: str | None = None  # the id of the open ask about it
        self.until: float | None = None  # the time at which it may be tried again
        self.quiet = record is not None and self.attempt.is_quiet(record.fence)
        if record is not None and record.state in (EffectState.IN_DOUBT, Mark.RETRYING):
            doubt = value.decode(record.body or "{}")
            self.asked, self.until = doubt.get("asked"), doubt.get("until")
            if record.stale and not self.attempt.waits.has("answer", self.asked or ""):
                self.asked = None  # that ask was closed when the code gave up waiting
            self.cause = None if self.until else doubt.get("error")
            self.quiet = self.quiet or doubt.get("quiet", False)

    def row(self, entry: Entry, state: EffectState) -> EffectRow:
        row = EffectRow(
            name=self.operation.name,
            key=self.key,
            place=self.operation.place,
            kind=self.declared.kind,
            state=state,
            seq=entry.seq,
            fence=entry.fence,
            quiet=self.quiet,
            undo=None if self.declared.undo is None else reference_of(self.declared.undo),
            undo_within=self.declared.undo_within,
        )
        self.attempt.effects.track(row)
        self.state = state
        return row

    def draft(self, mark: str, state: EffectState, body: Any = None, **fields: Any) -> Draft:
        raw = body if isinstance(body, bytes) or body is None else msgspec.json.encode(body)
        draft = self.operation.draft(mark, raw, **fields)
        draft.effect = lambda entry: self.row(entry, state)
        return draft

    async def write(self, state: EffectState, body: Any = None, **fields: Any) -> None:
        if self.asked is not None and state is not EffectState.IN_DOUBT:
            fields.setdefault("close_ask", self.asked)
            self.asked = None
        await self.attempt.journal.append(self.draft(state, state, body, **fields))

    async def carry_out(self) -> Any:
        verdict, result = Verdict.NOT_ASKED, None
        while True:
            match self._next_move(verdict):
                case EffectMove.EXECUTE:
                    done, result = await self._execute()
                    if done:
                        return result
                    verdict = Verdict.NOT_ASKED
                case EffectMove.PROBE:
                    verdict, result = await self._find_out()
                case EffectMove.RECORD:
                    with self._recording_cancel(EffectState.CONFIRMED):
                        return await self._confirm(result)
                case EffectMove.UNDO:
                    await self._undo()
                case EffectMove.ASK:
                    done, result = await self._apply(await self._ask())
                    if done:
                        return result
                    verdict = Verdict.NOT_ASKED
                case EffectMove.ANSWER:
                    return await self.operation.answer(self.decoder)

    def _next_move(self, verdict: Verdict) -> EffectMove:
        if self.asked is not None and self.attempt.waits.has("answer", self.asked):
            return EffectMove.ASK  # a person's answer holds, even if a probe is possible now
        return next_move(self.state, self.declared.kind, quiet=self.quiet, verdict=verdict)

    async def _execute(self) -> tuple[bool, Any]:
        """Start, call and confirm it. (False, None): it raised, and its outcome is in doubt."""
        if self.cause is not None and not self.policy.again(self.failures + 1):
            raise await self._fail()
        with self._recording_cancel():
            if self.cause is not None:
                await self._plan_retry()
            if self.until is not None:
                await self.attempt.waits.wait_for("timer", self.operation.name, self.until)
                self.until = None
        attempt = self.attempt
        with self._operating():
            await self._write_intent()
            point("effect:started", self.operation)
            await attempt.boundary()  # a frozen worker may wake up here, no longer the owner
            self.standing, self.quiet = EffectState.IN_DOUBT, is_async(self.function)
            try:
                result = await self._call(self.function, *self.args)
            except Exception as error:  # noqa: BLE001 (the user's function may raise anything)
                await self._doubt(error)
                return False, None
            point("effect:executed", self.operation)
            return True, await self._confirm(result)

    async def _write_intent(self) -> None:
        """Record the start under this worker's fence: from here on, this worker may be acting."""
        await self.attempt.boundary(writes=True)
        self.quiet = False
        intent = {"kind": self.declared.kind, "args": self.args, "kwargs": self.kwargs}
        await self.write(
            EffectState.STARTED,
            value.encode(intent, f"the arguments of effect {self.operation.name!r}"),
            step=self.operation.name,
        )

    async def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        extras = {"key": self.key, "fence": self.attempt.fence}
        wanted = {name: extras[name] for name in accepted(function)}
        return await invoke(self.operation, function, args, {**self.kwargs, **wanted}, self.timeout)

    @contextlib.contextmanager
    def _operating(self) -> Iterator[None]:
        """Count as executing; if the effect is cut short, record as much as is known about it."""
        hand = self.attempt.exit.begin_operation(self.operation.name)
        self.standing = _standing(self.state)
        try:
            yield
        except (asyncio.CancelledError, Stopped):
            if self.attempt.exit.reason is None:
                self._be_quiet()
                self._cancel()
            elif self.state is EffectState.STARTED:
                self._be_quiet()
                mark, body = self.outcome or (self.standing, {"quiet": self.quiet})
                self.attempt.effects.cut_off.append(self.draft(mark, self.standing, body))
            raise
        finally:
            self.attempt.exit.end_operation(hand)

    @contextlib.contextmanager
    def _recording_cancel(self, standing: EffectState | None = None) -> Iterator[None]:
        """Record a cancellation by the agent's code while the effect only waits or writes.

        It also closes the open ask, because the code no longer needs an answer.
        """
        try:
            yield
        except asyncio.CancelledError:
            if not self.attempt.exit.stopping:
                self.standing = standing or _standing(self.state)
                self._cancel(**({} if self.asked is None else {"close_ask": self.asked}))
            raise

    def _cancel(self, **fields: Any) -> None:
        """Record that the agent's own code cancelled the effect, as it will again on replay."""
        self.attempt.cancelled.add(self.operation.place)
        standing = self.standing
        self.attempt.journal.append_soon(self.draft(Mark.CANCELLED, standing, **fields))
        if standing not in OPEN and standing is not EffectState.CONFIRMED:
            # It certainly did not happen.
            self.attempt.journal.append_soon(self.draft(standing, standing))

    async def _confirm(self, result: Any) -> Any:
        what = f"the result of effect {self.operation.name!r}"
        self.standing = EffectState.CONFIRMED
        try:
            raw, back = value.encode_result(result, what, self.decoder)
        except NotStorable as error:
            # The effect did happen: the ledger says so, although the agent gets an error.
            described = self._note_failure(error, "has a result that cannot be stored")
            body = msgspec.json.encode(described)
            self.outcome = Mark.FAILED, body
            await self.attempt.journal.append(self.draft(Mark.FAILED, EffectState.CONFIRMED, body))
            raise self.operation.failed(described) from error
        self.outcome = EffectState.CONFIRMED, raw
        partial = self.attempt.journal.drop_partial(self.operation.place)
        await self.write(EffectState.CONFIRMED, raw, checkpoint_of=partial)
        if not self.attempt.journal.holds:
            point("effect:confirmed", self.operation)
        return back

    async def _doubt(self, error: Exception) -> None:
        """Record that the effect raised. Only DidNotHappen means that it certainly did not act."""
        if isinstance(error, Postponed):
            self.cause = describe(error)
        else:
            self.cause = self._note_failure(error, "raised")
        if isinstance(error, DidNotHappen):
            self.standing = EffectState.PLANNED
            await self.write(EffectState.PLANNED)
            if isinstance(error, Postponed):
                raise error
            return
        # A plain function that ran into its timeout still executes in its thread.
        self.quiet = is_async(self.function) or not (
            isinstance(error, TimeoutError) and self.timeout is not None
        )
        self._be_quiet()
        await self.write(EffectState.IN_DOUBT, self._doubt_body())

    def _be_quiet(self) -> None:
        """End processes that the effect started: they act for it even after its function."""
        if self.outcome is None:
            self.quiet = self.quiet and self.attempt.started.end_of(self.operation)

    def _note_failure(self, error: Exception, did: str) -> dict[str, Any]:
        return self.attempt.journal.note_failure(error, f"effect {self.operation.name!r} {did}")

    async def _fail(self) -> Exception:
        assert self.cause is not None
        await self.write(EffectState.FAILED, self.cause)
        return self.operation.failed(self.cause)

    async def _plan_retry(self) -> None:
        self.failures += 1
        delay = self.policy.delay(self.failures, random.random())  # noqa: S311 (not for secrets)
        self.until = self.attempt.host.clock.now() + delay
        body = {"error": self.cause, "until": self.until}
        state = self.state or EffectState.PLANNED
        await self.attempt.journal.append(self.draft(Mark.RETRYING, state, body))
        self.cause = None

    async def _probe(self) -> tuple[Verdict, Any]:
        assert self.declared.probe is not None
        for last in (False,) * (PROBE_TRIES - 1) + (True,):
            with self._recording_cancel():
                await self.attempt.boundary()
            try:
                with self.operation:
                    found = await self._call(self.declared.probe, *self.args)
            except Exception as error:  # noqa: BLE001 (an error inside a check is never a yes)
                what = f"the probe of effect {self.operation.name!r} raised"
                self.attempt.journal.note_failure(error, what)
                if not last:
                    continue
                found = None
            match found:
                case Happened(result):
                    return Verdict.HAPPENED, result
                case DidNotHappen():
                    return Verdict.DID_NOT_HAPPEN, None
                case _:
                    return Verdict.UNKNOWN, None
        raise AssertionError  # not reached: the last try returns

    async def _find_out(self) -> tuple[Verdict, Any]:
        """Probe; if it did not happen, record that before doing anything about it."""
        verdict, result = await self._probe()
        point("effect:probed", self.operation)
        if verdict is not Verdict.DID_NOT_HAPPEN:
            return verdict, result
        with self._recording_cancel(EffectState.PLANNED):
            await self.write(EffectState.PLANNED)
        self.quiet = False
        return Verdict.NOT_ASKED, None

    async def _undo(self) -> None:
        """Undo an effect that may have happened, so that the next execution is the only one.

        An undo acts on the world too, so its start is recorded first. Otherwise a worker that was
        frozen could carry it out after its successor has executed the effect again.
        """
        assert self.declared.undo is not None
        with self._recording_cancel():
            await self._write_intent()
            await self.attempt.boundary()
        with self.operation:
            await self._call(self.declared.undo, None, *self.args)
        point("effect:undone", self.operation)
        with self._recording_cancel(EffectState.COMPENSATED):
            await self.write(EffectState.COMPENSATED)

    async def _ask(self) -> InboxMessage:
        """Open an ask, once, and wait for a person."""
        with self._recording_cancel():
            if self.asked is None:
                name = self.operation.name
                self.asked = in_doubt.new_ask_id(self.attempt, name, self.key)
                ask = in_doubt.question(name, self.key, self.asked, self.cause, self.args)
                await self.write(EffectState.IN_DOUBT, self._doubt_body(), ask=ask)
            message = await self.attempt.waits.wait_for("answer", self.asked)
        assert message is not None
        return message

    async def _apply(self, message: InboxMessage) -> tuple[bool, Any]:
        """Apply a person's answer like a probe's; return whether it settles the effect, and how."""
        verdict, given = in_doubt.decision(message)
        self.asked = None
        if after_answer(verdict) is not EffectMove.RECORD:
            with self._recording_cancel(EffectState.PLANNED):
                await self.write(EffectState.PLANNED, take=message.id)
            return False, None
        try:
            raw, back = value.encode_result(given, "the answer", self.decoder)
        except NotStorable as error:  # the answer does not fit as a result: ask again
            self.cause = describe(error)
            with self._recording_cancel(EffectState.IN_DOUBT):
                await self.write(EffectState.IN_DOUBT, self._doubt_body(), take=message.id)
            return False, None
        with self._recording_cancel(EffectState.CONFIRMED):
            await self.write(EffectState.CONFIRMED, raw, take=message.id)
        return True, back

    def _doubt_body(self) -> dict[str, Any]:
        return {"error": self.cause, "quiet": self.quiet, "asked": self.asked}


async def carry_out(
    attempt: Attempt,
    operation: Operation,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    declared: Declaration,
    retries: int | Retry,
    timeout: float | None,  # noqa: ASYNC109 (it is journaled)
) -> Any:
    """Execute an effect, or answer it from the journal: implements ctx.effect."""
    if operation.record is None and operation.key is not None and attempt.journal.replay.snapshot:
        await ledger.remember(attempt, operation.name, operation.key)
        operation.find()
    if declared.undo is not None:
        key = operation.key or f"{attempt.run.id}/{operation.place}"
        attempt.effects.undos[operation.name, key] = declared.undo
    record = operation.record
    if record is not None and operation.answered and record.state != EffectState.CONFIRMED:
        return await operation.answer()
    if record is not None and record.state == Mark.CANCELLED:
        record.reopen()
    operation.effect = function, declared
    effect = _Effect(operation, function, args, kwargs, declared, retries, timeout)
    return await effect.carry_out()


def _standing(state: EffectState | None) -> EffectState:
    """The state to record for an effect that is cut short before it is started (again)."""
    if state in OPEN:
        return EffectState.IN_DOUBT
    return EffectState.COMPENSATED if state is EffectState.COMPENSATED else EffectState.PLANNED


def _state_of(mark: str) -> EffectState | None:
    if mark in (Mark.REOPENED, Mark.RETRYING):
        return EffectState.PLANNED
    return EffectState(mark)
