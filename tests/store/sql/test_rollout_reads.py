"""The reads behind `andon deploys`, `andon events` and `andon doctor`, on both databases."""

import time

from tests.store.parts import agent_row, begin, do, register, start, take, worker_row

from andon.store.store import AskDrain, Depart, Drain, NoteEvent, Register, Store


def note(store: Store, kind: str) -> None:
    do(store, NoteEvent(kind=kind, body="{}"))


def test_events_are_found_by_number_and_by_time(store: Store) -> None:
    before = store.now()
    assert store.last_event() == store.last_event(before) == 0
    note(store, "one")
    note(store, "two")
    one, two = store.events()
    assert (one.kind, two.kind) == ("one", "two")
    assert store.last_event() == two.id
    assert store.last_event(before) == 0
    assert store.last_event(two.at + 1) == two.id
    assert [event.kind for event in store.events(one.id)] == ["two"]
    assert len(store.events(limit=1)) == 1


def test_the_durations_of_steps_are_counted_by_name(store: Store) -> None:
    held = begin(store)
    now = store.now()

    def took(seconds: float, name: str, **more: object) -> None:
        of = {"name": name, "since": now - seconds, "at": now, **more}
        do(store, held.append(of=of))

    took(1.0, "quick")
    took(3.0, "quick")
    took(60.0, "slow", kind="effect", state="confirmed")
    took(500.0, "slow", kind="effect", state="started")  # not done: its duration is unknown
    took(500.0, "failing", state="failed")
    took(500.0, "sleep", kind="sleep")
    do(store, held.append(of={"name": "old", "since": now - 9e6, "at": now - 8e6}))
    do(store, held.append(of={"name": "unknown", "since": 0.0, "at": now}))
    slow, quick = store.slowest_steps(now - 3600, 2.0)
    assert (slow.agent, slow.name, slow.count, slow.longer) == ("agent", "slow", 1, 1)
    assert abs(slow.longest_seconds - 60) < 0.001
    assert (quick.name, quick.count, quick.longer) == ("quick", 2, 1)


def test_only_the_newest_runs_are_read(store: Store) -> None:
    now = store.now()
    first = begin(store, "a")
    do(store, first.append(of={"name": "first", "since": now - 9, "at": now}))
    start(store, "b")
    do(store, take(store, "b").append(of={"name": "second", "since": now - 1, "at": now}))
    assert [one.name for one in store.slowest_steps(0.0, 0.0, runs=1)] == ["second"]
    assert len(store.slowest_steps(0.0, 0.0)) == 2


def test_the_fleet_lists_a_drain_from_its_request_to_its_end(store: Store) -> None:
    register(store, "w")
    row = worker_row("other")
    do(store, Register(worker=row, agents=(agent_row(),), lease_seconds=60))
    do(store, AskDrain(worker_id="w", by="ann"))
    do(store, Drain(worker_id="w", drain='{"why": "asked"}', ago=0.5))
    do(store, Depart(worker_id="w", drain='{"exit": "clean"}'))
    [gone, live] = sorted(store.fleet(0.0), key=lambda one: one.id, reverse=True)
    assert gone.drain_asked_at is not None
    assert gone.draining_at is not None
    assert gone.ended_at is not None
    assert gone.drain_asked_at <= gone.draining_at <= gone.ended_at
    assert (gone.state, gone.drain) == ("gone", '{"exit": "clean"}')
    assert (live.state, live.ended_at) == ("live", None)
    assert [one.id for one in store.fleet(gone.ended_at + 1)] == ["other"]


def test_a_drain_that_could_not_be_written_at_once_counts_from_its_request(
    store: Store,
) -> None:
    register(store, "w")
    before = store.now()
    message = Drain(worker_id="w", drain="{}", ago=0.5, made_at=time.monotonic() - 100.0)
    do(store, message)
    [found] = store.fleet(0.0)
    assert found.drain_asked_at is not None
    assert before - 102.0 < found.drain_asked_at < before - 100.0
