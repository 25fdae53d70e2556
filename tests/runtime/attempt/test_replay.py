"""Divergence: code and journal disagree. The run is stranded and shown; nothing is executed."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.runtime.harness import Lab, agent

import andon
from andon.core.values.value import digest

executed: list[str] = []


def first(n: int) -> str:
    executed.append(f"first {n}")
    return f"first {n}"


def second(n: int) -> str:
    executed.append(f"second {n}")
    return f"second {n}"


def third(n: int) -> str:
    executed.append(f"third {n}")
    return f"third {n}"


async def original(ctx: andon.Context) -> None:
    await ctx.step(first, 1)
    await ctx.step(second, 2)
    await ctx.event("go")


async def with_a_changed_argument(ctx: andon.Context) -> None:
    await ctx.step(first, 1)
    await ctx.step(second, 22)
    await ctx.event("go")


async def with_a_changed_name(ctx: andon.Context) -> None:
    await ctx.step(first, 1)
    await ctx.step(third, 2)
    await ctx.event("go")


async def with_an_inserted_step(ctx: andon.Context) -> None:
    await ctx.step(first, 1)
    await ctx.step(third, 3)
    await ctx.step(second, 2)
    await ctx.event("go")


async def with_a_removed_step(ctx: andon.Context) -> None:
    await ctx.step(second, 2)
    await ctx.event("go")


async def with_another_order(ctx: andon.Context) -> None:
    await ctx.step(second, 2)
    await ctx.step(first, 1)
    await ctx.event("go")


async def with_an_effect_for_a_step(ctx: andon.Context) -> None:
    await ctx.effect(first, 1)


async def with_an_early_return(ctx: andon.Context) -> None:
    await ctx.step(first, 1)


async def with_a_caught_stop(ctx: andon.Context) -> None:
    """Code that catches the stop does not become the run's owner again."""
    try:
        await ctx.step(first, 11)
    except BaseException:  # noqa: BLE001
        await ctx.step(third, 3)


async def with_two_branches(ctx: andon.Context) -> None:
    await asyncio.gather(ctx.step(first, 1), ctx.step(second, 2))


CHANGED = [
    with_a_changed_argument,
    with_a_changed_name,
    with_an_inserted_step,
    with_a_removed_step,
    with_another_order,
    with_an_effect_for_a_step,
    with_an_early_return,
    with_a_caught_stop,
]


@pytest.fixture(autouse=True)
def _nothing_executed_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    executed.clear()
    monkeypatch.setattr("andon.runtime.attempt.attempt.UNWIND_SECONDS", 0.1)


@pytest.mark.parametrize("changed", CHANGED, ids=lambda one: one.__name__)
async def test_changed_code_strands_its_run_and_executes_nothing(
    local: Lab, changed: Callable[..., Any]
) -> None:
    async with local.working(agent(original)):
        run = await local.client.start("agent")
        await local.reach(run, "suspended")
    assert executed == ["first 1", "second 2"]
    before = [entry.hash for entry in await local.journal(run)]
    async with local.working(agent(changed)):
        await local.client.send(run, "go")
        ended = await local.end(run)
        # The worker and its other runs are not affected.
        other = await local.client.start("agent")
        await local.reach(other, "suspended", "succeeded", "failed")
    assert ended.state == "stranded"
    assert executed[:2] == ["first 1", "second 2"]
    assert [entry.hash for entry in await local.journal(run)] == before
    assert ended.error is not None
    assert ended.error["type"] == "Diverged"
    assert "Nothing was executed" in ended.error["message"]


async def test_a_divergence_shows_both_names_and_both_digests(lab: Lab) -> None:
    async with lab.working(agent(original)):
        run = await lab.client.start("agent")
        await lab.reach(run, "suspended")

    async def changed(ctx: andon.Context) -> None:
        await ctx.step(third, 3)

    async with lab.working(agent(changed)):
        await lab.client.send(run, "go")
        ended = await lab.end(run)
    assert ended.error is not None
    message = ended.error["message"]
    for part in ("'first'", "'third'", digest((1,), {}, ""), digest((3,), {}, "")):
        assert part in message


async def test_a_divergence_in_one_branch_stops_them_all(local: Lab) -> None:
    async def parallel(ctx: andon.Context) -> None:
        await asyncio.gather(ctx.step(first, 1), ctx.step(second, 2))
        await ctx.event("go")

    async def changed(ctx: andon.Context) -> None:
        async def forgotten() -> None:
            await ctx.step(second, 22)

        tasks = [asyncio.create_task(one) for one in (ctx.step(first, 1), forgotten())]
        del tasks[0]
        await asyncio.Event().wait()  # the code does not await the branches

    async with local.working(agent(parallel)):
        run = await local.client.start("agent")
        await local.reach(run, "suspended")
    async with local.working(agent(changed)):
        await local.client.send(run, "go")
        assert (await local.end(run)).state == "stranded"
    assert sorted(executed) == ["first 1", "second 2"]


async def test_code_that_dropped_a_branch_does_not_wait_for_its_answers(local: Lab) -> None:
    async def two(ctx: andon.Context) -> None:
        await asyncio.gather(ctx.step(first, 1), ctx.step(second, 2))
        await ctx.event("go")

    async def one(ctx: andon.Context) -> str:
        await asyncio.gather(ctx.step(first, 1))
        await ctx.event("go")
        return str(await ctx.step(third, 3))

    async with local.working(agent(two)):
        run = await local.client.start("agent")
        await local.reach(run, "suspended")
    async with local.working(agent(one)):
        assert await local.replayed(run) == "third 3"
    assert sorted(executed) == ["first 1", "second 2", "third 3"]


async def test_code_with_additional_operations_at_its_end_continues(lab: Lab) -> None:
    async def longer(ctx: andon.Context) -> str:
        await original(ctx)
        return str(await ctx.step(third, 3))

    async with lab.working(agent(original)):
        run = await lab.client.start("agent")
        await lab.reach(run, "suspended")
    async with lab.working(agent(longer)):
        assert await lab.replayed(run) == "third 3"
    assert executed == ["first 1", "second 2", "third 3"]


@pytest.mark.parametrize("kind", ["sleep", "effect", "child", "unknown child"])
async def test_a_caught_refusal_leads_to_the_same_steps_on_replay(local: Lab, kind: str) -> None:
    async def child(ctx: andon.Context) -> None: ...

    other = andon.agent(child)

    async def body(ctx: andon.Context) -> str:
        try:
            match kind:
                case "sleep":
                    await ctx.sleep(-1)
                case "effect":
                    await ctx.effect(first, 1, 2, 3)
                case "child":
                    await ctx.child(other, "unexpected")
                case _:
                    await ctx.child("nobody")
        except andon.AndonError as error:
            found: str = await ctx.step(str, getattr(error, "error", type(error).__name__))
        await ctx.event("go")
        return found

    async with local.working(agent(body), other):
        found = await local.replayed(await local.client.start("agent"))
    assert found == ("NotFound" if kind == "unknown child" else "BadInput")


async def test_an_agent_that_swallows_the_stop_does_not_keep_the_run(local: Lab) -> None:
    reached: list[str] = []

    async def body(ctx: andon.Context) -> str:
        try:
            await ctx.event("go")
        except BaseException:  # noqa: BLE001 (that is the point)
            reached.append("swallowed")
            await asyncio.sleep(60)
        return "ended"

    async with local.working(agent(body)) as worker:
        run = await local.client.start("agent")
        assert await local.replayed(run) == "ended"
        assert not worker.attempts
    assert reached == ["swallowed"]
