"""What attempts have started: orders look for it, and no order waits for ever."""

import pytest
from tests.store.parts import begin, claim, do, register, take
from tests.store.sql.test_stops import closed, order, stages, state

from andon.store.messages.stops import ProcessStarted, TargetReport, WorkerGone
from andon.store.sql import processes
from andon.store.store import Beat, Claim, Depart, Settle, Store

MARK = 1 << 62


def launch(store: Store, fence: int = 1, mark: int = MARK) -> None:
    do(store, ProcessStarted(run_id="r", fence=fence, mark=mark))


def lose(store: Store, how: str, worker_id: str = "w") -> None:
    """Its worker's end, as another one says it."""
    register(store, "other")
    do(store, Claim(worker_id="other", agents=(), limit=0, dead=((worker_id, how),)))


def test_a_kill_whose_worker_says_goodbye_is_not_proved_and_its_run_can_be_resumed(
    store: Store,
) -> None:
    begin(store)
    stop_id = order(store, "kill", "run:r")
    do(store, Depart(worker_id="w"))
    assert stages(store, stop_id) == {"run:r": "unproved"}
    assert closed(store, stop_id)
    assert state(store) == ("killed", False)


def test_a_lock_that_is_free_proves_nothing_about_what_its_worker_had_started(store: Store) -> None:
    begin(store)
    launch(store)
    lose(store, "process:its lock is free")
    assert [one.state for one in store.fleet(0.0) if one.id == "w"] == ["silent"]
    assert store.load("r").quiet_fences == set()


def test_a_free_lock_is_enough_if_its_worker_had_started_nothing(store: Store) -> None:
    begin(store)
    lose(store, "process:its lock is free")
    assert [one.state for one in store.fleet(0.0) if one.id == "w"] == ["dead"]
    assert store.load("r").quiet_fences == {1}


def test_a_worker_that_says_goodbye_does_not_speak_for_what_it_had_started(store: Store) -> None:
    begin(store)
    launch(store)
    do(store, Depart(worker_id="w"))
    assert store.load("r").quiet_fences == set()
    do(store, WorkerGone(worker_id="w", evidence="and all that it had started"))
    assert store.load("r").quiet_fences == {1}


def test_what_an_earlier_attempt_has_started_is_not_proved_by_the_end_of_a_later_one(
    store: Store,
) -> None:
    begin(store)
    launch(store)
    lose(store, "silent:its connection is gone")
    later = take(store, "r", "other")
    stop_id = order(store, "pause", "run:r")
    do(store, Settle(run_id="r", fence=later.fence, state="queued", ending="returned"))
    assert stages(store, stop_id) == {"run:r": "verified", "run:r:1": "fenced"}
    assert not closed(store, stop_id)
    report = TargetReport(stop_id=stop_id, target="run:r:1", stage="verified", evidence="looked")
    do(store, report)
    assert closed(store, stop_id)
    assert state(store) == ("paused", False)


def test_where_nobody_looks_for_what_was_started_the_stop_is_not_proved_and_not_waited_for(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(store)
    launch(store)
    lose(store, "silent:its connection is gone")
    stop_id = order(store, "cancel", "run:r")
    beat = Beat(worker_id="other", lease_seconds=60.0)
    do(store, beat)
    assert stages(store, stop_id) == {"run:r:1": "fenced"}
    monkeypatch.setattr(processes, "LOOK_SECONDS", 0.0)
    do(store, beat)
    assert stages(store, stop_id) == {"run:r:1": "unproved"}
    assert closed(store, stop_id)
    assert state(store) == ("cancelled", False)
    assert "nobody has looked on here" in str(store.targets(stop_id)[0].evidence)


def test_an_order_about_what_was_started_aims_at_no_worker(store: Store) -> None:
    begin(store)
    launch(store)
    lose(store, "silent:its connection is gone")
    for _ in range(2):
        stop_id = order(store, "kill", "run:r")
        assert list(stages(store, stop_id)) == ["run:r:1"]


def test_a_killed_run_cannot_go_on_while_what_it_has_started_is_looked_for(store: Store) -> None:
    begin(store)
    first = order(store, "kill", "run:r")
    do(store, Depart(worker_id="w"))
    launch(store)
    stop_id = order(store, "kill", "run:r")
    assert (closed(store, first), closed(store, stop_id)) == (True, False)
    assert state(store) == ("killed", True)
    assert not claim(store, register(store, "other")).runs
