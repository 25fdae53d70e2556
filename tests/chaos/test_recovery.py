"""A dead worker is replaced at once, on any proof of its death; a silent one after its lease."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psycopg
import pytest
from tests.chaos import agents, laws
from tests.chaos.fleet import ROOT, Site, environment, until
from tests.chaos.worker import Order

from andon.core.lease import Fence
from andon.runtime.worker.peers import this_process
from andon.store.store import Claim, Register

# Far longer than any test: an earlier takeover did not wait for a lease.
LEASE_SECONDS = 60.0
AT_ONCE = LEASE_SECONDS / 2
SETTINGS = {"lease_seconds": LEASE_SECONDS}


def until_in_hand(site: Site) -> None:
    """Wait until the held run is in its second step."""
    until(lambda: site.count("step", "run/step-1"), "step-1 in hand")


def assert_recovers(site: Site, killed_at: float) -> None:
    until(lambda: site.count("step", "run/step-1") == 2, "the takeover", AT_ONCE)
    seconds = time.monotonic() - killed_at
    print(f"in hand again after {seconds:.3f} s")  # noqa: T201 (shown by -rP)
    site.set_flag("go")
    site.finish()
    assert laws.result(site.store, "run") == [0, 2, 4]
    assert not laws.broken(site.store, site.folder, ["run"])


def test_a_killed_worker_is_replaced_at_once_by_a_live_one(site: Site) -> None:
    site.start(agents.held, run="run")
    victim = site.ready_worker(settings=SETTINGS)
    until_in_hand(site)
    site.ready_worker(settings=SETTINGS)
    victim.kill()
    assert_recovers(site, time.monotonic())


def test_a_process_that_starts_later_knows_that_the_only_worker_is_dead(site: Site) -> None:
    site.start(agents.held, run="run")
    victim = site.ready_worker(settings=SETTINGS)
    until_in_hand(site)
    victim.kill()
    site.worker(settings=SETTINGS)
    assert_recovers(site, time.monotonic())


def test_a_reused_process_number_is_no_sign_of_life(site: Site) -> None:
    site.start(agents.steady, 1, run="run")
    row = this_process().but(start_ticks=1)  # lives, but began at another time
    agent = agents.steady.row
    site.store.write([Register(worker=row, agents=(agent,), lease_seconds=LEASE_SECONDS)])
    claim = Claim(worker_id=row.id, agents=((agent.name, agent.version),), limit=1)
    [claimed] = site.store.write([claim])
    assert [run.id for run in claimed.runs] == ["run"]
    assert isinstance(claimed.runs[0].fence, Fence)
    site.worker(settings=SETTINGS)
    until(lambda: site.state("run") == "succeeded", "the takeover", AT_ONCE)
    assert site.interrupted() == 1


# ── across namespaces, where only a lock can tell ─────────────────────────────────────────────────


class NamespacedWorker:
    """A worker in a process namespace of its own, as in another container on this machine."""

    def __init__(self, site: Site) -> None:
        order = Order(
            url=site.url,
            world=str(site.folder),
            settings=SETTINGS,
            errors=str(site.folder / "stderr"),
        )
        self._outer = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable,
             str(ROOT / "tests/chaos/worker.py"), msgspec.json.encode(order).decode()],
            env=environment(),
        )  # fmt: skip
        until(lambda: self.children, "the process inside")

    @property
    def children(self) -> list[int]:
        path = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children")
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    def kill(self) -> None:
        for pid in self.children:
            os.kill(pid, 9)
        self._outer.wait()


def namespaces_refused() -> str:
    try:
        tried = subprocess.run(
            ["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True, check=False
        )
    except FileNotFoundError as error:
        return str(error)
    return tried.stderr.decode().strip()


@pytest.fixture
def namespaced_worker(site: Site) -> Iterator[NamespacedWorker]:
    if refused := namespaces_refused():
        pytest.skip(f"no process namespaces here: {refused}")
    site.start(agents.held, run="run")
    found = NamespacedWorker(site)
    until_in_hand(site)
    yield found
    found.kill()


def test_a_worker_killed_in_another_namespace_is_known_to_be_dead_by_its_lock(
    site: Site, namespaced_worker: NamespacedWorker
) -> None:
    site.ready_worker(settings=SETTINGS, restart_seconds=0)
    assert site.count("step", "run/step-1") == 1
    namespaced_worker.kill()
    assert_recovers(site, time.monotonic())


# ── a lost connection is not a death ──────────────────────────────────────────────────────────────


def cut_connections(site: Site) -> None:
    with psycopg.connect(site.url, autocommit=True) as db:
        db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def until_done(site: Site, steps: int) -> None:
    until(lambda: sum(row.head_seq for row in site.rows()) >= steps, f"{steps} steps")


def test_a_worker_that_lost_its_connections_keeps_its_runs(postgres_site: Site) -> None:
    site = postgres_site
    environ = {"CHAOS_STEP_SECONDS": "0.02"}
    workers = [site.ready_worker(settings=SETTINGS, environ=environ) for _ in range(2)]
    for number in range(20):
        site.start(agents.steady, 20, run=f"run-{number}")
    for part in range(1, 5):
        until_done(site, part * 60)
        cut_connections(site)
    site.finish()
    assert all(worker.status is None for worker in workers)
    assert site.interrupted() == 0
    assert not laws.broken(site.store, site.folder, [row.id for row in site.rows()])


def test_a_worker_in_another_namespace_that_lost_its_connections_keeps_its_runs(
    postgres_site: Site,
) -> None:
    if refused := namespaces_refused():
        pytest.skip(f"no process namespaces here: {refused}")
    site = postgres_site
    site.start(agents.held, run="run")
    namespaced_worker = NamespacedWorker(site)
    try:
        until_in_hand(site)
        site.ready_worker(settings=SETTINGS, restart_seconds=0)
        for _ in range(3):
            cut_connections(site)
            time.sleep(0.5)  # the promise is that nothing happens
        assert site.count("step", "run/step-1") == 1
        site.set_flag("go")
        site.finish()
        assert site.interrupted() == 0
    finally:
        namespaced_worker.kill()
    assert not laws.broken(site.store, site.folder, ["run"])
