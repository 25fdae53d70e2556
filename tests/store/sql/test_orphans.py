"""Processes that attempts have started: orders look for them, and no order waits for ever."""

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
    """Let another worker report the end of this one."""
    register(store, "other")
    do(store, Claim(worker_id="other", agents=(), limit=0, dead=((worker_id, how),)))


def test_a_kill_whose_worker_departs_is_not_proved_and_its_run_can_be_resumed(
    store: Store,
) -> None:
    begin(store)
    stop_id = order(store, "kill", "run:r")
    do(store, Depart(worker_id="w"))
    assert stages(store, stop_id) == {"run:r": "unproved"}
    assert closed(store, stop_id)
    assert state(store) == ("killed", False)


def test_a_free_lock_proves_nothing_about_processes_that_its_worker_had_started(
    store: Store,
) -> None:
    begin(store)
    launch(store)
    lose(store, "process:its lock is free")
    assert [one.state for one in store.fleet(0.0) if one.id == "w"] == ["silent"]
    assert store.load("r").quiet_fences == set()


def test_a_free_lock_is_proof_enough_if_its_worker_had_started_no_process(store: Store) -> None:
    begin(store)
    lose(store, "process:its lock is free")
    assert [one.state for one in store.fleet(0.0) if one.id == "w"] == ["dead"]
    assert store.load("r").quiet_fences == {1}


def test_the_departure_of_a_worker_proves_nothing_about_processes_it_had_started(
    store: Store,
) -> None:
    begin(store)
    launch(store)
    do(store, Depart(worker_id="w"))
    assert store.load("r").quiet_fences == set()
    do(store, WorkerGone(worker_id="w", evidence="and all that it had started"))
    assert store.load("r").quiet_fences == {1}


def test_the_end_of_a_later_attempt_proves_nothing_about_processes_of_an_earlier_one(
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


def test_without_anybody_to_look_for_its_processes_a_stop_is_unproved_and_not_waited_for(
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
    assert "its processes were not looked for on here" in str(store.targets(stop_id)[0].evidence)


def test_an_order_about_leftover_processes_targets_no_worker(store: Store) -> None:
    begin(store)
    launch(store)
    lose(store, "silent:its connection is gone")
    for _ in range(2):
        stop_id = order(store, "kill", "run:r")
        assert list(stages(store, stop_id)) == ["run:r:1"]


def test_a_killed_run_cannot_continue_while_its_processes_are_looked_for(store: Store) -> None:
    begin(store)
    first = order(store, "kill", "run:r")
    do(store, Depart(worker_id="w"))
    launch(store)
    stop_id = order(store, "kill", "run:r")
    assert (closed(store, first), closed(store, stop_id)) == (True, False)
    assert state(store) == ("killed", True)
    assert not claim(store, register(store, "other")).runs
