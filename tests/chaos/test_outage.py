"""The database goes away and comes back: nothing is lost or doubled, and no worker dies of it."""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.chaos import agents, laws
from tests.chaos.fleet import Forker, Process, Site, until

from andon.runtime.worker.peers import this_process
from andon.store import open_store
from andon.store.store import Beat, Claim, Register
from andon.testing.postgres import Cluster

RUNS, STEPS = 100, 10


def start_many_runs(site: Site, settings: dict[str, Any], workers: int = 2) -> list[Process]:
    """A hundred runs, a third of their steps done."""
    environ = {"CHAOS_STEP_SECONDS": "0.05"}
    settings = {"concurrency": 25, **settings}
    fleet = [site.ready_worker(settings=settings, environ=environ) for _ in range(workers)]
    for number in range(RUNS):
        site.start(agents.steady, STEPS, run=f"run-{number}")
    until(lambda: sum(row.head_seq for row in site.rows()) > RUNS * STEPS / 3, "the middle")
    assert site.open_runs()
    return fleet


def assert_all_succeeded_once(site: Site, fleet: list[Process]) -> None:
    site.finish(90)
    rows = site.rows()
    assert [row.state for row in rows] == ["succeeded"] * RUNS
    expected = [2 * number for number in range(STEPS)]
    assert all(laws.result(site.store, row.id) == expected for row in rows)
    assert not laws.broken(site.store, site.folder, [row.id for row in rows])
    assert all(process.status is None for process in fleet), site.errors[-4000:]
    assert site.interrupted() == 0, site.errors[-4000:]
    assert {row.attempt for row in rows} == {1}


@pytest.mark.parametrize(("lease_seconds", "seconds"), [(10.0, 2.0), (2.0, 3.0)])
def test_an_outage_of_postgresql_in_the_middle_of_a_hundred_runs_loses_nothing(
    postgres_site: Site, cluster: Cluster, lease_seconds: float, seconds: float
) -> None:
    survive_outage(postgres_site, cluster, lease_seconds, seconds)


@pytest.mark.chaos
@pytest.mark.parametrize("lease_seconds", [10.0, 2.0])
@pytest.mark.parametrize("seconds", [1.7, 3.0, 10.0, 12.0])
def test_a_long_outage_of_postgresql_loses_nothing(
    postgres_site: Site, cluster: Cluster, lease_seconds: float, seconds: float
) -> None:
    survive_outage(postgres_site, cluster, lease_seconds, seconds)


def survive_outage(site: Site, cluster: Cluster, lease_seconds: float, seconds: float) -> None:
    fleet = start_many_runs(site, {"lease_seconds": lease_seconds})
    # Until they may declare each other overdue: only then could they do it wrongly.
    time.sleep(min(lease_seconds, 2.0))
    cluster.stop("immediate")
    time.sleep(seconds)
    cluster.start()
    assert_all_succeeded_once(site, fleet)


def test_after_an_outage_the_first_worker_takes_nothing_from_a_later_one(site: Site) -> None:
    """An outage shorter than a lease: the lease of one worker holds, that of the other does not."""
    site.start(agents.steady, 1, run="run")
    second, first = register(site), register(site)
    [taken] = site.store.write([claim_of(second)])
    assert [run.id for run in taken.runs] == ["run"]
    for _ in range(6):
        beat(site, second)
        time.sleep(LEASE_SECONDS / 5)
        beat(site, first)
    time.sleep(LEASE_SECONDS * 0.9)  # the outage; only the second one's lease has ended
    [claimed] = site.store.write([claim_of(first, expire=True)])
    assert (claimed.returned, claimed.runs) == (0, [])
    beat(site, second)
    for _ in range(8):  # a worker that stays silent while others are in contact is replaced
        time.sleep(LEASE_SECONDS / 5)
        beat(site, first)
    [claimed] = site.store.write([claim_of(first, expire=True)])
    assert [run.id for run in claimed.runs] == ["run"]


LEASE_SECONDS = 1.0


def register(site: Site) -> str:
    row = this_process()
    message = Register(worker=row, agents=(agents.steady.row,), lease_seconds=LEASE_SECONDS)
    site.store.write([message])
    return row.id


def beat(site: Site, worker_id: str) -> None:
    [answer] = site.store.write([Beat(worker_id=worker_id, lease_seconds=LEASE_SECONDS)])
    assert isinstance(answer, float), answer


def claim_of(worker_id: str, *, expire: bool = False) -> Claim:
    return Claim(
        worker_id=worker_id,
        agents=((agents.steady.name, agents.steady.version),),
        limit=1,
        expire=expire,
        lease_seconds=LEASE_SECONDS,
    )


def test_an_sqlite_file_that_another_program_locks_for_a_while_loses_nothing(
    sqlite_site: Site,
) -> None:
    fleet = start_many_runs(sqlite_site, {"lease_seconds": 2.0})
    other = apsw.Connection(str(sqlite_site.store.path))
    other.set_busy_timeout(10_000)
    other.execute("BEGIN IMMEDIATE")
    time.sleep(3)
    other.execute("ROLLBACK")
    other.close()
    assert_all_succeeded_once(sqlite_site, fleet)


# ── a full disk ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("workers", [1, 2])
def test_a_database_that_is_full_for_a_while_loses_nothing(sqlite_site: Site, workers: int) -> None:
    """By SQLite's own limit, which works without root."""
    site = sqlite_site
    pages = apsw.Connection(str(site.store.path)).pragma("page_count") + 40
    fleet = [
        site.ready_worker(most_pages=pages, settings={"concurrency": 25}) for _ in range(workers)
    ]
    for number in range(RUNS):
        site.start(agents.steady, STEPS, run=f"run-{number}")
    until(lambda: "the disk is full" in site.errors, f"a full disk\n{site.errors[-3000:]}")
    site.set_flag("space")
    assert_all_succeeded_once(site, fleet)


def test_a_single_run_waits_for_a_full_database(sqlite_site: Site) -> None:
    """A run that is alone in its worker commits without the writer thread."""
    site = sqlite_site
    site.start(agents.steady, 500, run="run")
    pages = apsw.Connection(str(site.store.path)).pragma("page_count") + 10
    worker = site.ready_worker(most_pages=pages)
    until(lambda: site.store.run("run").head_seq > 10, "some steps")
    until(lambda: not_moving(site), "a full database")
    assert site.state("run") == "running"
    site.set_flag("space")
    site.finish()
    assert worker.status is None
    assert site.interrupted() == 0
    assert not laws.broken(site.store, site.folder, ["run"])


def not_moving(site: Site) -> bool:
    before = site.store.run("run").head_seq
    time.sleep(0.3)
    return bool(before == site.store.run("run").head_seq != 501)


@pytest.fixture
def small_disk(tmp_path: Path, forker: Forker) -> Iterator[Site]:
    """A file system of sixteen megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError as error:
        pytest.skip(f"no mount here: {error}")
    if mounted.returncode:
        pytest.skip(f"cannot mount here: {mounted.stderr.decode().strip()}")
    url = f"sqlite:///{disk}/andon.db"
    store = open_store(url)
    site = Site(forker, store, url, tmp_path / "world")
    yield site
    site.end()
    store.close()
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.parametrize("left", [0, 40_960])
def test_a_disk_that_is_full_for_a_while_loses_nothing(small_disk: Site, left: int) -> None:
    site = small_disk
    for number in range(10):
        site.start(agents.steady, 30, run=f"run-{number}")
    environ = {"CHAOS_STEP_SECONDS": "0.01"}
    worker = site.ready_worker(environ=environ, settings={"lease_seconds": 2.0})
    until(lambda: sum(row.head_seq for row in site.rows()) > 60, "the middle")
    ballast = fill(Path(site.store.path).parent, left)
    until(lambda: "the disk is full" in site.errors, f"a full disk\n{site.errors[-3000:]}", 20)
    ballast.unlink()
    site.finish()
    assert worker.status is None
    assert [row.state for row in site.rows()] == ["succeeded"] * 10
    assert not laws.broken(site.store, site.folder, [row.id for row in site.rows()])
    assert {row.attempt for row in site.rows()} == {1}


def fill(folder: Path, left: int) -> Path:
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    os.truncate(ballast, max(0, ballast.stat().st_size - left))
    return ballast
