"""Orders, fences, latches and proofs, on both databases."""

import json
from typing import Any

import pytest
from tests.store.parts import (
    Held,
    agent_row,
    begin,
    claim,
    do,
    effect,
    new_run,
    register,
    start,
    take,
    worker_row,
)

from andon.errors import BadInput, Conflict, Fenced, NotFound, Refused
from andon.store.messages.stops import (
    Attend,
    Dismiss,
    Ended,
    Enlist,
    Escalate,
    Heard,
    Order,
    Reauthorize,
    Resume,
    StallReport,
    SupervisorRow,
    TargetReport,
    WorkerGone,
)
from andon.store.store import Append, Beat, Claim, Depart, MoveRun, Register, Settle, Start, Store

NUMBER = iter(range(1000))


def order(store: Store, kind: str, what: str = "fleet", **changes: Any) -> str:
    scope, _, rest = what.partition(":")
    name, _, value = rest.partition("=")
    plain: dict[str, Any] = {"id": f"rcp_{next(NUMBER)}", "by": "ana", "why": "unsure"}
    message = Order(kind=kind, scope=scope, name=name, value=value, **plain | changes)
    return str(do(store, message))


def state(store: Store, run_id: str = "r") -> tuple[str, bool]:
    """The state, and whether an order is still being carried out."""
    run = store.run(run_id)
    assert run is not None
    return run.state, run.stop is not None


def stages(store: Store, stop_id: str) -> dict[str, str]:
    return {row.target: row.stage for row in store.targets(stop_id)}


def closed(store: Store, stop_id: str) -> bool:
    row = store.stop(stop_id)
    assert row is not None
    return row.closed_at is not None


def give_back(held: Held, **changes: Any) -> Settle:
    plain: dict[str, Any] = {"state": "queued", "ending": "returned", "returned": True}
    return Settle(run_id=held.id, fence=held.fence, **plain | changes)


def owing(store: Store, run_id: str = "r") -> Held:
    """A run in hand with a confirmed effect that can be undone."""
    held = begin(store, run_id)
    rows = (effect(state="confirmed", kind="compensatable", undo="m:f", undo_within=60.0),)
    do(store, held.append(effects=rows))
    return held


# ── polite orders ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("kind", "becomes"), [("pause", "paused"), ("cancel", "cancelled")])
def test_a_polite_order_is_carried_out_when_the_run_is_returned(
    store: Store, kind: str, becomes: str
) -> None:
    held = begin(store)
    receipt = order(store, kind, "run:r")
    assert state(store) == ("running", True)
    assert stages(store, receipt) == {"run:r": "requested"}
    [told] = claim(store).notices
    assert (told.run_id, told.kind, told.hard, told.by) == ("r", kind, False, "ana")
    do(store, Heard(worker_id="w", run_ids=("r",)))
    assert stages(store, receipt) == {"run:r": "acknowledged"}
    do(store, held.append())  # the step in hand may end
    do(store, give_back(held))
    assert state(store) == (becomes, False)
    assert stages(store, receipt) == {"run:r": "verified"}
    assert closed(store, receipt)
    assert claim(store).runs == []


def test_a_run_that_succeeded_is_not_overwritten_by_an_order(store: Store) -> None:
    held = begin(store)
    receipt = order(store, "cancel", "run:r")
    do(store, Settle(run_id="r", fence=held.fence, state="succeeded", ending="succeeded"))
    assert state(store) == ("succeeded", False)
    [row] = store.targets(receipt)
    assert (row.stage, row.evidence) == ("verified", "it had ended before: succeeded")


def test_a_cancelled_run_that_owes_an_undo_is_queued_to_be_undone(store: Store) -> None:
    held = owing(store)
    receipt = order(store, "cancel", "run:r")
    do(store, give_back(held))
    run = store.run("r")
    assert run is not None
    assert (run.state, json.loads(run.undoing or "{}")["by"]) == ("queued", "ana")
    assert closed(store, receipt)
    assert [run.id for run in claim(store).runs] == ["r"]


def test_a_polite_order_becomes_hard_after_its_window(store: Store) -> None:
    held = begin(store)
    receipt = order(store, "cancel", "run:r", within=0.0)
    claim(store)
    assert state(store) == ("killed", True)
    assert stages(store, receipt) == {"run:r": "fenced"}
    with pytest.raises(Fenced):
        do(store, held.append())
    [told] = claim(store).notices
    assert told.hard
    do(store, Ended(worker_id="w", run_id="r", fence=held.fence.counter))
    assert state(store) == ("cancelled", False)


def test_a_worker_that_claims_nothing_still_gets_its_orders(store: Any) -> None:
    begin(store)
    order(store, "pause", "run:r")
    result = store.orders_for("w")
    assert ([told.run_id for told in result.notices], result.halted) == (["r"], False)
    order(store, "halt")
    assert store.orders_for("w").halted
    assert not store.orders_for("nobody").notices


def test_an_open_window_is_waited_for(store: Store) -> None:
    begin(store)
    order(store, "pause", "run:r", within=60.0)
    assert do(store, Escalate()) == 0
    assert claim(store).wake_in is not None
    assert state(store) == ("running", True)


# ── hard orders ───────────────────────────────────────────────────────────────────────────────


def test_a_kill_fences_at_once_and_is_done_only_when_it_is_proved(store: Store) -> None:
    held = begin(store)
    receipt = order(store, "kill", "run:r")
    assert state(store) == ("killed", True)
    with pytest.raises(Fenced):
        do(store, held.append())
    with pytest.raises(Fenced):
        do(store, give_back(held))
    assert not closed(store, receipt)
    do(store, Ended(worker_id="w", run_id="r", fence=held.fence.counter))
    assert state(store) == ("killed", True), "a worker's word does not prove a kill"
    assert not closed(store, receipt)
    do(store, WorkerGone(worker_id="w", evidence="its process is gone", ordered=True))
    assert state(store) == ("killed", False)
    assert closed(store, receipt)
    assert stages(store, receipt) == {"run:r": "verified"}


@pytest.mark.parametrize(
    ("end", "stage"), [("dead", "verified"), ("gone", "unproved"), ("silent", "unproved")]
)
def test_the_end_of_its_process_proves_a_kill_and_silence_does_not(
    store: Store, end: str, stage: str
) -> None:
    begin(store)
    receipt = order(store, "kill", "run:r")
    register(store, "other")
    if end == "gone":
        do(store, Depart(worker_id="w"))
    else:
        claim(store, "other", dead=(("w", f"{end}:seen"),))
    assert stages(store, receipt) == {"run:r": stage}
    assert closed(store, receipt)
    assert state(store) == ("killed", False)
    assert claim(store, "other").runs == []


@pytest.mark.parametrize("spare", [False, True])
def test_a_run_beside_a_killed_one_is_not_blamed_for_the_death_of_their_worker(
    store: Store, spare: bool
) -> None:
    begin(store)
    beside = begin(store, "beside")
    order(store, "kill", "run:r", spare=spare)
    register(store, "other")
    claim(store, "other", dead=(("w", "dead:its process ended"),), limit=0)
    run = store.run(beside.id)
    assert run is not None
    assert run.interruptions == int(spare), "a spared worker was ended by something else"


def test_a_departure_proves_a_kill_only_once_the_process_is_gone(store: Store) -> None:
    begin(store)
    receipt = order(store, "kill", "run:r")
    do(store, Depart(worker_id="w"))
    assert stages(store, receipt) == {"run:r": "unproved"}
    do(store, WorkerGone(worker_id="w", evidence="its process is gone"))
    assert stages(store, receipt) == {"run:r": "verified"}


def test_a_departure_leaves_a_kill_open_while_a_supervisor_looks(store: Store) -> None:
    enlist(store)
    worker = worker_row("w").but(supervisor="s")
    do(store, Register(worker=worker, agents=(agent_row(),), lease_seconds=60))
    start(store, "r")
    take(store, "r")
    receipt = order(store, "kill", "run:r")
    do(store, Depart(worker_id="w"))
    assert stages(store, receipt) == {"run:r": "fenced"}
    assert state(store) == ("killed", True)
    do(store, WorkerGone(worker_id="w", evidence="its process is gone"))
    assert stages(store, receipt) == {"run:r": "verified"}
    assert state(store) == ("killed", False)


def test_an_unproved_stop_may_be_proved_later(store: Store) -> None:
    begin(store)
    receipt = order(store, "kill", "run:r")
    register(store, "other")
    claim(store, "other", dead=(("w", "silent:seen"),))
    assert [row.stop_id for row in store.unproved()] == [receipt]
    do(store, WorkerGone(worker_id="w", evidence="its process is gone"))
    assert stages(store, receipt) == {"run:r": "verified"}
    assert store.unproved() == []


def test_a_run_whose_worker_died_while_it_was_asked_to_pause_is_paused(store: Store) -> None:
    begin(store)
    receipt = order(store, "pause", "run:r")
    do(store, WorkerGone(worker_id="w", evidence="killed"))
    assert state(store) == ("paused", False)
    assert closed(store, receipt)


def test_a_polite_stop_of_a_silent_worker_is_not_proved(store: Store) -> None:
    begin(store)
    receipt = order(store, "pause", "run:r")
    register(store, "other")
    claim(store, "other", dead=(("w", "silent:seen"),))
    assert stages(store, receipt) == {"run:r": "unproved"}
    assert state(store) == ("paused", False)


def test_a_run_that_is_being_stopped_cannot_be_resumed_yet(store: Store) -> None:
    begin(store)
    order(store, "kill", "run:r")
    resume = MoveRun(run_id="r", seen="killed", state="queued")
    with pytest.raises(Conflict):
        do(store, resume)
    do(store, WorkerGone(worker_id="w", evidence="killed"))
    do(store, resume)
    assert state(store) == ("queued", False)


def test_the_workers_report_makes_the_effects_of_the_attempt_quiet(store: Store) -> None:
    held = begin(store)
    order(store, "kill", "run:r")
    assert store.load("r").quiet_fences == frozenset()
    do(store, Ended(worker_id="w", run_id="r", fence=held.fence.counter))
    assert store.load("r").quiet_fences == {held.fence.counter}


def test_the_workers_report_proves_the_end_of_that_attempt_only(store: Store) -> None:
    held = begin(store)
    receipt = order(store, "kill", "run:r")
    register(store, "other")
    for worker, fence in (("w", held.fence.counter + 1), ("other", held.fence.counter)):
        do(store, Ended(worker_id=worker, run_id="r", fence=fence))
    assert stages(store, receipt) == {"run:r": "fenced"}
    assert state(store) == ("killed", True)


def test_a_kill_of_a_waiting_run_needs_no_proof(store: Store) -> None:
    register(store)
    start(store, "r")
    receipt = order(store, "kill", "run:r")
    assert state(store) == ("killed", False)
    assert closed(store, receipt)
    row = store.stop(receipt)
    assert row is not None
    assert row.waiting == 1


@pytest.mark.parametrize(
    ("first", "then", "becomes"),
    [("kill", "cancel", "cancelled"), ("pause", "kill", "killed"), ("kill", "pause", "killed")],
)
def test_the_severer_of_two_orders_decides(
    store: Store, first: str, then: str, becomes: str
) -> None:
    begin(store)
    receipts = [order(store, first, "run:r"), order(store, then, "run:r")]
    do(store, WorkerGone(worker_id="w", evidence="killed"))
    assert state(store) == (becomes, False)
    assert all(closed(store, one) for one in receipts)


@pytest.mark.parametrize("kind", ["pause", "kill", "halt"])
def test_an_order_about_everything_waits_for_runs_that_another_order_is_ending(
    store: Store, kind: str
) -> None:
    begin(store)
    first = order(store, "kill", "run:r")
    receipt = order(store, kind)
    assert stages(store, receipt)["run:r"] == "fenced"
    assert not closed(store, receipt)
    do(store, WorkerGone(worker_id="w", evidence="killed"))
    assert closed(store, first)
    assert closed(store, receipt)
    assert state(store) == ("killed", False)


# ── children ──────────────────────────────────────────────────────────────────────────────────


def family(store: Store) -> dict[str, Held]:
    """A parent that has a child that has a child, all in hand."""
    held = {"p": begin(store, "p")}
    for name, parent in (("c", "p"), ("g", "c")):
        run = new_run(name, parent_id=parent, root_id="p")
        do(store, held[parent].append(spawn=run))
        [claimed] = claim(store).runs
        held[name] = Held(claimed)
    return held


def test_children_are_stopped_before_their_parents(store: Store) -> None:
    held = family(store)
    receipt = order(store, "cancel", "run:p")
    for name in ("g", "c", "p"):
        assert [told.run_id for told in claim(store).notices] == [name]
        held[name].look_again(store)
        do(store, give_back(held[name]))
    assert closed(store, receipt)
    assert {state(store, name) for name in held} == {("cancelled", False)}


def test_a_kill_reaches_the_whole_family_at_once(store: Store) -> None:
    family(store)
    order(store, "kill", "run:p")
    assert {told.run_id for told in claim(store).notices} == {"p", "c", "g"}


def test_children_are_stopped_even_if_their_parent_has_ended(store: Store) -> None:
    held = family(store)
    held["p"].look_again(store)
    do(store, Settle(run_id="p", fence=held["p"].fence, state="succeeded", ending="succeeded"))
    order(store, "kill", "run:p")
    assert state(store, "p") == ("succeeded", False)
    assert {told.run_id for told in claim(store).notices} == {"c", "g"}


def test_a_child_that_is_started_meanwhile_is_stopped_with_its_parent(store: Store) -> None:
    held = begin(store, "p")
    order(store, "pause", "run:p")
    do(store, held.append(spawn=new_run("c", parent_id="p", root_id="p")))
    assert state(store, "c") == ("paused", False)


# ── scopes ────────────────────────────────────────────────────────────────────────────────────


def two_agents(store: Store) -> None:
    rows = (agent_row(), agent_row(name="other"))
    do(store, Register(worker=worker_row("w"), agents=rows, lease_seconds=60))


def ready(store: Store) -> list[str]:
    agents = (("agent", "1"), ("other", "1"))
    return sorted(run.id for run in claim(store, agents=agents).runs)


@pytest.mark.parametrize("kind", ["pause", "kill"])
def test_a_latch_on_an_agent_holds_its_present_and_future_runs(store: Store, kind: str) -> None:
    two_agents(store)
    start(store, "a1")
    order(store, kind, "agent:agent")
    start(store, "a2")
    start(store, "o", agent="other")
    assert ready(store) == ["o"]
    assert state(store, "a1")[0] == ("paused" if kind == "pause" else "killed")


def test_a_latch_on_a_label_holds_that_tenant_alone(store: Store) -> None:
    two_agents(store)
    order(store, "pause", "label:tenant=x")
    start(store, "x", labels='{"tenant": "x"}')
    start(store, "y", labels='{"tenant": "y"}')
    assert ready(store) == ["y"]
    assert do(store, Resume(scope="label", name="tenant", value="x")) == 0
    assert ready(store) == ["x"]


def test_the_children_of_an_agents_runs_are_in_its_scope(store: Store) -> None:
    two_agents(store)
    start(store, "p")
    do(store, Start(run=new_run("c", agent="other", parent_id="p", root_id="p")))
    order(store, "kill", "agent:agent")
    assert state(store, "c") == ("killed", False)


def test_a_cancelled_agent_may_be_used_again(store: Store) -> None:
    two_agents(store)
    start(store, "a1")
    order(store, "cancel", "agent:agent")
    assert state(store, "a1") == ("cancelled", False)
    start(store, "a2")
    assert ready(store) == ["a2"]


def test_resume_lifts_a_pause_and_lets_every_run_continue(store: Store) -> None:
    two_agents(store)
    start(store, "a1")
    start(store, "later", delay_seconds=60.0)
    order(store, "pause", "agent:agent")
    assert do(store, Resume(scope="agent", name="agent", by="bo")) == 2
    assert ready(store) == ["a1"]


def test_resume_leaves_out_the_excluded_runs(store: Store) -> None:
    two_agents(store)
    start(store, "a1")
    start(store, "o", agent="other")
    order(store, "pause", "agent:agent")
    order(store, "pause", "agent:other")
    do(store, Resume(scope="agent", name="agent", besides=("agent",)))
    assert state(store, "a1")[0] == "paused"


# ── halt ──────────────────────────────────────────────────────────────────────────────────────


def supervisor(name: str = "s") -> SupervisorRow:
    return SupervisorRow(
        id=name, host="here", boot="b", namespace="n", pid=3, start_ticks=4, home="/h"
    )


def enlist(store: Store, name: str = "s", lease_seconds: float = 60.0) -> None:
    do(store, Enlist(supervisor=supervisor(name), lease_seconds=lease_seconds))


def attend(store: Store, name: str = "s") -> Any:
    return do(store, Attend(supervisor_id=name, lease_seconds=60.0))


def test_after_a_halt_nothing_is_claimed_started_or_undone(store: Store) -> None:
    held = owing(store)
    start(store, "q")
    order(store, "halt")
    with pytest.raises(Fenced):
        do(store, held.append())
    result = claim(store)
    assert (result.runs, result.halted) == ([], True)
    with pytest.raises(Refused, match="reauthorize"):
        do(store, Start(run=new_run("new")))
    assert store.run("new") is None


def test_a_second_pull_is_the_same_pull(store: Store) -> None:
    first = order(store, "halt")
    assert order(store, "halt") == first
    assert order(store, "halt", id="another") == first
    assert len(store.stops()) == 1


def test_a_halt_is_proved_when_every_process_is(store: Store) -> None:
    enlist(store)
    row = worker_row("w")
    named = {name: getattr(row, name) for name in row.__struct_fields__}
    worker = type(row)(**{**named, "supervisor": "s", "containment": '{"kill":"A"}'})
    do(store, Register(worker=worker, agents=(agent_row(),), lease_seconds=60))
    start(store, "r")
    take(store)
    run = store.run("r")
    assert run is not None
    assert run.containment == '{"kill":"A"}'
    receipt = order(store, "halt")
    told = attend(store)
    assert told.halt.id == receipt
    assert {one.target for one in told.notices} == {"run:r", "worker:w", "supervisor:s"}
    do(store, WorkerGone(worker_id="w", evidence="killed by its supervisor"))
    assert not closed(store, receipt)
    body = json.dumps({"s": {"killed_ms": 3}})
    report = TargetReport(stop_id=receipt, target="supervisor:s", stage="verified", body=body)
    assert do(store, report)
    assert not do(store, report)
    assert closed(store, receipt)
    row_ = store.stop(receipt)
    assert row_ is not None
    assert json.loads(row_.body) == {"s": {"killed_ms": 3}}
    assert attend(store).notices == []


def test_a_supervisor_that_falls_silent_leaves_the_halt_unproved(store: Store) -> None:
    enlist(store, "lost", lease_seconds=0.0)
    enlist(store)
    receipt = order(store, "halt")
    attend(store)
    assert stages(store, receipt)["supervisor:lost"] == "unproved"
    do(store, Dismiss(supervisor_id="s"))
    assert stages(store, receipt)["supervisor:s"] == "verified"
    assert [row.id for row in store.supervisors()] == []
    assert {row.id for row in store.supervisors(0.0)} == {"lost", "s"}


def test_a_supervisor_that_is_not_known_any_more_learns_it(store: Store) -> None:
    assert not attend(store, "unknown").known


def reauthorize(store: Store, epoch: int, scope: str = "fleet", **changes: Any) -> Any:
    plain = {"by": "bo", "why": "found the cause"}
    return do(store, Reauthorize(epoch=epoch, scope=scope, **plain | changes))


def epoch(store: Store, receipt: str) -> int:
    row = store.stop(receipt)
    assert row is not None
    return row.epoch


def test_reauthorize_restarts_nothing_and_resume_does(store: Store) -> None:
    begin(store)
    start(store, "q")
    receipt = order(store, "halt")
    do(store, WorkerGone(worker_id="w", evidence="killed"))
    register(store, "w2")
    with pytest.raises(Refused, match="reauthorize"):
        do(store, Resume(scope="fleet"))
    assert reauthorize(store, epoch(store, receipt)) == 1
    assert claim(store, "w2").runs == []
    assert (state(store, "q")[0], state(store, "r")[0]) == ("killed", "killed")
    assert store.latches() == []
    assert do(store, Resume(scope="fleet")) == 2
    assert sorted(run.id for run in claim(store, "w2").runs) == ["q", "r"]


def test_new_runs_begin_after_a_reauthorization(store: Store) -> None:
    register(store)
    receipt = order(store, "halt")
    reauthorize(store, epoch(store, receipt))
    start(store, "new")
    assert [run.id for run in claim(store).runs] == ["new"]


def test_a_newer_pull_wins_over_a_reauthorization(store: Store) -> None:
    first = order(store, "halt")
    seen = epoch(store, first)
    reauthorize(store, seen)
    order(store, "halt")
    with pytest.raises(Conflict, match="again"):
        reauthorize(store, seen)
    assert claim(store).runs == []
    assert len(store.latches()) == 1


def test_a_late_halt_is_lifted_with_its_pull_and_holds_if_it_was_not_seen(
    store: Store,
) -> None:
    """Two hosts were pulled while the store was away, and one of them is still cut off."""
    seen = order(store, "halt", id="rcp_here")
    reauthorize(store, epoch(store, seen))
    assert order(store, "halt", id="rcp_here") == seen  # the same pull, by a slower way
    assert not store.latches()
    unseen = order(store, "halt", id="rcp_there")
    assert [latch.id for latch in store.latches()] == [unseen]
    with pytest.raises(Conflict, match="it was stopped again meanwhile"):
        reauthorize(store, epoch(store, seen))


def test_a_reauthorization_needs_a_name_and_a_reason(store: Store) -> None:
    receipt = order(store, "halt")
    for missing in ({"by": " "}, {"why": ""}):
        with pytest.raises(BadInput, match="name and a reason"):
            reauthorize(store, epoch(store, receipt), **missing)
    assert len(store.latches()) == 1


def test_runs_that_waited_for_a_killed_agent_are_held_after_its_reauthorization(
    store: Store,
) -> None:
    two_agents(store)
    receipt = order(store, "kill", "agent:agent")
    start(store, "a")
    assert reauthorize(store, epoch(store, receipt), "agent", name="agent") == 1
    assert ready(store) == []
    assert state(store, "a") == ("killed", False)


def test_a_reauthorization_and_an_order_need_something_to_act_on(store: Store) -> None:
    with pytest.raises(NotFound, match="nothing there is held"):
        reauthorize(store, 1)
    with pytest.raises(NotFound, match="no run"):
        order(store, "kill", "run:nobody")
    assert store.stops() == []


def test_a_timer_does_not_wake_a_halted_run(store: Store) -> None:
    held = begin(store)
    message = Settle(
        run_id="r", fence=held.fence, state="suspended", ending="suspended", wake_at=0.0
    )
    do(store, message)
    order(store, "halt")
    assert claim(store).runs == []
    assert state(store) == ("suspended", False)


def test_a_heartbeat_reports_what_a_worker_does_and_a_stall_is_recorded(store: Store) -> None:
    register(store)
    do(store, Beat(worker_id="w", lease_seconds=60, progress='{"tick": 3}'))
    [row] = store.workers()
    assert (row.progress, row.stalled) == ('{"tick": 3}', None)
    assert row.beaten_at is not None
    assert do(store, StallReport(worker_id="w", stalled='{"why": "silent"}'))
    assert not do(store, StallReport(worker_id="w", stalled='{"why": "silent"}'))
    assert store.workers()[0].stalled == '{"why": "silent"}'
    assert do(store, StallReport(worker_id="w", stalled=None))


def test_a_claim_in_flight_does_not_escape_a_halt(opened: Any) -> None:
    """In either order: nothing runs afterwards that was not fenced."""
    from concurrent.futures import ThreadPoolExecutor

    one, two = opened(), opened()
    register(one)
    start(one, *(f"r{n}" for n in range(40)))
    message = Claim(worker_id="w", agents=(("agent", "1"),), limit=1)
    with ThreadPoolExecutor(2) as pool:
        claims = pool.submit(lambda: [do(one, message) for _ in range(40)])
        receipt = pool.submit(lambda: order(two, "halt")).result()
        claims.result()
    running = [run for run in one.runs(_all()) if run.state == "running"]
    assert running == []
    assert {row.stage for row in one.targets(receipt)} == {"fenced"}


def _all() -> Any:
    from andon.store.messages.rows import Filter

    return Filter(limit=100)


def test_appends_after_a_kill_are_refused_in_batches_too(store: Store) -> None:
    held = begin(store)
    register(store, "x")
    start(store, "other")
    other = take(store, "other", "x")
    order(store, "kill", "run:r")
    outcomes = store.write([held.append(), other.append()])
    assert isinstance(outcomes[0], Fenced)
    assert outcomes[1] is None
    assert isinstance(held.append(), Append)


@pytest.mark.parametrize("odd", ["\udcff", "a\0b"])
def test_no_character_in_an_order_prevents_the_stop(store: Store, odd: str) -> None:
    begin(store)
    stop_id = order(store, "halt", id=f"rcp_{odd}", by=odd, why=odd, via=odd)
    row = store.stop(stop_id)
    assert row is not None
    assert row.why == row.by == row.via
    assert row.why.startswith(("\\udcff", "a\\x00b"))
    assert state(store) == ("killed", True)
    assert do(store, Reauthorize(epoch=row.epoch, scope="fleet", by=odd, why=odd)) == 0
    do(store, Resume(scope="fleet", by=odd, why=odd))


@pytest.mark.parametrize("within", [-1.0, float("nan"), float("inf")])
def test_a_window_must_be_finite(store: Store, within: float) -> None:
    begin(store)
    with pytest.raises(BadInput, match="within"):
        order(store, "pause", "run:r", within=within)
    assert state(store) == ("running", False)
