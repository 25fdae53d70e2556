"""Children: runs that a run starts. The child exists in the same commit as the parent's entry."""

from typing import Any

import msgspec

from andon.core import value
from andon.core.journal import EntryKind, Mark
from andon.core.run import State
from andon.errors import step_failed
from andon.runtime.attempt import Attempt
from andon.runtime.context import Operation, wait_noting_cancel
from andon.runtime.starting import new_run, resolve
from andon.store.store import Letter


async def carry_out(
    attempt: Attempt,
    agent: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    wait: bool,
    run_id: str | None,
    key: str | None,
) -> Any:
    """What ctx.child does."""
    name = agent if isinstance(agent, str) else agent.name
    digest = value.digest(args, kwargs, f"child {name!r}")
    operation = Operation(attempt, EntryKind.CHILD, name, key, digest)
    if operation.answered:
        return await operation.answer()
    if operation.record is not None:
        child_id: str = value.decode(operation.record.body or '""')
    else:
        await attempt.boundary()
        if not isinstance(agent, str):
            attempt.host.carry(agent)
        found = await attempt.in_thread(resolve, attempt.host.store, agent)
        child_id = run_id or f"{attempt.run.id}~{operation.place.replace(':', '.')}"
        run = new_run(
            found,
            args,
            kwargs,
            run_id=child_id,
            parent_id=attempt.run.id,
            root_id=attempt.run.root_id,
            labels=msgspec.json.decode(attempt.run.labels),
            now=attempt.host.clock.now(),
        )
        mark = Mark.WAITING if wait else Mark.DONE
        await operation.write(mark, msgspec.json.encode(child_id), spawn=run)
    if not wait:
        return child_id
    letter: Letter = await wait_noting_cancel(operation, "child", child_id, None)
    return await _take_result(attempt, operation, child_id, letter)


async def _take_result(
    attempt: Attempt, operation: Operation, child_id: str, letter: Letter
) -> Any:
    end = await attempt.in_thread(attempt.host.store.last_entry, child_id)
    body = await attempt.body_of(end.body, end.blob)
    if value.decode(letter.body) == State.SUCCEEDED:
        await operation.write(Mark.DONE, body.encode(), take=letter.id)
        return value.decode(body)
    state = value.decode(letter.body)
    error = value.decode(body) if end.kind == EntryKind.END else None
    described = error or {"type": state, "message": f"run {child_id} ended {state}", "family": ""}
    await operation.write(Mark.FAILED, msgspec.json.encode(described), take=letter.id)
    raise step_failed(f"child {operation.name}", described, operation.place)
