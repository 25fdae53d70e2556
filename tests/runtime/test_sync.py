"""Sync agents: the same context through a portal, from the agent's thread and from others."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.runtime.harness import Held, Lab, agent, declare_lost, until

import andon
from andon.errors import BadInput


@andon.agent
def double(ctx: Any, n: int) -> int:
    return 2 * int(ctx.step(int, n))


async def test_a_sync_agent_has_everything_that_an_async_one_has(lab: Lab) -> None:
    calls: list[str] = []

    def pay(amount: int, *, key: str) -> str:
        calls.append("pay")
        return f"{amount} by {key}"

    async def fetch(n: int) -> int:
        calls.append("fetch")
        await asyncio.sleep(0)
        return n

    def body(ctx: Any, given: str) -> dict[str, Any]:
        def work() -> str:
            ctx.checkpoint("half")
            return f"worked {ctx.partial}"

        async def work_too() -> str:
            ctx.checkpoint("other half")
            ctx.log("inside")
            return f"worked {ctx.partial}"

        found: dict[str, Any] = {"given": given, "run": ctx.run_id, "restored": ctx.restored}
        if ctx.restored is None:
            found["plain"] = ctx.step(work)
            found["async"] = ctx.step(work_too)
            found["fetched"] = ctx.step(fetch, 3)
            found["effect"] = ctx.effect(pay, 5, key="k")
            ctx.snapshot(found)
        else:
            found = dict(ctx.restored)
        found["now"] = [ctx.now().isoformat(), ctx.random(), ctx.uuid()]
        ctx.sleep(0.01)
        with ctx.shield("block", at_most=5):
            found["shielded"] = ctx.step(str, "inside")
        found["child"] = ctx.child(double, 4)
        found["stopping"] = ctx.stopping
        found["answer"] = ctx.ask("Well?", 1).decision
        found["event"] = ctx.event("go")
        ctx.log("almost")
        ctx.cleanup(calls.append, "cleaned")
        return found

    one = agent(body)
    async with lab.working(one, double):
        run = await lab.client.start(one, given="hello", id="r")
        await until(lambda: lab.store.asks(run))
        await lab.asked(run)
        await lab.client.answer(run, "approve")
        await lab.waits_for(run, "event")
        await lab.client.send(run, "go", "went")
        found = await lab.result(run)
        await until(lambda: "cleaned" in calls)
    assert calls == ["fetch", "pay", "cleaned"]
    assert len(found.pop("now")) == 3
    assert found == {
        "given": "hello",
        "run": "r",
        "restored": None,
        "plain": "worked half",
        "async": "worked other half",
        "fetched": 3,
        "effect": "5 by k",
        "shielded": "inside",
        "child": 8,
        "stopping": False,
        "answer": "approve",
        "event": "went",
    }


async def test_a_sync_agent_holds_no_thread_while_it_waits(local: Lab) -> None:
    def body(ctx: Any) -> str:
        return str(ctx.event("go"))

    async with local.working(agent(body)) as worker:
        run = await local.client.start("agent")
        await local.reach(run, "suspended")
        await until(lambda: not worker.attempts)
        await until(lambda: not any(t.name == "andon-agent" for t in threading.enumerate()))
        await local.client.send(run, "go", "x")
        assert await local.result(run) == "x"


async def test_a_sync_agent_is_retried_and_diverges_like_others(lab: Lab) -> None:
    calls: list[int] = []

    def shaky() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError("away")
        return "ok"

    def body(ctx: Any) -> str:
        found = str(ctx.step(shaky))
        ctx.event("go")
        return found

    def changed(ctx: Any) -> None:
        ctx.step(str, 5)

    quick = andon.Retry(1, first_seconds=0.01)
    async with lab.working(agent(body, retries=quick)):
        run = await lab.client.start("agent")
        await lab.waits_for(run, "event")
    async with lab.working(agent(changed, retries=quick)):
        await lab.client.send(run, "go")
        assert (await lab.end(run)).state == "stranded"
    assert len(calls) == 2


async def test_steps_from_additional_threads_need_a_key(lab: Lab) -> None:
    calls: list[int] = []

    def square(n: int) -> int:
        calls.append(n)
        return n * n

    def body(ctx: Any) -> list[Any]:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda n: ctx.step(square, n, key=f"k{n}"), range(8)))
            for call in (lambda: ctx.step(square, 9), lambda: ctx.sleep(1), ctx.uuid):
                try:
                    pool.submit(call).result()
                except andon.Refused as error:
                    found.append("key" in str(error))
            # Operations without a place in the journal may be called from any thread.
            found.append(pool.submit(lambda: ctx.run_id).result())
            pool.submit(ctx.log, "from a thread").result()
        ctx.event("go")
        return found

    async with lab.working(agent(body)):
        run = await lab.client.start("agent", id="r")
        assert await lab.replayed(run) == [n * n for n in range(8)] + [True] * 3 + ["r"]
    assert sorted(calls) == list(range(8))


async def test_a_step_of_an_additional_thread_is_finished_before_the_run(local: Lab) -> None:
    begun, go, ended = threading.Event(), threading.Event(), []

    def slow() -> None:
        begun.set()
        go.wait(20)
        ended.append(1)

    def body(ctx: Any) -> str:
        threading.Thread(target=lambda: ctx.step(slow, key="k"), daemon=True).start()
        begun.wait(20)
        return "over"

    async with local.working(agent(body)):
        run = await local.client.start("agent")
        await until(begun.is_set)
        await until(lambda: not any(t.name == "andon-agent" for t in threading.enumerate()))
        assert local.store.run(run).state == "running"
        go.set()
        assert await local.result(run) == "over"
    assert ended == [1]


async def test_a_sync_agent_that_lost_its_worker_continues_on_another_one(lab: Lab) -> None:
    held, calls = Held(), []

    async def work() -> str:
        calls.append("work")
        await held.here()
        return "worked"

    def body(ctx: Any) -> str:
        ctx.step(calls.append, "before")
        return str(ctx.step(work))

    one = agent(body)
    async with lab.working(one) as lost:
        run = await lab.client.start(one)
        await held.reached.wait()
        async with lab.working(one) as survivor:
            declare_lost(survivor, lost)
            assert await lab.result(run) == "worked"
        held.release.set()
        await until(lambda: not lost.attempts)
    assert calls == ["before", "work", "work"]


async def test_an_effect_of_a_sync_agent_is_cut_off_with_its_worker(lab: Lab) -> None:
    """When the grace is over the effect is cancelled and left in doubt, not left running."""
    held, done = Held(), []

    async def pay() -> None:
        await held.here()
        done.append(1)

    def body(ctx: Any) -> None:
        ctx.effect(pay)

    one = agent(body)
    async with lab.working(one, grace_seconds=0.05):
        run = await lab.client.start(one)
        await held.reached.wait()
    assert lab.effects(run) == {"pay": "in_doubt"}
    assert lab.store.run(run).state == "queued"
    held.release.set()
    await asyncio.sleep(0.02)
    assert done == []


async def test_a_plain_agent_that_raises_stop_iteration_fails(local: Lab) -> None:
    """No future can hold that error: the run must not wait for its thread for ever."""

    def body(ctx: Any) -> None:
        next(iter(()))

    async with local.working(agent(body)):
        run = await local.end(await local.client.start("agent"))
    assert run.state == "failed"
    assert run.error is not None
    assert "StopIteration" in run.error["message"]


async def test_a_plain_agent_that_leaves_the_interpreter_fails_alone(local: Lab) -> None:
    def body(ctx: Any) -> None:
        raise SystemExit(2)

    async with local.working(agent(body)):
        run = await local.end(await local.client.start("agent"))
    assert run.state == "failed"
    assert run.error is not None
    assert "sys.exit(2)" in run.error["message"]


def find() -> str:
    return str(andon.current().run_id)


@pytest.mark.parametrize("plain", [False, True])
async def test_code_finds_its_run_without_a_context_argument(lab: Lab, plain: bool) -> None:
    async def inner(ctx: Any) -> Any:
        in_task = asyncio.create_task(asyncio.to_thread(find))
        return [find(), await in_task, await ctx.step(find)]

    def blocking(ctx: Any) -> Any:
        return [find(), ctx.step(find), find()]

    one = agent(blocking if plain else inner)
    async with lab.working(one):
        run = await lab.client.start(one)
        assert await lab.result(run) == [run] * 3
    assert andon.current() is None


async def test_a_thread_of_an_async_agent_executes_steps_by_key(lab: Lab) -> None:
    done: list[str] = []

    def in_thread() -> Any:
        found = andon.current()
        with pytest.raises(BadInput, match="key="):
            found.step(done.append, "no key")
        found.step(done.append, "once", key="1")
        return found.step(done.append, "once", key="1")

    async def inner(ctx: Any) -> None:
        await asyncio.to_thread(in_thread)
        await asyncio.to_thread(in_thread)

    one = agent(inner)
    async with lab.working(one):
        await lab.result(await lab.client.start(one))
    assert done == ["once"]
