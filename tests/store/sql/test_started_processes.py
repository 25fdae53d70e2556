"""Processes that attempts have started: who looks for them, and when their stop is proved."""

import json
from typing import Any

import pytest
from tests.store.parts import agent_row, begin, claim, do, register, start, take, worker_row
from tests.store.sql.test_stops import closed, give_back, order, stages, state

from andon.store.messages.stops import Ended, ProcessStarted, TargetReport, WorkerGone
from andon.store.store import Depart, Register, Store

MARK = 1 << 62 | 5 << 34 | 1 << 12


def started(fence: int = 1, run_id: str = "r", **changes: Any) -> ProcessStarted:
    return ProcessStarted(run_id=run_id, fence=fence, **{"mark": MARK, **changes})


def suspend(store: Store, held: Any, **changes: Any) -> None:
    waits = json.dumps([{"kind": "event", "name": "go"}])
    do(store, held.settle("suspended", waits=waits, **changes))


def embedded(store: Store, worker_id: str = "w") -> None:
    worker = worker_row(worker_id).but(embedded=True)
    do(store, Register(worker=worker, agents=(agent_row(),), lease_seconds=60))


def verify(store: Store, receipt: str, target: str) -> None:
    report = TargetReport(stop_id=receipt, target=target, stage="verified", evidence="none is left")
    do(store, report)


def state_of(store: Store, worker_id: str = "w") -> str:
    return next(row.state for row in store.fleet(0.0) if row.id == worker_id)


# ── when an effect may be probed ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize("starts", [False, True])
def test_a_free_lock_proves_the_end_of_a_worker_that_had_started_no_process(
    store: Store, starts: bool
) -> None:
    held = begin(store)
    if starts:
        do(store, started(held.fence.counter))
    register(store, "x")
    claim(store, "x", dead=(("w", "process:its lock is free"),), limit=0)
    assert state_of(store) == ("silent" if starts else "dead")


def test_processes_that_are_known_to_be_gone_do_not_count(store: Store) -> None:
    """Looked for and gone: then the free lock of its worker is a proof again."""
    held = begin(store)
    do(store, started(held.fence.counter))
    suspend(store, held, cleared=True)
    register(store, "x")
    claim(store, "x", dead=(("w", "process:its lock is free"),), limit=0)
    assert state_of(store) == "dead"


@pytest.mark.parametrize(
    ("starts", "cleared", "quiet"),
    [(False, False, True), (True, False, False), (True, True, True)],
)
def test_a_worker_that_departed_is_quiet_if_no_process_of_it_is_left(
    store: Store, starts: bool, cleared: bool, quiet: bool
) -> None:
    held = begin(store)
    fence = held.fence.counter
    if starts:
        do(store, started(fence))
    do(store, give_back(held, cleared=cleared))
    do(store, Depart(worker_id="w"))
    register(store, "x")
    take(store, "r", "x")
    assert (fence in store.load("r").quiet_fences) == quiet


def test_a_dead_worker_is_quiet_even_if_it_had_started_a_process(store: Store) -> None:
    """`dead` is said of its process and everything that it has started."""
    held = begin(store)
    do(store, started(held.fence.counter))
    register(store, "x")
    claim(store, "x", dead=(("w", "dead:its process ended"),), limit=0)
    take(store, "r", "x")
    assert held.fence.counter in store.load("r").quiet_fences


def test_a_silent_worker_is_never_quiet(store: Store) -> None:
    held = begin(store)
    do(store, started(held.fence.counter))
    register(store, "x")
    claim(store, "x", dead=(("w", "silent:its lease ended"),), limit=0)
    take(store, "r", "x")
    assert held.fence.counter not in store.load("r").quiet_fences


def test_a_started_process_is_recorded_whichever_worker_owns_the_run_now(store: Store) -> None:
    """The record comes late, and stays true."""
    held = begin(store)
    do(store, give_back(held))
    do(store, Depart(worker_id="w"))
    register(store, "x")
    take(store, "r", "x")
    do(store, started(held.fence.counter))
    assert held.fence.counter not in store.load("r").quiet_fences


def test_a_new_process_makes_a_quiet_attempt_count_again(store: Store) -> None:
    held = begin(store)
    fence = held.fence.counter
    do(store, started(fence))
    suspend(store, held, cleared=True)
    do(store, started(fence))
    receipt = order(store, "pause", "run:r")
    assert stages(store, receipt) == {f"run:r:{fence}": "fenced"}


# ── runs that no worker executes ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["pause", "cancel", "kill"])
def test_a_suspended_run_is_stopped_once_its_processes_are_gone(store: Store, kind: str) -> None:
    held = begin(store)
    do(store, started(held.fence.counter))
    suspend(store, held)
    receipt = order(store, kind, "run:r")
    target = f"run:r:{held.fence.counter}"
    assert stages(store, receipt) == {target: "fenced"}
    assert (state(store)[1], closed(store, receipt)) == (True, False)
    verify(store, receipt, target)
    became = {"pause": "paused", "cancel": "cancelled", "kill": "killed"}[kind]
    assert (state(store), closed(store, receipt)) == ((became, False), True)


@pytest.mark.parametrize(("kind", "proves"), [("pause", True), ("cancel", True), ("kill", False)])
def test_the_report_of_a_worker_that_has_looked_proves_polite_orders_only(
    store: Store, kind: str, proves: bool
) -> None:
    held = begin(store)
    do(store, started(held.fence.counter))
    suspend(store, held)
    receipt = order(store, kind, "run:r")
    do(store, Ended(worker_id="w", run_id="r", fence=held.fence.counter, also="7 sleep"))
    [row] = store.targets(receipt)
    assert (row.stage == "verified") == proves
    assert "its worker has ended processes of it: 7 sleep" in str(row.evidence)


def test_after_a_verified_stop_there_is_nothing_left_to_look_for(store: Store) -> None:
    held = begin(store)
    do(store, started(held.fence.counter))
    suspend(store, held)
    first = order(store, "pause", "run:r")
    verify(store, first, f"run:r:{held.fence.counter}")
    assert stages(store, order(store, "kill", "run:r")) == {}
    assert state(store) == ("killed", False)


def test_a_finished_run_keeps_its_state_when_its_processes_are_killed(store: Store) -> None:
    held = begin(store)
    do(store, started(held.fence.counter))
    do(store, held.settle("succeeded"))
    receipt = order(store, "kill", "run:r")
    target = f"run:r:{held.fence.counter}"
    assert stages(store, receipt) == {target: "fenced"}
    verify(store, receipt, target)
    assert (state(store), closed(store, receipt)) == (("succeeded", False), True)


@pytest.mark.parametrize("loud", [True, False])
def test_a_run_that_had_started_no_process_has_no_target(store: Store, loud: bool) -> None:
    held = begin(store)
    if loud:
        do(store, started(held.fence.counter))
    do(store, held.settle("succeeded", cleared=loud))
    assert stages(store, order(store, "kill", "run:r")) == {}


def test_a_dead_worker_with_all_its_processes_proves_the_stop(store: Store) -> None:
    held = begin(store)
    do(store, started(held.fence.counter))
    suspend(store, held)
    receipt = order(store, "kill", "run:r")
    do(store, WorkerGone(worker_id="w", evidence="its process is gone", ordered=True))
    assert stages(store, receipt) == {f"run:r:{held.fence.counter}": "verified"}
    assert state(store) == ("killed", False)
    assert stages(store, order(store, "cancel", "run:r")) == {}


def test_each_attempt_with_leftover_processes_has_a_target(store: Store) -> None:
    first = begin(store)
    do(store, started(first.fence.counter))
    do(store, give_back(first))
    register(store, "x")
    second = take(store, "r", "x")
    do(store, started(second.fence.counter, mark=MARK + (1 << 12)))
    suspend(store, second)
    receipt = order(store, "cancel", "run:r")
    targets = {f"run:r:{held.fence.counter}" for held in (first, second)}
    assert set(stages(store, receipt)) == targets
    for number, target in enumerate(sorted(targets)):
        assert state(store)[1], f"{number} of two are proved"
        verify(store, receipt, target)
    assert state(store) == ("cancelled", False)


def test_a_run_in_hand_has_targets_for_leftovers_of_earlier_attempts(store: Store) -> None:
    first = begin(store)
    do(store, started(first.fence.counter))
    do(store, give_back(first))
    register(store, "x")
    second = take(store, "r", "x")
    receipt = order(store, "pause", "run:r")
    left = f"run:r:{first.fence.counter}"
    assert stages(store, receipt) == {"run:r": "requested", left: "fenced"}
    do(store, give_back(second))
    assert stages(store, receipt) == {"run:r": "verified", left: "fenced"}
    assert not closed(store, receipt)
    verify(store, receipt, left)
    assert (state(store), closed(store, receipt)) == (("paused", False), True)


def test_a_thread_of_a_living_worker_is_ended_with_its_process(store: Store) -> None:
    """No mark leads to a thread: the worker itself has to end."""
    held = begin(store)
    do(store, started(held.fence.counter, threads=True))
    suspend(store, held)
    receipt = order(store, "kill", "run:r")
    [row] = store.targets(receipt)
    assert (row.stage, row.mark, row.worker) == ("fenced", None, "w")
    do(store, WorkerGone(worker_id="w", evidence="its process is gone", ordered=True))
    assert state(store) == ("killed", False)


# ── runs in hand ──────────────────────────────────────────────────────────────────────────────


def test_a_kill_of_a_run_in_a_spared_worker_looks_for_its_processes(store: Store) -> None:
    embedded(store)
    held = _take_of_embedded(store)
    do(store, started(held.fence.counter))
    receipt = order(store, "kill", "run:r")
    left = f"run:r:{held.fence.counter}"
    assert set(stages(store, receipt)) == {"run:r", left}
    do(store, Ended(worker_id="w", run_id="r", fence=held.fence.counter, also="7 sleep"))
    verify(store, receipt, left)
    assert stages(store, receipt) == {"run:r": "unproved", left: "verified"}
    assert closed(store, receipt)


def test_a_kill_of_a_run_in_a_worker_that_is_ended_has_one_target(store: Store) -> None:
    held = begin(store)
    do(store, started(held.fence.counter))
    assert set(stages(store, order(store, "kill", "run:r"))) == {"run:r"}


@pytest.mark.parametrize(
    ("spare", "inside", "word"),
    [
        (None, True, "unproved"),
        (None, False, "fenced"),
        (True, False, "unproved"),
        (False, True, "fenced"),
    ],
)
def test_a_workers_report_closes_a_kill_only_if_its_process_is_spared(
    store: Store, spare: bool | None, inside: bool, word: str
) -> None:
    if inside:
        embedded(store)
        held = _take_of_embedded(store)
    else:
        held = begin(store)
    receipt = order(store, "kill", "run:r", spare=spare)
    do(store, Ended(worker_id="w", run_id="r", fence=held.fence.counter))
    assert stages(store, receipt) == {"run:r": word}
    assert closed(store, receipt) == (word == "unproved")
    do(store, WorkerGone(worker_id="w", evidence="its process is gone", ordered=True))
    assert stages(store, receipt) == {"run:r": "verified"}


def test_processes_that_a_worker_ended_with_a_returned_run_are_in_the_receipt(store: Store) -> None:
    held = begin(store)
    do(store, started(held.fence.counter))
    receipt = order(store, "pause", "run:r")
    do(store, give_back(held, cleared=True, also="7 sleep 600"))
    [row] = store.targets(receipt)
    assert (
        row.evidence == "its worker gave it back (returned) and ended processes of it: 7 sleep 600"
    )
    assert state(store) == ("paused", False)


def test_a_run_whose_worker_was_ended_for_another_run_is_not_blamed(store: Store) -> None:
    begin(store, "r")
    begin(store, "other")
    order(store, "kill", "run:r")
    do(store, WorkerGone(worker_id="w", evidence="its process is gone", ordered=True))
    run = store.run("other")
    assert run is not None
    assert (run.state, run.interruptions) == ("queued", 0)


def _take_of_embedded(store: Store) -> Any:
    start(store, "r")
    return take(store, "r")


def test_a_later_order_waits_for_processes_that_an_earlier_one_has_not_proved(store: Store) -> None:
    """The report of its worker, now silent, proves neither the kill nor a later pause."""
    held = begin(store)
    do(store, started(held.fence.counter))
    register(store, "x")
    claim(store, "x", dead=(("w", "process:its lock is free"),), limit=0)
    kill = order(store, "kill", "run:r")
    do(store, Ended(worker_id="w", run_id="r", fence=held.fence.counter))
    assert not closed(store, kill)
    pause = order(store, "pause", "run:r")
    assert stages(store, pause) == stages(store, kill) != {}
    assert not closed(store, pause)
    do(store, WorkerGone(worker_id="w", evidence="it ended"))
    assert (closed(store, kill), closed(store, pause)) == (True, True)


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("state", ["suspended", "succeeded"])
def test_an_attempt_that_ends_before_it_gets_the_order_proves_nothing_of_what_it_left(
    store: Store, state: str, threads: bool
) -> None:
    """The order comes while the run suspends or ends by itself; its process or thread goes on."""
    held = begin(store)
    do(store, started(held.fence.counter, threads=threads))
    receipt = order(store, "pause")
    suspend(store, held) if state == "suspended" else do(store, held.settle(state=state))
    [target] = store.targets(receipt)
    assert (target.stage, target.mark) == ("fenced", None if threads else MARK)
    assert store.stop(receipt).closed_at is None  # type: ignore[union-attr]
    verify(store, receipt, target.target)
    [target] = store.targets(receipt)
    assert target.stage == "verified"
    assert store.stop(receipt).closed_at is not None  # type: ignore[union-attr]
    assert store.run("r").state == ("paused" if state == "suspended" else state)  # type: ignore[union-attr]


def test_an_attempt_that_left_nothing_proves_its_end(store: Store) -> None:
    held = begin(store)
    do(store, started(held.fence.counter))
    receipt = order(store, "pause")
    suspend(store, held, cleared=True)
    [target] = store.targets(receipt)
    assert target.stage == "verified"
    assert store.run("r").state == "paused"  # type: ignore[union-attr]
