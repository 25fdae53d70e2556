"""ctx.together: a result and the intent that follows share a commit, and no law is weaker."""

import asyncio
from typing import Any

import pytest
from tests.runtime.harness import Held, Lab, agent, declare_lost, until

import andon
from andon.store.store import Append


class Ledger:
    """The journal at the moment in which a function is executed, seen from outside."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.run = ""
        self.seen: list[tuple[str, list[str]]] = []
        self.held = Held()
        self.held.reached.set()

    def look(self, name: str) -> None:
        entries = self.lab.store.journal(self.run)
        self.seen.append((name, [f"{one.name} {one.state}" for one in entries[1:]]))

    async def think(self, turn: int) -> str:
        self.look("think")
        return f"thought {turn}"

    async def act(self, turn: int) -> str:
        self.look("act")
        await self.held.here()
        return f"acted {turn}"


@pytest.fixture
def ledger(lab: Lab) -> Ledger:
    return Ledger(lab)


async def test_nothing_is_executed_before_all_earlier_entries_are_durable(
    lab: Lab, ledger: Ledger
) -> None:
    @agent
    async def loop(ctx: andon.Context, turns: int) -> list[Any]:
        ledger.run = ctx.run_id
        said = []
        async with ctx.together():
            for turn in range(turns):
                said.append(await ctx.step(ledger.think, turn))
                said.append(await ctx.effect(ledger.act, turn, key=f"a{turn}"))
                said.append(await ctx.effect(ledger.act, turn, key=f"b{turn}"))
        return said

    async with lab.working(loop) as worker:
        run = await lab.client.start(loop, 2)
        result = await lab.result(run)
    assert result == ["thought 0", "acted 0", "acted 0", "thought 1", "acted 1", "acted 1"]
    turn = ["think done", "act started", "act confirmed", "act started", "act confirmed"]
    assert ledger.seen == [
        ("think", []),
        ("act", turn[:2]),
        ("act", turn[:4]),
        ("think", turn),
        ("act", turn + turn[:2]),
        ("act", turn + turn[:4]),
    ]
    assert worker.counts()["runs_finished_total"] == 1


def commits_of(store: Any) -> list[list[str]]:
    """Record the entry states of each commit from now on."""
    commits: list[list[str]] = []

    def note(batch: Any) -> None:
        entries = [one for m in batch if isinstance(m, Append) for one in m.entries]
        commits.extend([[one.state for one in entries]] if entries else [])

    def watch(name: str, *, declines: bool) -> None:
        """Record the batches of one way to commit; one that can decline answers None then."""
        plain = getattr(store, name, None)
        if plain is None:  # only one of the databases has it
            return

        def watched(batch: Any, **given: Any) -> Any:
            found = plain(batch, **given)
            note([] if declines and found is None else batch)
            return found

        setattr(store, name, watched)

    watch("write", declines=False)
    watch("write_at_once", declines=False)
    watch("send", declines=True)
    return commits


@pytest.mark.parametrize("shares", [True, False])
async def test_a_result_and_the_intent_after_it_are_one_commit(
    lab: Lab, ledger: Ledger, *, shares: bool
) -> None:
    @agent
    async def loop(ctx: andon.Context) -> None:
        ledger.run = ctx.run_id
        async with ctx.together() if shares else ctx.shield("apart"):
            for turn in range(2):
                await ctx.step(ledger.think, turn)
                await ctx.effect(ledger.act, turn)
                await ctx.effect(ledger.act, turn)

    async with lab.working(loop) as worker:
        commits = commits_of(worker.store)
        await lab.result(await lab.client.start(loop))
    one = [["done", "started"], ["confirmed", "started"], ["confirmed"]]
    apart = [[state] for states in one for state in states]
    assert commits == (one if shares else apart) * 2


async def test_a_deferred_result_is_durable_when_the_block_ends(lab: Lab, ledger: Ledger) -> None:
    @agent
    async def once(ctx: andon.Context) -> list[str]:
        ledger.run = ctx.run_id
        async with ctx.together():
            await ctx.step(ledger.think, 0)
        ledger.look("after")
        return ledger.seen[-1][1]

    async with lab.working(once):
        assert await lab.result(await lab.client.start(once)) == ["think done"]


async def test_a_deferred_result_is_written_as_soon_as_the_code_waits(
    lab: Lab, ledger: Ledger
) -> None:
    @agent
    async def idle(ctx: andon.Context) -> None:
        ledger.run = ctx.run_id
        async with ctx.together():
            await ctx.step(ledger.think, 0)
            await until(lambda: len(lab.store.journal(ctx.run_id)) == 2)  # by itself

    async with lab.working(idle):
        assert await lab.result(await lab.client.start(idle)) is None


async def test_a_key_that_is_used_again_is_answered_before_it_is_durable(
    lab: Lab, ledger: Ledger
) -> None:
    @agent
    async def twice(ctx: andon.Context) -> list[str]:
        ledger.run = ctx.run_id
        async with ctx.together():
            return [await ctx.step(ledger.think, 0, key="k") for _ in range(3)]

    async with lab.working(twice):
        assert await lab.result(await lab.client.start(twice)) == ["thought 0"] * 3
    assert len(ledger.seen) == 1


async def test_a_replay_of_entries_that_were_written_together_executes_nothing(
    lab: Lab, ledger: Ledger
) -> None:
    @agent
    async def waits(ctx: andon.Context) -> list[str]:
        ledger.run = ctx.run_id
        async with ctx.together():
            said = [await ctx.step(ledger.think, 0), await ctx.effect(ledger.act, 0)]
            await ctx.event("go")
            return said

    async with lab.working(waits):
        run = await lab.client.start(waits)
        assert await lab.replayed(run) == ["thought 0", "acted 0"]
    assert [name for name, _ in ledger.seen] == ["think", "act"]


async def test_a_death_in_the_effect_leaves_result_and_intent_in_the_journal(
    lab: Lab, ledger: Ledger
) -> None:
    ledger.held = Held()

    @agent
    async def pays(ctx: andon.Context) -> str:
        ledger.run = ctx.run_id
        async with ctx.together():
            await ctx.step(ledger.think, 0)
            return str(await ctx.effect(ledger.act, 0))

    async with lab.working(pays) as first:
        run = await lab.client.start(pays)
        await ledger.held.reached.wait()
        async with lab.working(pays) as second:
            declare_lost(second, first)
            ask = await lab.asked(run)
            assert ask.about == "effect"
            await lab.client.answer(run, "happened", "by hand")
            assert await lab.result(run) == "by hand"
            ledger.held.release.set()
    assert [name for name, _ in ledger.seen] == ["think", "act"]


async def test_branches_write_their_entries_separately(lab: Lab, ledger: Ledger) -> None:
    @agent
    async def parallel(ctx: andon.Context) -> list[str]:
        ledger.run = ctx.run_id
        async with ctx.together():
            steps = (ctx.step(ledger.think, turn) for turn in range(3))
            return list(await asyncio.gather(*steps))

    async with lab.working(parallel):
        run = await lab.client.start(parallel)
        assert await lab.result(run) == ["thought 0", "thought 1", "thought 2"]


async def test_code_that_raises_in_the_block_loses_no_result(lab: Lab, ledger: Ledger) -> None:
    @agent
    async def fails(ctx: andon.Context) -> None:
        ledger.run = ctx.run_id
        async with ctx.together():
            await ctx.step(ledger.think, 0)
            raise ValueError("after the step")

    async with lab.working(fails):
        run = await lab.client.start(fails)
        assert (await lab.end(run)).state == "failed"
    assert [(one.name, one.state) for one in await lab.journal(run)][1] == ("think", "done")
