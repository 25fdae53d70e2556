"""Real workers keep limits, serve their queues, and continue redriven runs."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from tests.runtime.harness import Held, Lab, agent, declare_lost, until

import andon
from andon.control import dead
from andon.core.journal import check_chain
from andon.errors import BadInput, IllegalTransition, NotFound, Refused
from andon.runtime.requests import requests
from andon.runtime.worker.peers import this_process
from andon.store.store import SetLimit


def limit(lab: Lab, scope: str, name: str, **terms: Any) -> None:
    requests.write(lab.store, SetLimit(scope=scope, name=name, **terms))


class ConcurrencyCounter:
    """Counts the runs that are inside at once."""

    def __init__(self) -> None:
        self.inside, self.most, self.begun = 0, 0, list[str]()

    async def visit(self, name: str, meeting: asyncio.Barrier | None = None) -> None:
        self.begun.append(name)
        self.inside += 1
        self.most = max(self.most, self.inside)
        if meeting is not None:
            await meeting.wait()
            await asyncio.sleep(0.02)  # for those that should not be let in
        self.inside -= 1


# ── limits ────────────────────────────────────────────────────────────────────────────────────


async def test_two_workers_together_run_no_more_than_the_agents_limit(lab: Lab) -> None:
    crowd = ConcurrencyCounter()
    pairs = asyncio.Barrier(2)  # none leaves alone: two are let in

    async def visitor(ctx: andon.Context, name: str) -> None:
        await ctx.step(lambda: crowd.visit(name, pairs), name="visit")

    one = agent(visitor, at_most=2)
    runs = [await lab.client.start(one, str(n)) for n in range(12)]
    async with lab.working(one), lab.working(one):
        for run in runs:
            await lab.result(run)
    assert crowd.most == 2
    assert sorted(crowd.begun) == sorted(str(n) for n in range(12))


async def test_a_worker_wakes_when_a_rate_lets_the_next_run_begin(lab: Lab) -> None:
    crowd = ConcurrencyCounter()

    async def visitor(ctx: andon.Context, name: str) -> None:
        await ctx.step(crowd.visit, name)

    one = agent(visitor, rate="1/0.1s")
    # Its own poll interval is far too long: only the rate can have woken it.
    async with lab.working(one, poll_seconds=3600):
        runs = [await lab.client.start(one, str(n)) for n in range(4)]
        for run in runs:
            await lab.result(run)
    assert sorted(crowd.begun) == ["0", "1", "2", "3"]


async def test_a_limit_is_registered_with_its_agent_and_refused_if_invalid(local: Lab) -> None:
    async def visitor(ctx: andon.Context) -> None:
        pass

    for wrong in ({"at_most": 0}, {"at_most": True}, {"rate": "fast"}):
        with pytest.raises(BadInput):
            agent(visitor, **wrong)
    async with local.working(agent(visitor, at_most=3, rate="10/1m")):
        [row] = local.store.limits()
    assert (row.at_most, row.rate, row.per_seconds, row.set_by) == (3, 10, 60.0, "code")


# ── queues ────────────────────────────────────────────────────────────────────────────────────


async def test_a_worker_of_some_queues_leaves_the_others_alone(lab: Lab) -> None:
    async def plain(ctx: andon.Context) -> str:
        return "done"

    one = agent(plain)
    async with lab.working(one, queues=["emails"]):
        theirs = await lab.client.start(one)
        mine = await lab.client.start(one, queue="emails")
        await lab.result(mine)
        assert (await lab.client.get(theirs)).state == "queued"
        async with lab.working(one):
            await lab.result(theirs)
    with pytest.raises(BadInput, match="queue"):
        await lab.client.start(one, queue="no spaces")


# ── versions ──────────────────────────────────────────────────────────────────────────────────


async def version_of(lab: Lab, name: str = "agent") -> str:
    return str((await lab.client.get(await lab.client.start(name))).version)


async def test_two_versions_run_side_by_side_and_new_runs_take_the_promoted_one(lab: Lab) -> None:
    held = Held()

    async def old(ctx: andon.Context) -> str:
        await ctx.step(held.here)
        return "old"

    async def new(ctx: andon.Context) -> str:
        return "new"

    one, two = agent(old, version="1"), agent(new, version="2")
    async with lab.working(one):
        before = await lab.client.start("agent")
        await held.reached.wait()
        async with lab.working(two):
            after = await lab.client.start("agent")
            assert await lab.result(after) == "new"
            held.release.set()
            assert await lab.result(before) == "old"
    assert (await lab.client.get(before)).version == "1"


async def test_a_restart_of_the_old_version_does_not_demote_the_new_one(lab: Lab) -> None:
    async def plain(ctx: andon.Context) -> str:
        return "done"

    one, two = agent(plain, version="1"), agent(plain, version="2")
    async with lab.working(one), lab.working(two):
        assert await version_of(lab) == "2"
        async with lab.working(one):
            assert await version_of(lab) == "2"
        async with lab.working(one, promote_known=True):
            assert await version_of(lab) == "1", "a rollback"
        async with lab.working(two):
            assert await version_of(lab) == "1"


async def test_a_worker_that_registers_anew_does_not_promote_its_version_again(lab: Lab) -> None:
    async def plain(ctx: andon.Context) -> str:
        return "done"

    one, two = agent(plain, version="1"), agent(plain, version="2")
    hasty = {"promote_known": True, "lease_seconds": 0.5}
    async with lab.working(one, **hasty) as worker, lab.working(two) as other:
        first = worker.worker_id
        declare_lost(other, worker, "silent:the test says so")
        await until(lambda: worker.worker_id != first)
        await until(lambda: worker.worker_id in {row.id for row in lab.store.workers()})
        assert await version_of(lab) == "2"


async def test_a_version_that_was_not_promoted_takes_no_new_runs(lab: Lab) -> None:
    async def plain(ctx: andon.Context) -> str:
        return "done"

    one, two = agent(plain, version="1"), agent(plain, version="2")
    async with lab.working(two, promote=False):
        with pytest.raises(NotFound, match="andon promote VERSION"):
            await lab.client.start("agent")
        explicit = await lab.client.start(two)
        assert await lab.result(explicit) == "done", "a start that names the version gets it"
        async with lab.working(one):
            assert await version_of(lab) == "1"


# ── redriving ─────────────────────────────────────────────────────────────────────────────────


class Fragile:
    """An agent whose second step fails until it is mended."""

    def __init__(self, **options: Any) -> None:
        self.executed: list[str] = []
        self.broken = True
        self.agent = agent(
            self._code, **{"retries": andon.Retry(1, first_seconds=0.001), **options}
        )

    def _first(self) -> str:
        self.executed.append("first")
        return "first"

    def _second(self) -> str:
        self.executed.append("second")
        if self.broken:
            raise ValueError("broken")
        return "second"

    async def _code(self, ctx: andon.Context) -> list[str]:
        return [await ctx.step(self._first), await ctx.step(self._second)]

    async def dies(self, lab: Lab) -> str:
        run_id = await lab.client.start(self.agent)
        assert (await lab.end(run_id)).state == "dead"
        return run_id


def endings(lab: Lab, run_id: str) -> list[str]:
    return [attempt.ending for attempt in lab.store.attempts(run_id)]


async def test_a_redriven_run_retries_only_the_step_that_failed_it(lab: Lab) -> None:
    fragile = Fragile()
    async with lab.working(fragile.agent):
        run_id = await fragile.dies(lab)
        assert fragile.executed == ["first", "second", "second"]
        fragile.broken = False
        dead.redrive(lab.store, run_id, by="ana")
        assert await lab.result(run_id) == ["first", "second"]
    assert fragile.executed == ["first", "second", "second", "second"]
    assert endings(lab, run_id) == ["failed", "dead", "succeeded"], "at once, not by a retry"
    check_chain(await lab.journal(run_id), run_id=run_id)
    [event] = [one for one in lab.store.events() if one.kind == "run.redriven"]
    assert event.run_id == run_id
    assert '"by": "ana"' in event.body


async def test_a_redriven_run_gets_all_its_retries_again(lab: Lab) -> None:
    fragile = Fragile()
    async with lab.working(fragile.agent):
        run_id = await fragile.dies(lab)
        dead.redrive(lab.store, run_id, by="ana")
        assert (await lab.end(run_id)).state == "dead"
        assert fragile.executed.count("second") == 4
        assert lab.store.run(run_id).failures == 2
        fragile.broken = False
        dead.redrive(lab.store, run_id, by="ana")
        assert await lab.result(run_id) == ["first", "second"]


async def test_all_steps_that_failed_a_run_together_are_retried(lab: Lab) -> None:
    broken, executed = [True], list[str]()

    def part(name: str) -> str:
        executed.append(name)
        if broken[0]:
            raise ValueError(name)
        return name

    async def parallel(ctx: andon.Context) -> list[str]:
        steps = [ctx.step(part, name) for name in "ab"]
        found = await asyncio.gather(*steps, return_exceptions=True)
        failed = [one for one in found if isinstance(one, Exception)]
        if failed:
            raise ExceptionGroup("parts", failed)
        return [str(one) for one in found]

    one = agent(parallel, retries=andon.Retry(1, first_seconds=0.001))
    async with lab.working(one):
        run_id = await lab.client.start(one)
        assert (await lab.end(run_id)).state == "dead"
        broken[0] = False
        dead.redrive(lab.store, run_id, by="ana")
        assert await lab.result(run_id) == ["a", "b"]
    assert endings(lab, run_id) == ["failed", "dead", "succeeded"]


async def test_a_redriven_run_that_raised_by_itself_continues_where_it_raised(lab: Lab) -> None:
    broken, executed = [True], list[str]()

    async def raising(ctx: andon.Context) -> str:
        await ctx.step(executed.append, "step")
        if broken[0]:
            raise ValueError("by itself")
        return "done"

    one = agent(raising, retries=andon.Retry(1, first_seconds=0.001))
    async with lab.working(one):
        run_id = await lab.client.start(one)
        assert (await lab.end(run_id)).state == "dead"
        broken[0] = False
        dead.redrive(lab.store, run_id, by="ana")
        assert await lab.result(run_id) == "done"
    assert executed == ["step"]


async def test_a_run_that_was_buried_for_its_workers_can_be_redriven(lab: Lab) -> None:
    held = Held()

    async def deadly(ctx: andon.Context) -> str:
        await ctx.step(held.here)
        return "survived"

    one = agent(deadly)
    async with lab.working(one) as lost:
        run_id = await lab.client.start(one)
        await held.reached.wait()
        async with lab.working(one, interruption_limit=1) as survivor:
            declare_lost(survivor, lost)
            assert (await lab.end(run_id)).state == "dead"
            dead.redrive(lab.store, run_id, by="ana")
            assert await lab.result(run_id) == "survived"
            held.release.set()
    check_chain(await lab.journal(run_id), run_id=run_id)


async def test_only_a_dead_run_can_be_redriven_or_dropped(local: Lab) -> None:
    async def plain(ctx: andon.Context) -> str:
        return "done"

    one = agent(plain)
    async with local.working(one):
        run_id = await local.client.start(one)
        await local.result(run_id)
    for decide in (dead.redrive, dead.drop):
        with pytest.raises(IllegalTransition, match="while succeeded"):
            decide(local.store, run_id, by="ana")


async def test_a_run_whose_effects_were_undone_is_not_redriven(lab: Lab) -> None:
    fragile = Fragile()
    async with lab.working(fragile.agent):
        run_id = await fragile.dies(lab)
    state_of_effect(lab, run_id, "compensated")
    with pytest.raises(Refused, match="andon start agent"):
        dead.redrive(lab.store, run_id, by="ana")


def state_of_effect(lab: Lab, run_id: str, state: str) -> None:
    """As if the run had confirmed an effect that can be undone."""
    lab.store.q(
        "upsert_effect",
        run_id=run_id,
        name="pay",
        key="k",
        place=":9",
        kind="compensatable",
        state=state,
        seq=1,
        fence=1,
        quiet=True,
        undo="module:name",
        undo_within=None,
    )


async def test_a_dropped_run_has_failed_for_good_with_its_error(lab: Lab) -> None:
    fragile = Fragile()
    async with lab.working(fragile.agent):
        run_id = await fragile.dies(lab)
    dead.drop(lab.store, run_id, by="ana")
    run = await lab.client.get(run_id)
    assert run.state == "failed"
    assert run.error is not None
    assert run.error["message"] == "_second: broken"
    entries = await lab.journal(run_id)
    assert (entries[-1].kind, entries[-1].state) == ("end", "failed")
    check_chain(entries, run_id=run_id)
    assert [one.run_id for one in lab.store.events() if one.kind == "run.dropped"] == [run_id]


async def test_a_run_that_owes_an_undo_is_not_dropped(lab: Lab) -> None:
    fragile = Fragile()
    async with lab.working(fragile.agent):
        run_id = await fragile.dies(lab)
    state_of_effect(lab, run_id, "confirmed")
    with pytest.raises(Refused, match=f"andon compensate {run_id}"):
        dead.drop(lab.store, run_id, by="ana")
    assert (await lab.client.get(run_id)).state == "dead"


# ── versions that no worker carries ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("looks", ["the one that stayed", "the one that came"])
async def test_a_version_without_workers_is_an_event_when_it_begins_and_when_it_ends(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, looks: str
) -> None:
    async def body(ctx: andon.Context) -> int:
        return 1

    monkeypatch.setattr("andon.runtime.worker.stranded_events.LOOK_SECONDS", 0.0)
    forsaken = type(lab.store).forsaken
    monkeypatch.setattr(type(lab.store), "forsaken", lambda self: forsaken(self, 0.0))
    names = iter(["a", "b", "c"] if looks == "the one that stayed" else ["c", "b", "a"])
    monkeypatch.setattr(
        "andon.runtime.worker.worker.this_process",
        lambda: this_process().but(id=f"{next(names)}-{uuid4().hex}"),
    )
    old, new = (agent(body, version=version) for version in ("1", "2"))

    def kinds() -> list[str]:
        found = [one.kind for one in lab.store.events()]
        return [kind for kind in found if kind in ("version.stranded", "version.carried")]

    async with lab.working(old):
        pass
    run = await lab.client.start(old)
    async with lab.working(new, poll_seconds=0.05):
        await until(lambda: kinds() == ["version.stranded"])
        async with lab.working(old):
            assert await lab.result(run) == 1
            await until(lambda: kinds() == ["version.stranded", "version.carried"])
