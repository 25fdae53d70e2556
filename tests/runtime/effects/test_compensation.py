"""A run that goes no further has its effects undone, the last one first."""

import asyncio
import threading
from typing import Any

import pytest
from tests.runtime.harness import Held, Lab, agent, declare_lost, until

import andon
from andon.core.queue import Retry
from andon.errors import BadInput
from andon.runtime.agent import Agent
from andon.runtime.effects import compensation, in_doubt
from andon.runtime.operations import calls
from andon.runtime.requests import requests
from andon.store.store import Claim

world: list[str] = []
broken: set[str] = set()


@pytest.fixture(autouse=True)
def clean_world() -> None:
    world.clear()
    broken.clear()


def take_back(result: Any, what: str, *, key: str) -> None:
    if what in broken:
        raise OSError("the bank is closed")
    world.append(f"undo {what} {result} {key}")


@andon.effect_of(undo=take_back)
async def pay(what: str) -> str:
    world.append(f"pay {what}")
    return f"paid-{what}"


@andon.effect_of(undo=take_back, undo_within=0.01)
async def pay_for_a_while(what: str) -> str:
    world.append(f"pay {what}")
    return f"paid-{what}"


UNDONE = ["undo b paid-b B", "undo a paid-a A"]


async def test_a_run_that_fails_undoes_its_effects_the_last_first(lab: Lab) -> None:
    async def body(ctx: andon.Context) -> None:
        await ctx.effect(pay, "a", key="A")
        await ctx.effect(pay, "b", key="B")
        raise ValueError("no further")

    async with lab.working(agent(body)):
        run = await lab.end(await lab.client.start("agent"))
    assert (run.state, (run.error or {})["type"]) == ("failed", "ValueError")
    assert world == ["pay a", "pay b", *UNDONE]
    assert {row.state for row in lab.store.ledger(run.id)} == {"compensated"}
    assert not lab.store.obligations()


async def test_a_run_that_fails_with_nothing_to_undo_just_fails(local: Lab) -> None:
    async def body(ctx: andon.Context) -> None:
        raise ValueError("no further")

    async with local.working(agent(body)):
        run = await local.end(await local.client.start("agent"))
    kinds = [entry.kind for entry in requests.journal(local.store, run.id)]
    assert kinds == ["start", "end"]


async def test_a_run_that_may_retry_undoes_nothing_until_its_retries_ran_out(local: Lab) -> None:
    tries: list[int] = []

    async def body(ctx: andon.Context) -> None:
        await ctx.effect(pay, "a", key="A")
        tries.append(len(world))
        raise ValueError("no further")

    async with local.working(agent(body, retries=Retry(2, first_seconds=0.01))):
        run = await local.end(await local.client.start("agent"))
    assert run.state == "dead"
    assert tries == [1, 1, 1], "nothing was undone in between"
    assert world == ["pay a", "undo a paid-a A"]


async def test_a_result_that_cannot_be_stored_fails_the_run_and_undoes_its_effects(
    local: Lab,
) -> None:
    async def body(ctx: andon.Context) -> object:
        await ctx.effect(pay, "a", key="A")
        return object()

    async with local.working(agent(body)):
        run = await local.end(await local.client.start("agent"))
    assert run.state == "failed"
    assert world == ["pay a", "undo a paid-a A"]


async def test_an_undo_without_a_name_is_found_by_rehearsing_the_code(lab: Lab) -> None:
    held = asyncio.Event()

    async def body(ctx: andon.Context) -> None:
        for what in ("a", "b"):
            key = what.upper()
            undo = lambda result, w, key: take_back(result, w, key=key)  # noqa: E731
            await ctx.effect(pay, what, key=key, undo=undo)
        await ctx.event("never")

    async with lab.working(agent(body)):
        run_id = await lab.client.start("agent")
        await lab.reach(run_id, "suspended")
    assert {one.undo for one in lab.store.obligations(run_id)} == {calls.NAMELESS}
    await asyncio.to_thread(requests.compensate, lab.store, run_id, why="a wrong goal")
    async with lab.working(agent(body)):
        run = await lab.end(run_id)
    assert (run.state, (run.error or {})["message"]) == ("cancelled", "a wrong goal")
    assert world == ["pay a", "pay b", *UNDONE]
    assert not held.is_set()


async def test_effects_of_an_earlier_attempt_are_undone_if_the_code_fails_before_them(
    lab: Lab,
) -> None:
    tries: list[int] = []

    async def body(ctx: andon.Context) -> None:
        tries.append(ctx.attempt)
        if len(tries) > 1:
            raise OSError("no way in any more")
        await ctx.effect(pay, "a", key="A")
        raise ValueError("try again")

    async with lab.working(agent(body, retries=Retry(1, first_seconds=0.01))):
        run = await lab.end(await lab.client.start("agent"))
    assert run.state == "dead"
    assert world == ["pay a", "undo a paid-a A"]


async def test_a_run_that_ends_before_it_learns_of_its_compensation_is_undone(lab: Lab) -> None:
    going, let_go = asyncio.Event(), asyncio.Event()

    async def step() -> None:
        going.set()
        await let_go.wait()

    async def body(ctx: andon.Context) -> None:
        await ctx.effect(pay, "a", key="A")
        await ctx.step(step)

    async with lab.working(agent(body)):
        run_id = await lab.client.start("agent")
        await going.wait()
        await asyncio.to_thread(requests.compensate, lab.store, run_id)
        let_go.set()
        await lab.reach_after_end(run_id, "cancelled")
    assert world == ["pay a", "undo a paid-a A"]


async def test_a_sync_undo_that_does_not_end_in_time_is_not_started_again(
    local: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compensation, "RETRY", Retry(3, first_seconds=0.01))
    monkeypatch.setattr(compensation, "UNDO_SECONDS", 0.05)
    begun, let_go = [], threading.Event()

    def hang(result: Any, what: str) -> None:
        begun.append(what)
        let_go.wait(30)

    async def body(ctx: andon.Context) -> None:
        await ctx.effect(pay, "a", key="A", undo=hang)
        raise ValueError("no further")

    async with local.working(agent(body)):
        run_id = await local.client.start("agent")
        ask = await local.asked(run_id)
        assert begun == ["a"], "it may still be acting"
        let_go.set()
    assert ask.about == "undo"


async def test_undo_within_needs_an_undo_and_a_positive_time() -> None:
    with pytest.raises(BadInput, match="undo_within"):
        andon.effect_of(undo_within="2h")
    for wrong in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(BadInput, match="undo_within"):
            andon.effect_of(undo=take_back, undo_within=wrong)


async def test_a_run_that_waits_for_its_next_retry_is_not_overdue(lab: Lab) -> None:
    async def body(ctx: andon.Context) -> None:
        await ctx.effect(pay_for_a_while, "a", key="A")
        raise ValueError("try again")

    async with lab.working(agent(body, retries=Retry(1, first_seconds=600))):
        run_id = await lab.client.start("agent")
        await until(lambda: lab.store.run(run_id).failures == 1)
        row = lab.store.run(run_id)
    assert row.undo_at > row.available_at


async def test_effects_from_before_a_snapshot_are_undone_too(lab: Lab) -> None:
    async def body(ctx: andon.Context) -> None:
        if ctx.restored is None:
            await ctx.effect(pay, "a", key="A")
            await ctx.snapshot({"paid": "a"})
        await ctx.effect(pay, "b", key="B")
        await ctx.event("go")
        raise ValueError("no further")

    async with lab.working(agent(body)):
        run_id = await lab.client.start("agent")
        await lab.reach(run_id, "suspended")
        await lab.client.send(run_id, "go")
        await lab.end(run_id)
    assert world == ["pay a", "pay b", *UNDONE]


async def test_a_running_run_is_returned_at_its_next_boundary_and_undone(lab: Lab) -> None:
    going, let_go = asyncio.Event(), asyncio.Event()

    async def step() -> None:
        going.set()
        await let_go.wait()

    async def body(ctx: andon.Context) -> None:
        await ctx.effect(pay, "a", key="A")
        await ctx.step(step)
        await ctx.effect(pay, "b", key="B")

    async with lab.working(agent(body)) as worker:
        run_id = await lab.client.start("agent")
        await going.wait()
        await asyncio.to_thread(requests.compensate, lab.store, run_id)
        await until(lambda: worker.attempts[run_id].exit.recalled)
        let_go.set()
        run = await lab.end(run_id)
    assert run.state == "cancelled"
    assert world == ["pay a", "undo a paid-a A"], "the step in hand ended, nothing began after it"


async def test_a_finished_run_can_be_undone(lab: Lab) -> None:
    async def body(ctx: andon.Context) -> str:
        return str(await ctx.effect(pay, "a", key="A"))

    async with lab.working(agent(body)):
        run = await lab.end(await lab.client.start("agent"))
        assert not lab.store.obligations(), "it succeeded: nothing is owed"
        await asyncio.to_thread(requests.compensate, lab.store, run.id)
        run = await lab.reach_after_end(run.id, "cancelled")
    assert world == ["pay a", "undo a paid-a A"]


async def test_a_run_that_is_not_resumed_in_time_is_undone_by_another_version(lab: Lab) -> None:
    async def body(ctx: andon.Context) -> None:
        await ctx.effect(pay_for_a_while, "a", key="A")
        await ctx.event("go")

    async with lab.working(agent(body)):
        run_id = await lab.client.start("agent")
        await lab.reach(run_id, "suspended")
    assert not [one for one in lab.store.obligations() if one.undo_at], (
        "the run itself chose to wait"
    )
    await lab.client.send(run_id, "go")
    [owed] = lab.store.obligations()
    assert owed.undo_at is not None

    async def other(ctx: andon.Context) -> None:
        raise AssertionError("its code is not called")

    async with lab.working(Agent(other, name="agent", version="2")):
        run = await lab.reach_after_end(run_id, "cancelled")
    assert world == ["pay a", "undo a paid-a A"]
    assert (run.error or {})["message"] == "it was not resumed in time"


@pytest.mark.parametrize("how", ["drained", "dead", "silent"])
async def test_the_run_of_a_lost_worker_is_undone_if_it_is_not_resumed_in_time(
    lab: Lab, how: str
) -> None:
    held = Held()

    async def body(ctx: andon.Context) -> None:
        await ctx.effect(pay_for_a_while, "a", key="A")
        await ctx.step(held.here)

    async def other(ctx: andon.Context) -> None:
        raise AssertionError("its code is not called")

    async with lab.working(agent(body), grace_seconds=0.3) as lost:
        run_id = await lab.client.start("agent")
        await held.reached.wait()
        assert [one.undo_at for one in lab.store.obligations()] == [None], (
            "another worker has claimed it"
        )
        if how != "drained":
            claim = Claim(worker_id="-", agents=(), limit=0, dead=((lost.worker_id, f"{how}:so"),))
            lab.store.write([claim])
            lost.tell("test")  # else it would start over and continue the run
            held.release.set()
    assert [one.undo_at is not None for one in lab.store.obligations()] == [True]
    async with lab.working(Agent(other, name="agent", version="2")):
        await lab.reach_after_end(run_id, "cancelled")
    assert world == ["pay a", "undo a paid-a A"]


async def test_the_delay_of_a_retry_does_not_count_against_the_undo_deadline(lab: Lab) -> None:
    async def body(ctx: andon.Context) -> None:
        await ctx.effect(pay_for_a_while, "a", key="A")
        raise ValueError("not yet")

    async with lab.working(agent(body, retries=Retry(1, first_seconds=3600))):
        run_id = await lab.client.start("agent")
        await until(lambda: lab.store.run(run_id).available_at > lab.store.now() + 60)
    [owed], row = lab.store.obligations(), lab.store.run(run_id)
    assert owed.undo_at is not None
    assert owed.undo_at > row.available_at
    assert world == ["pay a"]


async def test_a_run_that_is_resumed_in_time_continues(lab: Lab) -> None:
    async def body(ctx: andon.Context) -> str:
        await ctx.effect(pay, "a", key="A", undo=take_back, undo_within="2h")
        await ctx.event("go")
        return "done"

    async with lab.working(agent(body)):
        run_id = await lab.client.start("agent")
        await lab.reach(run_id, "suspended")
    await lab.client.send(run_id, "go")
    async with lab.working(agent(body)):
        assert await lab.result(run_id) == "done"
    assert world == ["pay a"]
    row = lab.store.run(run_id)
    assert (row.undo_at, row.undoing) == (None, None)


@pytest.mark.parametrize("decision", ["undone", "try_again", "leave"])
async def test_an_undo_that_keeps_failing_is_put_before_a_person(
    lab: Lab, decision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compensation, "RETRY", Retry(1, first_seconds=0.01))
    broken.add("b")

    async def body(ctx: andon.Context) -> None:
        await ctx.effect(pay, "a", key="A")
        await ctx.effect(pay, "b", key="B")
        raise ValueError("no further")

    async with lab.working(agent(body)):
        run_id = await lab.client.start("agent")
        await lab.reach(run_id, "suspended")
        [ask] = lab.store.asks(run_id)
        assert (ask.about, "the bank is closed" in ask.question) == ("undo", True)
        assert "undo a paid-a A" in world, "the others do not wait for it"
        broken.clear()
        await asyncio.to_thread(requests.answer, lab.store, run_id, decision)
        run = await lab.end(run_id)
    assert run.state == "failed"
    states = {row.key: row.state for row in lab.store.ledger(run_id)}
    assert states == {
        "A": "compensated",
        "B": "confirmed" if decision == "leave" else "compensated",
    }
    assert ("undo b paid-b B" in world) == (decision == "try_again")
    assert not lab.store.obligations(run_id)


async def test_an_undo_that_this_worker_does_not_have_is_put_before_a_person(
    local: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compensation, "RETRY", Retry(0))

    async def body(ctx: andon.Context) -> None:
        await ctx.effect(pay, "a", key="A", undo=lambda result, what, key: None)
        await ctx.event("go")

    async def other(ctx: andon.Context) -> None:
        await ctx.event("something else")

    async with local.working(agent(body)):
        run_id = await local.client.start("agent")
        await local.reach(run_id, "suspended")
    await asyncio.to_thread(requests.compensate, local.store, run_id)
    async with local.working(Agent(other, name="agent", version="2")):
        await local.reach(run_id, "suspended")
        [ask] = local.store.asks(run_id)
    assert "is not in the code of this worker" in ask.question


async def test_a_drain_in_the_middle_of_an_undo_hands_the_rest_over(lab: Lab) -> None:
    going, let_go = asyncio.Event(), asyncio.Event()

    async def slow(result: Any, what: str) -> None:
        going.set()
        await let_go.wait()
        world.append(f"undo {what}")

    async def body(ctx: andon.Context) -> None:
        await ctx.effect(pay, "a", key="A")
        await ctx.effect(pay, "b", key="B", undo=slow)
        raise ValueError("no further")

    async with lab.working(agent(body)) as worker:
        run_id = await lab.client.start("agent")
        await going.wait()
        worker.tell("test")
        let_go.set()
    assert world == ["pay a", "pay b", "undo b"], "the undo in hand ended, none began"
    async with lab.working(agent(body)):
        run = await lab.end(run_id)
    assert run.state == "failed"
    assert world == ["pay a", "pay b", "undo b", "undo a paid-a A"]


async def test_a_nameless_undo_of_a_run_that_failed_is_found_by_the_next_worker(lab: Lab) -> None:
    going = asyncio.Event()

    async def slow(result: Any, what: str) -> None:
        going.set()
        await asyncio.sleep(600)

    async def body(ctx: andon.Context) -> None:
        undo = lambda result, what, key: take_back(result, what, key=key)  # noqa: E731
        await ctx.effect(pay, "a", key="A", undo=undo)
        await ctx.effect(pay, "b", key="B", undo=take_back if going.is_set() else slow)
        raise ValueError("no further")

    async with lab.working(agent(body), grace_seconds=0.2):
        run_id = await lab.client.start("agent")
        await going.wait()
    async with lab.working(agent(body)):
        assert (await lab.end(run_id)).state == "failed"
    assert world == ["pay a", "pay b", *UNDONE]


async def test_an_ask_of_a_run_that_was_undone_is_closed(lab: Lab) -> None:
    async def body(ctx: andon.Context) -> None:
        await ctx.effect(pay, "a", key="A")
        await ctx.ask("Go on?")

    async with lab.working(agent(body)):
        run_id = await lab.client.start("agent")
        await lab.reach(run_id, "suspended")
        assert lab.store.asks(run_id)
        await asyncio.to_thread(requests.compensate, lab.store, run_id)
        await lab.reach_after_end(run_id, "cancelled")
    assert not lab.store.asks(run_id)


def test_only_a_function_can_be_an_undo() -> None:
    with pytest.raises(BadInput, match="expected a function"):
        andon.effect_of(undo="cancel")  # type: ignore[arg-type]


async def test_an_answer_given_before_the_run_waits_for_it_is_taken_and_the_effect_undone(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is cancelled, its effect is in doubt, and the answer comes before it is suspended."""
    held, before = Held(), in_doubt.ask_about_open
    answered: list[str] = []

    @andon.effect_of(undo=take_back)
    async def pay_slowly(what: str) -> str:
        await held.here()
        return await pay(what)

    async def body(ctx: andon.Context) -> None:
        await ctx.effect(pay, "b", key="B")
        await ctx.effect(pay_slowly, "a", key="A")

    async def ask_about_open(attempt: Any) -> bool:
        waits = await before(attempt)
        if attempt.run.undoing is not None and not answered:
            [ask] = lab.store.asks(attempt.run.id)
            answered.append(ask.id)
            await lab.client.answer(attempt.run.id, "happened", "paid-a", by="ana")
        return waits

    monkeypatch.setattr(in_doubt, "ask_about_open", ask_about_open)
    one = agent(body)
    async with lab.working(one) as lost:
        run = await lab.client.start(one)
        await held.reached.wait()
        async with lab.working(one) as survivor:
            declare_lost(survivor, lost, "silent:its lease ended")
            await lab.reach(run, "suspended")
            requests.compensate(lab.store, run, by="ana", why="wrong goal")
            await lab.reach_after_end(run, "cancelled")
        held.release.set()
    assert answered
    assert world[:3] == ["pay b", "undo b paid-b B", "undo a paid-a A"]
    assert lab.effects(run) == {"pay": "compensated", "pay_slowly": "compensated"}
