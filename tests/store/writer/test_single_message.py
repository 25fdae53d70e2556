"""A message by itself, as a program or a worker with nothing else to do sends it.

On PostgreSQL it is usually sent without the writer's thread and in one round trip. Its meaning is
the same either way.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.store.parts import (
    AGENT,
    LONG,
    begin,
    do,
    effect,
    eventually,
    new_run,
    register,
    start,
    take,
)

from andon.errors import BadInput, Conflict, Fenced, Refused
from andon.store.messages.stops import Order
from andon.store.store import Claim, Claimed, ClaimResult, Drain, SetLimit, Start, Store
from andon.store.writer.writer import Writer

Carry = Callable[[Store, Any], Any]


def submit_alone(store: Store, message: Any) -> Any:
    async def submit() -> Any:
        writer = Writer(store, patience_seconds=LONG)
        try:
            return await writer.submit(message)
        finally:
            writer.close(LONG)

    return asyncio.run(submit())


@pytest.fixture(params=[submit_alone, do])
def carry(request: pytest.FixtureRequest) -> Carry:
    """By itself, and as a batch of one."""
    way: Carry = request.param
    return way


def claiming(number: int = 0, limit: int = 100, **changes: Any) -> Claim:
    return Claim(worker_id="w", agents=(AGENT,), limit=limit, number=number, **changes)


def ids(result: ClaimResult) -> list[str]:
    return sorted(run.id for run in result.runs)


def order(kind: str, scope: str = "fleet", **changes: Any) -> Order:
    return Order(id=f"rcp_{kind}", kind=kind, scope=scope, by="ana", why="unsure", **changes)


# ── starts ────────────────────────────────────────────────────────────────────────────────────


def test_a_start_is_idempotent_on_the_id(store: Store, carry: Carry) -> None:
    assert carry(store, Start(run=new_run("r"))) is True
    assert carry(store, Start(run=new_run("r"))) is False
    with pytest.raises(Conflict, match="another input"):
        carry(store, Start(run=new_run("r", given="other")))
    assert [entry.seq for entry in store.journal("r")] == [0]


def test_a_start_keeps_everything_it_was_given(store: Store, carry: Carry) -> None:
    given: dict[str, Any] = {"priority": -3, "labels": '{"a": "😀"}', "queue": "q", "at": 12.5}
    run = new_run("r", **given, root_id="p", parent_id="p")
    carry(store, Start(run=run))
    row = store.run("r")
    assert row is not None
    assert (row.priority, row.labels, row.queue, row.available_at) == tuple(given.values())
    assert (row.root_id, row.parent_id, row.head_hash) == ("p", "p", run.entry.hash)
    assert store.journal("r") == [run.entry]


def test_nothing_starts_while_everything_is_halted(store: Store, carry: Carry) -> None:
    do(store, order("halt"))
    with pytest.raises(Refused, match="halted"):
        carry(store, Start(run=new_run("r")))
    assert store.run("r") is None


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_text_that_no_database_can_store_is_refused(store: Store, carry: Carry, text: str) -> None:
    with pytest.raises(BadInput):
        carry(store, Start(run=new_run("r", queue=text)))
    assert carry(store, Start(run=new_run("s"))) is True


def test_a_listener_is_notified_of_a_start(store: Store, opened: Callable[[], Store]) -> None:
    rung = threading.Semaphore(0)
    end = opened().listen(rung.release)
    try:
        for number in range(10):  # one follows the other at once, and none is missed
            submit_alone(store, Start(run=new_run(f"r{number}")))
            assert rung.acquire(timeout=LONG)
    finally:
        end()


def test_a_start_in_flight_is_not_lost_when_the_writer_closes(store: Store) -> None:
    async def leave() -> None:
        writer = Writer(store, patience_seconds=0)
        given_up = asyncio.ensure_future(writer.submit(Start(run=new_run("r"))))
        await asyncio.sleep(0)  # handed over, and not answered
        given_up.cancel()
        writer.close(LONG)

    asyncio.run(leave())
    assert store.run("r") is not None
    assert start(store, "s") == [True]  # and the connection is free again


# ── claims ────────────────────────────────────────────────────────────────────────────────────


def test_a_claim_returns_the_start_entry_of_untouched_runs(store: Store, carry: Carry) -> None:
    register(store)
    run, later = new_run("new"), new_run("message")
    store.write([Start(run=run), Start(run=later)])
    held = begin(store, "touched")
    store.write([held.append()])
    do(store, held.settle("queued", returned=True))
    result = carry(store, claiming(number=1))
    found = {one.id: one.start for one in result.runs}
    assert found == {"new": run.entry, "message": later.entry, "touched": None}
    [touched] = [one for one in result.runs if one.id == "touched"]
    assert (touched.attempt, touched.fence.counter, touched.head_seq) == (2, 2, 1)
    assert [attempt.worker for attempt in store.attempts("touched")] == ["w", "w"]


def test_a_claim_sent_again_answers_the_runs_it_has_claimed(store: Store, carry: Carry) -> None:
    register(store)
    start(store, "a", "b", "c")
    first = carry(store, claiming(number=1, limit=2))
    again = carry(store, claiming(number=1, limit=2))
    assert again.runs == sorted(first.runs, key=_id)
    assert all(len(store.attempts(run.id)) == 1 for run in first.runs)
    assert len(carry(store, claiming(number=2)).runs) == 1


def test_a_claim_of_none_takes_none(store: Store, carry: Carry) -> None:
    register(store)
    start(store, "a")
    assert carry(store, claiming(limit=0)).runs == []


def test_a_claim_keeps_to_a_limit(store: Store, carry: Carry) -> None:
    register(store)
    do(store, SetLimit(scope="agent", name="agent", at_most=1, by="ana"))
    start(store, "a", "b")
    assert len(carry(store, claiming(number=1)).runs) == 1
    assert carry(store, claiming(number=2)).runs == []
    do(store, SetLimit(scope="agent", name="agent", by="ana"))
    assert len(carry(store, claiming(number=3)).runs) == 1


def test_a_claim_takes_no_run_that_a_latch_holds(store: Store, carry: Carry) -> None:
    register(store)
    do(store, order("pause", "agent", name="agent"))
    start(store, "a")
    result = carry(store, claiming())
    assert (result.runs, result.halted) == ([], False)


def test_a_claim_takes_nothing_while_everything_is_halted(store: Store, carry: Carry) -> None:
    register(store)
    start(store, "a")
    do(store, order("halt"))
    result = carry(store, claiming())
    assert (result.runs, result.halted) == ([], True)


def test_a_claim_wakes_runs_that_are_due_before_it_takes(store: Store, carry: Carry) -> None:
    held = begin(store, "slept", priority=1)
    do(store, held.settle("suspended", wake_at=store.now() - 1))
    start(store, "new")
    result = carry(store, claiming(limit=1))
    assert ids(result) == ["slept"]
    assert result.wake_in == 0.0


def test_a_claim_undoes_runs_that_were_not_resumed_in_time(store: Store, carry: Carry) -> None:
    held = begin(store)
    owed = effect(state="confirmed", kind="compensatable", undo="m:f", undo_within=0.0)
    store.write([held.append(effects=(owed,), of={"state": "confirmed"})])
    do(store, held.settle("queued", returned=True))
    [run] = carry(store, claiming()).runs
    assert run.undoing is not None


def test_a_claim_expires_an_overdue_lease_before_it_takes(store: Store, carry: Carry) -> None:
    register(store)
    register(store, "silent", lease_seconds=-1)
    start(store, "r")
    take(store, "r", "silent")
    start(store, "new")
    eventually(
        lambda: carry(store, claiming(limit=1, expire=True, lease_seconds=0.001)).returned == 1
    )
    assert store.attempts("r")[0].ending == "interrupted"


@pytest.mark.parametrize("owner", ["w", "another"])
def test_a_claim_makes_an_order_hard_whose_window_is_over(
    store: Store, carry: Carry, owner: str
) -> None:
    register(store)
    held = begin(store, worker_id=owner)
    do(store, order("pause", "run", name="r", within=0.0))
    carry(store, claiming())
    with pytest.raises(Fenced):
        do(store, held.append())


def test_a_claim_returns_pending_stop_orders(store: Store, carry: Carry) -> None:
    begin(store)
    do(store, order("pause", "run", name="r", within=60.0))
    result = carry(store, claiming())
    assert [told.run_id for told in result.notices] == ["r"]
    assert result.wake_in == pytest.approx(60, abs=10)


def test_a_draining_or_unknown_worker_claims_nothing(store: Store, carry: Carry) -> None:
    start(store, "a")
    assert carry(store, claiming()) == ClaimResult(runs=[], wake_in=None, returned=0)
    register(store)
    do(store, Drain(worker_id="w", drain="{}"))
    assert carry(store, claiming()).runs == []


# ── effects ───────────────────────────────────────────────────────────────────────────────────


def test_an_effect_and_its_entry_are_written_together(store: Store, carry: Carry) -> None:
    held = begin(store)
    for state in ("started", "confirmed"):
        row = effect(seq=held.seq + 1, state=state, undo="m:f", undo_within=2.5, quiet=True)
        message = held.append(effects=(row,), of={"state": state})
        assert carry(store, message) is None
        assert carry(store, message) is None  # as if the first answer had been lost
        assert store.ledger("r") == [row]
    assert [entry.state for entry in store.journal("r")] == ["", "started", "confirmed"]


def test_an_effect_under_another_fence_leaves_no_trace(store: Store, carry: Carry) -> None:
    held = begin(store)
    do(store, held.settle("queued", returned=True))
    take(store)
    with pytest.raises(Fenced):
        carry(store, held.append(effects=(effect(),)))
    assert store.ledger("r") == []


def _id(run: Claimed) -> str:
    return run.id
