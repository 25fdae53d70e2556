"""Parallel branches: ordinary structured concurrency, replayed with the same values everywhere."""

import asyncio
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from tests.runtime.harness import Lab, agent, until

import andon

Shape = Callable[[andon.Context, Callable[..., Any]], Any]


async def with_gather(ctx: andon.Context, slow: Callable[..., Any]) -> Any:
    return await asyncio.gather(*(ctx.step(slow, n) for n in range(4)))


async def with_nested_gathers(ctx: andon.Context, slow: Callable[..., Any]) -> Any:
    async def pair(n: int) -> list[str]:
        return list(await asyncio.gather(ctx.step(slow, n), ctx.step(slow, n + 1)))

    return await asyncio.gather(pair(0), pair(2))


async def with_a_chain_in_each_branch(ctx: andon.Context, slow: Callable[..., Any]) -> Any:
    async def chain(n: int) -> list[str]:
        return [await ctx.step(slow, n), await ctx.step(slow, 3 - n)]

    return await asyncio.gather(*(chain(n) for n in range(4)))


async def with_a_task_group(ctx: andon.Context, slow: Callable[..., Any]) -> Any:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ctx.step(slow, n)) for n in range(4)]
    return [task.result() for task in tasks]


async def with_an_anyio_group(ctx: andon.Context, slow: Callable[..., Any]) -> Any:
    found: dict[int, str] = {}

    async def branch(n: int) -> None:
        found[n] = await ctx.step(slow, n)

    async with anyio.create_task_group() as group:
        for n in range(4):
            group.start_soon(branch, n)
    return [found[n] for n in range(4)]


async def with_create_task(ctx: andon.Context, slow: Callable[..., Any]) -> Any:
    tasks = [asyncio.create_task(ctx.step(slow, n)) for n in range(3)]
    own = await ctx.step(slow, 3)
    return [await task for task in tasks] + [own]


async def with_wait(ctx: andon.Context, slow: Callable[..., Any]) -> Any:
    tasks = [asyncio.create_task(ctx.step(slow, n)) for n in range(4)]
    await asyncio.wait(tasks)
    return [task.result() for task in tasks]


async def with_first_completed(ctx: andon.Context, slow: Callable[..., Any]) -> Any:
    """The next operation depends on the branch that was first."""
    left = {asyncio.create_task(ctx.step(slow, n)) for n in range(4)}
    order: list[Any] = []
    while left:
        done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        for task in sorted(done, key=lambda one: str(one.result())):
            order.append(await ctx.step(str, task.result(), name="use"))
    return order


async def with_as_completed(ctx: andon.Context, slow: Callable[..., Any]) -> Any:
    order = []
    # Tasks, not coroutines: as_completed wraps coroutines into tasks in no defined order.
    tasks = [asyncio.create_task(ctx.step(slow, n)) for n in range(4)]
    for first in asyncio.as_completed(tasks):
        order.append(await ctx.step(str, await first, name="use"))
    return order


async def with_a_pool(ctx: andon.Context, slow: Callable[..., Any]) -> Any:
    """The item that a branch takes depends on the durations of the earlier ones."""
    items: asyncio.Queue[int] = asyncio.Queue()
    for n in range(6):
        items.put_nowait(n % 4)

    async def work() -> list[str]:
        found = []
        while not items.empty():
            found.append(await ctx.step(slow, items.get_nowait()))
        return found

    return await asyncio.gather(work(), work())


async def with_a_semaphore(ctx: andon.Context, slow: Callable[..., Any]) -> Any:
    room, order = asyncio.Semaphore(2), []

    async def branch(n: int) -> None:
        async with room:
            order.append(await ctx.step(slow, n))
            order.append(await ctx.step(str, len(order), name="number"))

    await asyncio.gather(*(branch(n) for n in range(4)))
    return order


SHAPES: list[Shape] = [
    with_gather,
    with_nested_gathers,
    with_a_chain_in_each_branch,
    with_a_task_group,
    with_an_anyio_group,
    with_create_task,
    with_wait,
    with_first_completed,
    with_as_completed,
    with_a_pool,
    with_a_semaphore,
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
async def test_branches_replay_with_the_same_values(local: Lab, shape: Shape) -> None:
    await replay(local, shape)


async def test_branches_whose_results_were_committed_together_replay_in_the_same_order(
    lab: Lab,
) -> None:
    """The first execution gets them one at a time too, or a replay could not do the same."""
    go, over = asyncio.Event(), asyncio.Event()
    seen: list[list[int]] = []

    async def both(n: int) -> int:
        await go.wait()
        return n

    async def body(ctx: andon.Context) -> list[int]:
        left = {asyncio.create_task(ctx.step(both, n)) for n in range(4)}
        order: list[int] = []
        while left:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            for result in sorted((task.result() for task in done), reverse=True):
                order.append(await ctx.step(int, result, name="use"))
        seen.append(order)
        await ctx.event("go")
        return order

    @andon.agent
    async def neighbour(ctx: andon.Context) -> None:
        await over.wait()  # with two runs, commits are made by the writer's thread

    one = agent(body)
    async with lab.working(one, neighbour) as worker:
        await lab.client.start(neighbour)
        await until(lambda: len(worker.active) == 1)
        run = await lab.client.start(one)
        await until(
            lambda: sum(len(attempt.exit.hands) for attempt in worker.attempts.values()) == 4
        )
        go.set()
        assert await lab.replayed(run) == seen[0] == seen[1]
        over.set()


async def replay(lab: Lab, shape: Shape) -> None:
    calls: list[int] = []
    seen: list[Any] = []

    async def slow(n: int) -> str:
        calls.append(n)
        await asyncio.sleep((4 - n) * 0.01)  # the last one is the first to finish
        return f"{n}.{len(calls)}"  # and no two executions return the same

    async def body(ctx: andon.Context) -> Any:
        seen.append(await shape(ctx, slow))
        await ctx.event("go")
        return seen[-1]

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        await lab.reach(run, "suspended")
        executed = len(calls)
        result = await lab.replayed(run)
    assert len(calls) == executed
    assert seen[0] == seen[1] == result


async def test_a_branch_that_fails_in_gather_leaves_the_others_their_results(local: Lab) -> None:
    calls: list[str] = []

    async def good(n: int) -> int:
        calls.append(f"good {n}")
        await asyncio.sleep(0.01)
        return n

    async def bad() -> None:
        calls.append("bad")
        raise ValueError("no")

    async def body(ctx: andon.Context) -> list[Any]:
        found = await asyncio.gather(
            ctx.step(good, 1), ctx.step(bad), ctx.step(good, 2), return_exceptions=True
        )
        await ctx.event("go")
        return [str(one) if isinstance(one, Exception) else one for one in found]

    async with local.working(agent(body)):
        run = await local.client.start("agent")
        assert await local.replayed(run) == [1, "bad: ValueError: no", 2]
    assert sorted(calls) == ["bad", "good 1", "good 2"]


async def test_a_failure_in_gather_fails_the_run_after_the_other_branches(local: Lab) -> None:
    """No run is reported as finished while a step of it is executing."""
    ended: list[str] = []

    async def good() -> None:
        await asyncio.sleep(0.05)
        ended.append("good")

    async def bad() -> None:
        raise ValueError("no")

    async def body(ctx: andon.Context) -> None:
        await asyncio.gather(ctx.step(good), ctx.step(bad))

    async with local.working(agent(body)):
        run = await local.end(await local.client.start("agent"))
        assert ended == ["good"]
    assert run.state == "failed"
    states = {entry.name: entry.state for entry in await local.journal(run.id, "step")}
    assert states == {"good": "done", "bad": "failed"}


async def test_a_task_that_is_never_awaited_finishes_before_the_run(local: Lab) -> None:
    ended: list[str] = []

    async def background() -> None:
        await asyncio.sleep(0.05)
        ended.append("background")

    async def body(ctx: andon.Context) -> str:
        task = asyncio.create_task(ctx.step(background))
        await asyncio.sleep(0.01)
        return f"{task.done()}"

    async with local.working(agent(body)):
        run = await local.client.start("agent")
        assert await local.result(run) == "False"
        assert ended == ["background"]
    assert [entry.state for entry in await local.journal(run, "step")] == ["done"]


async def test_code_that_outlives_its_run_executes_nothing(local: Lab) -> None:
    calls: list[str] = []
    over = asyncio.Event()

    async def body(ctx: andon.Context) -> str:
        async def stubborn() -> None:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                try:
                    await ctx.step(lambda: calls.append("step"), name="late")
                finally:
                    over.set()

        task = asyncio.create_task(stubborn())
        await asyncio.sleep(0.01)
        return f"{task.done()}"

    async with local.working(agent(body)):
        assert await local.result(await local.client.start("agent")) == "False"
        await over.wait()
    assert calls == []


@pytest.mark.parametrize("retries", [0, 1])
async def test_siblings_that_a_failure_cancelled_are_retried_with_it(
    lab: Lab, retries: int
) -> None:
    calls: list[str] = []

    async def shaky() -> str:
        calls.append("shaky")
        await asyncio.sleep(0.01)
        if calls.count("shaky") == 1:
            raise ConnectionError("away")
        return "shaky"

    async def long() -> str:
        calls.append("long")
        if calls.count("long") == 1:
            await asyncio.sleep(60)
        return "long"

    async def body(ctx: andon.Context) -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ctx.step(one)) for one in (shaky, long)]
        return [task.result() for task in tasks]

    policy = andon.Retry(retries, first_seconds=0.01)
    async with lab.working(agent(body, retries=policy)):
        run = await lab.end(await lab.client.start("agent"))
    if retries:
        assert run.result == ["shaky", "long"]
        assert sorted(calls) == ["long", "long", "shaky", "shaky"]
    else:
        assert run.state == "failed"


async def test_a_thousand_branches_replay_quickly(local: Lab) -> None:
    calls: list[int] = []

    async def one(n: int) -> int:
        calls.append(n)
        return n

    async def body(ctx: andon.Context) -> int:
        found = await asyncio.gather(*(ctx.step(one, n) for n in range(1000)))
        await ctx.event("go")
        return sum(found)

    async with local.working(agent(body)):
        run = await local.client.start("agent")
        await local.reach(run, "suspended")
        began = asyncio.get_running_loop().time()
        assert await local.replayed(run) == 499_500
        took = asyncio.get_running_loop().time() - began
    assert len(calls) == 1000
    assert took < 5
