"""The operations of a model loop: the model's answer with the calls it plans, and each tool call.

One commit holds the answer and its planned calls. If the process dies after it, the ledger holds
every call of the transcript, as planned: certainly not done. A call is an effect whose key is the
provider's id for it.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from andon.core.effect import EffectKind, EffectState
from andon.core.journal import Entry, EntryKind, Record
from andon.core.queue import Retry
from andon.core.values import value
from andon.errors import BadInput, Rejected, StepFailed
from andon.runtime.attempt.attempt import Attempt
from andon.runtime.attempt.journal_writer import Draft
from andon.runtime.effects import effect
from andon.runtime.effects.declaration import Declaration
from andon.runtime.operations import steps
from andon.runtime.operations.calls import refuse_wrong_arguments
from andon.runtime.operations.operation import Operation, invoke, is_async, named
from andon.store.store import EffectRow
from andon.transcript import answers
from andon.transcript.ledger import Call, Done
from andon.transcript.wire import plain

Toolbox = Mapping[str, Callable[..., Any]] | Sequence[Callable[..., Any]]


class CallOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one call of a model."""

    name: str
    key: str | None
    calls: Callable[[Any], Sequence[Call]]  # extracts the calls that an answer plans


async def model(
    attempt: Attempt,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    asked: CallOptions,
    retries: int | Retry,
    timeout: float | None,  # noqa: ASYNC109 (it is journaled)
) -> Any:
    """Ask a model and plan the calls of its answer: implements ctx.model."""
    digest = value.digest(plain(args), plain(kwargs), f"model {asked.name!r}")
    operation = Operation(attempt, EntryKind.STEP, asked.name, asked.key, digest)
    operation.cuttable = is_async(function)
    call = partial(_answer, asked, partial(invoke, operation, function, args, kwargs, timeout))
    plans = partial(_plans, operation, asked)
    answer = await steps.carry_out(operation, call, None, retries, plans)
    for one in asked.calls(answer):  # an earlier attempt planned the calls of a recorded answer
        _key(operation, one, new=False)
    return answer


async def _answer(asked: CallOptions, call: Callable[[], Any]) -> Any:
    """Get the answer as JSON: an object of a client library would differ on replay."""
    answer = plain(await call())
    asked.calls(answer)  # refuses anything that is not an answer before it is written
    return answer


def _key(operation: Operation, call: Call, *, new: bool) -> str:
    """The key of a call: the provider's id, with the answer's place if the id is used again.

    Some providers number their calls anew in each answer.
    """
    attempt = operation.attempt
    place, key = attempt.effects.planned.get(call.id, ("", call.id))
    if place != operation.place:
        other = f"{call.id}@{operation.place}"
        knows = partial(attempt.journal.replay.knows, EntryKind.EFFECT, call.name)
        again = place or attempt.root.path or knows(other) or (new and knows(call.id))
        key = other if again else call.id
    attempt.effects.planned[call.id] = operation.place, key
    return key


def _plans(operation: Operation, asked: CallOptions, answer: Any) -> list[Draft]:
    """The calls of an answer, as effects that are certainly not done."""
    attempt = operation.attempt
    return [_plan(attempt, one, _key(operation, one, new=True)) for one in asked.calls(answer)]


def _plan(attempt: Attempt, call: Call, key: str) -> Draft:
    return Draft(
        kind=EntryKind.EFFECT,
        state=EffectState.PLANNED,
        place=f"@{EntryKind.EFFECT}/{call.name}/{key}",
        name=call.name,
        key=key,
        digest=_digest(call.name, call.arguments),
        effect=partial(_row, attempt, key),
    )


def _row(attempt: Attempt, key: str, entry: Entry) -> EffectRow:
    """The ledger row of a call that was not made."""
    found = EffectRow(
        name=entry.name,
        key=key,
        place=entry.place,
        kind=EffectKind.IRREVERSIBLE,  # until it is called with what it is declared to be
        state=EffectState(entry.state),
        seq=entry.seq,
        fence=entry.fence,
        quiet=False,
        undo=None,
        undo_within=None,
    )
    attempt.effects.track(found)
    return found


def _digest(name: str, arguments: Any) -> str:
    return value.digest((arguments,), {}, f"tool {name!r}")


def _key_of(attempt: Attempt, call_id: str) -> str:
    """The key that a call was planned under, in this attempt or an earlier one."""
    if call_id in attempt.effects.planned:
        return attempt.effects.planned[call_id][1]
    planned = [one for one in attempt.journal.replay.records() if _is_of(one, call_id)]
    last = max(planned, key=lambda one: one.seq, default=None)
    return call_id if last is None or last.key is None else last.key


def _is_of(record: Record, call_id: str) -> bool:
    key = record.key or ""
    is_call = key == call_id or key.startswith(f"{call_id}@@{EntryKind.STEP}/")
    return record.kind == EntryKind.EFFECT and is_call


async def tool(
    attempt: Attempt,
    ask: Callable[..., Any] | None,
    call: Call,
    function: Callable[..., Any],
    declared: Declaration,
    retries: int | Retry,
    timeout: float | None,  # noqa: ASYNC109 (it is journaled)
) -> Any:
    """Call a tool as an effect, after a person's approval if one is wanted: implements ctx.tool.

    In order: latch and lease, approval, intent, call, result.
    """
    key = _key_of(attempt, call.id)
    arguments = call.arguments
    if not isinstance(arguments, dict):
        raise BadInput(
            f"tool {call.name!r}: expected an object of arguments, found {arguments!r:.200}"
        )
    refuse_wrong_arguments(call.name, function, (), arguments)
    operation = Operation(attempt, EntryKind.EFFECT, call.name, key, _digest(call.name, arguments))
    _refuse_rejected(operation)
    if ask is not None and not operation.answered:
        answer = await ask(f"May the tool {call.name!r} be called?", arguments, key=f"tool/{key}")
        if not answer.approved:
            raise await _reject(operation, key, answer)
        arguments = answer.value
    async with operation.alone():
        return await effect.carry_out(
            attempt, operation, function, (), arguments, declared, retries, timeout
        )


async def _reject(operation: Operation, key: str, answer: Any) -> Rejected:
    """Record a rejection in the ledger too: a later repair of the conversation must not run it."""
    found = Rejected(operation.name, by=answer.by, why=answer.value)
    body = {"type": "Rejected", "message": str(found), "by": answer.by, "why": answer.value}
    draft = operation.draft(EffectState.FAILED, msgspec.json.encode(body))
    draft.effect = partial(_row, operation.attempt, key)
    await operation.attempt.journal.append(draft)
    return found


def _refuse_rejected(operation: Operation) -> None:
    record = operation.record
    if record is None or record.state != EffectState.FAILED:
        return
    found = value.decode(record.body or "null")
    if isinstance(found, dict) and "by" in found:
        raise Rejected(operation.name, by=found["by"], why=found["why"])


async def each(
    context: Any,
    answer: Any,
    toolbox: Toolbox,
    approve: bool | Sequence[str],
    options: dict[str, Any],
) -> list[Any]:
    """Make all calls of an answer at once; return its results' turns: implements ctx.tools."""
    functions = _by_name(toolbox)

    async def one(call: Call) -> tuple[Call, Done]:
        function = functions.get(call.name)
        if function is None:
            there = ", ".join(functions) or "none"
            return call, Done(f"There is no tool {call.name!r}; there are: {there}.", error=True)
        wanted = approve if isinstance(approve, bool) else call.name in approve
        try:
            given = await context.tool(
                call.id, call.name, call.arguments, function, approve=wanted, **options
            )
        except (BadInput, Rejected, StepFailed) as error:
            return call, Done(str(error), error=True)
        return call, Done(given)

    found = await asyncio.gather(*(one(call) for call in answers.calls(answer)))
    return answers.results(answer, found)


def _by_name(toolbox: Toolbox) -> dict[str, Callable[..., Any]]:
    if isinstance(toolbox, Mapping):
        return dict(toolbox)
    return {named(function, None): function for function in toolbox}
