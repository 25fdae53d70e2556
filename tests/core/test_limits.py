"""Limits never admit more than they allow, and admit every run that they do not hold back."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from andon.core.limits import Bucket, Candidate, Limit, LimitScope, LimitSlot, admit, rate_of, tally
from andon.errors import BadInput

names = st.sampled_from(["a", "b", "c"])
candidates = st.lists(
    st.builds(
        Candidate,
        st.integers(0, 10_000).map(str),
        names,
        names,
        st.dictionaries(st.sampled_from(["tenant", "team"]), names, max_size=2),
        st.booleans(),
    ),
    max_size=15,
    unique_by=lambda run: run.id,
)
limits = st.lists(
    st.builds(
        Limit,
        st.sampled_from(LimitScope),
        st.sampled_from(["a", "b", "tenant", "team"]),
        st.none() | st.integers(1, 4),
        st.integers(0, 4),
        st.sampled_from([0.5, 1.0, 60.0]),
    ),
    max_size=4,
    unique_by=lambda limit: (limit.scope, limit.name),
)
slots = st.builds(LimitSlot, st.sampled_from(LimitScope), st.sampled_from(["a", "tenant"]), names)
counts = st.dictionaries(slots, st.integers(0, 5), max_size=4)
buckets = st.dictionaries(slots, st.builds(Bucket, st.floats(0, 4), st.floats(0, 200)), max_size=4)
rooms = st.integers(0, 10)
NOW = 100.0


def run(run_id: str = "r", *, spends: bool = True, **given: str) -> Candidate:
    queue, agent = given.pop("queue", "q"), given.pop("agent", "a")
    return Candidate(run_id, queue, agent, given, spends)


@given(candidates, limits, counts, buckets, rooms)
def test_no_slot_ever_has_more_than_its_limit(
    waiting: list[Candidate],
    limits: list[Limit],
    running: dict[LimitSlot, int],
    left: dict[LimitSlot, Bucket],
    room: int,
) -> None:
    found = admit(waiting, limits, running, left, now=NOW, room=room)
    assert len(found.ids) <= room
    chosen = [one for one in waiting if one.id in found.ids]
    begun = [one for one in chosen if one.spends]
    for limit in limits:
        here = tally([(one, 1) for one in chosen], [limit])
        for slot, count in here.items():
            assert found.running[slot] == running.get(slot, 0) + count
            if limit.at_most is not None:
                assert running.get(slot, 0) + count <= limit.at_most
        for slot, count in tally([(one, 1) for one in begun], [limit]).items():
            if limit.rate:
                assert count <= limit.fill(left.get(slot), NOW).unspent + 1e-5
                assert found.buckets[slot].unspent >= 0


@given(candidates, limits, counts, buckets, rooms)
def test_a_run_is_left_out_only_because_of_a_limit_or_for_lack_of_room(
    waiting: list[Candidate],
    limits: list[Limit],
    running: dict[LimitSlot, int],
    left: dict[LimitSlot, Bucket],
    room: int,
) -> None:
    found = admit(waiting, limits, running, left, now=NOW, room=room)
    assert found.ids == [one.id for one in waiting if one.id in found.ids], (
        "in the order of the queue"
    )
    assume(len(found.ids) < room)
    for one in waiting:
        held = {limit.slot(one) for limit in limits} - {None}
        spent = found.spent.keys() if one.spends else set()
        assert one.id in found.ids or held & (found.full | spent)


@given(candidates, limits, counts, buckets, rooms)
def test_a_second_page_admits_what_one_long_page_would_have(
    waiting: list[Candidate],
    limits: list[Limit],
    running: dict[LimitSlot, int],
    left: dict[LimitSlot, Bucket],
    room: int,
) -> None:
    whole = admit(waiting, limits, running, left, now=NOW, room=room)
    half = len(waiting) // 2
    first = admit(waiting[:half], limits, running, left, now=NOW, room=room)
    rest = room - len(first.ids)
    second = admit(waiting[half:], limits, first.running, left | first.buckets, now=NOW, room=rest)
    assert first.ids + second.ids == whole.ids
    assert first.buckets | second.buckets == whole.buckets


@given(candidates, limits, counts, buckets)
def test_part_of_the_admitted_runs_may_start_without_the_rest(
    waiting: list[Candidate],
    limits: list[Limit],
    running: dict[LimitSlot, int],
    left: dict[LimitSlot, Bucket],
) -> None:
    ids = admit(waiting, limits, running, left, now=NOW, room=10).ids
    part = [one for one in waiting if one.id in ids[::2]]
    again = admit(part, limits, running, left, now=NOW, room=10)
    assert again.ids == [one.id for one in part]


@given(st.integers(1, 50), st.floats(0.1, 3600), st.lists(st.floats(0, 100), max_size=60))
def test_a_rate_holds_over_any_period_but_for_one_full_bucket(
    rate: int, period: float, pauses: list[float]
) -> None:
    limit = Limit(LimitScope.QUEUE, "q", None, rate, period)
    now, begun, left = 0.0, 0, dict[LimitSlot, Bucket]()
    for number, pause in enumerate(pauses):
        now += pause
        found = admit([run(str(number))], [limit], {}, left, now=now, room=1)
        begun += len(found.ids)
        left |= found.buckets
    assert begun <= rate + now * rate / period + 1e-3


@given(st.integers(1, 50), st.floats(0.1, 3600), st.floats(0, 0.99))
def test_a_run_that_waits_the_announced_time_is_admitted(
    rate: int, period: float, unspent: float
) -> None:
    limit = Limit(LimitScope.AGENT, "a", None, rate, period)
    left = {LimitSlot(LimitScope.AGENT, "a"): Bucket(unspent, NOW)}
    found = admit([run()], [limit], {}, left, now=NOW, room=1)
    assert found.ids == []
    [wait] = found.spent.values()
    later = admit([run()], [limit], {}, left, now=NOW + wait, room=1)
    assert later.ids == ["r"]


def test_a_run_that_is_held_back_does_not_block_the_runs_behind_it() -> None:
    limits = [
        Limit(LimitScope.QUEUE, "slow", at_most=1),
        Limit(LimitScope.LABEL, "tenant", at_most=1),
    ]
    waiting = [
        run("1", queue="slow"),
        run("2", queue="slow"),
        run("3", tenant="x"),
        run("4", tenant="x"),
        run("5", tenant="y"),
        run("6"),
    ]
    found = admit(waiting, limits, {}, {}, now=NOW, room=10)
    assert found.ids == ["1", "3", "5", "6"]
    assert found.full == {
        LimitSlot("queue", "slow"),
        LimitSlot("label", "tenant", "x"),
        LimitSlot("label", "tenant", "y"),
    }


def test_a_run_that_had_begun_is_not_held_back_by_a_rate_but_counts_as_running() -> None:
    limits = [Limit(LimitScope.AGENT, "a", at_most=2, rate=1, per_seconds=60)]
    empty = {LimitSlot("agent", "a"): Bucket(0.0, NOW)}
    waiting = [run("new"), *(run(str(n), spends=False) for n in range(3))]
    found = admit(waiting, limits, {}, empty, now=NOW, room=10)
    assert found.ids == ["0", "1"]
    assert found.buckets == {}
    assert found.spent == {LimitSlot("agent", "a"): 60.0}


def test_a_clock_that_was_set_back_does_not_keep_a_bucket_from_filling() -> None:
    limits = [Limit(LimitScope.QUEUE, "q", rate=1, per_seconds=10)]
    ahead = {LimitSlot("queue", "q"): Bucket(0.0, NOW + 3600)}
    found = admit([run()], limits, {}, ahead, now=NOW, room=1)
    assert found.ids == []
    assert admit([run()], limits, {}, found.buckets, now=NOW + 10, room=1).ids == ["r"]


@pytest.mark.parametrize(
    ("text", "rate"),
    [("10/1m", (10, 60.0)), ("100/1h", (100, 3600.0)), ("5/s", (5, 1.0)), ("1/0.5d", (1, 43200.0))],
)
def test_a_rate_is_parsed_as_people_write_it(text: str, rate: tuple[int, float]) -> None:
    assert rate_of(text) == rate


@pytest.mark.parametrize(
    "text", ["", "10", "10/m1", "0/1m", "1/0s", "-1/1m", "1.5/1m", "1/1w", "1/."]
)
def test_an_invalid_rate_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadInput, match="100/1h"):
        rate_of(text)


@pytest.mark.parametrize("value", ["x" * 5000, "\ud800"])
def test_a_label_value_that_no_database_can_store_still_has_its_own_count(value: str) -> None:
    limit = Limit("label", "tenant", at_most=1)
    found = [
        limit.slot(Candidate("a", "q", "a", {"tenant": one}, spends=True))
        for one in (value, value, value + "!")
    ]
    assert found[0] == found[1] != found[2]
    assert all(len(slot.value.encode()) < 100 for slot in found if slot is not None)


def test_a_run_is_counted_in_each_of_its_slots() -> None:
    limits = [Limit(LimitScope.QUEUE, "q", 3, 0, 1.0), Limit(LimitScope.LABEL, "tenant", 1, 0, 1.0)]
    found = tally([(run(tenant="x"), 2), (run("s"), 1)], limits)
    assert found == {
        LimitSlot(LimitScope.QUEUE, "q"): 3,
        LimitSlot(LimitScope.LABEL, "tenant", "x"): 2,
    }
