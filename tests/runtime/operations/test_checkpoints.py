"""Checkpoints: the progress of a step, for the attempt that executes it again."""

import asyncio
import threading
from typing import Any

import pytest
from tests.runtime.harness import Held, Lab, agent, declare_lost, until

import andon
from andon.control.runs import runs
from andon.runtime.attempt import journal_writer as journal


async def test_the_next_attempt_of_a_step_finds_its_progress(lab: Lab) -> None:
    held, handled = Held(), []

    async def body(ctx: andon.Context) -> list[int]:
        async def items() -> list[int]:
            done: list[int] = ctx.partial or []
            for n in range(len(done), 5):
                handled.append(n)
                done = [*done, n]
                ctx.checkpoint(done)
                if n == 2:
                    await held.here()
            return done

        return list(await ctx.step(items))

    one = agent(body)
    async with lab.working(one) as lost:
        run = await lab.client.start(one)
        await held.reached.wait()
        await until(lambda: lab.store.load(run).checkpoints)  # "at least once a second"
        async with lab.working(one) as survivor:
            declare_lost(survivor, lost)
            assert await lab.result(run) == [0, 1, 2, 3, 4]
        held.release.set()
    assert handled == [0, 1, 2, 3, 4, 3, 4][: len(handled)]
    assert handled[:5] == [0, 1, 2, 3, 4]


async def test_the_first_checkpoint_of_an_attempt_is_saved_without_delay(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a worker that is killed twice a second would always restart from the same place."""
    monkeypatch.setattr(journal, "CHECKPOINT_SECONDS", 600.0)
    held = Held()

    async def body(ctx: andon.Context) -> None:
        async def items() -> None:
            ctx.log("log lines have time")
            for n in range(100):
                ctx.checkpoint(n)
            await held.here()
            ctx.checkpoint("later")

        await ctx.step(items)

    one = agent(body)
    async with lab.working(one):
        run = await lab.client.start(one)
        await until(lambda: lab.store.load(run).checkpoints)
        assert list(lab.store.load(run).checkpoints.values()) == ["99"]
        held.release.set()
        await lab.result(run)


async def test_a_sync_step_saves_its_progress_from_its_thread(lab: Lab) -> None:
    reached, go = threading.Event(), threading.Event()
    seen: list[Any] = []

    async def body(ctx: andon.Context) -> str:
        def work() -> str:
            seen.append(ctx.partial)
            if ctx.partial is None:
                ctx.checkpoint({"half": True})
                reached.set()
                go.wait(20)
            return "worked"

        return str(await ctx.step(work))

    one = agent(body)
    async with lab.working(one) as lost:
        run = await lab.client.start(one)
        await until(reached.is_set)
        await until(lambda: lab.store.load(run).checkpoints)
        async with lab.working(one) as survivor:
            declare_lost(survivor, lost)
            assert await lab.result(run) == "worked"
        go.set()
    assert seen == [None, {"half": True}]


async def test_a_drain_saves_the_latest_progress(lab: Lab) -> None:
    """It includes progress that was not yet written in the background."""
    held, seen = Held(), []

    async def body(ctx: andon.Context) -> str:
        async def work() -> str:
            seen.append(ctx.partial)
            ctx.checkpoint("just now")
            await held.here()
            return "worked"

        return str(await ctx.step(work))

    one = agent(body)
    async with lab.working(one, grace_seconds=0.05):
        run = await lab.client.start(one)
        await held.reached.wait()
    async with lab.working(one):
        assert await lab.result(run) == "worked"
    assert seen == [None, "just now"]


async def test_a_finished_step_leaves_no_checkpoint_behind(lab: Lab) -> None:
    async def body(ctx: andon.Context) -> None:
        async def quick(n: int) -> None:
            ctx.checkpoint(n)

        async def slow() -> None:
            ctx.checkpoint("slow")
            await until(lambda: lab.store.load(ctx.run_id).checkpoints)

        for n in range(5):
            await ctx.step(quick, n)
        await ctx.step(slow)
        await asyncio.gather(*(ctx.step(quick, n) for n in range(3)))

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        assert (await lab.end(run)).state == "succeeded"
    assert lab.store.load(run).checkpoints == {}


async def test_a_retry_of_the_same_step_finds_its_progress(local: Lab) -> None:
    seen: list[Any] = []

    async def body(ctx: andon.Context) -> None:
        async def work() -> None:
            seen.append(ctx.partial)
            ctx.checkpoint(len(seen))
            if len(seen) < 3:
                raise ValueError("again")

        await ctx.step(work, retries=andon.Retry(2, first_seconds=0.01))

    async with local.working(agent(body)):
        assert (await local.end(await local.client.start("agent"))).state == "succeeded"
    assert seen == [None, 1, 2]


async def test_a_checkpoint_outside_a_step_is_refused(local: Lab) -> None:
    async def body(ctx: andon.Context) -> list[str]:
        found = []
        try:
            ctx.checkpoint(1)
        except andon.Refused as error:
            found.append(str(error))
        try:
            found.append(ctx.partial)
        except andon.Refused as error:
            found.append(str(error))
        return found

    async with local.working(agent(body)):
        found = await local.result(await local.client.start("agent"))
    assert ["only inside a step" in text for text in found] == [True, True]


async def test_the_progress_of_a_step_is_stored_and_deleted_with_it(lab: Lab) -> None:
    held = Held()

    async def body(ctx: andon.Context) -> None:
        async def batch() -> None:
            ctx.checkpoint([1], done=1, total=3)
            ctx.checkpoint([1, 2], done=2, total=3)
            await held.here()

        await ctx.step(batch)

    one = agent(body)
    async with lab.working(one):
        run = await lab.client.start(one)
        await held.reached.wait()
        await until(lab.store.progress)
        assert lab.store.progress() == {run: [{"step": "batch", "done": 2, "total": 3}]}
        assert runs.listing(lab.store)[0]["doing"] == "batch 2/3"
        held.release.set()
        await lab.result(run)
        assert lab.store.progress() == {}
