"""Orders that meet other writers at the same instant, or are given twice."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from tests.store.parts import (
    Held,
    agent_row,
    begin,
    claim,
    do,
    eventually,
    new_run,
    register,
    start,
    take,
    worker_row,
)
from tests.store.sql.test_stops import (
    attend,
    closed,
    epoch,
    give_back,
    order,
    owing,
    reauthorize,
    stages,
    state,
    supervisor,
)

from andon.core.journal import check_chain
from andon.store import open_store
from andon.store.messages.stops import (
    Dismiss,
    Ended,
    Enlist,
    Order,
    Reauthorize,
    Resume,
    TargetReport,
    WorkerGone,
)
from andon.store.store import Beat, Claim, MoveRun, Register, Store
from andon.testing.postgres import Cluster

OTHER = ("other", "1")


# ── PostgreSQL: several writers at once ───────────────────────────────────────────────────────


class Traffic:
    """Writers that are made to collide on a lock that `holder` holds."""

    def __init__(self, url: str) -> None:
        self._url, self._stores = url, list[Store]()
        self.store = self._open()
        self._pool = ThreadPoolExecutor(4)
        self.holder = psycopg.connect(url)
        self._eye = psycopg.connect(url, autocommit=True)

    def _open(self) -> Store:
        self._stores.append(open_store(self._url))
        return self._stores[-1]

    def hold(self, statement: str) -> None:
        self.holder.execute(statement.encode())

    def release(self) -> None:
        self.holder.rollback()

    def send(self, *batch: Any) -> "Future[Any]":
        """Write from another store, as another process would."""
        return self._pool.submit(self._open().write, batch)

    def wait(self, number: int, *unless: "Future[Any]") -> None:
        """Wait until so many connections wait for a lock."""
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        eventually(
            lambda: (
                self._eye.execute(waiting).fetchone() == (number,)
                or any(one.done() for one in unless)
            )
        )

    def close(self) -> None:
        self.holder.close()
        self._eye.close()
        self._pool.shutdown()
        for store in self._stores:
            store.close()


@pytest.fixture
def traffic(postgres_url: str) -> Iterator[Traffic]:
    made = Traffic(postgres_url)
    yield made
    made.close()


WORKER = "SELECT 1 FROM andon.workers WHERE id = 'w' FOR NO KEY UPDATE"


def message(kind: str, what: str = "fleet") -> Any:
    scope, _, name = what.partition(":")
    return Order(id=f"rcp_{kind}_{scope}", kind=kind, scope=scope, name=name)


def test_an_order_does_not_deadlock_with_a_batch_that_waits_for_it(
    traffic: Traffic, cluster: Cluster
) -> None:
    held = begin(traffic.store)
    before = cluster.log.stat().st_size
    traffic.hold(WORKER)
    given = traffic.send(message("kill", "run:r"))
    traffic.wait(1)
    batch = traffic.send(held.append(), Beat(worker_id="w", lease_seconds=60))
    traffic.wait(2)
    traffic.release()
    given.result()
    batch.result()
    assert "deadlock" not in cluster.log.read_text()[before:]


def test_a_claim_that_finds_an_expired_window_does_not_wait_for_an_order(traffic: Traffic) -> None:
    begin(traffic.store)
    order(traffic.store, "pause", "run:r", within=0.0)
    traffic.hold("SELECT pg_advisory_xact_lock(4701822938610213712)")
    assert [one.hard for one in claim(traffic.store).notices] == [False]
    traffic.release()
    claim(traffic.store)
    assert [one.hard for one in claim(traffic.store).notices] == [True]


@pytest.mark.parametrize("what", ["run:top", "agent:agent"])
def test_a_child_that_is_being_started_does_not_escape_an_order(
    traffic: Traffic, what: str
) -> None:
    store = traffic.store
    begin(store, "top")
    do(store, Register(worker=worker_row("x"), agents=(agent_row(name="other"),), lease_seconds=60))
    start(store, "child", parent_id="top", root_id="top", agent="other")
    child = Held(claim(store, "x", agents=(OTHER,)).runs[0])
    born = new_run("born", parent_id="child", root_id="top", agent="other")
    traffic.hold(
        'INSERT INTO andon.runs SELECT (jsonb_populate_record(r, \'{"id": "born"}\')).*'
        " FROM andon.runs r WHERE id = 'top'"
    )
    spawning = traffic.send(child.append(spawn=born))
    traffic.wait(1)
    given = traffic.send(message("kill", what))
    traffic.wait(2)
    traffic.release()
    assert spawning.result() == [None]
    given.result()
    assert state(store, "born") == ("killed", False)


def test_a_worker_that_registers_meanwhile_does_not_escape_an_order(traffic: Traffic) -> None:
    store = traffic.store
    begin(store)
    start(store, "waiting")
    traffic.hold("SELECT 1 FROM andon.runs WHERE id = 'r' FOR NO KEY UPDATE")
    given = traffic.send(message("pause"))
    traffic.wait(1)
    beginning = Register(worker=worker_row("new"), agents=(agent_row(),), lease_seconds=60)
    first = Claim(worker_id="new", agents=(("agent", "1"),), limit=10)
    claiming = traffic.send(beginning, first)
    traffic.wait(2, claiming)
    traffic.release()
    given.result()
    claiming.result()
    assert state(store, "waiting") == ("queued", False)


def test_a_supervisor_that_ends_meanwhile_leaves_no_open_target(traffic: Traffic) -> None:
    store = traffic.store
    for name in ("one", "two"):
        do(store, Enlist(supervisor=supervisor(name), lease_seconds=60))
    traffic.hold("SELECT 1 FROM andon.supervisors WHERE id = 'two' FOR NO KEY UPDATE")
    leaving = traffic.send(Dismiss(supervisor_id="one"), Dismiss(supervisor_id="two"))
    traffic.wait(1)
    given = traffic.send(message("halt"))
    traffic.wait(2, given)
    traffic.release()
    leaving.result()
    given.result()
    assert "fenced" not in stages(store, "rcp_halt_fleet").values()


def report_of_end(receipt: str, target: str) -> TargetReport:
    return TargetReport(stop_id=receipt, target=target, stage="verified", evidence="seen to end")


def test_two_writers_that_prove_the_last_two_targets_close_the_order(opened: Any) -> None:
    one, two = opened(), opened()
    register(one, "w")
    register(one, "x")
    together = threading.Barrier(2)
    receipts = []

    def prove(store: Store, said: TargetReport) -> None:
        together.wait()
        do(store, said)

    with ThreadPoolExecutor(2) as pool:
        for n in range(25):
            start(one, f"a{n}", f"b{n}", labels=json.dumps({"n": str(n)}))
            take(one, f"a{n}", "w"), take(one, f"b{n}", "x")
            receipts.append(order(one, "kill", f"label:n={n}"))
            for done in [
                pool.submit(prove, store, report_of_end(receipts[-1], name))
                for store, name in ((one, f"run:a{n}"), (two, f"run:b{n}"))
            ]:
                done.result()
    assert [receipt for receipt in receipts if not closed(one, receipt)] == []


# ── targets that stay unproved ────────────────────────────────────────────────────────────────


def test_an_old_proof_does_not_release_a_run_that_another_worker_may_execute(store: Store) -> None:
    """Its first worker fell silent; the second has it, and is not proved to have stopped."""
    first = begin(store)
    order(store, "kill", "run:r")
    claimed = claim(register_other(store), "x", dead=(("w", "silent:its lease ended"),))
    assert claimed.runs == []
    do(store, MoveRun(run_id="r", seen="killed", state="queued"))
    second = take(store, "r", "x")
    receipt = order(store, "cancel", "run:r", within=0.0)
    claim(store, "x")
    assert state(store) == ("killed", True)
    do(store, WorkerGone(worker_id="w", evidence="gone"))
    assert state(store) == ("killed", True)
    assert stages(store, receipt) == {"run:r": "fenced"}
    do(store, Ended(worker_id="x", run_id="r", fence=second.fence.counter))
    assert state(store) == ("cancelled", False)
    assert first.fence < second.fence


def register_other(store: Store) -> Store:
    register(store, "x")
    return store


@pytest.mark.parametrize("kind", ["pause", "cancel"])
def test_an_unrequested_report_of_an_end_proves_nothing(store: Store, kind: str) -> None:
    """A run that was only asked to stop is in its worker's hand until the worker returns it."""
    held = begin(store)
    receipt = order(store, kind, "run:r")
    do(store, Ended(worker_id="w", run_id="r", fence=held.fence.counter))
    assert state(store) == ("running", True)
    assert stages(store, receipt) == {"run:r": "requested"}
    do(store, WorkerGone(worker_id="w", evidence="gone"))
    assert state(store) == ({"pause": "paused", "cancel": "cancelled"}[kind], False)
    assert stages(store, receipt) == {"run:r": "verified"}


@pytest.mark.parametrize("kind", ["cancel", "kill"])
@pytest.mark.parametrize("what", ["run:r", "agent:agent", "fleet"])
def test_a_frozen_run_is_not_stopped_before_its_process_is_gone(
    store: Store, kind: str, what: str
) -> None:
    worker = worker_row("w").but(supervisor="s")
    do(store, Register(worker=worker, agents=(agent_row(),), lease_seconds=60))
    do(store, Enlist(supervisor=supervisor(), lease_seconds=60))
    start(store, "r")
    held = take(store)
    order(store, "pause", "run:r")
    do(store, give_back(held, ending="frozen, grade A"))
    assert state(store) == ("paused", False)
    receipt = order(store, kind, what)
    assert state(store) == ("killed", True)
    [told] = attend(store).notices
    assert (told.target, told.hard) == ("run:r", True)
    assert not closed(store, receipt)
    do(store, TargetReport(stop_id=receipt, target="run:r", stage="verified", evidence="gone"))
    assert state(store) == ({"cancel": "cancelled", "kill": "killed"}[kind], False)
    assert closed(store, receipt)


# ── the same message again ────────────────────────────────────────────────────────────────────


def test_an_order_given_again_with_a_shorter_window_has_the_shorter_one(store: Store) -> None:
    begin(store)
    receipt = order(store, "pause", "run:r", within=600.0)
    assert order(store, "pause", "run:r", within=900.0) == receipt
    claim(store)
    assert state(store) == ("running", True)
    assert order(store, "pause", "run:r", within=0.0) == receipt
    claim(store)
    assert state(store) == ("killed", True)


def test_a_reauthorization_whose_answer_was_lost_can_be_sent_again(store: Store) -> None:
    receipt = order(store, "halt")
    said = Reauthorize(epoch=epoch(store, receipt), scope="fleet", by="ben", why="looked")
    do(store, said)
    start(store, "r")
    assert do(store, said) == 0
    assert state(store) == ("queued", False)


@pytest.mark.parametrize("message", ["ended", "bury", "resume"])
def test_a_message_that_ends_a_stop_may_be_sent_twice(store: Store, message: str) -> None:
    held = begin(store)
    receipt = order(store, "kill", "run:r")
    said: Any = {
        "ended": Ended(worker_id="w", run_id="r", fence=held.fence.counter),
        "bury": WorkerGone(worker_id="w", evidence="gone"),
        "resume": Resume(scope="fleet"),
    }[message]
    if message == "resume":
        do(store, Ended(worker_id="w", run_id="r", fence=held.fence.counter))
    do(store, said)
    after = state(store), stages(store, receipt)
    do(store, said)
    assert (state(store), stages(store, receipt)) == after


# ── latches over each other ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["pause", "kill"])
def test_a_child_is_not_resumed_under_the_latch_of_its_parent(store: Store, kind: str) -> None:
    start(store, "top")
    start(store, "child", parent_id="top", root_id="top", agent="other")
    order(store, kind, "agent:agent")
    held = state(store, "child")
    assert do(store, Resume(scope="agent", name="other")) == 0
    assert do(store, Resume(scope="fleet")) == 0
    assert state(store, "child") == held
    if kind == "kill":
        reauthorize(store, store.latches()[0].epoch, scope="agent", name="agent")
    assert do(store, Resume(scope="agent", name="agent")) == 2


def test_nested_latches_are_lifted_one_by_one(store: Store) -> None:
    register(store)
    start(store, "r")
    order(store, "pause")
    kill = order(store, "kill", "agent:agent")
    do(store, Resume(scope="fleet"))
    assert claim(store).runs == []
    reauthorize(store, epoch(store, kill), scope="agent", name="agent")
    assert claim(store).runs == []
    order(store, "pause")
    assert do(store, Resume(scope="agent", name="agent")) == 1
    assert claim(store).runs == []
    do(store, Resume(scope="fleet"))
    assert [run.id for run in claim(store).runs] == ["r"]


def test_a_halt_cancels_the_undo_windows_of_earlier_stops(store: Store) -> None:
    held = owing(store)
    order(store, "pause", "run:r")
    do(store, give_back(held))
    run = store.run("r")
    assert run is not None
    assert run.undo_at is not None
    receipt = order(store, "halt")
    reauthorize(store, epoch(store, receipt))
    run = store.run("r")
    assert run is not None
    assert (run.state, run.undo_at) == ("paused", None)


# ── many at once ──────────────────────────────────────────────────────────────────────────────


def test_cancelling_many_runs_ends_each_of_them_in_its_own_journal(store: Store) -> None:
    """A parent that was not cancelled gets a message for each of its children."""
    held = begin(store, "parent")
    for name in ("a", "b"):
        child = new_run(name, parent_id="parent", root_id="parent", agent="other")
        do(store, held.append(spawn=child))
    start(store, "below", parent_id="a", root_id="parent", agent="other")
    do(store, give_back(held, state="suspended", ending="suspended", returned=False))
    receipt = order(store, "cancel", "agent:other")
    assert closed(store, receipt)
    row = store.stop(receipt)
    assert row is not None
    assert row.waiting == 3
    for name in ("a", "b", "below"):
        run = store.run(name)
        assert run is not None
        assert (run.state, run.stop) == ("cancelled", None)
        entries = store.journal(name)
        assert check_chain(entries, run_id=name) == run.head_hash
        assert (entries[-1].kind, entries[-1].state) == ("end", "cancelled")
        assert "ana" in str(entries[-1].body)
    assert {one.name for one in store.inbox(["parent"])["parent"]} == {"a", "b"}
    assert state(store, "parent") == ("queued", False)


def test_cancelling_many_runs_that_owe_an_undo_undoes_each_of_them(store: Store) -> None:
    for name in ("a", "b"):
        do(store, give_back(owing(store, name)))
    receipt = order(store, "cancel", "agent:agent")
    assert closed(store, receipt)
    for name in ("a", "b"):
        run = store.run(name)
        assert run is not None
        assert (run.state, run.undo_at, run.error) == ("queued", None, None)
        assert json.loads(run.undoing or "") == {"why": "cancelled: unsure", "by": "ana"}
    told = [row for row in store.events(0, 100) if row.kind == "run.undoing"]
    assert {row.run_id for row in told} == {"a", "b"}
    assert {run.id for run in claim(store).runs} == {"a", "b"}


def test_a_family_of_runs_is_listed_parents_first(store: Store) -> None:
    start(store, "top")
    start(store, "z", parent_id="top", root_id="top")
    start(store, "a", parent_id="z", root_id="top")
    assert store.descendants("top") == ["top", "z", "a"]
