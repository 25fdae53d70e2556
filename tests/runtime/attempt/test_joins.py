"""Code that joins its branches by its own means: a join is recognised where that is certain."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.runtime.harness import Lab, agent, until

import andon
from andon.runtime.attempt import branch


async def test_a_run_that_joins_its_branches_inside_a_generator_is_suspended(local: Lab) -> None:
    async def body(ctx: andon.Context) -> Any:
        async def answers() -> AsyncIterator[Any]:
            async with asyncio.TaskGroup() as group:
                found = [group.create_task(ctx.event(name)) for name in ("a", "b")]
            for one in found:
                yield one.result()

        return [one async for one in answers()]

    async with local.working(agent(body)):
        run = await local.client.start("agent")
        await local.reach(run, "suspended")
        for name in ("a", "b"):
            await local.client.send(run, name, name)
        assert await local.result(run) == ["a", "b"]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("apart", [True, False])
async def test_an_event_is_waited_for_in_memory_unless_a_framework_sets_it(
    local: Lab, monkeypatch: pytest.MonkeyPatch, known: bool, apart: bool
) -> None:
    """Only frameworks are known to set events of their own in the same run."""
    monkeypatch.setattr(branch, "frameworks", {__name__.partition(".")[0]} if known else set())
    waiting = asyncio.Event()

    async def body(ctx: andon.Context) -> Any:
        ended = asyncio.Event()

        async def hear() -> Any:
            waiting.set()
            found = await ctx.event("go")
            ended.set()
            return found

        heard = asyncio.ensure_future(hear())
        if apart:  # as a task of its own, beside the others
            await asyncio.wait({heard, asyncio.ensure_future(ended.wait())})
        else:
            await ended.wait()
        return await heard

    async with local.working(agent(body)):
        run = await local.client.start("agent")
        await waiting.wait()
        if known:
            await local.reach(run, "suspended")
        else:
            await until(
                lambda: any(entry.kind == "event" for entry in local.store.load(run).entries)
            )
        await local.client.send(run, "go", "hello")
        assert await local.result(run) == "hello"
        attempts = len(local.store.attempts(run))
    assert attempts == (2 if known else 1)
