"""Timeouts: a step's own, and those of the agent's code around steps and waits."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from tests.runtime.harness import Lab, agent, until

import andon
from andon.runtime.attempt.journal_writer import Journal
from andon.store.store import Append

Limit = Callable[[Any], Any]


async def by_timeout(awaitable: Any) -> Any:
    async with asyncio.timeout(0.05):
        return await awaitable


async def by_wait_for(awaitable: Any) -> Any:
    return await asyncio.wait_for(awaitable, 0.05)


async def by_anyio(awaitable: Any) -> Any:
    with anyio.fail_after(0.05):
        return await awaitable


LIMITS = pytest.mark.parametrize("limit", [by_timeout, by_wait_for, by_anyio])


@LIMITS
async def test_a_timeout_around_a_step_replays_as_a_timeout(local: Lab, limit: Limit) -> None:
    calls: list[str] = []

    async def long() -> str:
        calls.append("long")
        await asyncio.sleep(60 if len(calls) == 1 else 0)
        return "ended"

    async def body(ctx: andon.Context) -> list[str]:
        try:
            first = await limit(ctx.step(long))
        except TimeoutError:
            first = await ctx.step(str, "instead")
        await ctx.event("go")
        return [first, await ctx.step(str, "after")]

    async with local.working(agent(body)):
        run = await local.client.start("agent")
        assert await local.replayed(run) == ["instead", "after"]
    assert calls == ["long"]


@LIMITS
async def test_a_timeout_around_a_wait_ends_it_in_time(local: Lab, limit: Limit) -> None:
    async def body(ctx: andon.Context) -> str:
        try:
            found = await limit(ctx.event("never"))
        except TimeoutError:
            found = "nothing came"
        await ctx.event("go")
        return str(await ctx.step(str, found))

    async with local.working(agent(body)):
        run = await local.client.start("agent")
        assert await local.replayed(run) == "nothing came"


async def test_a_cancelled_wait_whose_end_is_being_written_loses_no_message(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On replay it is cancelled again, and the next wait gets the message."""
    limits: list[asyncio.Timeout] = []
    cuts: list[str] = []
    write = Journal._write

    async def cut(journal: Any, message: Append) -> None:
        last = message.entries[-1]
        if (last.name, last.state) == ("news", "done") and not cuts:
            cuts.append(last.place)
            limits[-1].reschedule(0)
            await write(journal, message)
            await asyncio.sleep(60)  # it is cancelled before it hears of the commit
        await write(journal, message)

    monkeypatch.setattr(Journal, "_write", cut)

    async def body(ctx: andon.Context) -> list[str]:
        other = asyncio.create_task(ctx.event("go"))  # so that commits take a turn of the loop
        try:
            async with asyncio.timeout(0.01 if cuts else None) as limit:
                limits.append(limit)
                first = await ctx.event("news")
        except TimeoutError:
            first = "nothing came"
        found = [first, await ctx.step(str, "after"), await ctx.event("news")]
        await other
        return found

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        await until(lambda: "news" in {entry.name for entry in lab.store.journal(run)})
        await lab.client.send(run, "news", "good")
        assert await lab.replayed(run) == ["nothing came", "after", "good"]


async def within_timeout(seconds: float | None, awaitable: Any) -> None:
    async with asyncio.timeout(seconds):
        await awaitable


async def within_anyio(seconds: float | None, awaitable: Any) -> None:
    with anyio.fail_after(seconds):
        await awaitable


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("within", [within_timeout, within_anyio])
async def test_a_slow_replay_is_not_cut_off_where_the_code_was_in_time(
    local: Lab, within: Callable[[float | None, Any], Any], cut: bool
) -> None:
    """Its timer fires while the recorded answer waits for its turn: only later code is cut off."""
    replays: list[bool] = []
    beaten = asyncio.Event()

    async def body(ctx: andon.Context) -> list[str]:
        async def other() -> None:
            if replays:
                await asyncio.sleep(0.01)  # the other branch's time is over, and its turn is later
            await ctx.step(str, "other")
            beaten.set()

        async def one() -> None:
            await beaten.wait()
            try:
                await within(limit, works())
            except TimeoutError:
                found.append("too late")
            found.append(await ctx.step(str, "after"))

        async def works() -> None:
            found.append(await ctx.step(str, "in time"))
            if cut:
                await ctx.event("never")

        found: list[str] = []
        limit = 0.0 if replays else 0.2 if cut else None
        if replays:
            beaten.set()
        await asyncio.gather(one(), other())
        replays.append(True)
        await ctx.event("go")
        return found

    async with local.working(agent(body)):
        run = await local.client.start("agent")
        late = ["too late"] if cut else []
        assert await local.replayed(run) == ["in time", *late, "after"]


@pytest.mark.parametrize("late", [False, True])
async def test_a_race_between_a_step_and_a_sleep_ends_on_replay_as_it_did_at_first(
    lab: Lab, late: bool
) -> None:
    async def work() -> str:
        await asyncio.sleep(0.2 if late else 0.01)
        return "worked"

    async def body(ctx: andon.Context) -> str:
        step = asyncio.create_task(ctx.step(work))
        timer = asyncio.create_task(ctx.sleep(0.08))
        await asyncio.wait({timer, step}, return_when=asyncio.FIRST_COMPLETED)
        first = "step" if step.done() and not timer.done() else "timer"
        for task in (step, timer):
            task.cancel()
        await asyncio.gather(step, timer, return_exceptions=True)
        found: str = await ctx.step(str, first)
        await ctx.sleep(0.1)  # so that on replay the timer's time has certainly come
        await ctx.event("go")
        return found

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        assert await lab.replayed(run) == ("timer" if late else "step")


async def test_a_steps_own_timeout_fails_it_as_a_timeout(local: Lab) -> None:
    async def long() -> None:
        await asyncio.sleep(60)

    def long_plain() -> None:
        time.sleep(0.2)

    async def body(ctx: andon.Context) -> list[str]:
        found = []
        for function in (long, long_plain):
            try:
                await ctx.step(function, timeout=0.02)
            except TimeoutError as error:
                found.append(str(error))
        await ctx.event("go")
        return found

    async with local.working(agent(body)):
        found = await local.replayed(await local.client.start("agent"))
    assert found == [
        f"{name}: TimeoutError: took longer than 0.02 s" for name in ("long", "long_plain")
    ]


async def test_a_step_that_cancels_itself_has_failed(local: Lab) -> None:
    """On replay no code will cancel it again, so it must not wait for that."""

    async def odd() -> None:
        raise asyncio.CancelledError

    async def body(ctx: andon.Context) -> str:
        try:
            await ctx.step(odd)
        except andon.StepFailed as error:
            found = error.message
        await ctx.event("go")
        return found

    async with local.working(agent(body)):
        assert "cancelled" in await local.replayed(await local.client.start("agent"))


@pytest.mark.parametrize("snapshot", [False, True])
async def test_an_effect_whose_question_the_code_gave_up_is_asked_about_again(
    lab: Lab, snapshot: bool
) -> None:
    calls: list[str] = []

    async def order() -> str:
        calls.append("order")
        raise ConnectionError("away")

    async def body(ctx: andon.Context) -> str:
        if ctx.restored is None:
            try:
                await by_timeout(ctx.effect(order, key="k"))
            except TimeoutError:
                await ctx.step(str, "not so long")
            if snapshot:
                await ctx.snapshot("gave up")
        found: str = await ctx.effect(order, key="k")
        return found

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        await lab.asked(run)
        await lab.client.answer(run, "happened", "ordered")
        assert await lab.result(run) == "ordered"
    assert calls == ["order"]
    assert lab.effects(run) == {"order": "confirmed"}


async def test_a_run_whose_thread_outlives_its_timeout_is_not_suspended_before_the_thread_ends(
    lab: Lab,
) -> None:
    """A stop of a suspended run is proved at once, and this run may still act."""
    ends = threading.Event()

    def order() -> None:
        ends.wait(30)

    async def body(ctx: andon.Context) -> str:
        found: str = await ctx.effect(order, key="k", timeout=0.05)
        return found

    async with lab.working(agent(body)) as worker:
        run = await lab.client.start("agent")
        await until(lambda: lab.store.asks(run))
        [attempt] = worker.active
        await until(lambda: attempt.waits.open)
        attempt.waits._consider()
        assert attempt.exit.reason is None
        ends.set()
        await lab.reach(run, "suspended")
        await lab.client.answer(run, "happened", "ordered")
        assert await lab.result(run) == "ordered"
