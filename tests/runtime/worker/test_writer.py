"""Group commit: the loop or a thread commits pending messages, and callers wait for them."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from andon.errors import StoreError, StoreUnavailable
from andon.store.sqlite import store as sqlite
from andon.store.sqlite.errors import BUSY_SECONDS
from andon.store.sqlite.store import SqliteStore
from andon.store.store import Log, NoteEvent
from andon.store.writer.writer import Writer


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    store = SqliteStore(tmp_path / "a.db")
    writer = Writer(store, patience_seconds=20)
    yield writer
    writer.close()
    store.close()


def event_message(kind: str) -> NoteEvent:
    return NoteEvent(kind=kind, body="{}")


@pytest.fixture
def committers(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads that commit, in their order."""
    found: list[int] = []
    commit = SqliteStore._commit

    def watched(self: SqliteStore, batch: Any) -> Any:
        found.append(threading.get_ident())
        return commit(self, batch)

    monkeypatch.setattr(SqliteStore, "_commit", watched)
    return found


def count_events(writer: Writer) -> int:
    assert isinstance(writer.store, SqliteStore)
    count: int = writer.store._reader.db.execute("SELECT count(*) FROM andon_events").get
    return count


async def test_when_every_run_waits_for_it_the_loop_commits(
    writer: Writer, committers: list[int]
) -> None:
    writer.runs = 2
    both = [writer.submit(event_message("a")), writer.submit(event_message("b"))]
    for future in both:
        await future
    assert committers == [threading.get_ident()]
    assert count_events(writer) == 2


@pytest.mark.parametrize("runs", [0, 2])  # none: a program that only starts runs
async def test_while_another_run_executes_the_thread_commits(
    writer: Writer, committers: list[int], runs: int
) -> None:
    writer.runs = runs
    await writer.submit(event_message("a"))
    [committer] = committers
    assert committer != threading.get_ident()


async def test_messages_that_a_run_writes_beside_its_work_do_not_delay_it(
    writer: Writer, committers: list[int]
) -> None:
    writer.runs = 1
    await writer.submit(Log(run_id="r", attempt=1, lines=((0.0, "info", "still at it"),)))
    [committer] = committers
    assert committer != threading.get_ident()


async def test_the_loop_waits_only_briefly_for_a_lock_and_leaves_the_rest_to_the_thread(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: dict[int, float] = {}
    call = sqlite._BusyHandler.__call__

    def watched(self: Any, tries: int) -> bool:
        waited[threading.get_ident()] = self.seconds
        return call(self, tries)

    monkeypatch.setattr(sqlite._BusyHandler, "__call__", watched)
    other = apsw.Connection(writer.store.url.removeprefix("sqlite:///"))
    other.execute("BEGIN IMMEDIATE")
    writer.runs = 1
    future = writer.submit(event_message("a"))
    while len(waited) < 2:
        await asyncio.sleep(0)
    assert not future.done()
    other.execute("COMMIT")
    await future
    assert waited.pop(threading.get_ident()) == sqlite.MOMENT_SECONDS
    assert list(waited.values()) == [BUSY_SECONDS]
    assert count_events(writer) == 1


async def test_messages_that_the_loop_could_not_commit_are_committed_in_order(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = True

    def once(self: SqliteStore, batch: Any) -> Any:
        nonlocal refused
        if refused:
            refused = False
            raise StoreUnavailable("not now")
        return at_once(self, batch)

    at_once = SqliteStore.write_at_once
    monkeypatch.setattr(SqliteStore, "write_at_once", once)
    writer.runs = 1
    first = writer.submit(event_message("first"))
    await asyncio.sleep(0)
    await writer.submit(event_message("second"))
    await first
    kinds = writer.store._reader.db.execute("SELECT kind FROM andon_events ORDER BY id").fetchall()  # type: ignore[attr-defined]
    assert kinds == [("first",), ("second",)]


async def test_an_error_of_the_disk_is_not_retried(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second fsync that works after a failed one proves nothing: every caller gets the error."""

    def fail(self: SqliteStore, batch: Any) -> Any:
        monkeypatch.undo()
        raise StoreError("disk I/O error")

    monkeypatch.setattr(SqliteStore, "_commit", fail)
    writer.runs = 1
    with pytest.raises(StoreError, match="disk I/O error"):
        await writer.submit(event_message("a"))
    assert count_events(writer) == 0
