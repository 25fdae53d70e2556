"""Steps: execute until they succeed or their retries run out; each failure is journaled."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from andon import points
from andon.core.journal import Mark
from andon.core.queue import Retry, note_begin
from andon.core.values import value
from andon.errors import AndonError, NotStorable, Stopped
from andon.points import point
from andon.runtime.attempt.journal_writer import Draft
from andon.runtime.operations.operation import Operation, wait_recording_cancel

Plans = Callable[[Any], Sequence[Draft]]


def carry_out(
    operation: Operation,
    call: Callable[[], Awaitable[Any]],
    decoder: value.Decoder | None,
    retries: int | Retry,
    plans: Plans | None = None,
) -> Awaitable[Any]:
    """Get a step's result from the journal, or execute it as often as its retries allow.

    `plans`: makes further entries from the result, which are written in the same commit.
    """
    execute = _once if plans is None else partial(_once, plans=plans)
    if operation.key is None:
        return _with_retries(operation, execute, call, decoder, retries)
    return _alone(operation, execute, call, decoder, retries)


def transact(
    operation: Operation,
    call: Callable[[Any], Any],
    decoder: value.Decoder | None,
    retries: int | Retry,
) -> Awaitable[Any]:
    """Like `carry_out`, for a step that writes to the user's own tables in the same commit."""
    return _alone(operation, _commit, call, decoder, retries)


async def _alone(operation: Operation, *given: Any) -> Any:
    async with operation.alone():
        return await _with_retries(operation, *given)


async def _with_retries(
    operation: Operation,
    execute: Callable[..., Awaitable[Any]],
    call: Callable[..., Any],
    decoder: value.Decoder | None,
    retries: int | Retry,
) -> Any:
    failures, record = 0, operation.record
    if record is not None:
        if operation.answered:
            return await operation.answer(decoder)
        failures = record.failures
        if record.state == Mark.RETRYING:
            await _until_retry(operation, value.decode(record.body or "{}"))
    while True:
        try:
            return await execute(operation, call, decoder)
        except NotStorable as error:
            raise await _fail(operation, error) from error
        except Exception as error:
            failures += 1
            policy = retries if isinstance(retries, Retry) else Retry(retries)
            if not policy.again(failures):
                raise await _fail(operation, error) from error
            await _retry_later(operation, error, policy, failures)


async def _once(
    operation: Operation,
    call: Callable[[], Awaitable[Any]],
    decoder: value.Decoder | None,
    plans: Plans | None = None,
) -> Any:
    attempt, journal = operation.attempt, operation.attempt.journal
    with operation as hand:
        if not attempt.passes():
            await attempt.boundary()
        if points.watch is not None or note_begin(attempt.run.interruptions):
            await _begin(operation)
        try:
            result = await call()
        except (Exception, asyncio.CancelledError):
            if not hand.cut:
                raise
            raise await _was_cut(operation) from None
        if hand.cut:
            raise await _was_cut(operation)
        if points.watch is not None:
            point("step:executed", operation)
        what = f"the result of {operation.kind} {operation.name!r}"
        raw, back = value.encode_result(result, what, decoder)
        done = operation.draft(Mark.DONE, raw)
        if journal.checkpoints and (kept := journal.drop_partial(operation.place)) is not None:
            done.fields["checkpoint_of"] = kept
        await (journal.append(done) if plans is None else journal.append(done, *plans(back)))
        if points.watch is not None and not journal.holds:
            point("step:stored", operation)
        return back


async def _begin(operation: Operation) -> None:
    """Record that a step begins, and stop at points for tests: most steps need neither."""
    attempt = operation.attempt
    if note_begin(attempt.run.interruptions):
        await operation.write(Mark.BEGUN, step=operation.name)
    point("step:before", operation)
    if not attempt.passes():  # after a freeze, another worker may own the run
        await attempt.boundary()


async def _was_cut(operation: Operation) -> Stopped:
    """The exception of a step that an order cut off: however its function ended, it has no outcome.

    Waits for operations of other branches first.
    """
    leaves = operation.attempt.exit
    await leaves.let_others_end()
    return leaves.stop("cancelled")


async def _commit(
    operation: Operation, call: Callable[[Any], Any], decoder: value.Decoder | None
) -> Any:
    journal = operation.attempt.journal
    with operation:
        if points.watch is not None:
            point("step:before", operation)
        await operation.attempt.boundary()
        await journal.close_gate()
        try:
            back = await journal.transact(operation, call, decoder)
        finally:
            journal.open_gate()
        if points.watch is not None:
            point("step:stored", operation)
        return back


async def _fail(operation: Operation, error: Exception) -> AndonError:
    what = f"{operation.kind} {operation.name!r} failed"
    body = operation.attempt.journal.note_failure(error, what)
    await operation.write(Mark.FAILED, msgspec.json.encode(body))
    return operation.failed(body)


async def _retry_later(
    operation: Operation, error: Exception, policy: Retry, failures: int
) -> None:
    delay = policy.delay(failures, random.random())  # noqa: S311 (not for secrets)
    what = f"{operation.kind} {operation.name!r} failed, and is tried again in {delay:.3g} s"
    found = operation.attempt.journal.note_failure(error, what)
    body = {**found, "until": operation.attempt.host.clock.now() + delay}
    await operation.write(Mark.RETRYING, msgspec.json.encode(body))
    await _until_retry(operation, body)


async def _until_retry(operation: Operation, body: dict[str, Any]) -> None:
    await wait_recording_cancel(operation, "timer", operation.name, body.get("until", 0.0))
