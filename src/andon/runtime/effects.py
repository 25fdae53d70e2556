"""Effects: written down, started, confirmed; and after a crash known, asked or shown in doubt.

What to do next is core.effect's decision; here it is done, and every outcome is made durable
before the next thing happens.
"""

import asyncio
import contextlib
import inspect
import random
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from andon.core import value
from andon.core.effect import (
    OPEN,
    EffectState,
    Kind,
    Move,
    Verdict,
    after_answer,
    kind_of,
    next_move,
)
from andon.core.journal import Entry, EntryKind, Mark
from andon.core.queue import Retry
from andon.errors import BadInput, DidNotHappen, NotStorable, step_failed
from andon.points import point
from andon.runtime.attempt import Attempt, Draft, describe, log
from andon.runtime.context import Operation, invoke, is_async, wait_noting_cancel
from andon.store.store import Ask, EffectRow, Letter

F = TypeVar("F", bound=Callable[..., Any])
CHOICES = ("happened", "did_not_happen")
# A probe is a question to the outside and may fail by itself; a person is asked after these.
PROBE_TRIES = 3


class Happened(msgspec.Struct, frozen=True):
    """A probe's answer: it happened, with this result."""

    result: Any = None


class Unknown(msgspec.Struct, frozen=True):
    """A probe's answer: it cannot tell."""


def happened(result: Any = None) -> Happened:
    """For a probe to return: the effect happened, and this is what it returned."""
    return Happened(result)


def did_not_happen(reason: str | None = None) -> DidNotHappen:
    """For a probe to return, or an effect to raise: it certainly did not happen."""
    return DidNotHappen(reason)


def unknown() -> Unknown:
    """For a probe to return: it cannot tell. A person is asked."""
    return Unknown()


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """What an effect says about itself."""

    kind: Kind
    probe: Callable[..., Any] | None
    undo: Callable[..., Any] | None
    undo_within: float | None


def effect_of(
    *,
    kind: str | None = None,
    probe: Callable[..., Any] | None = None,
    undo: Callable[..., Any] | None = None,
    undo_within: str | float | None = None,
) -> Callable[[F], F]:
    """Declare what an effect is and how its outcome can be found out or undone."""
    declared = _declare(kind, probe, undo, undo_within)

    def mark(function: F) -> F:
        function.__andon_effect__ = declared  # type: ignore[attr-defined]
        return function

    return mark


def _declare(
    kind: str | None,
    probe: Callable[..., Any] | None,
    undo: Callable[..., Any] | None,
    undo_within: str | float | None,
) -> Declaration:
    try:
        found = kind_of(kind, probe=probe is not None, undo=undo is not None)
    except ValueError:
        raise BadInput(
            f"effect kind {kind!r}: expected one of {', '.join(Kind)}"
        ) from None
    if found is Kind.PROBEABLE and probe is None:
        raise BadInput("a probeable effect needs probe=: the function that asks the outside")
    if found is Kind.COMPENSATABLE and undo is None:
        raise BadInput("a compensatable effect needs undo=: the function that undoes it")
    return Declaration(kind=found, probe=probe, undo=undo, undo_within=_seconds(undo_within))


def declaration(
    function: Callable[..., Any],
    kind: str | None,
    probe: Callable[..., Any] | None,
    undo: Callable[..., Any] | None,
    undo_within: str | float | None,
) -> Declaration:
    """The arguments of ctx.effect if it has any, else the function's own declaration."""
    own: Declaration | None = getattr(function, "__andon_effect__", None)
    if own is None or (kind, probe, undo, undo_within) != (None, None, None, None):
        return _declare(kind, probe, undo, undo_within)
    return own


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def _seconds(duration: str | float | None) -> float | None:
    if duration is None or isinstance(duration, int | float):
        return duration
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd])\s*", duration)
    if match is None:
        raise BadInput(f"duration {duration!r}: expected seconds, or text like '90s', '15m', '2h'")
    return float(match[1]) * _UNITS[match[2]]


class _Effect:
    """One effect of a run, while ctx.effect is called."""

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
        self.cause: dict[str, Any] | None = None  # the error that led to the doubt
        self.asked = False
        self.quiet = record is not None and self.attempt.is_quiet(record.fence)
        if record is not None and self.state is EffectState.IN_DOUBT:
            noted = value.decode(record.body or "{}")
            self.cause, self.asked = noted.get("error"), noted.get("asked", False)
            self.quiet = self.quiet or noted.get("quiet", False)

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
        )
        _track(self.attempt, row)
        return row

    def draft(self, mark: str, state: EffectState, body: Any = None, **along: Any) -> Draft:
        raw = body if isinstance(body, bytes) or body is None else msgspec.json.encode(body)
        draft = self.operation.draft(mark, raw, **along)
        draft.effect = lambda entry: self.row(entry, state)
        return draft

    async def write(self, state: EffectState, body: Any = None, **along: Any) -> None:
        await self.attempt.append(self.draft(state, state, body, **along))
        self.state = state

    # ── doing ─────────────────────────────────────────────────────────────────────────────────

    async def carry_out(self) -> Any:
        verdict, result = Verdict.NOT_ASKED, None
        while True:
            move = next_move(self.state, self.declared.kind, quiet=self.quiet, verdict=verdict)
            match move:
                case Move.EXECUTE if self._may_execute():
                    done, result = await self._execute()
                    if done:
                        return result
                    verdict = Verdict.NOT_ASKED
                case Move.EXECUTE:
                    raise await self._fail()
                case Move.PROBE:
                    verdict, result = await self._probe()
                    point("effect:probed")
                    if verdict is Verdict.DID_NOT_HAPPEN:
                        await self._known_not_to_have_happened()
                        verdict = Verdict.NOT_ASKED
                case Move.RECORD:
                    return await self._confirm(result)
                case Move.UNDO:
                    await self._undo()
                case Move.ASK:
                    letter = await self._ask()
                    verdict, result = await self._apply(letter)
                    if verdict is Verdict.HAPPENED:
                        return result
                    verdict = Verdict.NOT_ASKED
                case Move.ANSWER:
                    return await self.operation.answer(self.decoder)

    def _may_execute(self) -> bool:
        """After an error in this effect, only the retries that are left."""
        return self.cause is None or self.policy.again(self.failures + 1)

    async def _execute(self) -> tuple[bool, Any]:
        """Start it, do it, confirm it. (False, None): it raised, and its outcome is in doubt."""
        if self.cause is not None:
            await self._wait_before_retry()
        attempt = self.attempt
        with self._operating():
            await attempt.boundary()
            self.quiet = False
            intent = {"kind": self.declared.kind, "args": self.args, "kwargs": self.kwargs}
            await self.write(
                EffectState.STARTED,
                value.encode(intent, f"the arguments of effect {self.operation.name!r}"),
                step=self.operation.name,
            )
            await attempt.boundary()  # a frozen worker wakes up here: is it still the owner?
            point("effect:started")
            try:
                result = await self._call(self.function, *self.args)
            except Exception as error:  # noqa: BLE001 (the user's function may raise anything)
                await self._doubt(error)
                return False, None
            point("effect:executed")
            return True, await self._confirm(result)

    async def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        extras = {"key": self.key, "fence": self.attempt.fence}
        wanted = {name: extras[name] for name in _accepted(function)}
        return await invoke(self.operation, function, args, {**self.kwargs, **wanted}, self.timeout)

    @contextlib.contextmanager
    def _operating(self) -> Iterator[None]:
        """Count as executing. A cancellation by the agent's own code leaves it in doubt."""
        self.attempt.active += 1
        try:
            yield
        except asyncio.CancelledError:
            if self.state is EffectState.STARTED:
                self.quiet = is_async(self.function)
                if self.attempt.reason is None:
                    self.attempt.append_soon(self.draft(Mark.CANCELLED, EffectState.IN_DOUBT))
                else:
                    body = {"quiet": self.quiet}
                    left = self.draft(EffectState.IN_DOUBT, EffectState.IN_DOUBT, body)
                    self.attempt.leftovers.append(left)
            raise
        finally:
            self.attempt.done_operating()

    async def _confirm(self, result: Any) -> Any:
        what = f"the result of effect {self.operation.name!r}"
        try:
            raw, back = value.encode_result(result, what, self.decoder)
        except NotStorable as error:
            # It did happen: the ledger says so, although the agent gets an error.
            body = msgspec.json.encode(describe(error))
            await self.attempt.append(self.draft(Mark.FAILED, EffectState.CONFIRMED, body))
            raise
        await self.write(EffectState.CONFIRMED, raw)
        point("effect:confirmed")
        return back

    # ── failing ───────────────────────────────────────────────────────────────────────────────

    async def _doubt(self, error: Exception) -> None:
        """It raised. Only the effect itself can say that it certainly did not happen."""
        self.cause = describe(error)
        if isinstance(error, DidNotHappen):
            await self.write(EffectState.PLANNED)
            return
        # A plain function that ran into its timeout is still executing in its thread.
        self.quiet = is_async(self.function) or not (
            isinstance(error, TimeoutError) and self.timeout is not None
        )
        await self.write(EffectState.IN_DOUBT, {"error": self.cause, "quiet": self.quiet})

    async def _fail(self) -> Exception:
        assert self.cause is not None
        await self.write(EffectState.FAILED, self.cause)
        return step_failed(self.operation.name, self.cause, self.operation.place)

    async def _wait_before_retry(self) -> None:
        self.failures += 1
        delay = self.policy.delay(self.failures, random.random())  # noqa: S311 (not for secrets)
        body = {"error": self.cause, "until": self.attempt.host.clock.now() + delay}
        state = self.state or EffectState.PLANNED
        await self.attempt.append(self.draft(Mark.RETRYING, state, body))
        await self.attempt.wait_for("timer", self.operation.name, body["until"])
        self.cause = None

    # ── finding out ───────────────────────────────────────────────────────────────────────────

    async def _probe(self) -> tuple[Verdict, Any]:
        assert self.declared.probe is not None
        for last in (False,) * (PROBE_TRIES - 1) + (True,):
            await self.attempt.boundary()
            try:
                with self.operation.operating():
                    found = await self._call(self.declared.probe, *self.args)
            except Exception as error:  # noqa: BLE001 (an error inside a check is never a yes)
                log.warning(
                    "run %s: the probe of %s raised %s", self.attempt.run.id,
                    self.operation.name, type(error).__name__,
                )
                if not last:
                    continue
                found = None
            match found:
                case Happened(result):
                    return Verdict.HAPPENED, result
                case DidNotHappen():
                    return Verdict.DID_NOT_HAPPEN, None
            return Verdict.UNKNOWN, None
        raise AssertionError  # not reached: the last try returns

    async def _known_not_to_have_happened(self) -> None:
        await self.write(EffectState.PLANNED)
        self.quiet = False

    async def _undo(self) -> None:
        """It may have happened: undo it, so that what comes next is certainly the only one."""
        assert self.declared.undo is not None
        await self.attempt.boundary()
        with self.operation.operating():
            await self._call(self.declared.undo, None, *self.args)
        point("effect:undone")
        await self.write(EffectState.COMPENSATED)

    async def _ask(self) -> Letter:
        """Open an ask, once, and wait for a person."""
        ask_id = _ask_id(self.operation.name, self.key)
        if not self.asked:
            self.asked = True
            body = {"error": self.cause, "quiet": self.quiet, "asked": True}
            ask = _question(self.operation.name, self.key, ask_id, self.cause, self.args)
            await self.write(EffectState.IN_DOUBT, body, ask=ask)
        letter: Letter | None = await wait_noting_cancel(self.operation, "answer", ask_id, None)
        assert letter is not None
        return letter

    async def _apply(self, letter: Letter) -> tuple[Verdict, Any]:
        """A person's word is as good as a probe's."""
        verdict, given = _decision(letter)
        self.asked = False
        if after_answer(verdict) is Move.RECORD:
            raw, back = value.encode_result(given, "the answer", self.decoder)
            await self.write(EffectState.CONFIRMED, raw, take=letter.id)
            return verdict, back
        await self.write(EffectState.PLANNED, take=letter.id)
        return verdict, None


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
    """What ctx.effect does."""
    _refuse_wrong_arguments(operation.name, function, args, kwargs)
    record = operation.record
    if record is not None and record.state in (Mark.CANCELLED, Mark.FAILED):
        return await operation.answer()
    effect = _Effect(operation, function, args, kwargs, declared, retries, timeout)
    return await effect.carry_out()


# ── answers, and what is open at the end of a run ─────────────────────────────────────────────────


async def apply_answers(attempt: Attempt) -> None:
    """Effects that the agent's own code cancelled have no operation that would take the answer."""
    for row in await _open_rows(attempt):
        letter = attempt.take_letter("answer", _ask_id(row.name, row.key))
        if letter is None:
            continue
        verdict, given = _decision(letter)
        yes = after_answer(verdict) is Move.RECORD
        state = EffectState.CONFIRMED if yes else EffectState.FAILED
        raw = value.encode(given, "the answer")
        await attempt.append(_row_draft(attempt, row, state, raw, take=letter.id))


async def ask_about_open(attempt: Attempt) -> None:
    """No run is finished while an effect of it is in doubt: a person is asked."""
    for row in list(attempt.open_effects.values()):
        ask_id = _ask_id(row.name, row.key)
        ask = _question(row.name, row.key, ask_id, None, ())
        draft = _row_draft(attempt, row, EffectState.IN_DOUBT, b'{"asked": true}', ask=ask)
        await attempt.append(draft)


async def _open_rows(attempt: Attempt) -> list[EffectRow]:
    """The open effects among the operations that were cancelled."""
    cancelled = [
        record
        for record in attempt.replay.records()
        if record.kind == EntryKind.EFFECT and record.state == Mark.CANCELLED
    ]
    if not cancelled:
        return []
    rows: list[EffectRow] = await attempt.in_thread(attempt.host.store.ledger, attempt.run.id)
    places = {record.place for record in cancelled}
    found = [row for row in rows if row.place in places and row.state in OPEN]
    for row in found:
        _track(attempt, row)
    return found


def _row_draft(
    attempt: Attempt, row: EffectRow, state: EffectState, body: bytes, **along: Any
) -> Draft:
    def changed(entry: Entry) -> EffectRow:
        new = msgspec.structs.replace(row, state=state, seq=entry.seq, fence=entry.fence)
        _track(attempt, new)
        return new

    records = [one for one in attempt.replay.records() if one.place == row.place]
    key, digest = (records[0].key, records[0].digest) if records else (row.key, "")
    return Draft(
        kind=EntryKind.EFFECT,
        state=state,
        place=row.place,
        name=row.name,
        key=key,
        digest=digest,
        body=body,
        along=along,
        effect=changed,
    )


def _track(attempt: Attempt, row: EffectRow) -> None:
    if row.state in OPEN:
        attempt.open_effects[row.name, row.key] = row
    else:
        attempt.open_effects.pop((row.name, row.key), None)


def _state_of(mark: str) -> EffectState | None:
    if mark in (Mark.REOPENED, Mark.RETRYING):
        return EffectState.PLANNED
    return EffectState(mark)


def _ask_id(name: str, key: str) -> str:
    return f"effect:{name}/{key}"


def _question(
    name: str, key: str, ask_id: str, cause: dict[str, Any] | None, args: tuple[Any, ...]
) -> Ask:
    why = f"it raised {cause['type']}" if cause else "its worker was lost while it was executing"
    return Ask(
        id=ask_id,
        about="effect",
        question=f"Did effect {name!r} (key {key!r}) happen? {why[0].upper()}{why[1:]}, and it is "
        "not repeated on a guess.",
        value=value.encode(args, "the arguments").decode(),
        choices=msgspec.json.encode(CHOICES).decode(),
    )


def _decision(letter: Letter) -> tuple[Verdict, Any]:
    given = value.decode(letter.body)
    return Verdict(given["decision"]), given.get("value")


@lru_cache(maxsize=4096)
def _accepted(function: Callable[..., Any]) -> tuple[str, ...]:
    """Which of `key` and `fence` a function wants."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return ()
    return tuple(name for name in ("key", "fence") if name in parameters)


def _refuse_wrong_arguments(
    name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Before anything is written: a call that cannot work is not an effect in doubt."""
    extras = dict.fromkeys(_accepted(function))
    try:
        inspect.signature(function).bind(*args, **{**kwargs, **extras})
    except TypeError as error:
        raise BadInput(f"effect {name!r}: {error}; it was not executed") from None
    except ValueError:
        return  # a built-in without a signature
