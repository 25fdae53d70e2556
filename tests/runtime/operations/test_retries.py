"""Retries of a step and of an agent; interruptions are not counted among them."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.runtime.harness import Held, Lab, agent, declare_lost, until

import andon

QUICK = andon.Retry(3, first_seconds=0.01)


async def test_a_step_is_retried_until_it_succeeds(lab: Lab) -> None:
    calls: list[int] = []

    async def third_time() -> int:
        calls.append(1)
        if len(calls) < 3:
            raise ConnectionError("away")
        return len(calls)

    async def body(ctx: andon.Context) -> int:
        found = int(await ctx.step(third_time, retries=QUICK))
        await ctx.event("go")
        return found

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        assert await lab.replayed(run) == 3
    assert len(calls) == 3
    states = [entry.state for entry in await lab.journal(run, "step")]
    assert states == ["retrying", "retrying", "done"]


async def test_a_step_fails_after_its_last_retry(lab: Lab) -> None:
    calls: list[int] = []

    async def never() -> None:
        calls.append(1)
        raise ConnectionError(f"away {len(calls)}")

    async def body(ctx: andon.Context) -> str:
        try:
            await ctx.step(never, retries=andon.Retry(2, first_seconds=0.01))
        except ConnectionError as error:
            found = str(error)
        await ctx.event("go")
        return found

    async with lab.working(agent(body)):
        assert await lab.replayed(await lab.client.start("agent")) == (
            "never: ConnectionError: away 3"
        )
    assert len(calls) == 3


async def test_retries_are_counted_across_restarts(lab: Lab) -> None:
    calls: list[int] = []
    held = Held()

    async def never() -> None:
        calls.append(1)
        if len(calls) == 2:
            await held.here()
        raise ConnectionError("away")

    async def body(ctx: andon.Context) -> None:
        await ctx.step(never, retries=andon.Retry(2, first_seconds=0.01))

    one = agent(body)
    async with lab.working(one) as lost:
        run = await lab.client.start(one)
        await held.reached.wait()
        async with lab.working(one) as survivor:
            declare_lost(survivor, lost)
            assert (await lab.end(run)).state == "failed"
        held.release.set()
    # One that failed, one that was interrupted and does not count, two more that failed.
    assert len(calls) == 4


async def test_a_long_delay_before_a_retry_holds_no_process(lab: Lab) -> None:
    calls: list[int] = []

    async def second_time() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError("away")
        return "there"

    async def body(ctx: andon.Context) -> str:
        pause = andon.Retry(1, first_seconds=2.4)  # at least half of it
        return str(await ctx.step(second_time, retries=pause))

    async with lab.working(agent(body)) as worker:
        run = await lab.client.start("agent")
        await lab.reach(run, "suspended")
        await until(lambda: not worker.attempts)
        assert await lab.result(run) == "there"
    assert len(calls) == 2


ERRORS = [
    (ZeroDivisionError, ArithmeticError),
    (IndexError, LookupError),
    (FileNotFoundError, OSError),
    (ConnectionResetError, ConnectionError),
    (TimeoutError, TimeoutError),
    (UnicodeError, ValueError),
    (NotImplementedError, RuntimeError),
]


@pytest.mark.parametrize(("raised", "caught"), ERRORS)
async def test_an_error_is_caught_by_its_family_at_first_and_on_replay(
    local: Lab, raised: type[Exception], caught: type[Exception]
) -> None:
    seen: list[str] = []

    class Own(raised):  # type: ignore[misc, valid-type]
        pass

    async def fail() -> None:
        raise Own("reason")

    async def body(ctx: andon.Context) -> None:
        try:
            await ctx.step(fail)
        except caught as error:
            assert isinstance(error, andon.StepFailed)
            seen.append(str(error))
        await ctx.event("go")

    async with local.working(agent(body)):
        await local.replayed(await local.client.start("agent"))
    assert seen == ["fail: Own: reason"] * 2


async def test_an_error_of_no_family_is_a_failed_step(local: Lab) -> None:
    class Odd(Exception):
        pass

    async def fail() -> None:
        raise Odd("reason")

    async def body(ctx: andon.Context) -> list[str]:
        try:
            await ctx.step(fail)
        except andon.StepFailed as error:
            assert not isinstance(error, OSError | ValueError | RuntimeError)
            return [error.name, error.error, error.message]
        return []

    async with local.working(agent(body)):
        found = await local.result(await local.client.start("agent"))
    assert found == ["fail", "Odd", "reason"]


# ── of the agent ──────────────────────────────────────────────────────────────────────────────────


def shaky(calls: list[str], times: int) -> Callable[[], Any]:
    async def step() -> str:
        calls.append("shaky")
        if calls.count("shaky") <= times:
            raise ConnectionError("away")
        return "ok"

    return step


async def test_an_agents_retry_reopens_only_the_failed_step(lab: Lab) -> None:
    calls: list[str] = []
    step = shaky(calls, 2)

    async def body(ctx: andon.Context) -> str:
        await ctx.step(calls.append, "before")
        return str(await ctx.step(step))

    async with lab.working(agent(body, retries=QUICK)):
        run = await lab.client.start("agent")
        assert await lab.result(run) == "ok"
    assert calls == ["before", "shaky", "shaky", "shaky"]
    assert [row.ending for row in lab.store.attempts(run)] == ["failed", "failed", "succeeded"]
    assert lab.store.run(run).failures == 2


async def test_an_agents_own_error_is_retried_too(lab: Lab) -> None:
    calls: list[str] = []

    def once() -> str:
        calls.append("step")
        return "ok"

    async def body(ctx: andon.Context) -> str:
        found = str(await ctx.step(once))
        calls.append("body")
        if calls.count("body") == 1:
            raise RuntimeError("by itself")
        return found

    async with lab.working(agent(body, retries=QUICK)):
        assert await lab.result(await lab.client.start("agent")) == "ok"
    assert calls == ["step", "body", "body"]


async def test_a_run_whose_retries_ran_out_is_dead_with_all_its_evidence(lab: Lab) -> None:
    async def body(ctx: andon.Context) -> None:
        await ctx.step(shaky([], 99))

    policy = andon.Retry(2, first_seconds=0.01)
    async with lab.working(agent(body, retries=policy)):
        run = await lab.end(await lab.client.start("agent"))
    assert run.state == "dead"
    assert run.error is not None
    assert (run.error["type"], run.error["step"]) == ("ConnectionError", "step")
    assert [row.ending for row in lab.store.attempts(run.id)] == ["failed", "failed", "dead"]
    assert len(await lab.journal(run.id, "retry")) == 2


async def test_a_run_without_retries_has_failed(lab: Lab) -> None:
    async def body(ctx: andon.Context) -> None:
        raise LookupError("no such thing")

    async with lab.working(agent(body)):
        run = await lab.end(await lab.client.start("agent"))
    assert run.state == "failed"
    assert run.error is not None
    assert run.error["message"] == "no such thing"


async def test_interruptions_do_not_count_as_retries(lab: Lab) -> None:
    held = Held()
    calls: list[int] = []

    async def work() -> str:
        calls.append(1)
        await held.here()
        return "worked"

    async def body(ctx: andon.Context) -> str:
        return str(await ctx.step(work))

    one = agent(body)  # no retries at all
    async with lab.working(one) as lost:
        run = await lab.client.start(one)
        await held.reached.wait()
        async with lab.working(one) as survivor:
            declare_lost(survivor, lost)
            assert await lab.result(run) == "worked"
        held.release.set()
    row = lab.store.run(run)
    assert (row.failures, row.interruptions) == (0, 1)


async def test_a_run_that_kills_its_worker_again_and_again_is_buried(lab: Lab) -> None:
    """It shows its last known step, and is buried after its limit of fruitless attempts."""
    reached: list[asyncio.Event] = []
    never = asyncio.Event()

    async def deadly() -> None:
        reached.append(asyncio.Event())
        await never.wait()

    async def body(ctx: andon.Context) -> None:
        await ctx.step(str, "harmless")
        await ctx.step(deadly)

    one = agent(body)
    run = await lab.client.start(one)
    async with lab.working(agent(body, name="other")) as witness:
        witness.settings = type(witness.settings)(store=lab.url, interruption_limit=3)
        for n in range(1, 5):
            async with lab.working(one, grace_seconds=0.01) as worker:
                await until(lambda n=n: len(reached) >= n)  # type: ignore[misc]
                declare_lost(witness, worker)
                await until(lambda: lab.store.run(run).state != "running")
                if lab.store.run(run).state == "dead":
                    break
    ended = await lab.end(run)
    assert ended.state == "dead"
    assert len(reached) == 4  # the first attempt finished a step, three more did not
    assert ended.error is not None
    assert "'deadly'" in ended.error["message"]


async def test_a_retried_agent_starts_a_failed_child_anew(lab: Lab) -> None:
    calls: list[str] = []

    @andon.agent
    async def child(ctx: andon.Context) -> str:
        calls.append(ctx.run_id)
        if len(calls) == 1:
            raise ConnectionError("away")
        return "ok"

    async def body(ctx: andon.Context) -> str:
        return str(await ctx.child(child))

    one = agent(body, retries=QUICK)
    async with lab.working(one, child):
        assert await lab.result(await lab.client.start(one)) == "ok"
    assert len(set(calls)) == 2


async def test_waits_that_a_failure_cancelled_are_waited_for_again(lab: Lab) -> None:
    """The same child, the same sleep; and the question is put to a person again."""
    calls: list[str] = []

    @andon.agent
    async def child(ctx: andon.Context) -> Any:
        calls.append("child")
        return await ctx.event("word")

    step = shaky(calls, 1)

    async def body(ctx: andon.Context) -> list[Any]:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(one)
                for one in (
                    ctx.step(step),
                    ctx.child(child, id=f"{ctx.run_id}-child"),
                    ctx.ask("Well?", 5),
                    ctx.sleep(0.01),
                    ctx.event("go"),
                )
            ]
        found = [task.result() for task in tasks]
        return [found[0], found[1], found[2].value, found[4]]

    one = agent(body, retries=QUICK)
    async with lab.working(one, child):
        run = await lab.client.start(one)
        await until(lambda: calls.count("shaky") == 2 and lab.store.asks(run))
        await until(lambda: lab.store.run(f"{run}-child"))  # it may be started after the question
        await lab.client.send(f"{run}-child", "word", "said")
        await lab.client.send(run, "go", "went")
        await until(lambda: lab.store.asks(run))
        await lab.client.answer(run, "approve")
        assert await lab.result(run) == ["ok", "said", 5, "went"]
    assert calls.count("child") in (1, 2)  # once more when the event woke it up
