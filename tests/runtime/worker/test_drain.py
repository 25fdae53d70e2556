"""A drain seen from inside: operations in flight when a worker is asked to leave."""

import asyncio
import contextlib
import tempfile
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.harness import Held, Lab, agent, by_thread, declare_lost, until

import andon
from andon.errors import Fenced
from andon.runtime.worker import cleanup
from andon.runtime.worker.worker import Worker
from andon.settings import Settings
from andon.store import open_store


def tell_at_the_claim(worker: Worker) -> None:
    """Ask it to leave once its claim is committed, and before it gets the answer."""
    write = worker.store.write

    def writes(batch: Any) -> Any:
        outcomes = write(batch)
        if any(getattr(outcome, "runs", None) for outcome in outcomes):
            worker.tell("test")
        return outcomes

    worker.store.write = writes
    by_thread(worker)


# ── a claim in flight ─────────────────────────────────────────────────────────────────────────────


async def test_a_run_that_a_leaving_worker_has_just_claimed_returns_to_its_place(
    lab: Lab,
) -> None:
    called: list[str] = []

    async def body(ctx: andon.Context) -> None:
        called.append(ctx.run_id)

    one = agent(body)
    run_id = await lab.client.start(one)
    before = lab.store.run(run_id)
    for _ in range(2):
        async with lab.working(one, poll_seconds=60) as worker:
            tell_at_the_claim(worker)
            await until(partial(getattr, worker.drain, "begun"))
    assert not called, "nothing of it was executed"
    after = lab.store.run(run_id)
    assert (after.state, after.available_at) == ("queued", before.available_at)
    assert [one.ending for one in lab.store.attempts(run_id)] == ["untouched"] * 2
    urgent = await lab.client.start(one, priority=1)
    async with lab.working(one, concurrency=1):
        await lab.end(run_id)
    assert called == [urgent, run_id], "it is not ahead of more urgent runs"


async def test_a_slow_claim_in_flight_is_waited_for_and_its_runs_are_returned(lab: Lab) -> None:
    """Longer than the announcement may take."""
    answered = threading.Event()

    async def body(ctx: andon.Context) -> None:
        raise AssertionError("it is not executed")

    one = agent(body)
    run_id = await lab.client.start(one)
    before = lab.store.run(run_id)
    async with lab.working(one) as worker:
        write = worker.store.write

        def writes(batch: Any) -> Any:
            outcomes = write(batch)
            if any(getattr(outcome, "runs", None) for outcome in outcomes):
                worker.tell("test")
                answered.wait(0.3)
            return outcomes

        worker.store.write = writes
        by_thread(worker)
        await until(lambda: worker.drain.begun)
    after = lab.store.run(run_id)
    assert (after.state, after.available_at) == ("queued", before.available_at)
    assert [one.ending for one in lab.store.attempts(run_id)] == ["untouched"]


async def test_a_worker_that_registers_anew_during_a_drain_takes_nothing(lab: Lab) -> None:
    stubborn = Held()

    async def step() -> None:
        stubborn.reached.set()
        while not stubborn.release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await stubborn.release.wait()

    async def body(ctx: andon.Context) -> None:
        await ctx.step(step)

    one = agent(body)
    await lab.client.start(one)
    async with lab.working(one, concurrency=1) as worker:
        await stubborn.reached.wait()
        other = await lab.client.start(one)
        first, start_over, begun = worker.worker_id, worker._start_over, asyncio.Event()

        async def starting_over() -> None:
            begun.set()
            await start_over()

        worker._start_over = starting_over  # type: ignore[method-assign]
        worker.lease.lose(Fenced("", worker=first))
        await begun.wait()
        worker.tell("test")
        stubborn.release.set()
    assert worker.worker_id != first
    assert lab.store.attempts(other) == []
    [row] = [row for row in lab.store.fleet(0) if row.id == worker.worker_id]
    assert row.draining_at is not None, "its new incarnation drains too"
    assert row.ended_at is not None


async def test_several_drain_requests_are_announced_once(lab: Lab) -> None:
    async def body(ctx: andon.Context) -> None: ...

    store = open_store(lab.url)
    worker = Worker(store, [agent(body)], Settings(store=lab.url, grace_seconds=5))
    register = worker._register

    async def registering() -> None:
        await register()
        told = [threading.Thread(target=worker.tell, args=(f"told {n}",)) for n in range(4)]
        for one in told:
            one.start()
        for one in told:
            one.join()

    worker._register = registering  # type: ignore[method-assign]
    async with worker:
        pass
    store.close()
    said = [one for one in lab.store.events(0) if one.kind == "worker.draining"]
    assert [one.worker for one in said] == [worker.worker_id]


# ── a second request ──────────────────────────────────────────────────────────────────────────────


async def test_a_second_drain_request_at_once_means_not_to_wait_for_steps(local: Lab) -> None:
    held = Held()

    async def body(ctx: andon.Context) -> None:
        await ctx.step(held.here)

    async with local.working(agent(body), grace_seconds=1000) as worker:
        run_id = await local.client.start("agent")
        await held.reached.wait()
        worker.tell("test")
        worker.hurry()
    assert [one.ending for one in local.store.attempts(run_id)] == ["cut"]


# ── operations that end while they are cut off ────────────────────────────────────────────────────


async def test_an_effect_that_ends_while_it_is_cut_off_is_confirmed_with_its_result(
    lab: Lab,
) -> None:
    done: list[str] = []
    held = Held()

    async def pay(what: str) -> dict[str, str]:
        try:
            await held.here()
        except asyncio.CancelledError:
            done.append(what)  # it was past the point of no return
        return {"paid": what}

    async def body(ctx: andon.Context) -> Any:
        return await ctx.effect(pay, "a", key="A")

    async with lab.working(agent(body), grace_seconds=0.5):
        run_id = await lab.client.start("agent")
        await held.reached.wait()
    assert lab.effects(run_id) == {"pay": "confirmed"}
    async with lab.working(agent(body)):
        assert await lab.result(run_id) == {"paid": "a"}
    assert done == ["a"]


async def test_an_undo_that_ends_while_it_is_cut_off_is_not_repeated(lab: Lab) -> None:
    undone: list[str] = []
    held = Held()

    async def give_back(result: str) -> None:
        try:
            await held.here()
        except asyncio.CancelledError:
            undone.append(result)

    async def pay() -> str:
        return "paid"

    async def body(ctx: andon.Context) -> None:
        await ctx.effect(pay, key="A", undo=give_back)
        raise ValueError("no further")

    async with lab.working(agent(body), grace_seconds=0.5):
        run_id = await lab.client.start("agent")
        await held.reached.wait()
    assert lab.effects(run_id) == {"pay": "compensated"}
    async with lab.working(agent(body)):
        assert (await lab.end(run_id)).state == "failed"
    assert undone == ["paid"]


# ── code that does not end ────────────────────────────────────────────────────────────────────────


async def test_a_drain_completes_although_every_thread_is_occupied(local: Lab) -> None:
    loop, let_go = asyncio.get_running_loop(), threading.Event()
    taken = [loop.run_in_executor(None, let_go.wait, 30) for _ in range(64)]

    async def body(ctx: andon.Context) -> None: ...

    async with asyncio.timeout(20):
        async with local.working(agent(body), grace_seconds=1) as worker:
            pass
    let_go.set()
    await asyncio.wait(taken)
    [row] = [row for row in local.store.fleet(0) if row.id == worker.worker_id]
    assert row.state == "gone"


async def test_serving_that_is_cancelled_again_still_returns_every_run(lab: Lab) -> None:
    held = Held()

    async def body(ctx: andon.Context) -> None:
        await ctx.step(held.here)

    one, closed = agent(body), threading.Event()

    async def serve() -> None:
        async with andon.serving(one, settings=Settings(store=lab.url, grace_seconds=1)) as worker:
            close = worker.store.close
            worker.store.close = lambda: (close(), closed.set())  # type: ignore[func-returns-value]
            await asyncio.sleep(600)

    server = asyncio.ensure_future(serve())
    run_id = await lab.client.start(one)
    await held.reached.wait()
    server.cancel()
    while not server.done():  # as some frameworks do, until they are obeyed
        await asyncio.wait({server}, timeout=0.05)
        server.cancel()
    assert server.cancelled()
    assert closed.is_set(), "its connections are not left to the garbage collector"
    assert [one.ending for one in lab.store.attempts(run_id)] == ["cut"]
    assert [one.state for one in lab.store.fleet(0)] == ["gone"]


# ── files ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_dangling_symlink_does_not_keep_a_run_from_its_next_attempt(
    local: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    held = Held()

    async def body(ctx: andon.Context) -> int:
        await ctx.step(held.here)
        return ctx.attempt

    async with local.working(agent(body)) as first, local.working(agent(body)) as second:
        run_id = await local.client.start("agent")
        await held.reached.wait()
        lost = first if first.active else second
        (tmp_path / f"{cleanup._prefix(run_id)}999999999-1-x").symlink_to(tmp_path / "nowhere")
        declare_lost(second if lost is first else first, lost)
        assert await local.result(run_id) == 2
        held.release.set()
