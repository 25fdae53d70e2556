"""How many connections a worker takes from a PostgreSQL server, and what if none is left."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.runtime.harness import agent
from tests.store.parts import do, eventually, new_run, worker_row

from andon.control.doctor.check import Check
from andon.control.doctor.checks import examine
from andon.errors import StoreFull
from andon.runtime.worker.worker import Worker
from andon.settings import Settings
from andon.store import open_store
from andon.store.postgres import notifier, spare_connection
from andon.store.postgres.connection import RESERVED
from andon.store.postgres.store import PostgresStore
from andon.store.store import Start
from andon.testing import postgres
from andon.testing.postgres import Cluster

ANDON = [sys.executable, "-m", "andon"]
LIMIT_SECONDS = 60.0
HELLO = """
import asyncio
import andon

@andon.agent
async def hello(ctx: andon.Context, name: str) -> str:
    return await ctx.step(wait, name)

async def wait(name: str) -> str:
    await asyncio.sleep(600)
    return name
"""


@pytest.fixture(scope="module")
def small_server() -> Iterator[Cluster]:
    """A server that takes 50 connections, 3 of them only from superusers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(postgres.SETTINGS, "max_connections", "50")
        with Cluster() as cluster:
            yield cluster


@pytest.fixture
def small_url(small_server: Cluster) -> Iterator[str]:
    url = small_server.fresh_database()
    PostgresStore(url).close()
    yield url
    small_server.drop_database(url.rpartition("/")[2])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "hello.py").write_text(HELLO, "utf-8")
    return tmp_path


def fill(url: str) -> list[PostgresStore]:
    """Register as many workers as the server has room for."""
    found: list[PostgresStore] = []
    try:
        while True:
            store = PostgresStore(url)
            found.append(store)
            store.hold(f"w-{len(found)}")
    except StoreFull as error:
        assert "too many clients" in str(error)
    return found


@pytest.fixture
def full_server(small_url: str) -> Iterator[list[PostgresStore]]:
    found = fill(small_url)
    yield found
    for store in found:
        store.close()


class Program:
    """A command that keeps running, and its output."""

    def __init__(self, folder: Path, url: str, *words: str) -> None:
        self.said = folder / f"{len(list(folder.iterdir()))}.said"
        with self.said.open("w") as file:
            self.process = subprocess.Popen(
                [*ANDON, *words], cwd=folder, env=_environment(url), stdout=file, stderr=file
            )

    def says(self, words: str) -> bool:
        return words in self.said.read_text("utf-8")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def program(folder: Path) -> Iterator[Callable[..., Program]]:
    begun: list[Program] = []

    def begin(url: str, *words: str) -> Program:
        begun.append(Program(folder, url, *words))
        return begun[-1]

    yield begin
    for one in begun:
        one.end()


def _environment(url: str) -> dict[str, str]:
    return {**os.environ, "ANDON_STORE": url}


def command(folder: Path, url: str, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*ANDON, *words],
        cwd=folder,
        env=_environment(url),
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


def connections(url: str) -> int:
    """The number of connections to a database, except the one that asks."""
    name = url.rpartition("/")[2]
    with psycopg.connect(url.rpartition("/")[0] + "/postgres") as db:
        [[count]] = db.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = %s", [name]
        ).fetchall()
    return int(count)


def transactions(url: str) -> int:
    name = url.rpartition("/")[2]
    with psycopg.connect(url.rpartition("/")[0] + "/postgres") as db:
        [[count]] = db.execute(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s", [name]
        ).fetchall()
    return int(count)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(LIMIT_SECONDS):
        while not condition():
            await asyncio.sleep(0.02)


async def waits(ctx: Any) -> None:
    await ctx.step(asyncio.sleep, 600)


# ── the number of connections ─────────────────────────────────────────────────────────────────


async def test_an_idle_worker_has_two_connections_and_a_busy_one_at_most_three(
    postgres_with_tables_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres_with_tables_url
    for module in (notifier, spare_connection):
        monkeypatch.setattr(module, "UNUSED_SECONDS", 0.2)
    store = open_store(url)
    async with Worker(store, [agent(waits)], Settings(store=url, grace_seconds=0.1)) as worker:
        await until(lambda: connections(url) == 2)
        starter = open_store(url, reserved=True)
        for number in range(5):
            do(starter, Start(run=new_run(f"r-{number}", "[]")))
        starter.close()
        await until(lambda: len(worker.active) == 5)
        await until(lambda: connections(url) <= 3)  # the starter's own have ended by then
        assert max([connections(url) for _ in range(10)]) <= 3
        await until(lambda: connections(url) == 2)  # it waits, and reads nothing
    store.close()


async def test_an_idle_worker_sends_heartbeat_poll_and_claim_in_one_transaction(
    postgres_with_tables_url: str,
) -> None:
    """A transaction for each would be four a second, two of them for peers and versions."""
    url = postgres_with_tables_url
    store = open_store(url)
    settings = Settings(store=url, lease_seconds=1.0, poll_seconds=0.01)
    async with Worker(store, [agent(waits)], settings) as worker:
        await until(lambda: worker._claim_number > 12)  # its first transactions are behind it
        claims, before, began = worker._claim_number, transactions(url), time.monotonic()
        await until(lambda: worker._claim_number > claims + 20)
        made, seconds = transactions(url) - before, time.monotonic() - began
        # The server's count is a second late: it includes earlier ones. And every 2.5 s the worker
        # checks the locks of workers on other hosts, however rarely a loaded machine lets it claim.
        assert made <= worker._claim_number - claims + 8 + seconds / 2.5
    store.close()


# ── a full server ─────────────────────────────────────────────────────────────────────────────


def test_twenty_workers_fit_into_fifty_connections_and_leave_some_for_orders(
    full_server: list[PostgresStore], small_url: str
) -> None:
    assert len(full_server) >= 20
    assert connections(small_url) <= 50 - 3 - RESERVED


def test_an_order_gets_through_when_workers_have_filled_the_server(
    small_url: str, folder: Path, program: Callable[..., Program]
) -> None:
    working = program(small_url, "work", "hello.py")
    eventually(lambda: working.says("is ready"))
    found = fill(small_url)
    for verb, state in (("cancel", "cancelled"), ("kill", "killed")):
        assert command(folder, small_url, "start", "hello", "name=a", "--id", verb).returncode == 0
        done = command(folder, small_url, verb, verb)
        assert done.returncode == 0, done.stderr
        assert f"now {state}" in done.stdout
    done = command(folder, small_url, "halt")
    assert done.returncode == 0, done.stderr
    assert found[0].latches()
    for store in found:
        store.close()


def test_an_order_waits_for_a_connection_that_another_client_holds(
    full_server: list[PostgresStore], small_server: Cluster, small_url: str, folder: Path
) -> None:
    others = []
    with contextlib.suppress(psycopg.OperationalError):
        while True:
            others.append(psycopg.connect(small_server.url()))
    halting = subprocess.Popen(
        [*ANDON, "pause", "--all"], cwd=folder, env=_environment(small_url), stderr=subprocess.PIPE
    )
    assert halting.stderr is not None
    assert b"waiting for the store" in halting.stderr.readline()
    for one in others:
        one.close()
    assert halting.wait(LIMIT_SECONDS) == 0
    halting.stderr.close()
    assert full_server[0].latches()


def test_a_worker_that_is_refused_reports_it_and_starts_when_there_is_room(
    full_server: list[PostgresStore], small_url: str, program: Callable[..., Program]
) -> None:
    before = connections(small_url)
    working = program(small_url, "work", "hello.py")
    eventually(lambda: working.says("too many clients"))
    assert working.says("Waiting until there is room")
    eventually(lambda: connections(small_url) == before, "it waits without a connection")
    full_server.pop().close()
    full_server.pop().close()
    eventually(lambda: working.says("is ready"))


def test_a_worker_without_a_connection_for_reads_uses_its_existing_one(
    full_server: list[PostgresStore], small_url: str
) -> None:
    assert full_server[0].run("r") is None
    assert [full_server[0].is_free(worker_row("w-2", None))] == [False]
    assert connections(small_url) <= 50 - 3 - RESERVED


def test_a_role_with_a_limit_of_its_own_keeps_connections_for_orders(small_server: Cluster) -> None:
    url = small_server.fresh_database()
    with psycopg.connect(url, autocommit=True) as db:
        name = url.rpartition("/")[2]
        db.execute("CREATE ROLE clerk LOGIN CONNECTION LIMIT 8")
        db.execute(f"GRANT CREATE ON DATABASE {name} TO clerk".encode())
    own = url.replace("postgres@", "clerk@")
    stores = [PostgresStore(own), PostgresStore(own)]
    stores[0].hold("w-1")
    stores[1].hold("w-2")
    with pytest.raises(StoreFull, match="this role may have"):
        PostgresStore(own)
    PostgresStore(own, reserved=True).close()
    for store in stores:
        store.close()
    small_server.drop_database(url.rpartition("/")[2])


def test_doctor_warns_before_the_server_is_full(
    full_server: list[PostgresStore], small_url: str
) -> None:
    found = connection_check(small_url)
    assert found.status == "warn"
    assert "max_connections" in found.advice
    for store in full_server[2:]:
        store.close()
    eventually(lambda: connection_check(small_url).status == "ok")


def connection_check(url: str) -> Check:
    def open_one() -> Any:
        return open_store(url, create=False, reserved=True)

    [found] = [one for one in examine(open_one, None, Settings()) if one.name == "connections"]
    return found
