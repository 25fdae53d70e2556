"""Children: runs that a run starts, in the same commit as its own entry."""

import asyncio
from typing import Any

from tests.runtime.harness import Held, Lab, agent, declare_lost, until

import andon

calls: list[str] = []


@andon.agent
async def double(ctx: andon.Context, n: int) -> int:
    await ctx.step(calls.append, f"double {n}")
    return 2 * n


@andon.agent
async def broken(ctx: andon.Context) -> None:
    raise LookupError("nothing there")


@andon.agent
async def patient(ctx: andon.Context) -> Any:
    return await ctx.event("word")


@andon.agent
async def tower(ctx: andon.Context, height: int) -> int:
    return 0 if height == 0 else 1 + await ctx.child(tower, height - 1)


async def test_a_child_gives_its_result_now_and_on_replay(lab: Lab) -> None:
    calls.clear()

    async def body(ctx: andon.Context) -> int:
        found: int = await ctx.child(double, 21)
        await ctx.event("go")
        return found

    one = agent(body)
    async with lab.working(one, double):
        run = await lab.client.start(one, labels={"team": "blue"})
        await lab.waits_for(run, "event")
        assert await lab.replayed(run) == 42
    assert calls == ["double 21"]
    [child] = await lab.client.list(agent="double")
    assert (child.parent_id, child.labels) == (run, {"team": "blue"})


async def test_a_child_that_fails_fails_its_call(lab: Lab) -> None:
    async def body(ctx: andon.Context) -> list[str]:
        found = []
        try:
            await ctx.child(broken)
        except LookupError as error:
            found.append(str(error))
        await ctx.event("go")
        return found

    one = agent(body)
    async with lab.working(one, broken):
        run = await lab.client.start(one)
        await lab.waits_for(run, "event")
        [text] = await lab.replayed(run)
    assert "broken" in text
    assert "nothing there" in text


async def test_children_have_children(lab: Lab) -> None:
    async with lab.working(tower, concurrency=1):  # none of them holds a slot while it waits
        assert await lab.result(await lab.client.start(tower, 4)) == 4
    assert len(await lab.client.list(agent="tower")) == 5


async def test_many_children_execute_at_once(lab: Lab) -> None:
    calls.clear()

    async def body(ctx: andon.Context) -> list[int]:
        return list(await asyncio.gather(*(ctx.child(double, n) for n in range(5))))

    one = agent(body)
    async with lab.working(one, double):
        assert await lab.result(await lab.client.start(one)) == [0, 2, 4, 6, 8]
    assert sorted(calls) == [f"double {n}" for n in range(5)]


async def test_a_child_may_outlive_the_wait_of_its_parent(lab: Lab) -> None:
    async def body(ctx: andon.Context) -> str:
        return str(await ctx.child(patient, wait=False))

    one = agent(body)
    async with lab.working(one, patient):
        child = await lab.result(await lab.client.start(one))
        await lab.client.send(child, "word", "on its own")
        assert await lab.result(child) == "on its own"


async def test_a_child_may_be_started_by_name_and_an_unknown_name_is_refused(lab: Lab) -> None:
    calls.clear()

    async def body(ctx: andon.Context) -> list[Any]:
        found = [await ctx.child("double", n=4)]
        try:
            await ctx.child("dubble", n=4)
        except andon.StepFailed as error:
            found.append(error.message)
        return found

    one = agent(body)
    async with lab.working(one, double):
        number, message = await lab.result(await lab.client.start(one))
    assert number == 8
    assert "did you mean 'double'" in message


async def test_a_parent_whose_worker_is_lost_while_it_waits_finds_its_child_again(lab: Lab) -> None:
    """The child's end must reach the parent's current owner, and the child is started once."""
    held = Held()

    @andon.agent
    async def slow(ctx: andon.Context) -> str:
        await ctx.step(held.here)
        return "slow"

    async def tolerant(ctx: andon.Context) -> str:
        if ctx.attempt == 1:
            task = asyncio.create_task(ctx.child(slow))
            await held.reached.wait()
            await asyncio.sleep(60)  # not suspended: it works, outside of any step
            return str(task.done())
        return str(await asyncio.create_task(ctx.child(slow)))

    one = agent(tolerant)
    async with lab.working(slow), lab.working(one) as lost:
        run = await lab.client.start(one)
        await held.reached.wait()
        async with lab.working(one) as survivor:
            declare_lost(survivor, lost)
            await until(lambda: lab.store.run(run).attempt == 2)
            held.release.set()
            assert await lab.result(run) == "slow"
    assert len(await lab.client.list(agent="slow")) == 1


async def test_a_child_that_ends_before_its_parent_is_suspended_still_wakes_it(lab: Lab) -> None:
    async def body(ctx: andon.Context) -> int:
        total = 0
        for n in range(15):
            total += await ctx.child(double, n)
        return total

    one = agent(body)
    async with lab.working(one, double):
        assert await lab.result(await lab.client.start(one)) == 210


async def test_a_child_may_have_an_id_of_its_own(lab: Lab) -> None:
    async def body(ctx: andon.Context) -> int:
        return int(await ctx.child(double, 3, id="my-child"))

    one = agent(body)
    async with lab.working(one, double):
        assert await lab.result(await lab.client.start(one)) == 6
        assert await lab.result("my-child") == 6


async def test_a_child_under_the_id_of_another_run_is_refused(lab: Lab) -> None:
    """That run's end would never be reported to this parent, which would wait for ever."""

    async def body(ctx: andon.Context) -> str:
        try:
            await ctx.child(double, 3, id="taken")
        except andon.StepFailed as error:
            return error.error
        return "started"

    one = agent(body)
    async with lab.working(one, double):
        await lab.client.start(double, 3, id="taken")
        await lab.result("taken")
        assert await lab.result(await lab.client.start(one)) == "Conflict"


async def test_keyed_children_after_a_snapshot_are_new_ones(lab: Lab) -> None:
    async def body(ctx: andon.Context) -> list[int]:
        found = ctx.restored or []
        while len(found) < 2:
            found = [*found, await ctx.child(double, 1, key="same")]
            await ctx.snapshot(found)
        return list(found)

    one = agent(body)
    async with lab.working(one, double):
        assert await lab.result(await lab.client.start(one)) == [2, 2]
    assert len(await lab.client.list(agent="double")) == 2
