"""Promises that only the SQLite store has to keep."""

import asyncio
import contextlib
import gc
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.store.parts import begin, claim, do, register, start, take

from andon.control import events
from andon.control.runs import runs
from andon.core.journal import check_chain
from andon.errors import BadInput, Corrupt, Fenced, StoreError, StoreUnavailable
from andon.runtime.requests import requests
from andon.store import notifier, open_store
from andon.store.messages.rows import Filter
from andon.store.sqlite import store as sqlite
from andon.store.sqlite.disk import file_system, refuse_unsafe
from andon.store.sqlite.store import SqliteStore
from andon.store.store import Beat, Blob, Log


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "andon.db"


def copy(source: Path, target: Path) -> None:
    """A copy made while no process writes: the file and its log, as a backup has them."""
    shutil.copy(source, target)
    shutil.copy(f"{source}-wal", f"{target}-wal")


@pytest.mark.parametrize("version", ["3.7.0", "3.45.1", "3.51.2"])
def test_an_sqlite_version_that_can_corrupt_files_is_refused(path: Path, version: str) -> None:
    with pytest.raises(StoreError, match=rf"SQLite {version}.*pip install -U apsw"):
        refuse_unsafe(path, create=True, version=version)


@pytest.mark.parametrize("version", ["3.51.3", "3.52.0", "4.0.0"])
def test_a_safe_sqlite_version_is_accepted(path: Path, version: str) -> None:
    refuse_unsafe(path, create=True, version=version)


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "9p"])
def test_a_network_file_system_is_refused(path: Path, kind: str) -> None:
    with pytest.raises(StoreError, match=rf"network file system \({kind}\).*PostgreSQL"):
        refuse_unsafe(path, create=True, kind=kind)


def test_a_local_file_system_is_known_by_name(path: Path) -> None:
    assert file_system(Path("/proc/self")) == "proc"
    refuse_unsafe(path, create=True, kind="ext4")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="found a folder"):
        SqliteStore(tmp_path)


def test_a_missing_file_is_refused_where_it_must_exist(path: Path) -> None:
    with pytest.raises(StoreError, match="there is no database"):
        SqliteStore(path, create=False)
    assert not path.exists()


def test_a_missing_folder_is_created(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "a" / "b" / "andon.db")
    assert store.integrity() == "ok"
    store.close()


def test_a_file_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with pytest.raises((StoreError, BadInput), match="file"):
        SqliteStore(tmp_path / "file" / "andon.db")


def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    path.write_text("these are my notes\n" * 100)
    with pytest.raises(StoreError, match="not an SQLite database"):
        SqliteStore(path)
    assert path.read_text().startswith("these are my notes")


def test_a_damaged_file_is_reported_with_a_hint_to_restore(path: Path) -> None:
    store = SqliteStore(path)
    start(store, *(f"r{n}" for n in range(200)))
    store._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    store.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 8192))
    with pytest.raises(StoreError, match=r"damaged.*Restore"):
        SqliteStore(path).runs(Filter())


def test_a_newer_schema_is_refused(path: Path) -> None:
    SqliteStore(path).close()
    db = apsw.Connection(str(path))
    db.execute("PRAGMA user_version = 999")
    db.close()
    with pytest.raises(StoreError, match=r"schema 999.*Upgrade andon"):
        SqliteStore(path)


def test_tables_without_a_schema_version_are_refused(path: Path) -> None:
    SqliteStore(path).close()
    db = apsw.Connection(str(path))
    db.execute("PRAGMA user_version = 0")
    db.close()
    with pytest.raises(StoreError, match="damaged"):
        SqliteStore(path)


def test_a_full_disk_refuses_writes_and_damages_nothing(path: Path) -> None:
    store = SqliteStore(path)
    held = begin(store)
    do(store, held.append())
    pages = store._writer.execute("PRAGMA page_count").get
    store._writer.execute(f"PRAGMA max_page_count = {pages + 5}").fetchall()
    large = Blob(name="address", body="x" * 100_000)
    with pytest.raises(StoreUnavailable, match="disk is full"):
        store.write([held.append(), held.append(blobs=(large,))])
    store._writer.execute("PRAGMA max_page_count = 1000000").fetchall()
    held.look_again(store)
    assert held.seq == 1
    assert store.write([held.append(), held.append(blobs=(large,))]) == [None, None]
    check_chain(store.journal("r"), run_id="r")
    store.close()


def test_a_locked_file_is_reported_after_a_while(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    store = SqliteStore(path)
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="write lock"):
        start(store, "r")
    other.execute("ROLLBACK")
    assert start(store, "r") == [True]
    other.close()
    store.close()


def test_the_epoch_is_kept_as_long_as_the_file_is_the_same(path: Path) -> None:
    for _ in range(3):
        store = SqliteStore(path)
        assert store.facts()["epoch"] == 1
        store.close()


def test_the_epoch_is_renewed_when_the_file_was_copied(path: Path, tmp_path: Path) -> None:
    store = SqliteStore(path)
    start(store, "r")
    copy(path, tmp_path / "copy.db")
    other = SqliteStore(tmp_path / "copy.db")
    assert (store.facts()["epoch"], other.facts()["epoch"]) == (1, 2)
    assert other.run("r") is not None
    store.close()
    other.close()


def test_a_restored_older_copy_fences_workers_of_the_newer_one(path: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup.db"
    store = SqliteStore(path)
    held = begin(store)
    copy(path, backup)
    do(store, held.append())
    store.close()
    os.replace(backup, path)
    os.replace(f"{backup}-wal", f"{path}-wal")
    Path(f"{path}-shm").unlink(missing_ok=True)

    store = SqliteStore(path)
    assert [entry.seq for entry in store.journal("r")] == [0]
    held.look_again(store)  # even one that would fit
    with pytest.raises(Fenced):
        do(store, held.append())
    with pytest.raises(Fenced):
        do(store, held.settle("succeeded"))
    with pytest.raises(Fenced):
        do(store, Beat(worker_id="w", lease_seconds=60))
    register(store, "second")
    again = take(store, "r", "second")
    assert again.fence > held.fence
    assert store.load("r").quiet_fences == frozenset()
    assert store.write([again.append()]) == [None]
    store.close()


def test_the_write_ahead_log_does_not_grow_without_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "CHECKPOINT_PAGES", 50)
    store = SqliteStore(path)
    held = begin(store)
    sizes = []
    for n in range(60):
        do(store, held.append(blobs=(Blob(name=str(n), body="x" * 40_000),)))
        store.checkpoint()
        sizes.append(os.stat(f"{path}-wal").st_size)
    assert max(sizes) < 10 * 50 * 4096
    assert os.stat(path).st_size > 20 * 40_000
    store.close()


def test_the_caller_may_not_write_to_andons_tables_or_commit(path: Path) -> None:
    store = SqliteStore(path)
    begin(store)
    for statement in ("DELETE FROM andon_runs", "UPDATE andon_journal SET body = 1", "COMMIT"):
        with pytest.raises(apsw.AuthError):
            store.transact(_executing(statement))
    assert store.run("r") is not None
    store.close()


def _executing(statement: str) -> Callable[[Any], Any]:
    return lambda db: db.execute(statement)


def put_out_of_order(path: Path, tree: str, after: int) -> None:
    """Corrupt a tree: its last number becomes 1, `after` bytes into the cell that holds it."""
    with contextlib.closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        page = db.execute("SELECT pageno FROM dbstat WHERE name = ?", (tree,)).get
    found = bytearray(path.read_bytes())
    top = (page - 1) * 4096
    count = int.from_bytes(found[top + 3 : top + 5], "big")
    where = top + 8 + 2 * (count - 1)  # of the address of its last cell
    cell = top + int.from_bytes(found[where : where + 2], "big")
    assert found[cell + after] in (3, 4)
    found[cell + after] = 1
    path.write_bytes(found)


@pytest.mark.parametrize(
    ("tree", "after", "read"),
    [
        # Behind the size of the cell, the header of its record and the id of the run.
        ("sqlite_autoindex_andon_journal_1", 1 + 4 + 1, lambda store: requests.journal(store, "r")),
        # There the number of the row, which follows that of the line, decides what is read.
        ("andon_logs_of_run", 1 + 4 + 2, lambda store: runs.lines(store, "r")),
        ("andon_events", 1, lambda store: events.recent(store, 0)),
    ],
)
def test_an_index_out_of_order_is_reported_and_not_listed_for_ever(
    path: Path, tree: str, after: int, read: Callable[[Any], Any]
) -> None:
    store = SqliteStore(path)
    held = begin(store)
    for name in ("w1", "w2", "w3"):
        register(store, name)
        do(store, held.append())
        do(store, Log(run_id="r", attempt=1, lines=((0.0, "info", "here"),)))
    store.close()
    put_out_of_order(path, tree, after)
    store = SqliteStore(path)
    with pytest.raises(Corrupt, match=r"after 1, .* up to 1; it is damaged. Restore it from"):
        read(store)
    store.close()


def test_a_lock_file_of_a_finished_worker_is_removed(path: Path) -> None:
    store = SqliteStore(path)
    store.hold("w")
    assert Path(store.folder, "w.lock").exists()
    store.release("w")
    assert not Path(store.folder, "w.lock").exists()
    store.close()


def test_a_very_long_path_can_be_listened_on(tmp_path: Path) -> None:
    """A socket's name is limited to 107 bytes; a folder's is not."""
    folder = tmp_path / ("x" * 100) / ("y" * 100)
    store = open_store(f"sqlite:///{folder}/andon.db")
    store.listen(lambda: None)()
    store.close()


@pytest.mark.parametrize("name", ["claim_runs", "candidates"])
def test_a_claim_does_not_sort_the_queue(path: Path, name: str) -> None:
    """With a hundred thousand runs waiting, one claim must not look at all of them."""
    store = SqliteStore(path)
    register(store)
    params = {"worker_id": "w", "agents": "[]", "only": None, "limit": 1, "suspect_from": 1}
    params |= {"queues": None, "chosen": None, "taken": "[]", "held": "[]"}
    plan = store._writer.execute(f"EXPLAIN QUERY PLAN {store._sql[name]}", params).fetchall()
    words = " ".join(str(row[3]) for row in plan)
    assert "andon_runs_queued" in words
    assert "TEMP B-TREE" not in words
    assert claim(store).runs == []
    store.close()


def test_a_listener_that_ends_after_its_loop_has_stopped_leaves_no_socket_open(
    tmp_path: Path,
) -> None:
    sender = notifier.HostNotifier(str(tmp_path))
    loop = asyncio.new_event_loop()
    end = sender.listen_on(loop, lambda: None)
    loop.run_until_complete(asyncio.sleep(0))
    loop.call_soon(end)  # an end that the loop never carries out
    end()
    end()
    loop.close()
    sender.close()
    gc.collect()  # an open socket would be a ResourceWarning, and that an error


def test_a_listener_that_ends_twice_is_closed_once(tmp_path: Path) -> None:
    sender = notifier.HostNotifier(str(tmp_path))
    loop = asyncio.new_event_loop()
    errors: list[Any] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    end = sender.listen_on(loop, lambda: None)
    loop.call_soon(end)
    loop.call_soon(loop.stop)
    loop.run_forever()
    end()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    sender.close()
    assert errors == []


def test_a_listener_on_a_closed_loop_leaves_no_socket_open(tmp_path: Path) -> None:
    listening = notifier.HostNotifier(str(tmp_path))
    loop = asyncio.new_event_loop()
    end = listening.listen_on(loop, lambda: None)
    loop.close()
    before = len(os.listdir("/proc/self/fd"))
    end()
    assert len(os.listdir("/proc/self/fd")) == before - 1
    with pytest.raises(RuntimeError):
        listening.listen_on(loop, lambda: None)
    assert len(os.listdir("/proc/self/fd")) == before - 1
    assert not os.listdir(tmp_path)
    listening.close()
