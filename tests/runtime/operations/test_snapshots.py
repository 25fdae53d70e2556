"""Snapshots: replay begins at the last one, and nothing before it is executed again."""

import asyncio
from typing import Any

import pytest
from tests.runtime.harness import Held, Lab, agent, declare_lost

import andon
from andon.store.writer.writer import Writer


async def counting(ctx: andon.Context, rounds: int) -> list[int]:
    done: list[int] = ctx.restored or []
    while len(done) < rounds:
        if len(done) == rounds - 1:
            await ctx.event("go")
        done = [*done, await ctx.step(executed, len(done))]
        await ctx.snapshot(done)
    return done


calls: list[int] = []


async def executed(n: int) -> int:
    calls.append(n)
    return n


async def test_replay_begins_at_the_last_snapshot(lab: Lab) -> None:
    calls.clear()
    async with lab.working(agent(counting)):
        run = await lab.client.start("agent", 20)
        await lab.reach(run, "suspended")
        loaded = lab.store.load(run)
        assert len(loaded.entries) <= 2  # not the nineteen rounds before
        assert await lab.replayed(run) == list(range(20))
    assert calls == list(range(20))
    assert len(await lab.journal(run, "snapshot")) == 20


async def test_steps_between_a_snapshot_and_the_end_are_replayed(lab: Lab) -> None:
    calls.clear()

    async def body(ctx: andon.Context) -> list[Any]:
        state = ctx.restored
        if state is None:
            await ctx.step(executed, 0)
            state = {"phase": 1}
            ctx.snapshot(state)  # a call without await is enough: it is written in order
        found = [await ctx.step(executed, 1), await ctx.step(executed, 2)]
        await ctx.event("go")
        return [state, *found]

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        assert await lab.replayed(run) == [{"phase": 1}, 1, 2]
    assert calls == [0, 1, 2]


async def test_an_agent_that_ignores_its_snapshot_is_stranded_and_repeats_nothing(lab: Lab) -> None:
    calls.clear()
    held = Held()

    async def body(ctx: andon.Context) -> None:
        await ctx.step(executed, 1)
        await ctx.snapshot("after the step")
        await held.here()

    one = agent(body)
    async with lab.working(one) as lost:
        run = await lab.client.start(one)
        await held.reached.wait()
        async with lab.working(one) as survivor:
            declare_lost(survivor, lost)
            ended = await lab.end(run)
        held.release.set()
    assert ended.state == "stranded"
    assert ended.error is not None
    assert "ctx.restored" in ended.error["message"]
    assert calls == [1]


async def test_a_snapshot_at_another_place_than_in_the_journal_is_a_divergence(lab: Lab) -> None:
    calls.clear()

    async def body(ctx: andon.Context) -> None:
        if ctx.restored is None:
            await ctx.snapshot(1)
        await ctx.step(executed, 1)
        await ctx.event("go")

    async def changed(ctx: andon.Context) -> None:
        assert ctx.restored == 1
        await ctx.snapshot(2)
        await ctx.step(executed, 1)

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        await lab.reach(run, "suspended")
    async with lab.working(agent(changed)):
        await lab.client.send(run, "go")
        assert (await lab.end(run)).state == "stranded"
    assert calls == [1]


async def test_a_snapshot_beside_a_branch_or_inside_a_step_is_refused(local: Lab) -> None:
    async def body(ctx: andon.Context) -> list[str]:
        found = []

        async def within() -> str:
            try:
                await ctx.snapshot(1)
            except andon.Refused as error:
                return str(error)
            return "saved"

        found.append(await ctx.step(within))
        found.append(await asyncio.create_task(within()))
        waiting = asyncio.create_task(ctx.event("never"))
        found.append(await within())
        waiting.cancel()
        return found

    async with local.working(agent(body)):
        found = await local.result(await local.client.start("agent"))
    assert all("main code with no parallel branch" in text for text in found)


async def test_automatic_keys_of_effects_are_unique_across_snapshots(lab: Lab) -> None:
    keys: list[str] = []

    async def pay(n: int, *, key: str) -> None:
        keys.append(key)

    async def body(ctx: andon.Context) -> int:
        done: int = ctx.restored or 0
        while done < 5:
            if done == 3:
                await ctx.event("go")
            await ctx.effect(pay, done)
            await ctx.effect(pay, done)
            done += 1
            await ctx.snapshot(done)
        return done

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        assert await lab.replayed(run) == 5
    assert len(keys) == len(set(keys)) == 10
    assert len(lab.store.ledger(run)) == 10


async def test_the_key_of_an_effect_outlives_snapshots(lab: Lab) -> None:
    """In the attempt that made the snapshot, and in the one that begins at it."""
    paid: list[str] = []

    async def pay(order: str) -> str:
        paid.append(order)
        return f"{order} paid"

    async def body(ctx: andon.Context) -> list[str]:
        found: list[str] = ctx.restored or []
        if not found:
            found = [await ctx.effect(pay, "o-1", key="o-1")]
            await ctx.snapshot(found)
            found = [*found, await ctx.effect(pay, "o-1", key="o-1")]
            await ctx.snapshot(found)
        await ctx.event("go")
        return [*found, await ctx.effect(pay, "o-1", key="o-1")]

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        assert await lab.replayed(run) == ["o-1 paid"] * 3
    assert paid == ["o-1"]


async def test_the_ledger_is_read_once_however_often_the_state_is_saved(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It grows with the run: to read it at each snapshot would cost more and more."""
    paid: list[int] = []
    turns = 6

    async def pay(order: int) -> int:
        paid.append(order)
        return order

    async def body(ctx: andon.Context) -> list[int]:
        for order in range(len(ctx.restored or []), turns):
            async with ctx.together():
                await ctx.effect(pay, order, key=str(order))
                await ctx.snapshot([*range(order + 1)])
                await ctx.effect(pay, order, key=str(order))
        await ctx.event("go")
        return [await ctx.effect(pay, order, key=str(order)) for order in range(turns)]

    async with lab.working(agent(body)) as worker:
        reads: list[str] = []
        ledger = worker.store.ledger

        def counted(run: str) -> Any:
            reads.append(run)
            return ledger(run)

        monkeypatch.setattr(worker.store, "ledger", counted)
        run = await lab.client.start("agent")
        await lab.reach(run, "suspended")
        assert len(reads) == 1
        assert await lab.replayed(run) == [*range(turns)]
    assert paid == [*range(turns)]


async def test_the_key_of_a_step_is_always_forgotten_at_a_snapshot(lab: Lab) -> None:
    """Not only by the attempts that begin there: else a replay would differ from the first run."""
    calls.clear()

    async def body(ctx: andon.Context) -> list[int]:
        if ctx.restored is None:
            await ctx.step(executed, 1, key="k")
            await ctx.snapshot("s")
        again = await ctx.step(executed, 1, key="k")
        await ctx.event("go")
        return [again]

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        assert await lab.replayed(run) == [1]
    assert calls == [1, 1]


def message(n: int) -> dict[str, str]:
    return {"role": "user", "content": f"{n:04} " * 200}


async def talking(ctx: andon.Context, length: int) -> Any:
    state = ctx.restored or {"goal": "buy", "messages": []}
    while len(state["messages"]) < length:
        state["messages"].append(message(len(state["messages"])))
        await ctx.snapshot(state)
        assert ctx.restored == state
    await ctx.event("go")
    return [ctx.restored["goal"], ctx.restored["messages"] == [message(n) for n in range(length)]]


def blobs_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every blob that is submitted to a writer from now on."""
    found: list[str] = []
    before = Writer.submit

    def submit(writer: Writer, message: Any) -> Any:
        found.extend(blob.body for blob in getattr(message, "blobs", ()))
        return before(writer, message)

    monkeypatch.setattr(Writer, "submit", submit)
    return found


async def test_a_conversation_that_is_snapshotted_at_each_turn_is_stored_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = blobs_of(monkeypatch)
    async with lab.working(agent(talking)):
        run = await lab.client.start("agent", 130)
        await lab.reach(run, "suspended")
        assert sum(map(len, written)) < 3 * 130 * 1000  # each message, and again in its block
        assert await lab.replayed(run) == ["buy", True]
    assert [entry.name for entry in await lab.journal(run, "snapshot")][5:] == ["parts"] * 125


async def test_a_snapshot_in_parts_continues_in_parts_after_a_crash(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lab.working(agent(talking)):
        run = await lab.client.start("agent", 40)
        await lab.reach(run, "suspended")

    async def longer(ctx: andon.Context, length: int) -> Any:
        if len(ctx.restored["messages"]) == length:
            await ctx.event("go")
        return await talking(ctx, length + 1)

    async with lab.working(agent(longer)):
        written = blobs_of(monkeypatch)
        await lab.client.send(run, "go")
        assert await lab.replayed(run) == ["buy", True]
    assert [body.count("0040") > 0 for body in written] == [True]
