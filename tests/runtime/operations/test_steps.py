"""Steps: executed once, answered from the journal ever after."""

import asyncio
import threading
from typing import Any

import pytest
from tests.runtime.harness import Held, Lab, agent, declare_lost

import andon
from andon.errors import BadInput


async def test_finished_steps_execute_zero_times_on_replay(lab: Lab) -> None:
    calls: list[int] = []

    async def double(n: int) -> int:
        calls.append(n)
        return 2 * n

    async def body(ctx: andon.Context) -> list[int]:
        found = [await ctx.step(double, n) for n in range(5)]
        await ctx.event("go")
        return [*found, await ctx.step(double, 5)]

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        assert await lab.replayed(run) == [0, 2, 4, 6, 8, 10]
    assert calls == [0, 1, 2, 3, 4, 5]


async def test_another_worker_continues_after_the_last_finished_step(lab: Lab) -> None:
    calls: list[str] = []
    held = Held()

    async def first() -> str:
        calls.append("first")
        return "1"

    async def second() -> str:
        calls.append("second")
        await held.here()
        return "2"

    async def body(ctx: andon.Context) -> str:
        return str(await ctx.step(first)) + str(await ctx.step(second))

    one = agent(body)
    async with lab.working(one) as lost:
        run = await lab.client.start(one)
        await held.reached.wait()
        async with lab.working(one) as survivor:
            declare_lost(survivor, lost)
            assert await lab.result(run) == "12"
        held.release.set()
    assert calls == ["first", "second", "second"]
    assert [row.ending for row in lab.store.attempts(run)] == ["interrupted", "succeeded"]


async def test_a_step_inside_a_step_is_refused(local: Lab) -> None:
    async def body(ctx: andon.Context) -> str:
        async def outer() -> None:
            await ctx.step(str, 1)

        try:
            await ctx.step(outer)
        except andon.StepFailed as error:
            return error.message
        return "executed"

    async with local.working(agent(body)):
        message = await local.result(await local.client.start("agent"))
    assert "called inside a step" in message


async def test_keyed_steps_may_come_in_any_order(lab: Lab) -> None:
    calls: list[str] = []

    def search(word: str) -> str:
        calls.append(word)
        return word.upper()

    async def body(ctx: andon.Context, words: list[str]) -> list[str]:
        # Like a model that names its tool calls in another order each time it is called.
        order = words if ctx.attempt == 1 else words[::-1]
        found = [await ctx.step(search, word, key=word) for word in order]
        await ctx.event("go")
        return sorted(found)

    async with lab.working(agent(body)):
        run = await lab.client.start("agent", ["a", "b", "c"])
        assert await lab.replayed(run) == ["A", "B", "C"]
    assert calls == ["a", "b", "c"]


async def test_the_same_key_again_is_the_same_step(lab: Lab) -> None:
    calls: list[int] = []

    async def count() -> int:
        calls.append(1)
        number = len(calls)
        await asyncio.sleep(0.01)  # so that parallel ones meet
        return number

    async def body(ctx: andon.Context) -> list[int]:
        found = [await ctx.step(count, key="k"), await ctx.step(count, key="k")]
        found += await asyncio.gather(*(ctx.step(count, key="p") for _ in range(3)))
        await ctx.event("go")
        return found

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        assert await lab.replayed(run) == [1, 1, 2, 2, 2]


@pytest.mark.parametrize("key", [7, "7"])
async def test_a_key_may_be_a_number(local: Lab, key: Any) -> None:
    async def body(ctx: andon.Context) -> str:
        found: str = await ctx.step(str, 1, key=key)
        await ctx.event("go")
        return found

    async with local.working(agent(body)):
        assert await local.replayed(await local.client.start("agent")) == "1"


async def test_a_step_is_found_by_its_given_name(local: Lab) -> None:
    async def body(ctx: andon.Context) -> None:
        await ctx.step(lambda: 1, name="one")
        await ctx.step(str, 2)

    async with local.working(agent(body)):
        run = await local.client.start("agent")
        await local.end(run)
    assert [entry.name for entry in await local.journal(run, "step")] == ["one", "str"]


async def test_a_sync_step_does_not_block_the_others(local: Lab) -> None:
    both = threading.Barrier(2, timeout=20)

    def meet() -> int:
        return both.wait()

    async def body(ctx: andon.Context) -> list[int]:
        return sorted(await asyncio.gather(ctx.step(meet), ctx.step(meet)))

    async with local.working(agent(body)):
        assert await local.result(await local.client.start("agent")) == [0, 1]


async def test_a_call_in_place_of_a_function_is_refused(local: Lab) -> None:
    async def body(ctx: andon.Context) -> str:
        try:
            await ctx.step(str(5))  # type: ignore[arg-type]
        except BadInput as error:
            return str(error)
        return "executed"

    async with local.working(agent(body)):
        message = await local.result(await local.client.start("agent"))
    assert "pass it uncalled" in message


@pytest.mark.parametrize("text", ["nul\0", "\udcff"])
@pytest.mark.parametrize("where", ["name", "key"])
async def test_text_that_no_database_can_store_is_refused_before_execution(
    lab: Lab, text: str, where: str
) -> None:
    calls: list[int] = []

    async def body(ctx: andon.Context) -> str:
        try:
            names: dict[str, Any] = {"name": "step", where: text}
            await ctx.step(lambda: calls.append(1), **names)
        except BadInput:
            # And the run is not affected.
            return str(await ctx.step(str, 1))
        return "executed"

    async with lab.working(agent(body)):
        assert await lab.result(await lab.client.start("agent")) == "1"
    assert calls == []


async def test_a_step_that_exits_the_interpreter_fails_alone(local: Lab) -> None:
    def leave() -> None:
        raise SystemExit(3)

    async def leave_too() -> None:
        raise SystemExit(4)

    async def body(ctx: andon.Context) -> list[str]:
        found = []
        for function in (leave, leave_too):
            try:
                await ctx.step(function)
            except andon.StepFailed as error:
                found.append(error.message)
        return found

    async with local.working(agent(body)):
        found = await local.result(await local.client.start("agent"))
    assert found == ["it called sys.exit(3)", "it called sys.exit(4)"]


async def test_an_error_that_cannot_be_shown_fails_only_its_step(local: Lab) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    async def mute() -> None:
        raise Mute

    async def hostile() -> None:
        raise ValueError("\udcff\0")

    async def body(ctx: andon.Context) -> list[str]:
        found = []
        for function in (mute, hostile):
            try:
                await ctx.step(function)
            except andon.StepFailed as error:
                found.append(error.error)
        await ctx.event("go")
        raise Mute

    async with local.working(agent(body)):
        run = await local.client.start("agent")
        await local.reach(run, "suspended")
        await local.client.send(run, "go")
        ended = await local.end(run)
    assert ended.state == "failed"
    assert ended.error is not None
    assert ended.error["type"] == "Mute"
