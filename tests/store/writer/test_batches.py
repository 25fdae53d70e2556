"""Messages that share statements are carried out and refused as if each were alone."""

import json
from typing import Any

from tests.store.parts import (
    Held,
    agent_row,
    claim,
    do,
    new_run,
    register,
    start,
    take,
    worker_row,
)

from andon.core.journal import EntryKind
from andon.errors import BadInput, Conflict, Fenced, Refused
from andon.store.messages.stops import Order
from andon.store.store import Claim, Message, Recall, Register, Settle, Start, Store


def held(store: Store, *run_ids: str) -> list[Held]:
    register(store)
    start(store, *run_ids)
    return [take(store, run_id) for run_id in run_ids]


def end(run: Held, state: str = "succeeded", **changes: Any) -> Settle:
    """The settlement of an attempt whose code has returned."""
    entry = run.entry(kind=EntryKind.END, state=state, name="agent", body='"done"')
    return run.settle(state, entries=(entry,), **changes)


def states(store: Store, *run_ids: str) -> list[str]:
    return [run.state for run_id in run_ids if (run := store.run(run_id)) is not None]


def test_each_of_many_starts_gets_its_own_answer(store: Store) -> None:
    start(store, "there", "known")
    batch: list[Message] = [
        Start(run=new_run("new")),
        Start(run=new_run("new")),
        Start(run=new_run("there")),
        Start(run=new_run("known", given="another input")),
        Start(run=new_run("bad", labels='{"a": "\\u0000"}')),
        Start(run=new_run("ill\0")),
        Start(run=new_run("last", labels='{"a": "b"}', priority=7, queue="other")),
    ]
    first, again, there, known, bad, ill, last = store.write(batch)
    assert (first, again, there, last) == (True, False, False, True)
    assert isinstance(known, Conflict)
    assert isinstance(bad, BadInput)
    assert isinstance(ill, BadInput)
    run = store.run("last")
    assert run is not None
    assert (run.state, run.labels, run.priority, run.queue) == ("queued", '{"a": "b"}', 7, "other")
    assert run.available_at == run.created_at == run.changed_at
    assert [entry.hash for entry in store.journal("last")] == [run.head_hash]
    assert len(store.journal("new")) == 1


def test_many_starts_may_each_have_a_start_time(store: Store) -> None:
    register(store)
    now = store.now()
    store.write(
        [Start(run=new_run("at", at=now + 100)), Start(run=new_run("in", delay_seconds=200))]
    )
    found = {run_id: run.available_at for run_id in ("at", "in") if (run := store.run(run_id))}
    assert found["at"] == now + 100
    assert found["in"] >= now + 199
    assert claim(store).runs == []


def test_none_of_many_starts_begins_under_a_halt(store: Store) -> None:
    do(store, Order(id="rcp", kind="halt", scope="fleet", name="", value="", by="ana", why=""))
    refused = store.write([Start(run=new_run("a")), Start(run=new_run("b"))])
    assert [type(one) for one in refused] == [Refused, Refused]
    assert states(store, "a", "b") == []


def test_many_settlements_share_a_commit_and_each_gets_its_own_answer(store: Store) -> None:
    good, bad, former, idle = held(store, "good", "bad", "former", "idle")
    do(store, former.settle("queued"))
    error = json.dumps({"type": "ValueError", "message": "no"})
    outcomes = store.write(
        [
            end(good),
            end(bad, "failed", error=error, failed=True),
            end(former),
            idle.settle("suspended", waits="[]", wake_at=store.now() + 100),
        ]
    )
    assert outcomes[:2] == ["succeeded", "failed"]
    assert isinstance(outcomes[2], Fenced)
    assert outcomes[3] == "suspended"
    assert states(store, "good", "bad", "former", "idle") == [*outcomes[:2], "queued", "suspended"]
    run = store.run("bad")
    assert run is not None
    assert (run.error, run.failures, run.worker, run.head_hash) == (error, 1, None, bad.hash)
    assert [entry.kind for entry in store.journal("good")] == ["start", "end"]
    assert len(store.journal("former")) == 1
    assert [one.ending for one in store.attempts("good")] == ["succeeded"]
    assert [one.ending for one in store.attempts("former")] == ["queued"]


def test_many_settlements_written_twice_are_written_once(store: Store) -> None:
    ends: list[Message] = [end(one) for one in held(store, "a", "b")]
    assert store.write(ends) == store.write(ends) == ["succeeded", "succeeded"]
    assert [len(store.journal(run_id)) for run_id in "ab"] == [2, 2]


def test_appends_and_the_end_of_a_run_in_one_batch_keep_their_order(store: Store) -> None:
    one, two = held(store, "one", "two")
    batch: list[Message] = [one.append(), two.append(), one.append(), end(one), end(two)]
    assert store.write(batch) == [None, None, None, "succeeded", "succeeded"]
    assert [entry.seq for entry in store.journal("one")] == [0, 1, 2, 3]


def test_a_parent_is_woken_by_a_child_that_ended_among_many(store: Store) -> None:
    [parent, other] = held(store, "parent", "other")
    child = new_run("child", parent_id="parent", root_id="parent")
    do(store, parent.append(spawn=child))
    kid = take_child(store, "parent")
    outcomes = store.write([end(other), end(kid), parent.settle("suspended")])
    assert outcomes[:2] == ["succeeded", "succeeded"]
    assert states(store, "parent") == ["queued"]
    assert [message.name for message in store.inbox(["parent"])["parent"]] == ["child"]


def take_child(store: Store, root: str) -> Held:
    [claimed] = claim(store, only=(root,)).runs
    return Held(claimed)


def test_a_run_that_is_to_be_undone_does_not_end_with_the_others(store: Store) -> None:
    one, other = held(store, "one", "other")
    do(store, Recall(run_id="one", undoing="{}"))
    assert store.write([end(one), end(other)]) == ["queued", "succeeded"]
    run = store.run("one")
    assert run is not None
    assert run.undoing == "{}"


def test_an_order_is_proved_by_a_settlement_among_many(store: Store) -> None:
    one, other = held(store, "one", "other")
    do(store, Order(id="rcp", kind="pause", scope="run", name="one", value="", by="ana", why=""))
    store.write([end(one), end(other)])
    assert states(store, "one", "other") == ["succeeded", "succeeded"]
    assert [row.stage for row in store.targets("rcp")] == ["verified"]


def test_a_claim_returns_the_journal_of_untouched_runs(store: Store) -> None:
    [begun] = held(store, "begun")
    do(store, begun.append())
    do(store, begun.settle("queued"))
    start(store, "fresh", given="this")
    message = Claim(worker_id="w", agents=(("agent", "1"),), limit=5, number=3)
    for _ in range(2):  # also when its answer was lost
        found = {run.id: run for run in do(store, message).runs}
        assert found["begun"].start is None
        fresh = found["fresh"].start
        assert fresh == store.journal("fresh")[0]
        assert fresh.hash == found["fresh"].head_hash


def test_a_batch_may_register_start_and_claim(store: Store) -> None:
    register_ = Register(worker=worker_row("w"), agents=(agent_row(),), lease_seconds=60)
    batch: list[Message] = [
        register_,
        Claim(worker_id="w", agents=(("agent", "1"),), limit=1),
        Start(run=new_run("a")),
        Start(run=new_run("b")),
    ]
    assert not [one for one in store.write(batch) if isinstance(one, Exception)]
    assert sorted(states(store, "a", "b")) == ["queued", "running"]
