"""A run is migrated to another version only if that version's code fits its journal."""

import asyncio
import json
from typing import Any

import pytest
from tests.runtime.harness import Lab, by_thread, until

import andon
from andon.core.stop import StopKind
from andon.errors import AndonError, BadInput, IllegalTransition, NotFound
from andon.runtime.agent import Agent
from andon.runtime.requests import requests

executed: list[str] = []


@pytest.fixture(autouse=True)
def nothing_executed() -> None:
    executed.clear()


async def first(what: str) -> str:
    executed.append(what)
    return what


async def old(ctx: andon.Context) -> str:
    await ctx.step(first, "old")
    await ctx.event("go")
    return "old code"


async def fitting(ctx: andon.Context) -> str:
    await ctx.step(first, "old")
    await ctx.event("go")
    await ctx.step(first, "new")
    return "new code"


async def unfit(ctx: andon.Context) -> str:
    await ctx.step(first, "something else")
    return "never"


async def waiting(lab: Lab) -> str:
    """A run of the old version, suspended in its middle."""
    async with lab.working(Agent(old, name="agent", version="1")):
        run_id = await lab.client.start("agent")
        await lab.reach(run_id, "suspended")
    return run_id


async def test_a_run_is_migrated_to_code_that_fits_its_journal(lab: Lab) -> None:
    run_id = await waiting(lab)
    async with lab.working(Agent(fitting, name="agent", version="2")):
        await asyncio.to_thread(requests.migrate, lab.store, run_id, "2", by="me")
        await lab.reach(run_id, "suspended")
        assert executed == ["old"], "the trial executed nothing"
        await lab.client.send(run_id, "go")
        assert await lab.result(run_id) == "new code"
    assert executed == ["old", "new"]
    row = lab.store.run(run_id)
    assert (row.version, row.trial) == ("2", None)
    assert [one.ending for one in lab.store.attempts(run_id)][1] == "migrated"


async def test_a_run_keeps_its_version_if_the_new_code_does_not_fit(lab: Lab) -> None:
    run_id = await waiting(lab)
    async with lab.working(
        Agent(unfit, name="agent", version="2"), Agent(old, name="agent", version="1")
    ):
        await asyncio.to_thread(requests.migrate, lab.store, run_id, "2")
        await lab.client.send(run_id, "go")
        assert await lab.result(run_id) == "old code"
    assert executed == ["old"]
    assert [one.ending for one in lab.store.attempts(run_id)][1] == "refused"


@pytest.mark.parametrize("code", [fitting, unfit])
async def test_a_paused_run_stays_paused_whichever_version_it_is_on(lab: Lab, code: Any) -> None:
    run_id = await waiting(lab)
    await asyncio.to_thread(requests.order, lab.store, StopKind.PAUSE, run_id, by="ana")
    before = lab.store.run(run_id)
    assert before.state == "paused"
    async with lab.working(
        Agent(code, name="agent", version="2"), Agent(old, name="agent", version="1")
    ):
        await asyncio.to_thread(requests.migrate, lab.store, run_id, "2")
        await until(lambda: lab.store.run(run_id).trial is None)
        after = lab.store.run(run_id)
        assert after.state == "paused"
        if code is fitting:
            assert (after.version, after.error) == ("2", before.error)
        else:
            assert after.version == "1"
            assert "Diverged" in after.error
        await asyncio.to_thread(requests.resume, lab.store, run_id)
        await lab.client.send(run_id, "go")
        assert await lab.result(run_id) == ("new code" if code is fitting else "old code")


async def test_a_failed_migration_reports_the_reason_and_changes_nothing_else(lab: Lab) -> None:
    run_id = await waiting(lab)
    before = lab.store.run(run_id)
    async with lab.working(Agent(unfit, name="agent", version="2")):
        await asyncio.to_thread(requests.migrate, lab.store, run_id, "2")
        await lab.reach(run_id, "queued")
        run = await lab.reach_version(run_id, "1")
    assert "the code asks for step 'first'" in (run.error or {})["message"]
    after = lab.store.run(run_id)
    assert (after.head_seq, after.head_hash) == (before.head_seq, before.head_hash)
    assert json.loads(after.error or "{}")["type"] == "Diverged"


async def test_code_that_raises_before_the_runs_current_place_does_not_fit(lab: Lab) -> None:
    async def broken(ctx: andon.Context) -> str:
        raise KeyError("of another input")

    run_id = await waiting(lab)
    async with lab.working(Agent(broken, name="agent", version="2")):
        await asyncio.to_thread(requests.migrate, lab.store, run_id, "2")
        run = await lab.reach_version(run_id, "1")
    assert "KeyError" in (run.error or {})["message"]
    assert [one.ending for one in lab.store.attempts(run_id)][1] == "refused"


async def test_a_worker_that_leaves_during_the_trial_leaves_it_open(lab: Lab) -> None:
    run_id = await waiting(lab)
    async with lab.working(Agent(fitting, name="agent", version="2"), poll_seconds=60) as worker:
        write = worker.store.write

        def writes(batch: Any) -> Any:
            outcomes = write(batch)
            if any(getattr(outcome, "runs", None) for outcome in outcomes):
                worker.tell("test")
            return outcomes

        worker.store.write = writes
        by_thread(worker)
        await asyncio.to_thread(requests.migrate, lab.store, run_id, "2")
        await until(lambda: worker.drain.begun)
    row = lab.store.run(run_id)
    assert (row.state, row.version) == ("queued", "2")
    assert row.trial is not None, "its code has not been tried yet"


async def test_a_migrated_run_that_is_not_due_yet_stays_so(local: Lab) -> None:
    async with local.working(
        Agent(old, name="agent", version="1"), Agent(fitting, name="agent", version="2")
    ):
        run_id = await local.client.start("agent", at=local.store.now() + 3600)
        before = local.store.run(run_id)
        version = "2" if before.version == "1" else "1"
        await asyncio.to_thread(requests.migrate, local.store, run_id, version)
        await local.reach_version(run_id, version)
    assert abs(local.store.run(run_id).available_at - before.available_at) < 60


async def test_only_a_waiting_run_can_be_migrated(local: Lab) -> None:
    run_id = await waiting(local)
    for version, error in (("1", BadInput), ("9", NotFound)):
        with pytest.raises(error):
            await asyncio.to_thread(requests.migrate, local.store, run_id, version)
    async with local.working(
        Agent(old, name="agent", version="1"), Agent(fitting, name="agent", version="2")
    ):
        await local.client.send(run_id, "go")
        await local.end(run_id)
    with pytest.raises((IllegalTransition, AndonError), match="succeeded"):
        await asyncio.to_thread(requests.migrate, local.store, run_id, "2")


async def test_a_trial_does_not_wait_for_code_that_waits_outside_its_steps(
    local: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("andon.runtime.attempt.rehearsal.REHEARSAL_SECONDS", 0.1)

    async def idle(ctx: andon.Context) -> None:
        await asyncio.sleep(600)

    run_id = await waiting(local)
    async with local.working(Agent(idle, name="agent", version="2")):
        await asyncio.to_thread(requests.migrate, local.store, run_id, "2")
        run = await local.reach_version(run_id, "1")
    assert "waits for something outside its steps" in (run.error or {})["message"]
