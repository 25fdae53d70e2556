"""Many steps, many runs, many processes at the same instant."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.chaos import agents, laws
from tests.chaos.fleet import Forker, Site, environment, until

from andon.runtime.requests import requests
from andon.runtime.worker.worker import Worker
from andon.settings import Settings
from andon.store.messages.rows import Filter

STEPS = 10_000


@pytest.mark.chaos
def test_a_run_with_ten_thousand_finished_steps_continues_after_a_kill(site: Site) -> None:
    site.start(agents.long, STEPS, run="long")
    first = site.ready_worker()
    until(lambda: site.state("long") == "suspended", "ten thousand steps")
    first.kill()
    requests.send(site.store, "long", "go")
    began = time.monotonic()
    site.ready_worker()
    until(lambda: site.state("long") == "succeeded", "the resumption", 10)
    scheme, seconds = site.url.partition(":")[0], time.monotonic() - began
    print(f"{scheme}: resumed after {seconds:.2f} s")  # noqa: T201 (shown by -rP)
    assert laws.result(site.store, "long") == STEPS * (STEPS - 1)
    assert not laws.broken(site.store, site.folder, ["long"])


@pytest.mark.chaos
def test_a_thousand_suspended_runs_hold_nothing_in_the_worker(site: Site) -> None:
    asyncio.run(_suspend_a_thousand(site))


async def _suspend_a_thousand(site: Site) -> None:
    for number in range(1000):
        site.start(agents.waiting, run=f"run-{number}")
    settings = Settings(store=site.url, concurrency=50)
    async with Worker(site.store, [agents.waiting], settings) as worker:
        waiting = Filter(states=("suspended",), limit=2000)
        await asyncio.to_thread(
            until,
            lambda: len(site.store.runs(waiting)) == 1000 and not worker.active,
            "a thousand suspended runs",
        )
        assert (worker.attempts, worker.active) == ({}, {})
        requests.send(site.store, "run-7", "go", 7)
        await asyncio.to_thread(until, lambda: site.state("run-7") == "succeeded", "its event")


def test_two_workers_may_start_at_the_same_instant_on_an_empty_store(
    forker: Forker, store_url: str, tmp_path: Path
) -> None:
    from andon.store import open_store

    folder = tmp_path / "world"
    found = Site(forker, None, store_url, folder)
    together = time.monotonic() + 0.2
    fleet = [found.worker(begin_at=together) for _ in range(2)]
    try:
        until(lambda: time.monotonic() > together, "the instant")
        store = open_store(store_url)
        site = Site(forker, store, store_url, folder)
        until(lambda: len(store.workers()) == 2, f"two registrations\n{site.errors[-3000:]}")
        for number in range(20):
            site.start(agents.steady, 3, run=f"run-{number}")
        site.finish()
        assert all(process.status is None for process in fleet)
        assert not laws.broken(store, folder, [row.id for row in site.rows()])
        store.close()
    finally:
        found.end()


STARTER = """
import sys, time
sys.path[:0] = sys.argv[3:]
from andon.runtime.requests import requests
from andon.store import open_store
from tests.chaos import agents
store = open_store(sys.argv[1])
while time.time() < float(sys.argv[2]): pass
for number in range(20):
    print(requests.start(store, agents.steady, (3,), id=f"run-{number}"))
store.close()
"""


def test_five_programs_that_start_the_same_runs_at_once_start_each_once(site: Site) -> None:
    together = str(time.time() + 2.0)
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", STARTER, site.url, together],
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(5)
    ]
    said = [program.communicate()[0].split() for program in programs]
    assert [program.returncode for program in programs] == [0] * 5
    assert said == [[f"run-{number}" for number in range(20)]] * 5
    assert len(site.rows()) == 20
    site.ready_worker()
    site.finish()
    assert {row.attempt for row in site.rows()} == {1}
    assert not laws.broken(site.store, site.folder, [row.id for row in site.rows()])
