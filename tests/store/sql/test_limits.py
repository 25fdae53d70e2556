"""Limits hold across all workers on both databases, and hold back only the runs they apply to."""

import contextlib
import json
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from tests.store.parts import (
    Held,
    agent_row,
    claim,
    do,
    register,
    start,
    take,
    worker_row,
)

from andon.core.limits import LimitSlot
from andon.store.store import Drain, MoveRun, Promote, Register, SetLimit, Settle, Store


def limit(store: Store, what: str, **terms: Any) -> Any:
    scope, _, name = what.partition(":")
    return do(store, SetLimit(scope=scope, name=name, **{"by": "ana", **terms}))


def ids(store: Store, worker_id: str = "w", **changes: Any) -> list[str]:
    return sorted(run.id for run in claim(store, worker_id, **changes).runs)


def settle(store: Store, run_id: str, worker_id: str = "w", **changes: Any) -> None:
    run = store.run(run_id)
    assert run is not None
    from andon.core.lease import Fence

    message: dict[str, Any] = {"state": "suspended", "ending": "suspended", **changes}
    do(store, Settle(run_id=run_id, fence=Fence(run.epoch, run.fence), **message))


def limits(store: Store) -> dict[str, tuple[int | None, int | None, float | None, str]]:
    return {
        f"{row.scope}:{row.name}": (row.at_most, row.rate, row.per_seconds, row.set_by)
        for row in store.limits()
    }


# ── concurrency limits ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("what", ["queue:emails", "agent:agent"])
def test_no_more_runs_execute_at_once_than_the_limit_says(store: Store, what: str) -> None:
    register(store)
    limit(store, what, at_most=2)
    start(store, "a", "b", "c", queue="emails")
    assert ids(store) == ["a", "b"]
    assert ids(store) == []
    settle(store, "a")
    assert ids(store) == ["c"]


def test_a_limit_of_a_label_holds_for_each_of_its_values_separately(store: Store) -> None:
    register(store)
    limit(store, 'label:te"nant', at_most=1)
    for tenant in ("x", "y"):
        start(store, f"{tenant}1", f"{tenant}2", labels=json.dumps({'te"nant': tenant}))
    start(store, "free1", "free2")
    assert ids(store) == ["free1", "free2", "x1", "y1"]
    settle(store, "x1")
    assert ids(store) == ["x2"]


def test_all_limits_of_a_run_hold_together(store: Store) -> None:
    register(store)
    limit(store, "queue:emails", at_most=2)
    limit(store, "label:tenant", at_most=1)
    for name, tenant in (("a", "x"), ("b", "x"), ("c", "y"), ("d", "z")):
        start(store, name, queue="emails", labels=json.dumps({"tenant": tenant}))
    assert ids(store) == ["a", "c"]


def test_workers_that_claim_at_once_do_not_exceed_a_limit(
    store: Store, opened: Callable[[], Store]
) -> None:
    limit(store, "agent:agent", at_most=5)
    start(store, *(f"r{n:02}" for n in range(40)))
    others = [opened() for _ in range(4)]
    for number, other in enumerate(others):
        register(other, f"w{number}")

    def claim_some(number: int) -> list[str]:
        return [one for _ in range(5) for one in ids(others[number], f"w{number}", limit=2)]

    with ThreadPoolExecutor(4) as pool:
        found = [one for some in pool.map(claim_some, range(4)) for one in some]
    assert len(found) == len(set(found)) == 5


def test_a_limit_that_is_set_while_others_claim_is_kept_from_then_on(
    store: Store, opened: Callable[[], Store]
) -> None:
    start(store, *(f"r{n:02}" for n in range(60)))
    other = opened()
    register(other, "busy")
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(lambda: [ids(other, "busy", limit=1) for _ in range(20)])
        limit(store, "agent:agent", at_most=3)
        register(store, "late")
        running = sum(count for _, count in store.usage().running)
        claimed = ids(store, "late")
        assert len(claimed) <= max(3 - running, 0)
        busy.result()
    final = sum(count for _, count in store.usage().running)
    assert final <= max(3, running)


def test_a_run_behind_many_that_are_held_back_is_claimed(store: Store) -> None:
    register(store)
    limit(store, "queue:slow", at_most=1)
    limit(store, "label:tenant", at_most=1)
    start(store, *(f"s{n:03}" for n in range(150)), queue="slow", priority=9)
    start(store, *(f"t{n:03}" for n in range(150)), labels='{"tenant":"x"}', priority=8)
    start(store, "last")
    assert ids(store, limit=10) == ["last", "s000", "t000"]
    assert ids(store, limit=10) == []


def test_the_order_of_the_queue_is_kept_under_limits(store: Store) -> None:
    register(store)
    limit(store, "agent:agent", at_most=2)
    start(store, "young")
    start(store, "urgent", priority=5)
    start(store, "again")
    take(store, "again")
    settle(store, "again", state="queued", ending="returned", returned=True)
    assert ids(store) == ["again", "urgent"]


def test_a_claim_under_limits_applies_all_other_conditions(store: Store) -> None:
    register(store)
    limit(store, "agent:agent", at_most=9)
    start(store, "mine", "other")
    start(store, "later", delay_seconds=3600)
    start(store, "foreign", version="2")
    assert ids(store, only=("mine",)) == ["mine"]
    assert ids(store, queues=("elsewhere",)) == []
    do(store, Drain(worker_id="w", drain="{}"))
    assert ids(store) == [], "it is draining"
    register(store, "w2")
    assert ids(store, "w2") == ["other"]


def test_suspects_run_one_at_a_time_also_under_limits(store: Store) -> None:
    limit(store, "agent:agent", at_most=9)
    start(store, "a", "b", "plain")
    register(store, "lost")
    assert ids(store, "lost", only=("a", "b")) == ["a", "b"]
    register(store)
    found = claim(store, dead=(("lost", "dead:seen"),), interruption_limit=2)
    assert len(found.runs) == 2
    assert "plain" in {run.id for run in found.runs}


@pytest.mark.parametrize("limited", [False, True])
def test_a_suspect_that_is_to_be_undone_is_undone_by_any_version(
    store: Store, limited: bool
) -> None:
    if limited:
        limit(store, "agent:agent", at_most=9)
    start(store, "old", version="0")
    do(store, MoveRun(run_id="old", seen="queued", state="queued", undoing="{}"))
    register(store, "lost")
    assert ids(store, "lost") == ["old"]
    register(store)
    assert ids(store, dead=(("lost", "dead:seen"),), interruption_limit=2) == ["old"]


def test_a_claim_under_limits_that_is_sent_again_answers_the_same_runs(store: Store) -> None:
    register(store)
    limit(store, "agent:agent", at_most=1, rate=1, per_seconds=3600)
    start(store, "a", "b")
    assert ids(store, number=1) == ["a"]
    assert ids(store, number=1) == ["a"]
    assert ids(store, number=2) == []


# ── rate limits ───────────────────────────────────────────────────────────────────────────────


def test_no_more_runs_begin_in_a_period_than_the_rate_says(store: Store) -> None:
    register(store)
    limit(store, "queue:default", rate=2, per_seconds=3600)
    start(store, "a", "b", "c")
    found = claim(store)
    assert [run.id for run in found.runs] == ["a", "b"]
    assert found.wake_in == pytest.approx(1800, abs=30)
    settle(store, "a", state="succeeded", ending="succeeded")
    again = claim(store)
    assert again.runs == []
    assert again.wake_in == pytest.approx(1800, abs=30)


def test_a_rate_that_no_run_waits_for_schedules_no_wake_up(store: Store) -> None:
    register(store)
    limit(store, "queue:default", rate=1, per_seconds=3600)
    start(store, "a")
    start(store, "foreign", version="2")
    found = claim(store)
    assert [run.id for run in found.runs] == ["a"]
    assert found.wake_in is None


def test_a_spent_rate_refills_by_the_clock_of_the_store(store: Store) -> None:
    from tests.store.parts import eventually

    register(store)
    limit(store, "agent:agent", rate=1, per_seconds=0.05)
    start(store, "a", "b")
    assert ids(store, limit=1) == ["a"]
    assert eventually(lambda: ids(store)) == ["b"]


def test_a_run_that_had_begun_before_is_not_held_back_by_a_rate(store: Store) -> None:
    register(store)
    limit(store, "label:tenant", rate=1, per_seconds=3600)
    start(store, "a", "b", labels='{"tenant":"x"}')
    assert ids(store) == ["a"]
    settle(store, "a", state="queued", ending="returned", returned=True)
    assert ids(store) == ["a"]
    assert store.usage().buckets[LimitSlot("label", "tenant", "x")].unspent < 1


def test_a_run_that_is_to_be_undone_is_not_held_back_by_a_rate(store: Store) -> None:
    register(store)
    limit(store, "agent:agent", rate=1, per_seconds=3600)
    start(store, "a", "b", "c")
    assert ids(store) == ["a"]
    do(store, MoveRun(run_id="b", seen="queued", state="queued", undoing="{}"))
    assert ids(store) == ["b"]


def test_buckets_that_are_full_again_are_deleted(store: Store) -> None:
    register(store)
    limit(store, "label:tenant", rate=1, per_seconds=1e-6)
    for tenant in "xyz":
        start(store, tenant, labels=json.dumps({"tenant": tenant}))
        assert ids(store) == [tenant]
    assert len(store.usage().buckets) < 3


# ── sources of a limit ────────────────────────────────────────────────────────────────────────


def registered(store: Store, worker_id: str, version: str, **terms: Any) -> None:
    row = agent_row(version=version)
    told = {name: getattr(row, name) for name in row.__struct_fields__} | terms
    do(
        store,
        Register(worker=worker_row(worker_id), agents=(type(row)(**told),), lease_seconds=60),
    )


def test_the_code_of_the_promoted_version_sets_the_limit_of_its_agent(store: Store) -> None:
    registered(store, "w1", "1", at_most=3)
    assert limits(store) == {"agent:agent": (3, None, None, "code")}
    registered(store, "w2", "2", rate=10, per_seconds=60.0)
    assert limits(store) == {"agent:agent": (None, 10, 60.0, "code")}
    registered(store, "w3", "1", at_most=3)
    assert limits(store) == {"agent:agent": (None, 10, 60.0, "code")}, "a restart of the old one"
    do(store, Promote(version="1"))
    assert limits(store) == {"agent:agent": (3, None, None, "code")}
    registered(store, "w4", "1")
    assert limits(store) == {}, "the code does not set the limit any more"


def test_the_last_promotion_counts_even_if_the_clock_was_set_back(store: Store) -> None:
    registered(store, "w1", "1")
    registered(store, "w2", "2")
    later = store.now() + 3600
    tables = "andon_agents" if store.url.startswith("sqlite") else "andon.agents"
    change_tables(store, f"UPDATE {tables} SET promoted_at = {later} WHERE version = '2'")
    do(store, Promote(version="1"))
    assert [row.version for row in store.agents()] == ["1", "2"]
    registered(store, "w3", "3")
    assert [row.version for row in store.agents()] == ["3", "1", "2"]


def change_tables(store: Store, sql: str) -> None:
    if store.url.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(store.url.removeprefix("sqlite:///"))) as db, db:
            db.execute(sql)
    else:
        with psycopg.connect(store.url) as server:
            server.execute(sql)


def test_a_limit_set_by_a_person_wins_over_code_until_it_is_removed(store: Store) -> None:
    registered(store, "w1", "1", at_most=3)
    limit(store, "agent:agent", at_most=7)
    registered(store, "w2", "1", at_most=4)
    assert limits(store) == {"agent:agent": (7, None, None, "ana")}
    assert limit(store, "agent:agent") is True
    assert limits(store) == {"agent:agent": (4, None, None, "code")}


def test_removing_a_limit_that_does_not_exist_is_reported(store: Store) -> None:
    assert limit(store, "queue:emails") is False
    limit(store, "queue:emails", at_most=1)
    assert limit(store, "queue:emails") is True
    assert limits(store) == {}


def test_the_person_who_set_a_limit_is_recorded(store: Store) -> None:
    limit(store, "queue:emails", at_most=1)
    [event] = store.events()
    assert event.kind == "limit.set"
    assert json.loads(event.body)["by"] == "ana"


# ── queues, versions and runs that no worker takes ────────────────────────────────────────────


def test_a_worker_of_some_queues_claims_from_no_other(store: Store) -> None:
    register(store)
    start(store, "a", queue="emails")
    start(store, "b", queue="reports")
    start(store, "c", queue="'; --")
    assert ids(store, queues=("emails", "'; --")) == ["a", "c"]
    assert ids(store) == ["b"]


def test_the_runs_of_each_queue_are_counted(store: Store) -> None:
    register(store)
    start(store, "a", "b", "c", queue="emails")
    start(store, "later", queue="emails", delay_seconds=3600)
    start(store, "d", queue="reports")
    take(store, "a")
    settle(store, "a", state="queued", ending="returned", returned=True)
    take(store, "d")
    emails, reports = store.queues()
    assert (emails.name, emails.waiting, emails.returned, emails.later) == ("emails", 3, 1, 1)
    assert emails.running == 0
    assert emails.oldest_at is not None
    assert emails.oldest_at <= store.now()
    assert (reports.name, reports.waiting, reports.running) == ("reports", 0, 1)
    assert reports.oldest_at is None


def test_unfinished_runs_are_counted_by_version_and_state(store: Store) -> None:
    register(store)
    start(store, "a", "b", "c")
    start(store, "d", agent="other", version="2")
    settle(store, Held(claim(store, limit=1).runs[0]).id, state="succeeded", ending="succeeded")
    take(store, "b")
    assert sorted(store.unfinished()) == [
        ("agent", "1", "queued", 1),
        ("agent", "1", "running", 1),
        ("other", "2", "queued", 1),
    ]
    assert store.unfinished("other") == [("other", "2", "queued", 1)]
    assert store.run_count() == 4, "finished runs count too"


def register_carrier(
    store: Store, worker_id: str, *, queues: str | None = None, lease: float = 60
) -> None:
    row = worker_row(worker_id)
    told = {name: getattr(row, name) for name in row.__struct_fields__}
    worker = type(row)(**told | {"agents": '[["agent", "1"]]', "queues": queues})
    do(store, Register(worker=worker, agents=(agent_row(),), lease_seconds=lease))


def test_runs_that_no_live_worker_would_take_are_forsaken(store: Store) -> None:
    start(store, "a", "b")
    start(store, "new", version="2")
    start(store, "later", delay_seconds=3600)
    found = [(row.agent, row.version, row.runs) for row in store.forsaken(0)]
    assert found == [("agent", "1", 2), ("agent", "2", 1)]
    register_carrier(store, "w")
    [row] = store.forsaken(0)
    assert (row.agent, row.version, row.runs) == ("agent", "2", 1)
    assert row.oldest_available_at <= store.now()
    do(store, MoveRun(run_id="new", seen="queued", state="queued", undoing="{}"))
    assert store.forsaken(0) == [], "any version may undo it"


def test_runs_of_a_queue_that_no_worker_serves_are_forsaken(store: Store) -> None:
    start(store, "a", queue="emails")
    start(store, "b", queue="reports")
    register_carrier(store, "w", queues='["emails"]')
    assert [row.runs for row in store.forsaken(0)] == [1]
    register_carrier(store, "w2", queues='["reports"]')
    assert store.forsaken(0) == []


def test_a_worker_that_drains_or_whose_lease_ended_carries_nothing(store: Store) -> None:
    start(store, "a")
    register_carrier(store, "silent", lease=-1)
    assert [row.runs for row in store.forsaken(0)] == [1]
    register_carrier(store, "w")
    assert store.forsaken(0) == []
    do(store, Drain(worker_id="w", drain="{}"))
    assert [row.runs for row in store.forsaken(0)] == [1]


def test_a_moment_without_a_worker_leaves_no_run_forsaken(store: Store) -> None:
    from andon.store.store import Depart

    start(store, "a", at=1.0)
    assert [row.runs for row in store.forsaken(60)] == [1], "it has waited for a long time"
    register_carrier(store, "w")
    do(store, Depart(worker_id="w"))
    assert store.forsaken(60) == [], "a worker has carried it a moment ago"
    assert [row.runs for row in store.forsaken(0)] == [1]
    start(store, "fresh", agent="nobody")
    assert store.forsaken(60) == []


def test_a_known_version_is_promoted_by_a_worker_only_on_request(store: Store) -> None:
    registered(store, "w1", "1")
    registered(store, "w2", "2")
    registered(store, "w3", "1")
    assert store.agents("agent")[0].version == "2"
    message = Register(worker=worker_row("w4"), agents=(agent_row(),), lease_seconds=60)
    do(store, message)
    assert store.agents("agent")[0].version == "2"
    known = Register(
        worker=worker_row("w5"), agents=(agent_row(),), lease_seconds=60, promote_known=True
    )
    do(store, known)
    assert store.agents("agent")[0].version == "1"


def test_a_label_value_of_any_length_is_counted_and_breaks_no_index(store: Store) -> None:
    register(store)
    limit(store, "label:tenant", at_most=1, rate=1, per_seconds=3600.0)
    # Hardly compressible: an index has no room for that much.
    long = "".join(chr(0x4E00 + number * 7919 % 20000) for number in range(5000))
    for name, tenant in (("a", long), ("b", long), ("c", long + "!"), ("d", "x")):
        start(store, name, labels=json.dumps({"tenant": tenant}))
    assert ids(store) == ["a", "c", "d"]
    settle(store, "a")
    assert ids(store) == []
