"""A clock that tests move: sleeps, leases and expiries follow it."""

import asyncio
import time
from pathlib import Path

import pytest

import andon
from andon.core.run import State
from andon.errors import BadInput
from andon.runtime.worker import clock as runtime_clock
from andon.runtime.worker.peers import this_process
from andon.store import open_store
from andon.store.store import Register
from andon.testing import Clock

DAY = 86_400.0


@andon.agent
async def patient(ctx: andon.Context) -> list[str]:
    began = ctx.now()
    await ctx.sleep(3 * DAY)
    try:
        await ctx.ask("Go on?", expires=2 * 3600)
    except andon.Unresolved:
        return [str((ctx.now() - began).days), "nobody answered"]
    return ["answered"]


async def until_suspended(client: andon.Client, times: int) -> None:
    """Wait until the run is suspended in its nth attempt."""
    while True:
        run = await client.get("r")
        if run.state == State.SUSPENDED and run.attempt == times:
            return
        await asyncio.sleep(0.005)


async def wait_three_days(url: str, clock: Clock) -> list[str]:
    async with andon.Client(url) as client:
        await client.start(patient, id="r")
        running = asyncio.create_task(client.run(patient, id="r"))
        await until_suspended(client, 1)
        clock.advance("3d")
        await until_suspended(client, 2)
        clock.advance("2h")
        found: list[str] = await running
        return found


def test_a_sleep_of_days_passes_without_waiting(store_url: str) -> None:
    open_store(store_url).close()
    with Clock(store_url) as clock:
        found = asyncio.run(asyncio.wait_for(wait_three_days(store_url, clock), 60))
    assert found == ["3", "nobody answered"]


def test_advancing_the_clock_ends_the_lease_of_a_silent_worker(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/andon.db"
    with Clock(url) as clock:
        store = open_store(url)
        silent, other = this_process(), this_process()
        for worker in (silent, other):
            agents = (patient.row,)
            store.write([Register(worker=worker, agents=agents, lease_seconds=10)])

        def overdue() -> list[str]:
            return [row[0] for row in store.q("overdue_workers")]

        assert overdue() == []
        clock.advance(9)
        assert overdue() == []
        clock.advance(2)
        assert set(overdue()) == {silent.id, other.id}
        store.close()


def test_the_clock_moves_only_the_store_it_belongs_to(tmp_path: Path) -> None:
    with Clock(f"sqlite:///{tmp_path}/a.db") as clock:
        moved, other = (open_store(f"sqlite:///{tmp_path}/{name}.db") for name in "ab")
        clock.advance("1w")
        assert moved.now() - other.now() == pytest.approx(7 * DAY, abs=60)
        assert clock.now() == pytest.approx(moved.now(), abs=60)
        moved.close()
        other.close()
    assert runtime_clock.ahead == 0.0
    after = open_store(f"sqlite:///{tmp_path}/a.db")
    assert after.now() == pytest.approx(time.time(), abs=60)
    after.close()


@pytest.mark.parametrize("by", ["", "3", "3 years", "-1d", -1, float("inf"), True, None])
def test_a_duration_that_cannot_be_parsed_is_refused(tmp_path: Path, by: str) -> None:
    with Clock(f"sqlite:///{tmp_path}/a.db") as clock, pytest.raises(BadInput, match="expected"):
        clock.advance(by)


def test_the_fixture_is_the_clock_of_the_configured_store(
    andon_store: str, andon_clock: Clock
) -> None:
    store = open_store(andon_store)
    before = store.now()
    andon_clock.advance("15m")
    assert store.now() - before == pytest.approx(900, abs=60)
    store.close()
