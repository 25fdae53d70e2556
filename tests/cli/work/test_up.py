"""`andon up`: workers under a supervisor, on one host and on two."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.cli.hosts import Host, gone
from tests.cli.terminal import until

from andon.host.home import without_password
from andon.host.latch import Latch
from andon.store.store import Store
from andon.testing.postgres import Cluster

LEASE = 600  # no test here relies on the end of a lease


@pytest.fixture
def host(tmp_path: Path, store_url: str) -> Host:
    return Host(tmp_path, store_url, lease_seconds=LEASE)


@pytest.fixture
def here(tmp_path: Path, sqlite_url: str) -> Host:
    return Host(tmp_path, sqlite_url, lease_seconds=LEASE)


def live(store: Store, host: Host) -> list[int]:
    owners = {one.id for one in store.supervisors() if one.home == str(host.home)}
    found = [one for one in store.workers() if one.supervisor in owners and one.state == "live"]
    return [one.pid for one in found]


def stuck(host: Host, name: str = "mark", **given: Any) -> tuple[str, Path]:
    """A run in the middle of a step."""
    marker = host.folder / name
    words = [f"{key}={value}" for key, value in given.items()]
    run_id = host.start("stuck", f"marker={marker}", *words)
    until(marker.exists, "it is in its step")
    return run_id, marker


def holder(host: Host, run_id: str) -> int:
    with host.store() as store:
        row = store.run(run_id)
        assert row is not None
        return next(one.pid for one in store.workers() if one.id == row.worker)


# ── workers ───────────────────────────────────────────────────────────────────────────────────


def test_the_run_of_a_killed_worker_resumes_on_another(host: Host) -> None:
    with host.up(workers=2) as process:
        run_id, marker = stuck(host)
        first = holder(host, run_id)
        marker.unlink()
        os.kill(first, signal.SIGKILL)
        until(marker.exists, "another one is in the step")
        assert holder(host, run_id) != first
        process.says("restarted")


def test_the_run_of_the_only_worker_resumes_after_its_restart(here: Host) -> None:
    with here.up() as process:
        run_id, marker = stuck(here)
        marker.unlink()
        os.kill(holder(here, run_id), signal.SIGKILL)
        until(marker.exists, "the next one is in the step")
        with here.store() as store:
            [ended] = [one for one in store.events() if one.kind == "worker.ended"]
        assert "its supervisor saw it end (SIGKILL)" in ended.body
        process.says("restarted")


def test_its_runs_show_their_stop_grade(here: Host) -> None:
    with here.up():
        run_id, _ = stuck(here)
        row = here.run_of(run_id)
        assert row is not None
        assert '"kill"' in (row.containment or "")


def test_sigterm_drains_the_workers_and_leaves_nothing(host: Host) -> None:
    with host.up("--grace", "1", workers=2) as process:
        run_id, _ = stuck(host)
        process.signal(signal.SIGTERM)
        assert process.ends() == 0
    with host.store() as store:
        row = store.run(run_id)
        assert row is not None
        assert row.state == "queued"
        assert {one.state for one in store.fleet(0.0)} == {"gone"}
        assert {one.state for one in store.supervisors(0.0)} == {"gone"}


def test_without_a_file_it_attends_the_host(here: Host) -> None:
    with here.process("up") as process:
        with here.store() as store:
            until(store.supervisors, "it is enlisted")
        process.signal(signal.SIGTERM)
        assert process.ends() == 0


def test_a_load_error_is_reported_before_anything_starts(here: Host) -> None:
    (here.folder / "broken.py").write_text("import nosuchmodule\n")
    assert "nosuchmodule" in here.run("up", "broken.py", code=1).stderr
    with here.store() as store:
        assert store.supervisors(0.0) == []


def test_a_store_that_does_not_answer_is_reported_before_the_start(here: Host) -> None:
    away = {"ANDON_STORE": "postgresql://nobody@127.0.0.1:1/none"}
    assert "127.0.0.1" in here.error("up", "agents.py", code=1, env=away)


# ── halt ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def two(tmp_path: Path, store_url: str) -> tuple[Host, Host]:
    """Two hosts on one store, as far as homes make them."""
    hosts = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        hosts.append(Host(folder, store_url, lease_seconds=LEASE))
    return hosts[0], hosts[1]


def test_a_halt_here_is_proved_there_and_lifted_there_by_a_person(two: tuple[Host, Host]) -> None:
    here, there = two
    with here.up() as first, there.up() as second:
        with here.store() as store:
            pids = [*live(store, here), *live(store, there)]
            assert len(pids) == 2
            (here.home / "STOP").touch()
            for pid in pids:
                gone(pid)
            halt = until(lambda: [one for one in store.stops() if one.closed_at], "proved")[0]
            assert {row.stage for row in store.targets(halt.id)} == {"verified"}
            targets = {row.target.partition(":")[0] for row in store.targets(halt.id)}
            assert targets == {"worker", "supervisor"}
        assert Latch(str(there.home)).look().order == halt.id
        first.says("HALTED")
        second.says("HALTED")
        here("reauthorize", "--by", "cy", "--why", "looked at it", "--yes")
        with here.store() as store:
            until(lambda: live(store, here) and live(store, there), "workers are there again")
        assert not Latch(str(there.home)).look().pulled


def test_a_halt_is_proved_by_the_supervisor_that_has_the_store_open(host: Host) -> None:
    with host.up():
        run_id, _ = stuck(host)
        pid = holder(host, run_id)
        found = host.json("halt")
        again = host.json("halt")
        gone(pid)
        with host.store() as store:
            [stop] = store.stops()
            [supervisor] = store.supervisors()
            rows = store.targets(stop.id)
    assert found["store"] == {
        "state": "answered",
        "url": without_password(host.url),
        "others": [],
        "by": f"supervisor {supervisor.id}",
        "order": stop.id,
        "targets": len(rows),
        "kinds": {"run": 1, "supervisor": 1, "worker": 1},
        "verified": len(rows),
        "unproved": [],
    }
    assert stop.id == found["receipt"]
    assert (again["receipt"], again["store"]) == (found["receipt"], found["store"])


def test_after_a_halt_a_supervisor_starts_and_holds(here: Host) -> None:
    Latch(str(here.home)).init()
    Latch(str(here.home)).pull(by="ana", why="unsure")
    with here.process("up", "agents.py") as process:
        process.says("nothing is started")
        with here.store() as store:
            until(store.latches, "the store knows of it")
            assert live(store, here) == []


# ── kill ──────────────────────────────────────────────────────────────────────────────────────


def test_a_kill_of_a_run_that_does_not_obey_ends_its_worker(host: Host) -> None:
    """A plain function in a thread: nothing in its process can end it."""
    with host.up() as process:
        run_id, _ = stuck(host, plain="true")
        first = holder(host, run_id)
        host("kill", run_id)
        host.becomes(run_id, "killed")
        process.says("is ready")
        with host.store() as store:
            [stop] = store.stops()
            assert [row.stage for row in store.targets(stop.id)] == ["verified"]
            until(lambda: set(live(store, host)) - {first}, "a worker again, or still")


# ── lost contact ──────────────────────────────────────────────────────────────────────────────


def test_a_host_without_its_store_stops_by_itself(
    tmp_path: Path, postgres_url: str, cluster: Cluster
) -> None:
    host = Host(tmp_path, postgres_url, lost_contact_seconds=1, lease_seconds=LEASE)
    with host.up() as process:
        run_id, marker = stuck(host)
        pid = holder(host, run_id)
        marker.unlink()
        cluster.stop()
        process.says("lost contact")
        gone(pid)
        cluster.start()
        process.says("contact is back")
        until(marker.exists, "it goes on")
