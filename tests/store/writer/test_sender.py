"""Batches that the event loop sends itself: those in flight, refused and lost."""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.store.parts import AGENT, LONG, Held, begin, do, start, take

from andon.errors import Fenced
from andon.store.postgres.store import PostgresStore
from andon.store.store import Beat, Claim, Message, Outcome
from andon.store.writer import sender
from andon.store.writer.writer import HALVED, Writer


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(postgres_url)
    yield store
    store.close()


@pytest.fixture
def thread_batches(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> list[list[Message]]:
    """The batches that the writer's thread has written."""
    found: list[list[Message]] = []
    write = PostgresStore.write

    def watched(self: PostgresStore, batch: Any) -> list[Outcome]:
        found.append(list(batch))
        return write(self, batch)

    monkeypatch.setattr(PostgresStore, "write", watched)
    return found


def run_on_loop(store: PostgresStore, play: Callable[[Writer], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        writer = Writer(store, patience_seconds=LONG)
        try:
            return await asyncio.wait_for(play(writer), LONG)
        finally:
            writer.close(LONG)

    return asyncio.run(run())


def three_runs(store: PostgresStore) -> list[Held]:
    return [begin(store, run_id) for run_id in "abc"]


def seqs(store: PostgresStore, run_id: str) -> list[int]:
    return [entry.seq for entry in store.journal(run_id)]


def test_a_batch_that_all_runs_wait_for_is_sent_without_the_thread(
    store: PostgresStore, thread_batches: list[list[Message]]
) -> None:
    held = three_runs(store)
    start(store, "new")
    thread_batches.clear()

    async def play(writer: Writer) -> list[Any]:
        writer.runs = 3
        step = [writer.submit(one.append()) for one in held]
        await asyncio.gather(*step)
        claim = Claim(worker_id="w", agents=(AGENT,), limit=5, number=7)
        ends = [one.settle("succeeded", entries=(one.entry(),)) for one in held[:2]]
        mixed: list[Message] = [*ends, held[2].append(), claim]
        return list(await asyncio.gather(*(writer.submit(message) for message in mixed)))

    *states, nothing, claimed = run_on_loop(store, play)
    assert (states, nothing) == (["succeeded"] * 2, None)
    assert [run.id for run in claimed.runs] == ["new"]
    assert thread_batches == []
    assert [seqs(store, run_id) for run_id in "abc"] == [[0, 1, 2]] * 3


def test_a_refused_message_is_refused_alone(
    store: PostgresStore, thread_batches: list[list[Message]]
) -> None:
    held = three_runs(store)
    do(store, held[1].settle("queued", returned=True))
    take(store, "b")  # by another fence
    thread_batches.clear()

    async def play(writer: Writer) -> list[Any]:
        writer.runs = 3
        asked = [writer.submit(one.append()) for one in held]
        return list(await asyncio.gather(*asked, return_exceptions=True))

    first, refused, last = run_on_loop(store, play)
    assert (first, last) == (None, None)
    assert isinstance(refused, Fenced)
    assert [[m.run_id for m in batch] for batch in thread_batches] == [["b"]]  # type: ignore[union-attr]
    assert [seqs(store, run_id) for run_id in "abc"] == [[0, 1], [0], [0, 1]]


def test_a_step_is_written_even_when_no_file_descriptor_is_left(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = begin(store)

    def none_left(_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    async def play(writer: Writer) -> None:
        writer.runs = 1
        monkeypatch.setattr(os, "dup", none_left)
        for _ in range(3):
            await writer.write(held.append())
        monkeypatch.undo()

    run_on_loop(store, play)
    assert seqs(store, "r") == [0, 1, 2, 3]


def test_answers_are_still_received_after_another_writer_used_the_connection(
    store: PostgresStore,
) -> None:
    """Two writers of one process share it: a program's own, and that of the worker inside it."""
    held = begin(store)

    async def play(writer: Writer) -> None:
        other = Writer(store, patience_seconds=LONG)
        writer.runs = other.runs = 1
        for _ in range(3):
            await writer.write(held.append())
            await other.write(held.append())
            await asyncio.to_thread(store.write, [Beat(worker_id="w", lease_seconds=60)])
        other.close(LONG)

    run_on_loop(store, play)
    assert seqs(store, "r") == [0, 1, 2, 3, 4, 5, 6]


def test_the_refusal_of_a_single_run_is_reported(store: PostgresStore) -> None:
    held = begin(store)
    do(store, held.settle("queued", returned=True))
    take(store)  # by another fence

    async def play(writer: Writer) -> None:
        writer.runs = 1
        with pytest.raises(Fenced):
            await writer.write(held.append())

    run_on_loop(store, play)
    assert seqs(store, "r") == [0]


@pytest.mark.parametrize(("row", "turned"), [(100, []), (2, [0, 1, 2, 3, 4])])
def test_an_answer_that_comes_at_once_is_taken_in_the_same_turn_of_the_loop(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, row: int, turned: list[int]
) -> None:
    """But other callbacks on the loop have their turn, now and then."""
    held = begin(store)
    monkeypatch.setattr(sender, "POLL_SECONDS", LONG)
    monkeypatch.setattr(sender, "POLLS_IN_A_ROW", row)

    async def play(writer: Writer) -> list[int]:
        writer.runs = 1
        found: list[int] = []
        await writer.write(held.append())
        for number in range(5):
            asyncio.get_running_loop().call_soon(found.append, number)
            await writer.write(held.append())
        return list(found)  # before the loop turns

    assert run_on_loop(store, play) == turned
    assert seqs(store, "r") == [0, 1, 2, 3, 4, 5, 6]


def test_a_writer_that_polls_in_vain_polls_less_and_less_often(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = begin(store)
    monkeypatch.setattr(sender, "POLL_SECONDS", -1.0)

    class Nothing:
        looks = 0

        def poll(self, _: float) -> list[Any]:
            self.looks += 1
            return []

    async def play(writer: Writer) -> int:
        writer.runs = 1
        await writer.write(held.append())
        # On a loaded machine the first answer may be there before it is looked for.
        writer._sender._skips, writer._sender._pause = 0, 1
        far = writer._sender._poll = Nothing()  # type: ignore[assignment]
        for _ in range(100):
            await writer.write(held.append())
        return far.looks

    assert run_on_loop(store, play) == 6  # at once, then after 2, 4, 8, 16, 32
    assert len(seqs(store, "r")) == 102


def test_batches_in_flight_when_the_connection_is_lost_are_written_once_and_in_order(
    store: PostgresStore, postgres_url: str
) -> None:
    held = three_runs(store)

    async def play(writer: Writer) -> None:
        writer.runs = 3
        other = psycopg.connect(postgres_url)
        other.execute("SELECT 1 FROM andon.runs FOR UPDATE")  # statements sent now wait
        first = [writer.submit(one.append()) for one in held]
        await asyncio.sleep(0)  # sent
        second = [writer.submit(one.append()) for one in held]
        await asyncio.sleep(0)  # sent behind it
        assert len(writer._sender.sent) == 2
        assert store._session.db is not None
        other.execute(
            "SELECT pg_terminate_backend(%s, 10000)", [store._session.db.info.backend_pid]
        )
        other.close()
        await asyncio.gather(*first, *second)

    run_on_loop(store, play)
    assert [seqs(store, run_id) for run_id in "abc"] == [[0, 1, 2]] * 3


def test_a_loop_that_does_not_take_its_answers_delays_no_heartbeat(store: PostgresStore) -> None:
    held = begin(store)

    async def play(writer: Writer) -> None:
        writer.runs = 1
        asked = writer.submit(held.append())
        await asyncio.sleep(0)  # sent
        assert writer._sender.sent
        beat = Beat(worker_id="w", lease_seconds=60.0)
        writer.submit_from_thread(beat).result(LONG)  # code on the loop blocks it
        assert await asked is None
        assert await writer.submit(held.append()) is None

    run_on_loop(store, play)
    assert seqs(store, "r") == [0, 1, 2]


def test_a_large_batch_is_sent_as_fast_as_the_network_accepts_it(store: PostgresStore) -> None:
    held = [begin(store, f"r{number}") for number in range(40)]
    body = '"' + "x" * 60_000 + '"'

    async def play(writer: Writer) -> None:
        writer.runs = len(held)
        await asyncio.gather(*(writer.submit(one.append(of={"body": body})) for one in held))

    run_on_loop(store, play)
    assert all(store.journal(one.id)[1].body == body for one in held)


def test_many_messages_are_in_flight_in_two_halves(
    store: PostgresStore, thread_batches: list[list[Message]]
) -> None:
    held = [begin(store, f"r{number}") for number in range(HALVED)]
    thread_batches.clear()

    async def play(writer: Writer) -> None:
        writer.runs = len(held)
        asked = [writer.submit(one.append()) for one in held]
        await asyncio.sleep(0)  # sent
        assert [len(sent) for sent in writer._sender.sent] == [HALVED // 2, HALVED // 2]
        await asyncio.gather(*asked)

    run_on_loop(store, play)
    assert thread_batches == []
    assert all(seqs(store, one.id) == [0, 1] for one in held)


def test_two_writers_do_not_take_each_others_answers(store: PostgresStore) -> None:
    held = three_runs(store)

    async def play(writer: Writer) -> None:
        other = Writer(store, patience_seconds=LONG)
        for one in (writer, other):
            one.runs = 1
        await asyncio.gather(writer.submit(held[0].append()), other.submit(held[1].append()))
        other.close(LONG)

    run_on_loop(store, play)
    assert [seqs(store, run_id) for run_id in "abc"] == [[0, 1], [0, 1], [0]]
