"""Waits for a time, an event or a person; a waiting run holds no resources."""

import asyncio
import gc
import tracemalloc
from typing import Any

import pytest
from tests.runtime.harness import Lab, agent, until

import andon
from andon.errors import BadInput, Conflict, NotFound
from andon.runtime.requests import requests
from andon.store.store import Start

# ── time ──────────────────────────────────────────────────────────────────────────────────────────


async def test_a_short_sleep_stays_in_memory(local: Lab) -> None:
    async def body(ctx: andon.Context) -> str:
        await ctx.sleep(0.05)
        return "slept"

    async with local.working(agent(body)):
        run = await local.client.start("agent")
        assert await local.result(run) == "slept"
    assert [row.ending for row in local.store.attempts(run)] == ["succeeded"]


async def test_a_long_sleep_is_suspended_and_woken_in_time(lab: Lab) -> None:
    async def body(ctx: andon.Context) -> float:
        before = ctx.now()
        await ctx.sleep(1.1)
        return (ctx.now() - before).total_seconds()

    async with lab.working(agent(body)) as worker:
        run = await lab.client.start("agent")
        await lab.reach(run, "suspended")
        await until(lambda: not worker.attempts)
        slept = await lab.result(run)
    assert 1.1 <= slept < 2.0
    assert [row.ending for row in lab.store.attempts(run)] == ["suspended", "succeeded"]


async def test_a_sleep_survives_the_worker_that_began_it(lab: Lab) -> None:
    async def body(ctx: andon.Context) -> str:
        await ctx.sleep(1.1)
        return "slept"

    one = agent(body)
    async with lab.working(one):
        run = await lab.client.start(one)
        await lab.reach(run, "suspended")
    async with lab.working(one):
        assert await lab.result(run) == "slept"


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "1", None])
async def test_a_sleep_of_no_length_is_refused(local: Lab, seconds: Any) -> None:
    async def body(ctx: andon.Context) -> str:
        try:
            await ctx.sleep(float(seconds) if isinstance(seconds, str) else seconds)
        except andon.Refused as error:
            return type(error).__name__
        return "slept"

    async with local.working(agent(body)):
        found = await local.result(await local.client.start("agent"))
    assert found == ("slept" if seconds == "1" else "BadInput")


async def test_a_wait_of_days_beside_a_busy_branch_does_not_end_early(
    local: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timers are limited to a day; one that fires early does not end the wait."""
    monkeypatch.setattr("andon.runtime.attempt.waits.DAY_SECONDS", 0.01)
    go = asyncio.Event()

    async def work() -> None:
        await go.wait()

    async def body(ctx: andon.Context) -> str:
        waiting = asyncio.create_task(ctx.sleep(3 * 86_400))
        await ctx.step(work)
        return f"{waiting.done()}"

    async with local.working(agent(body)):
        run = await local.client.start("agent")
        await asyncio.sleep(0.1)
        go.set()
        assert await local.result(run) == "False"


# ── events ────────────────────────────────────────────────────────────────────────────────────────


async def two_events(ctx: andon.Context) -> list[Any]:
    return [await ctx.event("word"), await ctx.event("word")]


async def test_events_are_taken_in_the_order_in_which_they_were_sent(lab: Lab) -> None:
    one = agent(two_events)
    run = await lab.client.start(one)
    await lab.client.send(run, "word", "before")  # no code waits for it yet
    async with lab.working(one):
        await lab.reach(run, "suspended")
        await lab.client.send(run, "other", "not for it")
        await lab.client.send(run, "word", "after")
        assert await lab.result(run) == ["before", "after"]


async def test_an_event_with_an_id_is_sent_once(lab: Lab) -> None:
    one = agent(two_events)
    async with lab.working(one):
        run = await lab.client.start(one)
        assert await lab.client.send(run, "word", 1, id="m-1")
        assert not await lab.client.send(run, "word", 2, id="m-1")
        await lab.reach(run, "suspended")
        assert await lab.client.send(run, "word", 3, id="m-2")
        assert await lab.result(run) == [1, 3]


async def test_an_event_that_does_not_come_is_unresolved_now_and_on_replay(lab: Lab) -> None:
    seen: list[str] = []

    async def body(ctx: andon.Context) -> str:
        try:
            await ctx.event("never", timeout=0.05)
        except andon.Unresolved as error:
            seen.append(str(error))
        await ctx.event("go")
        return "over"

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        await lab.reach(run, "suspended")
        await lab.client.send(run, "never", "too late")
        assert await lab.replayed(run) == "over"
    assert len(seen) >= 2
    assert all("never" in text for text in seen)


async def test_an_event_that_comes_while_the_run_is_being_suspended_is_not_lost(lab: Lab) -> None:
    async def body(ctx: andon.Context, count: int) -> int:
        return sum([await ctx.event("n") for _ in range(count)])

    async with lab.working(agent(body)):
        run = await lab.client.start("agent", 30)
        for n in range(30):
            await lab.client.send(run, "n", n)
            await asyncio.sleep(0.003 * (n % 4))  # sometimes it is suspended by then
        assert await lab.result(run) == sum(range(30))


async def test_one_event_is_never_taken_twice(local: Lab) -> None:
    """Messages are read while an earlier take of them is being committed."""
    go = asyncio.Event()

    async def body(ctx: andon.Context) -> list[Any]:
        other = asyncio.create_task(ctx.step(go.wait))  # keeps the run in memory
        found = [await ctx.event("n"), await ctx.event("n")]
        await other
        return found

    async with local.working(agent(body)) as worker:
        messages = worker.store.inbox
        stale: list[Any] = []

        def late(run_ids: list[str]) -> Any:
            if stale:
                return stale.pop()  # read before, arrived after the commit
            found = messages(run_ids)
            if found:
                stale.append(found)
            return found

        worker.store.inbox = late
        run = await local.client.start("agent")
        await until(lambda: any(attempt.waits.open for attempt in worker.attempts.values()))
        await local.client.send(run, "n", 1)
        await until(lambda: stale)
        worker.wake()
        await until(lambda: not stale)
        worker.store.inbox = messages
        await local.client.send(run, "n", 2)
        await until(lambda: not any(attempt.waits.open for attempt in worker.attempts.values()))
        go.set()
        assert await local.result(run) == [1, 2]


async def test_an_event_for_an_abandoned_wait_stays_for_the_next_one(local: Lab) -> None:
    async def body(ctx: andon.Context) -> Any:
        waiting = asyncio.create_task(ctx.event("word"))
        await asyncio.sleep(0.02)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await ctx.step(str, "between")
        return await ctx.event("word")

    async with local.working(agent(body)):
        run = await local.client.start("agent")
        await until(lambda: any(e.name == "str" for e in local.store.journal(run)))
        await local.client.send(run, "word", "kept")
        assert await local.result(run) == "kept"


async def test_a_finished_run_takes_no_events(lab: Lab) -> None:
    async def body(ctx: andon.Context) -> None: ...

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        await lab.end(run)
    with pytest.raises(andon.Refused, match="succeeded"):
        await lab.client.send(run, "word")
    with pytest.raises(NotFound):
        await lab.client.send("nobody", "word")


# ── asks ──────────────────────────────────────────────────────────────────────────────────────────


async def asking(ctx: andon.Context) -> list[Any]:
    answer = await ctx.ask("Refund?", {"amount": 120})
    await ctx.event("go")
    return [answer.decision, answer.value, answer.by, answer.approved]


@pytest.mark.parametrize(
    ("decision", "given", "value", "approved"),
    [
        ("approve", None, {"amount": 120}, True),
        ("edit", {"amount": 90}, {"amount": 90}, True),
        ("reject", None, None, False),
        ("respond", "Ask again on Monday", "Ask again on Monday", False),
    ],
)
async def test_a_person_answers_an_ask(
    lab: Lab, decision: str, given: Any, value: Any, approved: bool
) -> None:
    async with lab.working(agent(asking)):
        run = await lab.client.start("agent")
        ask = await lab.asked(run)
        assert (ask.about, ask.question, ask.value) == ("value", "Refund?", '{"amount":120}')
        await lab.client.answer(run, decision, given, by="kim")
        await until(lambda: not lab.store.asks(run))
        await lab.waits_for(run, "event")
        assert await lab.replayed(run) == [decision, value, "kim", approved]


@pytest.mark.parametrize(
    ("decision", "given"),
    [("approve", 5), ("reject", "no"), ("edit", None), ("respond", None), ("happened", None)],
)
async def test_an_invalid_answer_is_refused_and_the_ask_stays_open(
    local: Lab, decision: str, given: Any
) -> None:
    async with local.working(agent(asking)):
        run = await local.client.start("agent")
        await local.asked(run)
        with pytest.raises(BadInput):
            await local.client.answer(run, decision, given)
        await local.asked(run)


async def test_an_ask_is_answered_once(lab: Lab) -> None:
    one = agent(asking)
    async with lab.working(one):
        run = await lab.client.start(one)
        ask = await lab.asked(run)
    await lab.client.answer(run, "approve", by="first")
    with pytest.raises(NotFound, match="no open ask"):
        await lab.client.answer(run, "reject", by="second")
    # Two people at the same instant: the store decides, not the check before the answer.
    lab.store.asks = lambda *_, **__: [ask]
    with pytest.raises(Conflict, match="answered or has expired"):
        requests.answer(lab.store, run, "reject", by="third")
    del lab.store.asks
    async with lab.working(one):
        assert (await lab.replayed(run))[2] == "first"


async def test_an_ask_that_expires_is_unresolved_and_closed(lab: Lab) -> None:
    async def body(ctx: andon.Context) -> str:
        try:
            await ctx.ask("Quick?", expires=0.05)
        except andon.Unresolved:
            found = "nobody"
        await ctx.event("go")
        return found

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        await lab.reach(run, "suspended")
        assert lab.store.asks(run) == []
        with pytest.raises(NotFound):
            await lab.client.answer(run, "approve")
        assert await lab.replayed(run) == "nobody"


async def test_two_open_asks_are_answered_by_their_ids(lab: Lab) -> None:
    async def body(ctx: andon.Context) -> list[Any]:
        both = await asyncio.gather(ctx.ask("One?", 1), ctx.ask("Two?", 2, key="two"))
        return [answer.value for answer in both]

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        await lab.reach(run, "suspended")
        first, second = sorted(lab.store.asks(run), key=lambda ask: ask.question)
        with pytest.raises(BadInput, match="2 open asks"):
            await lab.client.answer(run, "approve")
        await lab.client.answer(run, "edit", 20, ask=second.id)
        await lab.client.answer(run, "approve", ask=first.id)
        assert await lab.result(run) == [1, 20]


async def test_concurrent_uses_of_one_key_are_one_ask_and_one_child(lab: Lab) -> None:
    @andon.agent
    async def child(ctx: andon.Context) -> Any:
        return await ctx.event("word")

    async def body(ctx: andon.Context) -> list[Any]:
        asks = [ctx.ask("One?", 1, key="k") for _ in range(2)]
        children = [ctx.child(child, key="k") for _ in range(2)]
        answers, results = await asyncio.gather(asyncio.gather(*asks), asyncio.gather(*children))
        return [[answer.value for answer in answers], list(results)]

    one = agent(body)
    async with lab.working(one, child) as worker:
        run = await lab.client.start(one)
        await lab.asked(run)  # one, and the run is suspended over it
        await until(lambda: not worker.attempts)
        await lab.client.answer(run, "approve")
        [started] = await lab.client.list(agent="child")
        await lab.client.send(started.id, "word", "said")
        assert await lab.result(run) == [[1, 1], ["said", "said"]]


async def test_an_ask_with_a_key_may_be_put_again_after_a_snapshot(lab: Lab) -> None:
    async def body(ctx: andon.Context) -> list[Any]:
        found = ctx.restored or []
        while len(found) < 2:
            answer = await ctx.ask("Go on?", key="go on")
            found = [*found, answer.by]
            await ctx.snapshot(found)
        return list(found)

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        for who in ("a", "b"):
            await until(lambda: lab.store.asks(run))
            await lab.client.answer(run, "approve", by=who)
        assert await lab.result(run) == ["a", "b"]


async def test_an_answer_that_comes_while_another_branch_works_is_taken_at_once(lab: Lab) -> None:
    calls: list[int] = []
    go = asyncio.Event()

    async def work(n: int) -> int:
        calls.append(n)
        if n == 1:
            await go.wait()
        return n

    async def body(ctx: andon.Context) -> list[Any]:
        async def busy() -> list[int]:
            return [await ctx.step(work, n) for n in range(3)]

        answer, worked = await asyncio.gather(ctx.ask("Well?"), busy())
        return [answer.decision, worked]

    async with lab.working(agent(body)) as worker:
        run = await lab.client.start("agent")
        await until(lambda: len(calls) == 2 and lab.store.asks(run))
        await lab.client.answer(run, "approve")
        [attempt] = worker.attempts.values()
        await until(lambda: not attempt.waits.open)  # it is taken although the other branch works
        go.set()
        assert await lab.result(run) == ["approve", [0, 1, 2]]
    assert calls == [0, 1, 2]
    assert [row.ending for row in lab.store.attempts(run)] == ["succeeded"]


async def test_a_question_that_no_database_can_store_is_refused(local: Lab) -> None:
    async def body(ctx: andon.Context) -> str:
        for text in ("nul\0", "\udcff"):
            try:
                await ctx.ask(text)
            except andon.Refused:
                continue
            return "asked"
        return str(await ctx.step(str, "goes on"))

    async with local.working(agent(body)):
        assert await local.result(await local.client.start("agent")) == "goes on"


# ── no resources held ─────────────────────────────────────────────────────────────────────────────


async def test_a_run_that_only_joins_waiting_branches_is_suspended(local: Lab) -> None:
    async def first_of(ctx: andon.Context) -> None:
        tasks = [asyncio.create_task(ctx.event(name)) for name in ("a", "b")]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)

    async def in_a_group(ctx: andon.Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.event("a"))
            group.create_task(ctx.sleep(3600))

    async def late(ctx: andon.Context) -> None:
        task = asyncio.create_task(ctx.event("a"))
        await asyncio.sleep(0.05)  # no operation of andon follows this
        await task

    agents = [andon.agent(one) for one in (first_of, in_a_group, late)]
    async with local.working(*agents) as worker:
        runs = [await local.client.start(one) for one in agents]
        for run in runs:
            await local.reach(run, "suspended")
        await until(lambda: not worker.attempts)


async def test_suspended_runs_hold_neither_memory_nor_attempts(local: Lab) -> None:
    async def body(ctx: andon.Context, text: str) -> None:
        await ctx.ask(text)

    one = agent(body)

    async def suspend(count: int) -> int:
        runs = [requests.prepare(local.store, one, ("x" * 1000,)) for _ in range(count)]
        local.store.write([Start(run=run) for run in runs])  # one commit, not hundreds
        runs.clear()
        async with asyncio.timeout(40):
            while len(local.store.asks()) < count + before:
                await asyncio.sleep(0.05)
        await until(lambda: not worker.attempts)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    async with local.working(one, concurrency=50) as worker:
        before = 0
        tracemalloc.start()
        try:
            first = await suspend(50)
            before = 50
            last = await suspend(350)
        finally:
            tracemalloc.stop()
        assert not worker.attempts
        assert not worker.active
    # Each holds a thousand characters at least twice while it runs.
    assert last - first < 200_000
