"""Promises of every store. A difference between two databases is a bug in one of them."""

import json
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.store.parts import (
    AGENT,
    LONG,
    Held,
    Listen,
    agent_row,
    begin,
    blob,
    claim,
    do,
    effect,
    eventually,
    new_run,
    register,
    start,
    take,
    worker_row,
)

from andon.core.journal import EntryKind, check_chain
from andon.core.lease import Fence
from andon.core.queue import place
from andon.errors import (
    BadInput,
    Conflict,
    Fenced,
    IllegalTransition,
    NotFound,
    StoreError,
)
from andon.store.messages.rows import Filter
from andon.store.store import (
    Append,
    Ask,
    Beat,
    Blob,
    Checkpoint,
    Claim,
    Deliver,
    Depart,
    Log,
    Message,
    MoveRun,
    Register,
    Settle,
    Start,
    Store,
)

HOSTILE = ["'", '"', "a'; DROP TABLE runs; --", "%", "_", "\\", "ü", "😀", "\n", " ", "x" * 1000]


def state_of(store: Store, run_id: str = "r") -> str:
    run = store.run(run_id)
    assert run is not None
    return run.state


def event(run_id: str = "r", message_id: str = "m", **changes: Any) -> Deliver:
    plain: dict[str, Any] = {"kind": "event", "name": "go", "body": "1"}
    return Deliver(run_id=run_id, message_id=message_id, **plain | changes)


def refused(store: Store, message: Message, error: type[Exception]) -> None:
    with pytest.raises(error):
        do(store, message)


# ── starting ──────────────────────────────────────────────────────────────────────────────────


def test_starting_the_same_run_twice_starts_it_once(store: Store) -> None:
    assert start(store, "r") == [True]
    assert start(store, "r") == [False]
    assert [run.id for run in store.runs(Filter())] == ["r"]
    assert len(store.journal("r")) == 1


def test_an_id_with_another_input_is_refused_and_changes_nothing(store: Store) -> None:
    start(store, "r")
    [refusal] = start(store, "r", given="other input")
    assert isinstance(refusal, Conflict)
    assert store.journal("r")[0].digest == "input"


def test_a_started_run_has_its_input_and_its_blobs(store: Store) -> None:
    large = blob("large")
    start(store, "r", blobs=(large,), labels='{"team":"a"}', priority=3)
    run = store.run("r")
    assert run is not None
    assert (run.state, run.labels, run.priority, run.root_id) == ("queued", '{"team":"a"}', 3, "r")
    assert (run.head_seq, run.head_hash) == (0, store.journal("r")[0].hash)
    assert store.blob(large.name) == "large"


def test_a_delayed_run_is_not_claimed_before_its_time(store: Store) -> None:
    register(store)
    start(store, "later", delay_seconds=3600)
    found = claim(store)
    assert found.runs == []
    assert found.wake_in == pytest.approx(3600, abs=60)


def test_a_delayed_run_becomes_ready_by_itself(store: Store) -> None:
    register(store)
    start(store, "soon", delay_seconds=0.05)
    assert eventually(lambda: claim(store).runs)[0].id == "soon"


def test_a_run_may_start_at_a_given_time(store: Store) -> None:
    register(store)
    start(store, "past", at=1.0)
    start(store, "future", at=store.now() + 3600)
    assert [run.id for run in claim(store).runs] == ["past"]


# ── the queue ─────────────────────────────────────────────────────────────────────────────────

waiting = st.lists(
    st.tuples(
        st.booleans(),
        st.integers(-2, 2),
        st.sampled_from([1.0, 2.0, 2.5]),
        st.text("aBzÄ_é中😀", min_size=1, max_size=2),
    ),
    max_size=6,
    unique_by=lambda row: row[3],
)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(waiting)
def test_runs_are_claimed_in_the_order_of_the_queue(
    store: Store, rows: list[tuple[bool, int, float, str]]
) -> None:
    version = uuid.uuid4().hex  # nothing of an earlier example is claimed
    me, carried = register(store, version), (("agent", version),)
    expected = []
    for returned, priority, at, name in rows:
        run_id = f"{name}-{version}"
        start(store, run_id, version=version, priority=priority, at=at)
        if returned:
            [claimed] = claim(store, me, agents=carried, only=(run_id,)).runs
            do(store, Held(claimed).settle("queued", returned=True, delay_seconds=-at))
        run = store.run(run_id)
        assert run is not None
        expected.append(
            place(
                returned=returned, priority=priority, available_at=run.available_at, run_id=run_id
            )
        )
    found = [claim(store, me, agents=carried, limit=1).runs[0].id for _ in rows]
    assert found == [each.id for each in sorted(expected)]


def test_only_carried_versions_are_claimed(store: Store) -> None:
    register(store)
    start(store, "mine")
    start(store, "newer", version="2")
    start(store, "other", agent="other")
    assert [run.id for run in claim(store).runs] == ["mine"]


def test_no_more_than_the_limit_is_claimed(store: Store) -> None:
    register(store)
    start(store, "a", "b", "c")
    assert len(claim(store, limit=2).runs) == 2
    assert claim(store, limit=0).runs == []
    assert len(claim(store, limit=2).runs) == 1


def test_a_claim_of_certain_runs_takes_no_others(store: Store) -> None:
    register(store)
    start(store, "a", "b", "c")
    assert [run.id for run in claim(store, only=("b", "gone")).runs] == ["b"]
    assert claim(store, only=()).runs == []


def test_a_claim_of_certain_runs_takes_their_children_too(store: Store) -> None:
    held = begin(store)
    start(store, "other")
    do(store, held.append(spawn=child()))
    assert [run.id for run in claim(store, only=("r",)).runs] == ["child"]


def test_a_claim_counts_attempt_and_fence(store: Store) -> None:
    held = begin(store)
    assert (held.claimed.attempt, held.fence.counter) == (1, 1)
    do(store, held.settle("queued", returned=True))
    again = take(store)
    assert (again.claimed.attempt, again.fence.epoch) == (2, held.fence.epoch)
    assert again.fence.counter > held.fence.counter
    assert [(row.number, row.ending) for row in store.attempts("r")] == [(1, "queued"), (2, None)]


def test_a_worker_that_is_not_registered_or_was_given_up_claims_nothing(store: Store) -> None:
    start(store, "r")
    assert claim(store, "nobody").runs == []
    do(store, Depart(worker_id=register(store, "left")))
    assert claim(store, "left").runs == []


def test_a_run_is_claimed_once_by_racing_workers(opened: Callable[[], Store]) -> None:
    stores = [opened() for _ in range(3)]
    ids = {f"r{n}" for n in range(40)}
    start(stores[0], *ids)
    barrier = threading.Barrier(len(stores))

    def work(number: int) -> list[str]:
        me = register(stores[number], f"w{number}")
        mine: list[str] = []
        barrier.wait(LONG)
        while found := claim(stores[number], me, limit=3).runs:
            mine += [run.id for run in found]
        return mine

    with ThreadPoolExecutor(len(stores)) as threads:
        claimed = [run_id for mine in threads.map(work, range(len(stores))) for run_id in mine]
    assert sorted(claimed) == sorted(ids)


def test_a_claim_whose_outcome_was_lost_answers_the_same_when_repeated(store: Store) -> None:
    register(store)
    start(store, "a", "b", "c")
    first = claim(store, limit=2, number=1).runs
    assert claim(store, limit=2, number=1).runs == sorted(first, key=lambda run: run.id)
    [third] = claim(store, limit=2, number=2).runs
    assert third.id not in [run.id for run in first]
    assert len(store.attempts(third.id)) == 1


# ── the journal ───────────────────────────────────────────────────────────────────────────────


def test_an_append_moves_the_head(store: Store) -> None:
    held = begin(store)
    assert store.write([held.append(step="pay")]) == [None]
    run = store.run("r")
    assert run is not None
    assert (run.head_seq, run.head_hash, run.step) == (1, held.hash, "pay")
    assert check_chain(store.journal("r"), run_id="r") == held.hash
    last = store.last_entry("r")
    assert last is not None
    assert last.hash == held.hash


def test_appended_entries_are_read_back_exactly(store: Store) -> None:
    held = begin(store)
    entry = held.entry(
        name="näme\n'\"%s", key="😀", body='{"a":"\\u0000"}', since=1794788000.123456, at=2.5
    )
    do(store, Append(run_id="r", fence=held.fence, entries=(entry,)))
    assert store.journal("r", after=0) == [entry]
    assert store.load("r").entries[-1] == entry


def test_several_entries_share_one_append(store: Store) -> None:
    held = begin(store)
    do(store, held.append(entries=3))
    assert [entry.seq for entry in store.journal("r")] == [0, 1, 2, 3]
    assert [entry.seq for entry in store.journal("r", after=1, limit=1)] == [2]
    check_chain(store.journal("r"), run_id="r")


@pytest.mark.parametrize("together", [True, False])
def test_an_append_written_twice_is_written_once(store: Store, *, together: bool) -> None:
    """The outcome of its commit was unknown, so its owner sends it again."""
    held = begin(store)
    message = held.append(effects=(effect(),))
    if together:
        assert store.write([message, message]) == [None, None]
    else:
        assert do(store, message) is do(store, message) is None
    assert len(store.journal("r")) == 2
    assert store.write([held.append(), message]) == [None, None]
    check_chain(store.journal("r"), run_id="r")


def test_a_batch_of_which_the_first_part_was_written_is_completed(store: Store) -> None:
    held = begin(store)
    one, two, three = held.append(), held.append(effects=(effect(seq=2),)), held.append()
    do(store, one)
    assert store.write([one, two, three]) == [None, None, None]
    assert [entry.seq for entry in store.journal("r")] == [0, 1, 2, 3]
    assert len(store.ledger("r")) == 1


def by_counter(store: Store, held: Held) -> Append:
    return held.append(fence=Fence(held.fence.epoch, held.fence.counter + 1))


def by_epoch(store: Store, held: Held) -> Append:
    return held.append(fence=Fence(held.fence.epoch + 1, held.fence.counter))


def by_state(store: Store, held: Held) -> Append:
    do(store, held.settle("paused"))
    return held.append()


def by_a_new_owner(store: Store, held: Held) -> Append:
    do(store, held.settle("queued"))
    take(store)
    return held.append()


def by_a_gap(store: Store, held: Held) -> Append:
    held.entry()
    return held.append()


def by_another_entry(store: Store, held: Held) -> Append:
    do(store, held.append())
    held.seq -= 1
    return held.append(of={"name": "something else"})


def of_no_run(store: Store, held: Held) -> Append:
    held.id = "nothing"
    return held.append()


FENCED = [
    by_counter,
    by_epoch,
    by_state,
    by_a_new_owner,
    by_a_gap,
    by_another_entry,
    of_no_run,
]


@pytest.mark.parametrize("fenced", FENCED)
@pytest.mark.parametrize(
    "more", [{}, {"effects": (effect(),)}, {"blobs": (Blob(name="b", body="1"),)}]
)
def test_a_writer_that_does_not_own_the_run_writes_nothing(
    store: Store, fenced: Callable[[Store, Held], Append], more: dict[str, Any]
) -> None:
    message = fenced(store, begin(store)).but(**more)
    before = (store.run("r"), store.journal("r"))
    refused(store, message, Fenced)
    assert (store.run("r"), store.journal("r"), store.ledger("r")) == (*before, [])


def test_of_many_runs_in_one_batch_only_the_fenced_are_refused(store: Store) -> None:
    register(store)
    ids = [f"r{n:02}" for n in range(20)]
    start(store, *ids)
    runs = {run.id: Held(run) for run in claim(store).runs}
    for lost in ids[::5]:
        do(store, runs[lost].settle("paused"))
    batch = [runs[run_id].append(effects=(effect(),)) for run_id in ids]
    batch += [runs[run_id].append(step="second") for run_id in ids]
    outcomes = store.write(batch)
    for message, outcome in zip(batch, outcomes, strict=True):
        owned = message.run_id not in ids[::5]
        assert outcome is None if owned else isinstance(outcome, Fenced)
        assert len(store.journal(message.run_id)) == (3 if owned else 1)
        assert len(store.ledger(message.run_id)) == (1 if owned else 0)


def test_the_messages_of_a_run_keep_their_order_within_a_batch(store: Store) -> None:
    held = begin(store)
    register(store, "other")
    start(store, "s")
    other = take(store, "s", "other")
    batch: list[Message] = [
        held.append(effects=(effect(state="started"),)),
        other.append(),
        held.append(blobs=(Blob(name="b", body="1"),), effects=(effect(seq=2, state="in_doubt"),)),
        held.append(effects=(effect(seq=3, state="confirmed"),), step="last"),
        held.settle("succeeded", entries=(held.entry(kind=EntryKind.END),)),
        other.append(),
    ]
    assert store.write(batch) == [None, None, None, None, "succeeded", None]
    assert [row.state for row in store.ledger("r")] == ["confirmed"]
    assert [entry.seq for entry in store.journal("r")] == [0, 1, 2, 3, 4]
    assert state_of(store) == "succeeded"


POISON: dict[str, tuple[Message, type[Exception]]] = {
    "nul in a log": (Log(run_id="r", attempt=1, lines=((1.0, "warning", "a\0b"),)), BadInput),
    "nul in a name": (Start(run=new_run("p", agent="a\0b")), BadInput),
    "nul in a label": (Start(run=new_run("p", labels='{"a":"\\u0000"}')), BadInput),
    "half a character": (Log(run_id="r", attempt=1, lines=((1.0, "info", "\ud800"),)), BadInput),
    "a huge number": (Start(run=new_run("p", priority=2**70)), BadInput),
    "a missing text": (
        Log(run_id="r", attempt=1, lines=((1.0, "info", None),)),  # type: ignore[arg-type]
        StoreError,
    ),
}


@pytest.mark.parametrize("name", POISON)
def test_a_poisoned_message_fails_alone(store: Store, name: str) -> None:
    held = begin(store)
    poison, error = POISON[name]
    outcomes = store.write([held.append(), poison, Start(run=new_run("new")), held.append()])
    assert [outcomes[0], outcomes[2], outcomes[3]] == [None, True, None]
    assert isinstance(outcomes[1], error)
    assert len(store.journal("r")) == 3
    assert (store.run("p"), store.logs("r")) == (None, [])
    refused(store, poison, error)


@pytest.mark.parametrize("many", [True, False])
def test_a_poisoned_append_fails_alone_and_leaves_its_run_as_it_was(
    store: Store, *, many: bool
) -> None:
    held, other = begin(store), begin(store, "s")
    poison = held.append(of={"name": "a\0b"})
    others = [other.append(), other.append()] if many else []
    if others:
        [refusal, *outcomes] = store.write([poison, *others])
        assert isinstance(refusal, BadInput)
        assert "NUL" in str(refusal)
        assert outcomes == [None, None]
    else:
        refused(store, poison, BadInput)
    run = store.run("r")
    assert run is not None
    assert run.head_seq == 0


def test_asking_for_text_with_a_nul_is_refused(store: Store) -> None:
    with pytest.raises(BadInput, match="NUL"):
        store.run("a\0b")


# ── written together with an entry ────────────────────────────────────────────────────────────


def test_a_blob_is_stored_once(store: Store) -> None:
    held = begin(store)
    first, second = blob("body"), blob("b")
    do(store, held.append(blobs=(first,)))
    do(store, held.append(blobs=(first, second)))
    assert (store.blob(first.name), store.blob(second.name)) == ("body", "b")
    with pytest.raises(NotFound):
        store.blob("nothing")


def test_an_effect_has_one_row_in_the_ledger(store: Store) -> None:
    held = begin(store)
    do(store, held.append(effects=(effect(state="started"), effect("mail"))))
    last = effect(seq=2, state="confirmed", quiet=True)
    do(store, held.append(effects=(effect(seq=2, state="in_doubt"), last)))
    assert store.ledger("r") == [effect("mail"), last]


def question(ask_id: str = "q", **changes: Any) -> Ask:
    plain: dict[str, Any] = {"about": "value", "question": "Pay?", "value": "1", "choices": "[]"}
    return Ask(id=ask_id, **plain | changes)


def answer(message_id: str = "m", ask_id: str = "q") -> Deliver:
    return event(message_id=message_id, kind="answer", name=ask_id, body='"yes"')


def test_an_ask_is_open_until_it_is_answered(store: Store) -> None:
    held = begin(store)
    do(store, held.append(ask=question(expires_at=5.0)))
    [row] = store.asks()
    assert (row.run_id, row.id, row.question, row.value) == ("r", "q", "Pay?", "1")
    assert (row.expires_at, row.answered_at) == (5.0, None)
    assert do(store, answer()) is True
    assert store.asks() == []
    [row] = store.asks("r", open_only=False)
    assert (row.answer, row.answered_at is not None) == ('"yes"', True)
    assert [(message.kind, message.name) for message in store.inbox(["r"])["r"]] == [
        ("answer", "q")
    ]


def test_an_answer_that_comes_too_late_is_refused_and_wakes_no_run(store: Store) -> None:
    held = begin(store)
    do(store, held.append(ask=question()))
    do(store, answer("first"))
    do(store, held.settle("suspended", seen_inbox=1))
    refused(store, answer("second"), Conflict)
    refused(store, answer("third", "no such ask"), Conflict)
    assert state_of(store) == "suspended"
    assert len(store.inbox(["r"])["r"]) == 1


def test_an_answer_whose_outcome_was_lost_may_be_sent_again(store: Store) -> None:
    held = begin(store)
    do(store, held.append(ask=question()))
    assert do(store, answer()) is True
    assert do(store, answer()) is False


def test_an_ask_can_be_closed_without_an_answer(store: Store) -> None:
    held = begin(store)
    do(store, held.append(ask=question()))
    do(store, held.append(close_ask="q"))
    assert store.asks("r") == []
    [row] = store.asks("r", open_only=False)
    assert (row.answer, row.answered_at is not None) == (None, True)
    refused(store, answer(), Conflict)


def test_a_checkpoint_is_kept_until_its_step_is_done(store: Store) -> None:
    held = begin(store)
    for body in ("1", "2"):
        do(store, Checkpoint(run_id="r", fence=held.fence, op="step", body=body))
    do(store, Checkpoint(run_id="r", fence=held.fence, op="other", body="3"))
    assert store.load("r").checkpoints == {"step": "2", "other": "3"}
    do(store, held.append(checkpoint_of="step"))
    assert store.load("r").checkpoints == {"other": "3"}


def test_a_checkpoint_of_a_former_owner_is_refused(store: Store) -> None:
    held = begin(store)
    do(store, held.settle("queued"))
    new = take(store)
    do(store, Checkpoint(run_id="r", fence=new.fence, op="step", body="new"))
    refused(store, Checkpoint(run_id="r", fence=held.fence, op="step", body="old"), Fenced)
    foreign = Fence(new.fence.epoch + 1, new.fence.counter)
    refused(store, Checkpoint(run_id="r", fence=foreign, op="step", body="old"), Fenced)
    assert store.load("r").checkpoints == {"step": "new"}


def test_log_lines_are_read_back_in_order(store: Store) -> None:
    start(store, "r", "s")
    do(store, Log(run_id="r", attempt=1, lines=((1.5, "info", "a"), (1.0, "error", "b"))))
    do(store, Log(run_id="s", attempt=1, lines=((9.0, "info", "elsewhere"),)))
    do(store, Log(run_id="r", attempt=2, lines=((2.0, "info", "c"),)))
    lines = store.logs("r")
    assert [line[1:] for line in lines] == [
        (1.5, "info", "a"),
        (1.0, "error", "b"),
        (2.0, "info", "c"),
    ]
    assert [line[3] for line in store.logs("r", after=lines[1][0])] == ["c"]


# ── waiting and waking ────────────────────────────────────────────────────────────────────────


def test_a_message_wakes_a_run_that_waits(store: Store) -> None:
    held = begin(store)
    do(store, held.settle("suspended", waits='"event"'))
    assert claim(store).runs == []
    assert do(store, event()) is True
    again = take(store)
    [message] = store.load("r").inbox
    assert (message.kind, message.name, message.body) == ("event", "go", "1")
    do(store, again.append(take=message.id))
    assert store.inbox(["r"]) == {}


def test_a_message_that_was_taken_and_given_back_is_in_the_inbox_again(store: Store) -> None:
    held = begin(store)
    do(store, event())
    messages = store.inbox(["r"])
    [message] = messages["r"]
    do(store, held.append(take=message.id))
    assert store.inbox(["r"]) == {}
    do(store, held.append(give_back=message.id))
    assert store.inbox(["r"]) == messages


def test_a_message_that_came_before_the_run_was_suspended_keeps_it_awake(store: Store) -> None:
    held = begin(store)
    do(store, event())
    assert do(store, held.settle("suspended")) == "queued"
    assert state_of(store) == "queued"
    assert take(store).claimed.inbox == 1


def test_a_message_that_the_run_has_seen_does_not_keep_it_awake(store: Store) -> None:
    held = begin(store)
    do(store, event())
    assert do(store, held.settle("suspended", seen_inbox=1)) == "suspended"


def test_a_message_delivered_twice_wakes_once(store: Store) -> None:
    held = begin(store)
    assert [do(store, event()), do(store, event())] == [True, False]
    do(store, held.settle("suspended", seen_inbox=1))
    assert do(store, event()) is False
    assert state_of(store) == "suspended"
    assert len(store.inbox(["r"])["r"]) == 1


def test_a_message_to_a_finished_run_is_refused(store: Store) -> None:
    held = begin(store)
    do(store, event(message_id="in time"))
    do(store, held.settle("succeeded"))
    refused(store, event(message_id="late"), IllegalTransition)
    assert do(store, event(message_id="in time")) is False
    refused(store, event("nothing"), NotFound)


def test_no_wake_up_is_lost_however_message_and_suspension_race(
    opened: Callable[[], Store],
) -> None:
    owner, sender = opened(), opened()
    register(owner)
    start(owner, "r")
    with ThreadPoolExecutor(2) as threads:
        for number in range(60):
            held = take(owner)
            barrier = threading.Barrier(2)

            def sleep(held: Held = held, barrier: threading.Barrier = barrier) -> None:
                barrier.wait(LONG)
                do(owner, held.settle("suspended"))

            def wake(number: int = number, barrier: threading.Barrier = barrier) -> None:
                barrier.wait(LONG)
                do(sender, event(message_id=str(number)))

            for future in [threads.submit(sleep), threads.submit(wake)]:
                future.result(LONG)
            assert state_of(owner) == "queued", f"the wake-up of round {number} was lost"


def test_a_sleeping_run_wakes_when_its_time_has_come(store: Store) -> None:
    held = begin(store)
    do(store, held.settle("suspended", wake_at=store.now() + 3600, waits='"timer"'))
    found = claim(store)
    assert found.runs == []
    assert found.wake_in == pytest.approx(3600, abs=60)
    do(store, event())
    do(store, take(store).settle("suspended", wake_at=store.now() + 0.05, seen_inbox=1))
    assert eventually(lambda: claim(store).runs)[0].id == "r"
    run = store.run("r")
    assert run is not None
    assert (run.wake_at, run.waits) == (None, None)


# ── the end of an attempt ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "state", ["succeeded", "failed", "cancelled", "paused", "stranded", "suspended", "queued"]
)
def test_an_attempt_may_end_in_any_state(store: Store, state: str) -> None:
    held = begin(store)
    body = blob("body")
    end = held.entry(kind=EntryKind.END, state=state, blob=body.name)
    message = held.settle(
        state,
        entries=(end,),
        error='"why"',
        effects=(effect(),),
        blobs=(body,),
    )
    assert do(store, message) == state
    run = store.run("r")
    assert run is not None
    assert (run.state, run.worker, run.error, run.head_hash) == (state, None, '"why"', end.hash)
    [attempt] = store.attempts("r")
    assert (attempt.ending, attempt.ended_at is not None) == (state, True)
    assert (store.blob(body.name), len(store.ledger("r"))) == ("body", 1)
    refused(store, held.append(), Fenced)


def test_an_attempt_that_is_settled_twice_ends_once(store: Store) -> None:
    held = begin(store)
    message = held.settle("queued", entries=(held.entry(),), failed=True, delay_seconds=-5)
    assert [do(store, message), do(store, message)] == ["queued", "queued"]
    again = take(store)
    assert (again.claimed.failures, again.seq) == (1, 1)
    assert do(store, message) == "queued"
    assert state_of(store) == "running"


def test_a_former_owner_cannot_end_the_run(store: Store) -> None:
    held = begin(store)
    do(store, held.settle("queued"))
    take(store)
    before = store.run("r")
    refused(store, held.settle("succeeded", entries=(held.entry(),)), Fenced)
    refused(store, held.settle("succeeded"), Fenced)
    assert store.run("r") == before
    assert len(store.journal("r")) == 1


def test_a_retry_waits_for_its_delay(store: Store) -> None:
    held = begin(store)
    do(store, held.settle("queued", delay_seconds=3600, failed=True))
    found = claim(store)
    assert found.runs == []
    assert found.wake_in == pytest.approx(3600, abs=60)


# ── children ──────────────────────────────────────────────────────────────────────────────────


def child(run_id: str = "child", **changes: Any) -> Any:
    return new_run(run_id, parent_id="r", root_id="r", **changes)


def test_a_child_starts_in_the_commit_of_its_parents_entry(store: Store) -> None:
    held = begin(store)
    do(store, held.append(spawn=child()))
    run = store.run("child")
    assert run is not None
    assert (run.state, run.parent_id, run.root_id) == ("queued", "r", "r")
    assert [run.id for run in store.runs(Filter(parent_id="r"))] == ["child"]


def test_a_fenced_parent_starts_no_child(store: Store) -> None:
    held = begin(store)
    do(store, held.settle("queued"))
    refused(store, held.append(spawn=child()), Fenced)
    assert store.run("child") is None


def test_a_child_whose_id_belongs_to_another_run_is_refused_without_a_trace(store: Store) -> None:
    held = begin(store)
    start(store, "child", given="other input")
    before = (store.run("r"), store.journal("r"))
    refused(store, held.append(spawn=child(), effects=(effect(),)), Conflict)
    assert (store.run("r"), store.journal("r"), store.ledger("r")) == (*before, [])


@pytest.mark.parametrize("ending", ["succeeded", "failed", "cancelled"])
def test_a_finished_child_wakes_its_parent_in_the_same_commit(store: Store, ending: str) -> None:
    held = begin(store)
    do(store, held.append(spawn=child()))
    do(store, held.settle("suspended"))
    kid = take(store, "child")
    do(store, kid.settle(ending))
    assert state_of(store) == "queued"
    [message] = store.inbox(["r"])["r"]
    assert (message.kind, message.name, json.loads(message.body)) == ("child", "child", ending)


def test_a_child_that_only_waits_does_not_wake_its_parent(store: Store) -> None:
    held = begin(store)
    do(store, held.append(spawn=child()))
    do(store, held.settle("suspended"))
    do(store, take(store, "child").settle("suspended"))
    assert state_of(store) == "suspended"
    assert store.inbox(["r"]) == {}


# ── workers ───────────────────────────────────────────────────────────────────────────────────


def test_registration_answers_with_epoch_and_time(store: Store) -> None:
    epoch, now = do(
        store,
        Register(worker=worker_row("w"), agents=(agent_row(),), lease_seconds=60),
    )
    assert epoch == begin(store).fence.epoch
    assert now == pytest.approx(store.now(), abs=60)
    [row] = store.workers()
    assert (row.id, row.pid, row.start_ticks, row.state) == ("w", 1, 2, "live")
    assert row.lease_until == pytest.approx(now + 60, abs=1)
    assert [(agent.name, agent.version) for agent in store.agents("agent")] == [AGENT]
    assert store.agents("nothing") == []


def test_registering_twice_is_registering_once(store: Store) -> None:
    assert register(store) == register(store)
    assert [row.id for row in store.workers()] == ["w"]


def test_other_parameters_under_a_known_version_are_refused_and_change_nothing(
    store: Store,
) -> None:
    register(store)
    agents = (agent_row(name="new"), agent_row("[1]"))
    worker = worker_row("second")
    refused(store, Register(worker=worker, agents=agents, lease_seconds=60), Conflict)
    assert [row.id for row in store.workers()] == ["w"]
    assert [agent.name for agent in store.agents()] == ["agent"]
    do(store, Register(worker=worker, agents=(agent_row("[1]", version="2"),), lease_seconds=60))


def test_of_different_parameters_registered_at_the_same_instant_one_is_refused(
    opened: Callable[[], Store],
) -> None:
    stores = [opened(), opened()]
    barrier = threading.Barrier(2)

    def attempt(number: int) -> Any:
        agents = (agent_row(f"[{number}]"),)
        message = Register(worker=worker_row(f"w{number}"), agents=agents, lease_seconds=60)
        barrier.wait(LONG)
        return stores[number].write([message])[0]

    with ThreadPoolExecutor(2) as threads:
        outcomes = list(threads.map(attempt, range(2)))
    assert sorted(isinstance(outcome, Conflict) for outcome in outcomes) == [False, True]
    assert len(stores[0].workers()) == 1


def test_a_heartbeat_extends_the_lease(store: Store) -> None:
    register(store, lease_seconds=1)
    assert do(store, Beat(worker_id="w", lease_seconds=3600)) == pytest.approx(store.now(), abs=60)
    assert store.workers()[0].lease_until > store.now() + 3000
    refused(store, Beat(worker_id="nobody", lease_seconds=60), Fenced)


def dead(worker_id: str = "w", how: str = "dead:its process is gone") -> dict[str, Any]:
    return {"dead": ((worker_id, how),), "limit": 0}


def test_the_runs_of_a_dead_worker_return_ahead_of_new_work(store: Store) -> None:
    held = begin(store)
    register(store, "second")
    start(store, "new", priority=9)
    result = claim(store, "second", dead=(("w", "dead:its process is gone"),), limit=1)
    assert (result.returned, [run.id for run in result.runs]) == (1, ["r"])
    [again] = result.runs
    assert (again.interruptions, again.failures, again.attempt) == (1, 0, 2)
    assert again.fence.counter > held.fence.counter
    assert store.attempts("r")[0].ending == "interrupted"
    refused(store, held.append(), Fenced)
    refused(store, Beat(worker_id="w", lease_seconds=60), Fenced)
    assert claim(store, "second", **dead()).returned == 0


def test_a_former_owner_is_fenced_before_another_worker_claims_its_run(store: Store) -> None:
    held = begin(store)
    register(store, "second")
    claim(store, "second", **dead())
    run = store.run("r")
    assert run is not None
    assert run.state == "queued"
    assert run.fence > held.fence.counter
    refused(store, held.append(), Fenced)
    refused(store, held.settle("succeeded"), Fenced)


def test_a_dead_workers_runs_are_taken_once_by_racing_workers(opened: Callable[[], Store]) -> None:
    stores = [opened(), opened()]
    for number in (0, 1):
        register(stores[number], f"taker{number}")
    for n in range(10):
        me = register(stores[0], f"w{n}")
        start(stores[0], f"r{n}")
        take(stores[0], f"r{n}", me)
        barrier = threading.Barrier(2)

        def go(number: int, me: str = me, barrier: threading.Barrier = barrier) -> int:
            barrier.wait(LONG)
            return claim(stores[number], f"taker{number}", **dead(me)).returned

        with ThreadPoolExecutor(2) as threads:
            assert sorted(threads.map(go, (0, 1))) == [0, 1]
        run = stores[0].run(f"r{n}")
        assert run is not None
        assert run.interruptions == 1


def test_an_owner_that_writes_while_it_is_given_up_leaves_no_torn_journal(
    opened: Callable[[], Store],
) -> None:
    owner, taker = opened(), opened()
    register(taker, "taker")
    for n in range(15):
        run_id, me = f"r{n}", register(owner, f"w{n}")
        start(owner, run_id)
        held = take(owner, run_id, me)
        begun = threading.Event()

        def work(held: Held = held, begun: threading.Event = begun) -> int:
            written = 0
            while owner.write([held.append()]) == [None]:
                written += 1
                begun.set()
            return written

        with ThreadPoolExecutor(1) as threads:
            writing = threads.submit(work)
            begun.wait(LONG)
            claim(taker, "taker", **dead(me), interruption_limit=1)
            written = writing.result(LONG)
        journal = owner.journal(run_id)
        assert len(journal) == written + 1
        run = owner.run(run_id)
        assert run is not None
        assert check_chain(journal, run_id=run_id) == run.head_hash


def test_a_worker_that_is_given_up_while_it_claims_keeps_nothing(
    opened: Callable[[], Store],
) -> None:
    owner, taker = opened(), opened()
    register(taker, "taker")
    for n in range(30):
        run_id, me = f"r{n}", register(owner, f"w{n}")
        start(owner, run_id)
        barrier = threading.Barrier(2)

        def take_it(me: str = me, run_id: str = run_id, b: threading.Barrier = barrier) -> None:
            b.wait(LONG)
            claim(owner, me, only=(run_id,))

        def give_up(me: str = me, b: threading.Barrier = barrier) -> None:
            b.wait(LONG)
            claim(taker, "taker", **dead(me))

        with ThreadPoolExecutor(2) as threads:
            for future in [threads.submit(take_it), threads.submit(give_up)]:
                future.result(LONG)
        assert state_of(owner, run_id) == "queued"


def test_a_run_that_kills_its_workers_is_buried(store: Store) -> None:
    held = begin(store)
    do(store, held.append(spawn=child("fatal")))
    do(store, held.settle("suspended"))
    register(store, "taker")
    for number in range(3):
        assert state_of(store, "fatal") == "queued"
        kid = take(store, "fatal", register(store, f"w{number}"))
        do(store, kid.append(of={"state": "begun"}, step="boom"))
        claim(store, "taker", **dead(f"w{number}"), interruption_limit=3)
    run = store.run("fatal")
    assert run is not None
    assert (run.state, run.interruptions, run.failures) == ("dead", 3, 0)
    assert run.error is not None
    assert "boom" in run.error
    journal = store.journal("fatal")
    assert (journal[-1].kind, journal[-1].state) == (EntryKind.END, "dead")
    assert check_chain(journal, run_id="fatal") == run.head_hash
    assert state_of(store) == "queued", "its parent was not woken"
    assert json.loads(store.inbox(["r"])["r"][0].body) == "dead"


def test_a_run_that_makes_progress_is_not_buried(store: Store) -> None:
    start(store, "r")
    register(store, "taker")
    for number in range(4):
        held = take(store, "r", register(store, f"w{number}"))
        do(store, held.append())
        claim(store, "taker", **dead(f"w{number}"), interruption_limit=2)
    run = store.run("r")
    assert run is not None
    assert (run.state, run.interruptions) == ("queued", 4)


def _die_with(store: Store, bodies: Sequence[str], limit: int = 2) -> str:
    """The state of a run that leaves these checkpoints, one for each worker that is lost."""
    start(store, "r")
    register(store, "taker")
    for number, body in enumerate(bodies):
        held = take(store, "r", register(store, f"w{number}"))
        do(store, Checkpoint(run_id="r", fence=held.fence, op=":0", body=body))
        claim(store, "taker", **dead(f"w{number}"), interruption_limit=limit)
        if state_of(store, "r") == "dead":
            return f"dead after {number + 1}"
    return state_of(store, "r")


def test_a_checkpoint_that_moves_is_progress(store: Store) -> None:
    assert _die_with(store, [str(number) for number in range(6)]) == "queued"


def test_the_same_checkpoint_again_is_no_progress(store: Store) -> None:
    assert _die_with(store, ["1"] * 9) == "dead after 3"


def test_a_checkpoint_that_only_repeats_earlier_ones_is_no_progress(store: Store) -> None:
    """Like a step that starts over each time and dies at some point."""
    assert _die_with(store, ["2", "3", "2", "3", "3"]) == "dead after 4"


def test_a_run_whose_checkpoint_never_repeats_is_buried_at_last(store: Store) -> None:
    assert _die_with(store, [f"at {number}" for number in range(101)], limit=1) == "dead after 100"
    move = MoveRun(run_id="r", seen="dead", state="queued", fresh=True)
    do(store, move)
    held = take(store, "r", register(store, "again"))
    do(store, Checkpoint(run_id="r", fence=held.fence, op=":0", body="further"))
    claim(store, "taker", **dead("again"), interruption_limit=1)
    assert state_of(store, "r") == "queued", "after a redrive it counts from the beginning"


def test_a_worker_that_departs_returns_its_runs_without_an_interruption(store: Store) -> None:
    begin(store)
    assert do(store, Depart(worker_id="w")) is None
    assert do(store, Depart(worker_id="w")) is None
    register(store, "second")
    again = take(store, "r", "second")
    assert (again.claimed.interruptions, again.claimed.attempt) == (0, 2)
    assert store.attempts("r")[0].ending == "returned"
    assert [row.id for row in store.workers()] == ["second"]


def test_a_worker_whose_lease_ended_is_silent(store: Store) -> None:
    register(store, "late", lease_seconds=-1)
    start(store, "r")
    take(store, "r", "late")
    register(store, "second")
    assert claim(store, "second").returned == 0, "the claim was not asked to expire leases"
    result = claim(store, "second", expire=True)
    assert (result.returned, [run.id for run in result.runs]) == (1, ["r"])
    assert {row.id: row.state for row in store.workers()} == {"late": "silent", "second": "live"}
    refused(store, Beat(worker_id="late", lease_seconds=60), Fenced)


def test_an_extended_lease_has_not_ended(store: Store) -> None:
    register(store, "late", lease_seconds=-1)
    do(store, Beat(worker_id="late", lease_seconds=60))
    register(store, "second")
    claim(store, "second", expire=True)
    assert [row.state for row in store.workers()] == ["live", "live"]


def test_only_certain_death_makes_a_claim_quiet(store: Store) -> None:
    """An effect that a silent worker has started may still be executing."""
    start(store, "r")
    fences = {}
    for how in ("dead", "silent", "gone"):
        fences[how] = take(store, "r", register(store, how)).fence.counter
        register(store, "taker")
        if how == "gone":
            do(store, Depart(worker_id="gone"))
        else:
            claim(store, "taker", **dead(how, f"{how}:because"))
    take(store, "r", "taker")
    assert store.load("r").quiet_fences == {fences["dead"], fences["gone"]}
    claim(store, "taker", **dead("silent"))
    assert fences["silent"] in store.load("r").quiet_fences


# ── reading ───────────────────────────────────────────────────────────────────────────────────


def test_a_snapshot_bounds_the_loaded_journal(store: Store) -> None:
    held = begin(store)
    do(store, held.append(entries=2))
    do(store, held.append(of={"kind": EntryKind.SNAPSHOT}))
    do(store, held.append(entries=2))
    loaded = store.load("r")
    assert (loaded.start.seq, [entry.seq for entry in loaded.entries]) == (0, [3, 4, 5])
    assert loaded.entries[-1].hash == held.hash
    do(store, held.append(of={"kind": EntryKind.SNAPSHOT}))
    assert [entry.seq for entry in store.load("r").entries] == [6]


def test_runs_are_found_by_ids_and_state(store: Store) -> None:
    register(store)
    start(store, "a", "b", "c", "'; --")
    [taken] = claim(store, limit=1).runs
    asked = ["a", "b", "'; --", "nobody"]
    queued = {row.id for row in store.among(asked, ["queued", "failed"])}
    assert queued == {"a", "b", "'; --"} - {taken.id}
    assert [row.id for row in store.among([taken.id], ["running"])] == [taken.id]
    assert store.among([], ["queued"]) == store.among(["a"], []) == []


def test_runs_are_listed_newest_first_page_by_page(store: Store) -> None:
    for n in range(7):
        start(store, f"r{n}")
    pages, before = [], None
    while page := store.runs(Filter(limit=3, before=before)):
        pages.append([run.id for run in page])
        before = (page[-1].created_at, page[-1].id)
    assert [len(page) for page in pages] == [3, 3, 1]
    created = [store.run(run_id) for page in pages for run_id in page]
    order = [(run.created_at, run.id) for run in created if run]
    assert order == sorted(order, reverse=True)
    assert len(set(order)) == 7


def test_runs_are_found_by_state_agent_and_label(store: Store) -> None:
    begin(store, "running", labels='{"team":"a","n":"1"}')
    start(store, "queued", labels='{"team":"b"}')
    start(store, "other", agent="other", labels='{"team":"ab"}')
    for which, expected in [
        (Filter(states=("running",)), {"running"}),
        (Filter(states=("running", "queued")), {"running", "queued", "other"}),
        (Filter(states=("dead",)), set()),
        (Filter(agent="other"), {"other"}),
        (Filter(label=("team", "a")), {"running"}),
        (Filter(label=("n", "1")), {"running"}),
        (Filter(label=("nothing", "a")), set()),
        (Filter(prefix="o"), {"other"}),
        (Filter(agent="agent", states=("queued",), prefix="q"), {"queued"}),
    ]:
        assert {run.id for run in store.runs(which)} == expected, which
    assert store.run("nothing") is None
    assert store.last_entry("nothing") is None


def test_hostile_text_is_only_text(store: Store) -> None:
    for n, text in enumerate(HOSTILE):
        labels = json.dumps({text: text})
        start(store, f"{text}{n}", agent=text, labels=labels)
    for n, text in enumerate(HOSTILE):
        expected = [f"{text}{n}"]
        for which in (
            Filter(agent=text),
            Filter(label=(text, text)),
            Filter(prefix=f"{text}{n}"),
        ):
            assert [run.id for run in store.runs(which)] == expected, which
        run = store.run(f"{text}{n}")
        assert run is not None
        assert json.loads(run.labels) == {text: text}
        register(store, f"w{n}")
        [claimed] = claim(store, f"w{n}", agents=((text, "1"),)).runs
        held = Held(claimed)
        do(store, held.append(of={"name": text, "key": text}, step=text))
        assert store.journal(held.id)[-1].name == text
        do(store, event(held.id, message_id=text, name=text))
        assert store.inbox([held.id])[held.id][0].name == text


def test_the_store_reports_facts_about_itself(store: Store) -> None:
    facts = store.facts()
    assert (facts["schema"], facts["epoch"]) == (8, 1)
    assert store.integrity() == "ok"
    store.checkpoint()
    assert store.free_means in ("process", "silent")


# ── the caller's own tables ───────────────────────────────────────────────────────────────────


def rows_in_own_table(store: Store) -> int:
    """The number of rows in the caller's table, read on the caller's kind of connection."""
    found: list[int] = []

    def look(db: Any) -> Append:
        found.append(len(db.execute("SELECT * FROM mine").fetchall()))
        raise LookupError("enough seen")

    with pytest.raises(LookupError):
        store.transact(look)
    return found[0]


@pytest.fixture
def mine(store: Store) -> Held:
    """A run whose step writes to the caller's own table."""
    held = begin(store)

    def create(db: Any) -> Append:
        db.execute("CREATE TABLE mine (n INTEGER)")
        return held.append()

    store.transact(create)
    return held


def test_the_callers_rows_are_committed_with_the_entry(store: Store, mine: Held) -> None:
    def pay(db: Any) -> Append:
        db.execute("INSERT INTO mine VALUES (1)")
        return mine.append(effects=(effect(),))

    store.transact(pay)
    assert (rows_in_own_table(store), len(store.journal("r")), len(store.ledger("r"))) == (1, 3, 1)
    assert store.write([mine.append()]) == [None]


def test_an_error_of_the_caller_rolls_rows_and_entry_back(store: Store, mine: Held) -> None:
    def fail(db: Any) -> Append:
        db.execute("INSERT INTO mine VALUES (1)")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.transact(fail)
    assert (rows_in_own_table(store), len(store.journal("r"))) == (0, 2)


def test_a_lost_fence_rolls_the_callers_rows_back(store: Store, mine: Held) -> None:
    do(store, mine.settle("queued"))
    take(store)

    def pay(db: Any) -> Append:
        db.execute("INSERT INTO mine VALUES (1)")
        return mine.append()

    with pytest.raises(Fenced):
        store.transact(pay)
    assert (rows_in_own_table(store), len(store.journal("r"))) == (0, 2)


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_the_caller_cannot_end_the_transaction(store: Store, mine: Held, end: str) -> None:
    def pay(db: Any) -> Append:
        db.execute("INSERT INTO mine VALUES (1)")
        db.execute(end)
        return mine.append()

    with pytest.raises(Exception, match=r"not authorized|Leave commit"):
        store.transact(pay)
    assert len(store.journal("r")) == 2
    mine.look_again(store)
    store.transact(lambda _: mine.append())
    assert len(store.journal("r")) == 3


# ── notifications ─────────────────────────────────────────────────────────────────────────────


def test_a_notification_wakes_a_listener(opened: Callable[[], Store], listen: Listen) -> None:
    listener, notifier = opened(), opened()
    heard = threading.Event()
    end = listen(listener, heard.set)
    for _ in range(3):
        heard.clear()
        notifier.notify()
        assert heard.wait(LONG)
    end()


def test_only_messages_that_concern_other_workers_send_a_notification(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = begin(store)
    register(store, "second")
    notifications: list[bool] = []
    monkeypatch.setattr(store, "notify", lambda: notifications.append(True))

    def notifies(message: Message) -> bool:
        notifications.clear()
        do(store, message)
        return bool(notifications)

    again = Claim(worker_id="second", agents=(AGENT,), limit=0)
    quiet: list[Message] = [held.append(), Beat(worker_id="w", lease_seconds=60), again]
    assert [message for message in quiet if notifies(message)] == []
    loud: list[Message] = [
        Start(run=new_run("s")),
        event(),
        held.append(spawn=child()),
        held.settle("queued"),
        Depart(worker_id="w"),
    ]
    assert [message for message in loud if not notifies(message)] == []


def test_a_notification_reaches_all_listeners_but_ended_ones(
    opened: Callable[[], Store], listen: Listen
) -> None:
    store = opened()
    first, second, ended = threading.Event(), threading.Event(), threading.Event()
    ends = [listen(store, first.set), listen(store, second.set)]
    listen(store, ended.set)()
    ended.clear()
    opened().notify()
    assert first.wait(LONG)
    assert second.wait(LONG)
    assert not ended.is_set()
    for end in ends:
        end()


def test_a_notification_sent_before_closing_is_still_received(opened: Callable[[], Store]) -> None:
    listener, notifier = opened(), opened()
    heard = threading.Event()
    end = listener.listen(heard.set)
    notifier.notify()
    notifier.close()
    assert heard.wait(LONG)
    end()


@pytest.mark.usefixtures("long_running_server")
def test_a_lock_is_free_only_when_released(opened: Callable[[], Store]) -> None:
    mine, other = opened(), opened()
    lock = mine.hold("w")
    row = worker_row("w", lock)
    assert not other.is_free(row)
    mine.release("w")
    assert eventually(lambda: other.is_free(row))


# ── all messages at once ──────────────────────────────────────────────────────────────────────


def test_a_batch_may_contain_every_kind_of_message(store: Store) -> None:
    held = begin(store)
    batch: list[Message] = [
        Beat(worker_id="w", lease_seconds=60),
        Start(run=new_run("s")),
        held.append(),
        Register(worker=worker_row("second"), agents=(agent_row(),), lease_seconds=60),
        Deliver(run_id="r", kind="event", name="e", body="1", message_id="1"),
        Checkpoint(run_id="r", fence=held.fence, op="x", body="1"),
        Log(run_id="r", attempt=1, lines=((1.0, "info", "text"),)),
        Settle(run_id="r", fence=held.fence, state="succeeded", ending="succeeded"),
        Claim(worker_id="second", agents=(AGENT,), limit=5),
        Depart(worker_id="w"),
    ]
    outcomes = store.write(batch)
    assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert [run.id for run in outcomes[8].runs] == ["s"]
    assert state_of(store) == "succeeded"
