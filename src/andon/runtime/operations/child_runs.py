"""Child runs: runs that a run starts.

One commit creates the child and writes the parent's entry about it.
"""

from typing import Any

import msgspec

from andon.core.journal import EntryKind, Mark
from andon.core.run import State
from andon.core.values import value
from andon.errors import AndonError, Conflict, step_failed
from andon.runtime.attempt.attempt import Attempt
from andon.runtime.attempt.error_text import describe
from andon.runtime.operations.operation import Operation, wait_recording_cancel
from andon.runtime.requests.start import new_run, reader_of, resolve
from andon.store.messages.rows import InboxMessage
from andon.store.store import NewRun


async def carry_out(
    attempt: Attempt,
    agent: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    wait: bool,
    run_id: str | None,
    key: str | None,
) -> Any:
    """Start a child, and wait for its result if asked to: implements ctx.child."""
    name = agent if isinstance(agent, str) else agent.name
    digest = value.digest(args, kwargs, f"child {name!r}")
    operation = Operation(attempt, EntryKind.CHILD, name, key, digest)
    decoder = None if isinstance(agent, str) else agent.result_decoder
    async with operation.alone():
        if operation.answered:
            return await operation.answer(decoder if wait else None)
        record = operation.record
        child_id = None if record is None else value.decode(record.body or "null")
        if not isinstance(child_id, str):  # new, or the last child failed: start another
            child_id = await _begin(operation, agent, args, kwargs, wait, run_id)
        if not wait:
            return child_id
        message: InboxMessage = await wait_recording_cancel(operation, "child", child_id, None)
        return await _take_result(attempt, operation, child_id, message, decoder)


async def _begin(
    operation: Operation,
    agent: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    wait: bool,
    run_id: str | None,
) -> str:
    with operation.recording_cancel():
        await operation.attempt.boundary()
        try:
            run = await _prepare(operation.attempt, operation, agent, args, kwargs, run_id)
        except AndonError as error:  # record the refusal: on replay the agent may be known
            refusal = describe(error)
            await operation.write(Mark.FAILED, msgspec.json.encode(refusal))
            raise operation.failed(refusal) from error
        mark = Mark.WAITING if wait else Mark.DONE
        await operation.write(mark, msgspec.json.encode(run.id), spawn=run)
    return run.id


async def _prepare(
    attempt: Attempt,
    operation: Operation,
    agent: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    run_id: str | None,
) -> NewRun:
    """Build the child's row; refuse an unknown agent, wrong arguments or an id in use."""
    if not isinstance(agent, str):
        attempt.host.add_agent(agent)
    run = new_run(
        await attempt.read(resolve, attempt.host.store, agent),
        args,
        kwargs,
        run_id=run_id or _name(attempt, operation),
        parent_id=attempt.run.id,
        root_id=attempt.run.root_id,
        labels=msgspec.json.decode(attempt.run.labels),
        now=attempt.host.clock.now(),
        reads=reader_of(agent),
    )
    if run_id is not None:
        other = await attempt.read(attempt.host.store.run, run_id)
        if other is not None:
            raise Conflict(
                f"child {run_id!r}: a run with that id exists, and its result would not reach this "
                "one. Give the child an id of its own, or none."
            )
    return run


def _name(attempt: Attempt, operation: Operation) -> str:
    again = "" if operation.record is None else f"~{attempt.journal.seq}"
    return f"{attempt.run.id}~{operation.id.replace(':', '.')}{again}"


async def _take_result(
    attempt: Attempt,
    operation: Operation,
    child_id: str,
    message: InboxMessage,
    decoder: value.Decoder | None,
) -> Any:
    end = await attempt.read(attempt.host.store.last_entry, child_id)
    assert end is not None
    body = await attempt.body_of(end.body, end.blob)
    if value.decode(message.body) == State.SUCCEEDED:
        await operation.write(Mark.DONE, body.encode(), take=message.id)
        return (decoder or value.decode)(body)
    state = value.decode(message.body)
    error = value.decode(body) if end.kind == EntryKind.END else None
    described = error or {"type": state, "message": f"run {child_id} ended {state}", "family": ""}
    await operation.write(Mark.FAILED, msgspec.json.encode(described), take=message.id)
    raise step_failed(f"child {operation.name}", described, operation.place)
