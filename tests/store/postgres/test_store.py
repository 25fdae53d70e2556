"""Promises that only the PostgreSQL store has to keep."""

import asyncio
import contextlib
import re
import select
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from tests.pooler import Pooler
from tests.store.parts import (
    AGENT,
    LONG,
    Held,
    Listen,
    begin,
    blob,
    claim,
    do,
    effect,
    eventually,
    new_run,
    register,
    start,
    take,
    worker_row,
)

from andon.core.journal import check_chain
from andon.errors import AndonError, BadInput, Conflict, Fenced, StoreError, StoreUnavailable
from andon.store.postgres import notifier, spare_connection
from andon.store.postgres import store as postgres
from andon.store.postgres.store import PostgresStore
from andon.store.store import (
    Append,
    Beat,
    Blob,
    Checkpoint,
    Claim,
    Deliver,
    Message,
    SetLimit,
    Start,
)
from andon.store.writer.writer import Writer
from andon.testing.postgres import Cluster


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(postgres_url)
    yield store
    store.close()


@pytest.fixture
def user(postgres_url: str) -> Iterator["psycopg.Connection[tuple[Any, ...]]"]:
    """A connection of the user's own program."""
    with psycopg.connect(postgres_url) as connection:
        yield connection
        connection.rollback()


def until_back(act: Callable[[], Any]) -> Any:
    """Retry as the writer does, until the database is back."""

    def attempt() -> list[Any]:
        try:
            return [act()]
        except StoreUnavailable:
            return []

    return eventually(attempt)[0]


# ── requirements on the server ────────────────────────────────────────────────────────────────


def test_a_database_that_cannot_hold_all_text_is_refused(cluster: Cluster) -> None:
    with psycopg.connect(cluster.url(), autocommit=True) as admin:
        admin.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(StoreError, match=r"encoding LATIN1.*expected UTF8"):
        PostgresStore(cluster.url("latin"))
    cluster.drop_database("latin")


def test_a_newer_schema_is_refused(postgres_url: str) -> None:
    PostgresStore(postgres_url).close()
    with psycopg.connect(postgres_url) as user:
        user.execute("UPDATE andon.schema SET version = 999")
    with pytest.raises(StoreError, match=r"schema 999.*Upgrade andon"):
        PostgresStore(postgres_url)


def test_a_server_that_is_not_running_is_unavailable(cluster: Cluster) -> None:
    with pytest.raises(StoreUnavailable, match="cannot connect"):
        PostgresStore("postgresql://postgres@127.0.0.1:1/postgres")
    with pytest.raises(StoreUnavailable, match="no_such_database"):
        PostgresStore(cluster.url("no_such_database"))


def test_an_invalid_url_is_refused() -> None:
    with pytest.raises(BadInput, match="no_such_option"):
        PostgresStore("postgresql://me@here/db?no_such_option=1")


def test_a_role_without_privileges_gets_an_error_that_names_them(
    postgres_url: str, cluster: Cluster
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute("DROP ROLE IF EXISTS nobody_much")
        admin.execute("CREATE ROLE nobody_much LOGIN")
        with pytest.raises(StoreError, match="GRANT CREATE ON DATABASE"):
            PostgresStore(postgres_url.replace("postgres@", "nobody_much@"))
        admin.execute("CREATE SCHEMA andon AUTHORIZATION nobody_much")
        store = PostgresStore(postgres_url.replace("postgres@", "nobody_much@"))
        assert start(store, "r") == [True]
        store.close()
        admin.execute("DROP OWNED BY nobody_much")
        admin.execute("DROP ROLE nobody_much")


def test_the_users_own_tables_do_not_clash_with_andons(
    postgres_url: str, user: "psycopg.Connection[Any]"
) -> None:
    user.execute("CREATE TABLE runs (mine INTEGER); INSERT INTO runs VALUES (1)")
    user.commit()
    store = PostgresStore(postgres_url)
    assert start(store, "r") == [True]
    assert user.execute("SELECT * FROM runs").fetchall() == [(1,)]
    store.close()


def test_a_password_is_not_shown(postgres_url: str) -> None:
    url = postgres_url.replace("postgres@", "postgres:s3cr@t@")
    for wrong in (f"{url}?no_such_option=1", f"{url}_that_is_not_there"):
        with pytest.raises(AndonError) as refusal:
            PostgresStore(wrong)
        assert "s3cr" not in str(refusal.value)
    store = PostgresStore(url.replace("s3cr@t", "s3cr%40t"))
    assert "s3cr" not in str(store.facts())
    store.close()


def test_the_epoch_is_renewed_when_the_database_was_restored_elsewhere(
    postgres_url: str, cluster: Cluster
) -> None:
    """A copy in the same server stands for a restore elsewhere."""
    store = PostgresStore(postgres_url)
    held = begin(store)
    store.close()
    name = postgres_url.rpartition("/")[2]
    with psycopg.connect(cluster.url(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}_copy TEMPLATE {name}".encode())
    copy = PostgresStore(f"{postgres_url}_copy")
    assert copy.facts()["epoch"] == 2
    for message in (held.append(), Beat(worker_id="w", lease_seconds=60)):
        with pytest.raises(Fenced):
            do(copy, message)
    assert take(copy, "r", register(copy, "second")).fence > held.fence
    copy.close()
    cluster.drop_database(f"{name}_copy")


# ── reconnecting ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("end", [Cluster.restart, Cluster.kill], ids=["restart", "crash"])
def test_the_store_reconnects_after_a_restart_or_crash_of_the_server(
    store: PostgresStore, cluster: Cluster, end: Callable[[Cluster], None]
) -> None:
    held = begin(store)
    do(store, held.append())
    end(cluster)
    if not cluster.running:
        with pytest.raises(StoreUnavailable):
            store.run("r")
        cluster.start()
    message = held.append()
    assert until_back(lambda: do(store, message)) is None
    assert [entry.seq for entry in store.journal("r")] == [0, 1, 2]
    assert store.facts()["epoch"] == 1
    check_chain(store.journal("r"), run_id="r")


def test_a_read_does_not_fail_because_an_idle_connection_ended(
    store: PostgresStore, user: "psycopg.Connection[Any]"
) -> None:
    start(store, "r")
    assert store.run("r") is not None
    end_connections(user)
    assert store.run("r") is not None


def end_connections(user: "psycopg.Connection[Any]", name: str = "andon") -> None:
    user.execute(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        " WHERE application_name = %s AND datname = current_database()",
        [name],
    )
    user.commit()


def test_every_message_written_again_after_a_lost_connection_is_written_once(
    store: PostgresStore, user: "psycopg.Connection[Any]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit arrives and its answer does not: the worst moment to lose a connection."""
    register(store)
    commit = PostgresStore._commit

    def commit_unheard(self: PostgresStore, batch: Any) -> Any:
        commit(self, batch)
        raise psycopg.OperationalError("the answer was lost")

    def twice(batch: list[Message]) -> list[Any]:
        monkeypatch.setattr(PostgresStore, "_commit", commit_unheard)
        with pytest.raises(StoreUnavailable):
            store.write(batch)
        monkeypatch.setattr(PostgresStore, "_commit", commit)
        return store.write(batch)

    assert twice([Start(run=new_run("r"))]) == [False]
    message = Claim(worker_id="w", agents=(("agent", "1"),), limit=5, number=1)
    [found] = twice([message])
    [held] = [Held(run) for run in found.runs]
    assert held.claimed.attempt == 1
    batch: list[Message] = [held.append(), held.append(effects=(effect(),)), held.append()]
    batch += [held.append(blobs=(Blob(name="b", body="1"),), spawn=new_run("child", parent_id="r"))]
    assert twice(batch) == [None] * 4
    assert twice([held.settle("queued", failed=True, entries=(held.entry(),))]) == ["queued"]
    run = store.run("r")
    assert run is not None
    assert (run.attempt, run.failures, run.head_seq) == (1, 1, 5)
    check_chain(store.journal("r"), run_id="r")


def test_a_listener_survives_a_restart_and_is_called_once_it_is_connected_again(
    store: PostgresStore, cluster: Cluster, listen: Listen
) -> None:
    heard = threading.Event()
    end = listen(store, heard.set)
    cluster.restart()
    assert heard.wait(LONG), "notifications sent meanwhile are lost: the listener must look itself"
    heard.clear()

    def notified() -> bool:
        store.notify()
        return heard.wait(0.1)

    eventually(notified)
    end()


def test_a_listener_can_be_ended_while_the_server_is_away(
    store: PostgresStore, cluster: Cluster, listen: Listen
) -> None:
    end = listen(store, lambda: None)
    cluster.stop()
    end()
    eventually(lambda: "andon-notifier" not in [thread.name for thread in threading.enumerate()])
    cluster.start()


def test_a_notification_never_waits_for_the_server(store: PostgresStore, cluster: Cluster) -> None:
    cluster.stop()
    for _ in range(1000):
        store.notify()
    cluster.start()
    heard = threading.Event()
    end = store.listen(heard.set)

    def notified() -> bool:
        store.notify()
        return heard.wait(0.1)

    eventually(notified)
    end()


@pytest.mark.usefixtures("long_running_server")
def test_the_liveness_lock_is_taken_again_after_a_restart(
    store: PostgresStore, cluster: Cluster
) -> None:
    row = worker_row("w", store.hold("w"))
    cluster.restart()
    with psycopg.connect(store.url) as user:
        eventually(lambda: held_locks(user) == 1, "the lock was not taken again")
    assert not store.is_free(row)


@pytest.mark.usefixtures("long_running_server")
def test_the_liveness_lock_is_taken_again_after_its_connection_was_ended(
    store: PostgresStore, postgres_url: str
) -> None:
    row = worker_row("w", store.hold("w"))
    other = PostgresStore(postgres_url)
    with psycopg.connect(postgres_url) as user:
        for _ in range(3):
            user.execute(
                "SELECT pg_terminate_backend(l.pid, 10000) FROM pg_locks l"
                " WHERE l.locktype = 'advisory' AND l.granted"
            )
            eventually(lambda: held_locks(user) == 1, "the lock was not taken again")
            assert not other.is_free(row)
    other.close()


def held_locks(user: "psycopg.Connection[Any]") -> int:
    [[count]] = user.execute(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND database ="
        " (SELECT oid FROM pg_database WHERE datname = current_database())"
    ).fetchall()
    return int(count)


@pytest.mark.usefixtures("long_running_server")
def test_a_worker_that_only_lost_its_connection_is_not_called_silent(
    store: PostgresStore, postgres_url: str
) -> None:
    row = worker_row("w", store.hold("w"))
    other = PostgresStore(postgres_url)
    with psycopg.connect(postgres_url, autocommit=True) as user:
        for _ in range(10):
            end_connections(user)
            looks = [other.is_free(row) for _ in range(20)]
            assert not any(looks)
    other.close()


def test_no_worker_is_called_silent_right_after_a_restart(
    store: PostgresStore, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = worker_row("w", str(notifier.key_of("w")))
    cluster.restart()
    monkeypatch.setattr(notifier, "RETAKE_SECONDS", 0.0)
    assert not until_back(lambda: store.is_free(nobody))
    monkeypatch.setattr(notifier, "RESTART_SECONDS", 0.0)
    assert store.is_free(nobody)
    assert not store.is_free(worker_row("w", None))


# ── concurrency ───────────────────────────────────────────────────────────────────────────────


def test_writers_that_lock_each_others_runs_do_not_deadlock(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Children end and notify their parents, while the parents get messages from elsewhere."""
    monkeypatch.setattr(postgres, "CONTENTION_TRIES", 1)
    stores = [PostgresStore(postgres_url) for _ in range(2)]
    register(stores[0], "w0")
    register(stores[1], "w1")
    barrier = threading.Barrier(2)
    for n in range(15):
        # Two families; each store ends one family's child and sends to the other's.
        names = [(f"a{n}", f"b{n}"), (f"d{n}", f"c{n}")]
        kids = []
        for number, (parent, kid) in enumerate(names):
            start(stores[0], parent)
            start(stores[0], kid, parent_id=parent)
            kids.append(take(stores[number], kid, f"w{number}"))

        def go(number: int, names: Any = names, kids: Any = kids, n: int = n) -> list[Any]:
            barrier.wait(LONG)
            messages: list[Message] = [kids[number].settle("succeeded")]
            for run_id in names[1 - number]:
                message = Deliver(
                    run_id=run_id, kind="event", name="e", body="1", message_id=f"{number}"
                )
                messages.append(message)
            return stores[number].write(messages)

        with ThreadPoolExecutor(2) as threads:
            for outcomes in threads.map(go, range(2)):
                assert outcomes[:2] == ["succeeded", True]
    for store in stores:
        store.close()


def test_a_deadlock_is_retried(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [psycopg.errors.DeadlockDetected(), psycopg.errors.SerializationFailure()]
    commit = PostgresStore._commit

    def contended(self: PostgresStore, batch: Any) -> Any:
        if failures:
            raise failures.pop()
        return commit(self, batch)

    monkeypatch.setattr(PostgresStore, "_commit", contended)
    assert start(store, "r") == [True]
    failures[:] = [psycopg.errors.DeadlockDetected()] * postgres.CONTENTION_TRIES
    with pytest.raises(StoreUnavailable, match="transactions kept changing"):
        start(store, "s")


@pytest.mark.parametrize("name", ["claim_runs", "candidates"])
@pytest.mark.parametrize("analyzed", [True, False])
def test_a_claim_does_not_sort_the_queue(
    store: PostgresStore, user: "psycopg.Connection[Any]", name: str, *, analyzed: bool
) -> None:
    """With a hundred thousand runs waiting, one claim must not look at all of them."""
    user.autocommit = True
    user.execute("ALTER TABLE andon.runs SET (autovacuum_enabled = off)")
    user.execute(
        "INSERT INTO andon.runs (id, agent, version, queue, state, priority, available_at, labels,"
        " root_id, head_seq, head_hash, created_at, changed_at)"
        " SELECT 'r' || n, 'agent', '1', 'q', 'queued', n % 3, n, '{}', 'r', 0, 'h', n, n"
        " FROM generate_series(1, 50000) n"
    )
    if analyzed:
        user.execute("ANALYZE andon.runs")
    query = store._sql[name].decode()
    values = {"worker_id": "'w'", "agents": """'[["agent","1"]]'"""}
    values |= {"only": "NULL", "queues": "NULL", "chosen": "NULL"}
    values |= {"taken": "'[]'", "held": """'[["queue", "slow", "", 0]]'"""}
    names = sorted(set(re.findall(r"%\((\w+)\)s", query)))
    kinds = ", ".join("text" if name in values else "bigint" for name in names)
    given = ", ".join(values.get(name, "1") for name in names)
    marks = {name: f"${number}" for number, name in enumerate(names, 1)}
    db = store._session.connection()
    db.execute(f"PREPARE claiming ({kinds}) AS {query % marks}".encode())
    rows = db.execute(f"EXPLAIN EXECUTE claiming ({given})".encode()).fetchall()
    plan = "\n".join(row[0] for row in rows)
    assert "Index Scan using runs_queued" in plan, plan
    assert "Sort" not in plan, plan
    assert "Seq Scan on runs" not in plan, plan


def test_an_append_touches_no_index_of_the_run(
    store: PostgresStore, user: "psycopg.Connection[Any]"
) -> None:
    held = begin(store)
    for _ in range(50):
        do(store, held.append(step="x"))
    for _ in range(50):
        store.write([held.append(step="x"), held.append()])
    store.close()  # a connection that ends reports its counts, an idle one only every ten seconds

    def hot() -> bool:
        [[updates, hot]] = user.execute(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables"
            " WHERE schemaname = 'andon' AND relname = 'runs'"
        ).fetchall()
        user.rollback()
        return bool(updates >= 101 and hot >= 95)

    eventually(hot, "appends change the indexes of andon.runs")


# ── in the user's transaction ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("commits", [True, False])
def test_a_run_starts_with_the_commit_of_the_callers_transaction(
    store: PostgresStore, user: "psycopg.Connection[Any]", *, commits: bool
) -> None:
    user.execute("CREATE TABLE mine (n INTEGER)")
    user.commit()
    heard = threading.Event()
    end = store.listen(heard.set)
    user.execute("INSERT INTO mine VALUES (1)")
    assert store.start_on(user, new_run("r", blobs=(Blob(name="b", body="1"),))) is True
    assert store.run("r") is None
    user.commit() if commits else user.rollback()
    assert (store.run("r") is not None) == commits
    assert len(user.execute("SELECT * FROM mine").fetchall()) == int(commits)
    if commits:
        assert heard.wait(LONG)
        assert store.start_on(user, new_run("r")) is False
        with pytest.raises(Conflict):
            store.start_on(user, new_run("r", given="other"))
    assert claim(store, register(store)).runs != [] or not commits
    end()


def test_a_run_starts_on_any_kind_of_connection(store: PostgresStore, postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True, row_factory=dict_row) as user:
        assert store.start_on(user, new_run("r")) is True
        assert store.start_on(user, new_run("r")) is False
        with user.transaction():
            store.start_on(user, new_run("s"))
            assert store.run("s") is None
        assert store.run("s") is not None
    with pytest.raises(BadInput, match="start_on_async"):
        store.start_on(object(), new_run("t"))


def test_a_run_starts_on_an_async_connection(store: PostgresStore, postgres_url: str) -> None:
    async def go() -> list[bool]:
        async with await psycopg.AsyncConnection.connect(postgres_url) as user:
            first = await store.start_on_async(user, new_run("r"))
            again = await store.start_on_async(user, new_run("r"))
            await user.rollback()
            third = await store.start_on_async(user, new_run("r", blobs=(blob("1"),)))
            await user.commit()
            with pytest.raises(Conflict):
                await store.start_on_async(user, new_run("r", given="other"))
            return [first, again, third]

    assert asyncio.run(go()) == [True, False, True]
    assert store.blob(blob("1").name) == "1"


def test_a_swallowed_error_in_the_callers_transaction_is_refused(store: PostgresStore) -> None:
    held = begin(store)

    def swallow(db: Any) -> Append:
        with contextlib.suppress(psycopg.Error):
            db.execute("SELECT 1 / 0")
        return held.append()

    with pytest.raises(BadInput, match="failed and the error was caught"):
        store.transact(swallow)
    assert len(store.journal("r")) == 1


@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
def test_the_caller_cannot_end_the_transaction_through_the_connection(
    store: PostgresStore, end: str
) -> None:
    held = begin(store)

    def meddle(db: Any) -> Append:
        db.execute("CREATE TABLE mine ()")
        getattr(db, end)()
        return held.append()

    with pytest.raises(BadInput, match="Leave commit, rollback and close to andon"):
        store.transact(meddle)
    assert len(store.journal("r")) == 1


def test_the_caller_may_use_savepoints_and_leaves_nothing_behind(store: PostgresStore) -> None:
    held = begin(store)

    def work(db: Any) -> Append:
        with db.transaction():
            db.execute("CREATE TABLE mine (n INTEGER)")
        db.execute("SET search_path TO nowhere")
        db.execute("CREATE TEMPORARY TABLE left_over ()")
        return held.append()

    store.transact(work)

    def look(db: Any) -> Append:
        assert db.execute("SHOW search_path").fetchone() != ("nowhere",)
        assert db.execute("SELECT to_regclass('left_over')").fetchone() == (None,)
        assert db.execute("SELECT * FROM mine").fetchall() == []
        return held.append()

    store.transact(look)
    assert len(store.journal("r")) == 3


@pytest.mark.parametrize("committed", [True, False])
def test_after_a_lost_commit_the_store_looks_up_its_outcome(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, *, committed: bool
) -> None:
    held = begin(store)
    message = held.append()
    monkeypatch.setattr(spare_connection, "UNUSED_SECONDS", 0.0)
    assert store._spare.close_unused() is None  # the next one is the one below
    connect = store.connector.connect

    class Lossy:
        """A connection whose answer to COMMIT is lost."""

        def __init__(self, db: Any) -> None:
            self.__dict__["db"] = db

        def __getattr__(self, name: str) -> Any:
            return getattr(self.db, name)

        def __setattr__(self, name: str, value: Any) -> None:
            setattr(self.db, name, value)

        def execute(self, query: Any, *rest: Any, **more: Any) -> Any:
            if query == "COMMIT":
                if committed:
                    self.db.execute(query)
                self.db.close()
                raise psycopg.OperationalError("the connection was lost")
            return self.db.execute(query, *rest, **more)

    monkeypatch.setattr(store, "q", _q_through(store))
    monkeypatch.setattr(store.connector, "connect", lambda **settings: Lossy(connect(**settings)))

    def lose(db: Any) -> Append:
        monkeypatch.setattr(store.connector, "connect", connect)
        return message

    if committed:
        store.transact(lose)
    else:
        with pytest.raises(StoreUnavailable):
            store.transact(lose)
    monkeypatch.undo()
    assert len(store.journal("r")) == (2 if committed else 1)


def _q_through(store: PostgresStore) -> Any:
    """psycopg's cursors need the real connection."""
    q = store.q

    def ask(name: str, /, **params: Any) -> Any:
        db = store._local.db
        store._local.db = getattr(db, "db", db)
        try:
            return q(name, **params)
        finally:
            store._local.db = db

    return ask


# ── through a pooler ──────────────────────────────────────────────────────────────────────────


@pytest.fixture
def pooler(cluster: Cluster, postgres_url: str) -> Iterator[Pooler]:
    database = postgres_url.rpartition("/")[2]
    with Pooler("127.0.0.1", cluster.port, servers=3, database=database) as pooler:
        yield pooler


def test_everything_works_through_a_pooler(pooler: Pooler) -> None:
    store = PostgresStore(f"{pooler.url}?andon_pooler=1")
    assert store.facts()["pooler"] is True
    held = begin(store)
    for _ in range(5):
        do(store, held.append())
        assert store.write([held.append(effects=(effect(),)), held.append()]) == [None, None]
        do(store, held.append(blobs=(Blob(name="b", body="1"),)))
    outcomes = store.write([Start(run=new_run("s")), held.append(of={"name": "a\0b"})])
    assert outcomes[0] is True
    assert isinstance(outcomes[1], BadInput)
    held.look_again(store)
    store.transact(lambda db: db.execute("CREATE TABLE mine ()") and held.append())
    do(store, held.settle("succeeded"))
    assert len(store.journal("r")) == 22
    check_chain(store.journal("r"), run_id="r")
    assert store.hold("w") is None
    assert not store.is_free(worker_row("w", None))
    store.notify()
    store.listen(lambda: None)()
    store.close()


def test_two_stores_may_open_an_empty_database_through_a_pooler(pooler: Pooler) -> None:
    url = f"{pooler.url}?andon_pooler=1"
    with ThreadPoolExecutor(4) as threads:
        stores = list(threads.map(PostgresStore, [url] * 4))
    assert {store.facts()["epoch"] for store in stores} == {1}
    for store in stores:
        store.close()


def test_an_undeclared_pooler_is_recognised(pooler: Pooler) -> None:
    with pytest.raises(StoreError, match=r"andon_pooler=1"):
        PostgresStore(pooler.url)


def test_one_append_is_one_round_trip(pooler: Pooler, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PostgresStore(f"{pooler.url}?andon_pooler=1")
    monkeypatch.setattr(
        store, "notify", lambda: None
    )  # it has its own connection, and its own time
    held = begin(store)
    before = pooler.round_trips
    for _ in range(10):
        do(store, held.append())
    assert pooler.round_trips - before == 10
    before = pooler.round_trips
    for _ in range(10):
        store.write([held.append(), held.append(effects=(effect(),))])
    assert pooler.round_trips - before == 10
    store.close()


def test_a_new_limit_waits_for_claims_that_have_not_seen_it(
    store: PostgresStore, user: "psycopg.Connection[Any]"
) -> None:
    register(store)
    user.execute("SELECT 1 FROM andon.workers WHERE id = 'w' FOR NO KEY UPDATE")  # as a claim does
    with ThreadPoolExecutor(1) as pool:
        limit = pool.submit(do, store, SetLimit(scope="agent", name="agent", at_most=1))
        with psycopg.connect(store.url, autocommit=True) as watching:
            eventually(
                lambda: watching.execute(
                    "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
                    " AND wait_event_type = 'Lock'"
                ).fetchall(),
                "no connection waits for a lock",
            )
        assert not limit.done()
        user.rollback()
        assert limit.result() is True


# ── one message without a thread ──────────────────────────────────────────────────────────────────


def test_a_lone_start_and_a_lone_claim_need_no_thread(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(store)
    monkeypatch.delattr(PostgresStore, "write")

    async def start_and_claim() -> tuple[Any, Any]:
        writer = Writer(store, patience_seconds=0)
        started = await writer.submit(Start(run=new_run("r")))
        writer._sender.wait(LONG)  # its notification has an answer too
        claimed = await writer.write(Claim(worker_id="w", agents=(AGENT,), limit=1, number=1))
        writer.close(LONG)
        return started, claimed

    started, claimed = asyncio.run(start_and_claim())
    assert started is True
    assert [run.id for run in claimed.runs] == ["r"]


def test_two_writers_of_one_loop_do_not_use_the_connection_at_the_same_time(
    store: PostgresStore,
) -> None:
    """A client and the worker in the same program."""
    register(store)

    async def submit() -> list[Any]:
        writers = [Writer(store, patience_seconds=0) for _ in range(2)]
        found = []
        for number in range(20):
            both = [w.submit(Start(run=new_run(f"{number}-{id(w)}"))) for w in writers]
            found += [await one for one in both]
        for writer in writers:
            writer.close(LONG)
        return found

    assert asyncio.run(asyncio.wait_for(submit(), LONG)) == [True] * 40


def test_a_refused_batch_does_not_cost_the_next_one_its_connection(
    store: PostgresStore,
) -> None:
    """The driver discards its prepared statements when a transaction is rolled back."""
    register(store)

    async def submit(*run_ids: str) -> list[Any]:
        writer = Writer(store, patience_seconds=0)
        found = [await writer.submit(Start(run=new_run(run_id))) for run_id in run_ids]
        writer.close(LONG)
        return found

    held = begin(store, "held")
    for one in "xyz":
        start(store, one, f"{one}-1")  # until the driver has prepared its statements
    assert asyncio.run(submit("a", "b")) == [True, True]
    connection = store._session.db
    spoiled = Checkpoint(run_id="held", fence=held.fence, op=":0", body="\0")
    outcomes = store.write([Start(run=new_run("c")), Start(run=new_run("d")), spoiled])
    assert [type(one) for one in outcomes] == [bool, bool, BadInput]
    assert asyncio.run(submit("e", "f")) == [True, True]
    assert store._session.db is connection


def test_a_claim_whose_answer_is_lost_on_its_way_is_the_same_when_sent_again(
    store: PostgresStore,
) -> None:
    register(store)
    start(store, "a", "b")
    message = Claim(worker_id="w", agents=(AGENT,), limit=1, number=1)
    descriptor = store.send([message])
    assert descriptor is not None
    select.select([descriptor], [], [], LONG)  # it is committed
    assert store._session.db is not None
    store._session.db.close()
    with pytest.raises(StoreUnavailable):
        store.receive()
    assert len(do(store, message).runs) == 1
    assert sum(len(store.attempts(run_id)) for run_id in ("a", "b")) == 1
