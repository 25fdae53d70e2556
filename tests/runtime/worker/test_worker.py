"""The worker: its claims, its concurrency, and how it leaves."""

import asyncio
import contextlib
import gc
import threading
import time
from typing import Any

import pytest
from tests.runtime.harness import Held, Lab, agent, declare_lost, until

import andon
from andon.errors import BadInput, Conflict, StoreUnavailable
from andon.runtime.agent import Agent
from andon.runtime.attempt.attempt import Attempt
from andon.runtime.worker.worker import Worker
from andon.settings import Settings


async def test_a_worker_runs_no_more_at_once_than_its_concurrency(lab: Lab) -> None:
    running, most, go = 0, 0, asyncio.Event()

    async def body(ctx: andon.Context) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await go.wait()
        running -= 1

    one = agent(body)
    runs = [await lab.client.start(one) for _ in range(7)]
    async with lab.working(one, concurrency=3) as worker:
        await until(lambda: running == 3)
        assert len(worker.active) == 3
        go.set()
        for run in runs:
            await lab.end(run)
    assert most == 3


async def number_of(number: int) -> int:
    return number


async def fails(number: int) -> int:
    raise ValueError(number)


async def ends(ctx: andon.Context, number: int) -> int:
    return int(await ctx.step(number_of, number))


async def fails_at_once(ctx: andon.Context, number: int) -> None:
    await ctx.step(fails, number)


async def waits(ctx: andon.Context, number: int) -> None:
    await ctx.event("never")


def waits_in_a_thread(ctx: Any, number: int) -> None:
    ctx.event("never")


async def gives_up(ctx: andon.Context, number: int) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.01):
            await ctx.event("never")


@pytest.mark.parametrize("body", [ends, fails_at_once, waits, waits_in_a_thread, gives_up])
async def test_a_run_that_has_left_leaves_no_garbage_cycles(lab: Lab, body: Any) -> None:
    """With thousands of short runs collecting them would cost the most, and thousands of waiting
    runs would stay in memory until the collection.
    """
    one = agent(body)
    async with lab.working(one) as worker:

        async def play(number: int) -> None:
            run = await lab.client.start(one, number)
            while (await lab.client.get(run)).state in ("queued", "running"):
                await asyncio.sleep(0.002)
            await until(lambda: not worker.active)

        await play(0)
        gc.collect()
        gc.disable()
        try:
            for number in range(1, 4):
                await play(number)
            await asyncio.sleep(0)  # the last turn of its task
            left = [one for one in gc.get_objects() if isinstance(one, Attempt)]
        finally:
            gc.enable()
    assert [attempt for attempt in left if attempt.host is worker] == []


async def test_two_agents_of_one_name_are_refused(lab: Lab) -> None:
    async def one(ctx: andon.Context) -> None: ...

    async def other(ctx: andon.Context, n: int) -> None: ...

    with pytest.raises(BadInput, match="two agents are called 'agent'"):
        Worker(lab.store, [agent(one), agent(other)])
    async with lab.working(agent(one)):
        with pytest.raises(Conflict, match="new version"):
            async with lab.working(agent(other)):
                pass
    async with lab.working(agent(one), agent(other, version="2")):
        pass


async def test_a_run_stays_with_the_version_it_was_started_on(lab: Lab) -> None:
    async def old(ctx: andon.Context) -> str:
        return "old"

    async def new(ctx: andon.Context) -> str:
        return "new"

    run = await lab.client.start(agent(old))
    async with lab.working(agent(new, version="2")) as worker:
        other = await lab.client.start("agent")
        assert await lab.result(other) == "new"
        assert (await worker._claim()).runs == []
        assert lab.store.run(run).state == "queued"
    async with lab.working(agent(old), agent(new, version="2")):
        assert await lab.result(run) == "old"


@pytest.mark.parametrize(
    "options", [{"name": "a b"}, {"name": ""}, {"version": "1/2"}, {"queue": "x" * 101}]
)
async def test_an_agent_with_an_unusable_name_is_refused(options: dict[str, Any]) -> None:
    async def body(ctx: andon.Context) -> None: ...

    if options == {"name": ""}:
        assert Agent(body, **options).name == "body"
        return
    with pytest.raises(BadInput):
        Agent(body, **options)


async def test_an_agent_without_a_context_parameter_is_refused() -> None:
    async def nothing() -> None: ...

    async def keyword(*, ctx: Any) -> None: ...

    async def positions(ctx: Any, *rest: Any) -> None: ...

    for function in (nothing, keyword, positions):
        with pytest.raises(BadInput):
            andon.agent(function)


# ── drain ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_drained_run_goes_ahead_of_new_work(lab: Lab) -> None:
    order: list[str] = []
    held = Held()

    async def step(name: str) -> None:
        order.append(name)
        await held.here()

    async def body(ctx: andon.Context, name: str) -> None:
        await ctx.step(step, name)
        await ctx.step(order.append, f"{name} again", name="second")

    one = agent(body)
    async with lab.working(one, concurrency=1):
        run = await lab.client.start(one, "begun")
        await held.reached.wait()
        await lab.client.start(one, "new", priority=100)
        asyncio.get_running_loop().call_later(0.05, held.release.set)
    assert lab.store.run(run).state == "queued"
    async with lab.working(one, concurrency=1):
        await until(lambda: len(order) == 4)
    # The step in hand was finished, and the begun run comes before the new one.
    assert order == ["begun", "begun again", "new", "new again"]
    assert [row.ending for row in lab.store.attempts(run)] == ["returned", "succeeded"]


async def test_a_drain_finishes_the_operation_in_hand_of_every_branch(lab: Lab) -> None:
    calls: list[str] = []
    held = Held()

    async def quick() -> None:
        calls.append("quick")

    async def pay() -> str:
        calls.append("pay")
        await held.here()
        return "paid"

    async def body(ctx: andon.Context) -> str:
        async def many() -> None:
            await held.reached.wait()
            for n in range(1000):
                await ctx.step(quick, name=f"quick {n}")
                await asyncio.sleep(0.005)

        other = asyncio.create_task(many())
        found: str = await ctx.effect(pay)
        other.cancel()
        return found

    one = agent(body)
    async with lab.working(one):
        run = await lab.client.start(one)
        await until(lambda: "quick" in calls)
        # The other branch meets the drain while the effect is still executing.
        asyncio.get_running_loop().call_later(0.1, held.release.set)
    assert lab.effects(run) == {"pay": "confirmed"}
    assert lab.store.run(run).state == "queued"
    async with lab.working(one):
        assert await lab.result(run) == "paid"
    assert calls.count("pay") == 1


async def test_a_run_that_was_claimed_and_not_begun_returns_to_its_place(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(ctx: andon.Context, name: str) -> str:
        return str(await ctx.step(name.upper, name="step"))

    one = agent(body)
    async with lab.working(one) as worker:

        def tell(here: str) -> None:
            if here == "claim:claimed":
                worker.tell("test")

        monkeypatch.setattr("andon.runtime.worker.worker.point", tell)
        run = await lab.client.start(one, "patient")
        began_to_wait = lab.store.run(run).available_at
        await until(lambda: worker.draining)
    row, [queue] = lab.store.run(run), lab.store.queues()
    assert [one.ending for one in lab.store.attempts(run)] == ["untouched"]
    assert (row.state, row.available_at) == ("queued", began_to_wait)
    assert (queue.waiting, queue.returned) == (1, 0), "it keeps its place in the queue"
    monkeypatch.undo()
    async with lab.working(one):
        assert await lab.result(run) == "PATIENT"


async def test_a_run_that_waits_in_memory_is_returned_at_once(lab: Lab) -> None:
    async def body(ctx: andon.Context) -> str:
        await ctx.sleep(0.9)  # too short to be suspended
        return "slept"

    one = agent(body)
    async with lab.working(one) as worker:
        run = await lab.client.start(one)
        await until(lambda: any(a.waits.open for a in worker.attempts.values()))
        began = time.monotonic()
    assert time.monotonic() - began < 0.7
    assert lab.store.run(run).state == "queued"
    async with lab.working(one):
        assert await lab.result(run) == "slept"


async def test_a_shield_delays_a_drain(lab: Lab) -> None:
    calls: list[str] = []
    inside = asyncio.Event()

    async def body(ctx: andon.Context) -> str:
        async with ctx.shield("both or none", at_most=20), ctx.shield("both or none"):
            await ctx.step(calls.append, "first", name="one")
            inside.set()
            await ctx.sleep(0.2)
            await ctx.step(calls.append, "second", name="two")
        await ctx.step(calls.append, "third", name="three")
        return "over"

    one = agent(body)
    async with lab.working(one):
        run = await lab.client.start(one)
        await inside.wait()
    assert calls == ["first", "second"]
    assert lab.store.run(run).state == "queued"
    async with lab.working(one):
        assert await lab.result(run) == "over"
    assert calls == ["first", "second", "third"]


async def test_a_shield_ends_at_its_limit(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []
    inside = asyncio.Event()

    async def body(ctx: andon.Context) -> None:
        async with ctx.shield("short", at_most=0.05):
            for n in range(1000):
                await ctx.step(calls.append, n)
                inside.set()
                await asyncio.sleep(0.005)

    one = agent(body)
    async with lab.working(one) as worker:
        run = await lab.client.start(one)
        await inside.wait()
        worker.draining = True
        await until(lambda: not worker.active)
    assert lab.store.run(run).state == "queued"
    assert 1 < len(calls) < 1000
    assert "shield 'short' took" in caplog.text


async def test_stopping_tells_code_between_steps_that_it_should_end(local: Lab) -> None:
    held = Held()
    seen: list[bool] = []

    async def body(ctx: andon.Context) -> None:
        async def work() -> None:
            seen.append(ctx.stopping)
            await held.here()
            seen.append(ctx.stopping)

        await ctx.step(work)

    one = agent(body)
    async with local.working(one):
        await local.client.start(one)
        await held.reached.wait()
        asyncio.get_running_loop().call_later(0.02, held.release.set)
    assert seen == [False, True]


async def test_a_step_that_does_not_end_in_time_is_cut_off_and_its_run_returned(lab: Lab) -> None:
    ended: list[str] = []

    async def stubborn() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def body(ctx: andon.Context) -> None:
        await ctx.step(stubborn)

    one = agent(body)
    began = time.monotonic()
    async with lab.working(one, grace_seconds=0.05) as worker:
        run = await lab.client.start(one)
        await until(lambda: any(a.exit.hands for a in worker.attempts.values()))
    assert time.monotonic() - began < 5
    assert ended == ["cancelled"]
    assert lab.store.run(run).state == "queued"


async def test_a_worker_with_a_running_thread_does_not_report_that_it_is_gone(lab: Lab) -> None:
    """Its effect may still happen: other workers may only take it for silent."""
    go, begun = threading.Event(), threading.Event()

    def pay() -> None:
        begun.set()
        go.wait(30)

    async def body(ctx: andon.Context) -> None:
        await ctx.effect(pay, probe=andon.did_not_happen)

    one = agent(body)
    async with lab.working(one, grace_seconds=0.05) as worker:
        run = await lab.client.start(one)
        await until(begun.is_set)
    try:
        [row] = [row for row in lab.store.workers() if row.id == worker.worker_id]
        assert row.state == "live"
        if lab.url.startswith("sqlite"):
            assert not lab.store.is_free(row)
        async with lab.working(one):
            await lab.asked(run)  # not probed
    finally:
        go.set()


async def test_a_worker_whose_code_cannot_be_cancelled_does_not_report_that_it_is_gone(
    local: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("andon.runtime.attempt.attempt.UNWIND_SECONDS", 0.02)
    go, begun = asyncio.Event(), asyncio.Event()

    async def immortal() -> None:
        begun.set()
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    async def body(ctx: andon.Context) -> None:
        await ctx.effect(immortal)

    one = agent(body)
    async with local.working(one, grace_seconds=0.05) as worker:
        await local.client.start(one)
        await begun.wait()
    assert worker.worker_id in [row.id for row in local.store.workers()]
    assert "cannot be cancelled" in caplog.text
    go.set()
    await until(lambda: not worker.in_threads)


# ── cleanup ───────────────────────────────────────────────────────────────────────────────────────


async def test_cleanups_run_once_each_the_last_first_and_an_error_stops_none(
    local: Lab, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("andon.runtime.worker.cleanup.CLEANUP_SECONDS", 0.05)
    order: list[str] = []

    async def late(name: str) -> None:
        await asyncio.sleep(0)
        order.append(name)

    async def never() -> None:
        await asyncio.sleep(60)

    def broken() -> None:
        order.append("broken")
        raise RuntimeError("cannot clean")

    def left() -> None:
        order.append("left")
        raise SystemExit(1)

    async def body(ctx: andon.Context) -> None:
        ctx.cleanup(order.append, "first")
        ctx.cleanup(late, "second")
        ctx.cleanup(broken)
        ctx.cleanup(never)
        ctx.cleanup(left)
        ctx.cleanup(order.append, "last")
        order.append("body")

    async with local.working(agent(body)):
        run = await local.client.start("agent")
        await local.end(run)
        await until(lambda: "first" in order)
    assert order == ["body", "last", "left", "broken", "second", "first"]
    assert caplog.text.count("a cleanup failed") == 2
    assert "did not end within 0.1 s" in caplog.text


@pytest.mark.parametrize("ending", ["fails", "suspends", "diverges"])
async def test_a_cleanup_runs_however_the_attempt_ends(local: Lab, ending: str) -> None:
    order: list[str] = []

    async def body(ctx: andon.Context) -> None:
        ctx.cleanup(order.append, "cleaned")
        match ending:
            case "fails":
                raise ValueError("no")
            case "suspends":
                await ctx.event("never")
            case _:
                await ctx.effect(str, 1, key="k")
                await ctx.effect(str, 2, key="k")

    async with local.working(agent(body)):
        run = await local.client.start("agent")
        await local.reach(run, {"fails": "failed", "suspends": "suspended"}.get(ending, "stranded"))
        await until(lambda: order)
    assert order == ["cleaned"]


# ── failures ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_store_that_is_away_when_a_run_ends_does_not_keep_the_run_for_ever(
    local: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker's patience ends; when the store is back the run is returned and continues."""
    calls: list[int] = []
    away = False

    async def body(ctx: andon.Context) -> str:
        nonlocal away
        calls.append(ctx.attempt)
        away = ctx.attempt == 1
        return "over"

    one = agent(body)
    async with local.working(one, patience_seconds=0.05, lease_seconds=600) as worker:
        write = worker.store._write

        def flaky(batch: Any) -> Any:
            if away:
                raise StoreUnavailable("away")
            return write(batch)

        worker.store._write = flaky
        run = await local.client.start(one)
        await until(lambda: "given up here" in caplog.text)
        away = False
        assert await local.result(run) == "over"
    assert calls == [1, 2]


async def test_a_store_that_cannot_be_read_interrupts_a_run_and_does_not_fail_it(
    local: Lab,
) -> None:
    text = "x" * 100_000
    away = True

    async def body(ctx: andon.Context) -> int:
        found = await ctx.step(lambda: text, name="large")
        await ctx.event("go")
        return len(found)

    async with local.working(agent(body)) as worker:
        blob = worker.store.blob

        def flaky(name: str) -> Any:
            nonlocal away
            if away:
                away = False
                raise StoreUnavailable("away")
            return blob(name)

        worker.store.blob = flaky
        run = await local.client.start("agent")
        assert await local.replayed(run) == 100_000
    assert local.store.run(run).failures == 0
    assert not away


async def test_a_bug_in_andon_names_its_run_and_spares_the_others(
    local: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(ctx: andon.Context, n: int) -> int:
        return n

    def broken(attempt: Any, outcome: Any, failure: Any) -> Any:
        if outcome and outcome[1] == b"13":
            raise ZeroDivisionError("a bug")
        return settlement(attempt, outcome, failure)

    from andon.runtime.attempt import settlement as settling

    settlement = settling.settlement
    monkeypatch.setattr(settling, "settlement", broken)
    async with local.working(agent(body)):
        bad = await local.end(await local.client.start("agent", 13))
        assert await local.result(await local.client.start("agent", 14)) == 14
    assert bad.state == "stranded"
    assert bad.error is not None
    assert bad.error["message"] == "a bug"
    assert "could not settle" in caplog.text


async def test_a_worker_claims_again_after_a_claim_failed(
    local: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(ctx: andon.Context) -> str:
        return "over"

    async with local.working(agent(body), poll_seconds=0.02) as worker:
        messages = worker._deliver_messages
        failures: list[int] = []

        async def broken() -> None:
            failures.append(1)
            if len(failures) < 3:
                raise ZeroDivisionError("a bug")
            await messages()

        worker._deliver_messages = broken  # type: ignore[method-assign]
        worker.wake()
        await until(lambda: len(failures) >= 3)
        assert await local.result(await local.client.start("agent")) == "over"
    assert "failed to claim" in caplog.text


async def test_a_dead_workers_runs_are_taken_at_once(lab: Lab) -> None:
    held = Held()

    async def body(ctx: andon.Context) -> str:
        await ctx.step(held.here)
        return "over"

    one = agent(body)
    async with lab.working(one, lease_seconds=600) as lost:
        run = await lab.client.start(one)
        await held.reached.wait()
        async with lab.working(one, lease_seconds=600) as survivor:
            began = time.monotonic()
            declare_lost(survivor, lost)
            assert await lab.result(run) == "over"
            assert time.monotonic() - began < 5
        held.release.set()


async def test_invalid_settings_are_refused() -> None:
    from andon.settings import load

    with pytest.raises(BadInput):
        load({"concurrency": 0})
    assert Settings().concurrency == 10
