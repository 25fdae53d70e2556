"""The order of the queue, the delays of retries, and when a run is buried."""

import math
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from andon.core.queue import (
    IDLE_SECONDS,
    INTERRUPTION_LIMIT,
    MOVING_FACTOR,
    Lost,
    Place,
    Retry,
    bury,
    checkpoint_digest,
    fruitless_after,
    note_begin,
    place,
    poll_after,
    suspect_from,
)


class Waiting(NamedTuple):
    returned: bool
    priority: int
    available_at: float
    run_id: str

    def place(self) -> Place:
        return place(**self._asdict())


waiting = st.builds(
    Waiting,
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([0.0, 1.0, 2.5, 1e9]),
    st.text("abc", min_size=1, max_size=3),
)
chances = st.floats(min_value=0, max_value=1, exclude_max=True)
retries = st.builds(
    Retry,
    retries=st.integers(0, 100),
    first_seconds=st.floats(0.001, 3600),
    factor=st.floats(1, 10),
    most_seconds=st.floats(0.001, 86_400),
)


def test_returned_work_precedes_priority_and_priority_precedes_age() -> None:
    in_order = [
        Waiting(returned=True, priority=0, available_at=9.0, run_id="returned"),
        Waiting(returned=False, priority=5, available_at=8.0, run_id="urgent"),
        Waiting(returned=False, priority=0, available_at=1.0, run_id="old"),
        Waiting(returned=False, priority=0, available_at=2.0, run_id="young, first by name"),
        Waiting(returned=False, priority=0, available_at=2.0, run_id="young, then by name"),
        Waiting(returned=False, priority=-1, available_at=0.0, run_id="whenever"),
    ]
    mixed = [in_order[n] for n in (3, 0, 5, 1, 4, 2)]
    assert sorted(mixed, key=Waiting.place) == in_order


@given(waiting, waiting)
def test_the_first_difference_decides_the_order(one: Waiting, other: Waiting) -> None:
    if one.returned != other.returned:
        first = one.returned
    elif one.priority != other.priority:
        first = one.priority > other.priority
    elif one.available_at != other.available_at:
        first = one.available_at < other.available_at
    else:
        first = one.run_id < other.run_id
    assert (one.place() < other.place()) == first


@given(st.lists(waiting, unique_by=lambda run: run.run_id), st.randoms())
def test_the_order_of_the_queue_is_total(runs: list[Waiting], chance: Random) -> None:
    in_order = sorted(runs, key=Waiting.place)
    chance.shuffle(runs)
    assert sorted(runs, key=Waiting.place) == in_order
    assert len({run.place() for run in runs}) == len(runs)


@given(retries, st.integers(1, 10**9), chances)
def test_a_retry_delay_stays_in_the_upper_half_of_its_limit(
    retry: Retry, failures: int, chance: float
) -> None:
    full = retry.delay(failures, 0) * 2
    delay = retry.delay(failures, chance)
    assert 0 < full / 2 <= delay <= full <= retry.most_seconds
    assert math.isfinite(delay)


@given(retries, st.integers(1, 200), chances)
def test_a_retry_delay_never_shrinks_with_more_failures(
    retry: Retry, failures: int, chance: float
) -> None:
    assert retry.delay(failures, chance) <= retry.delay(failures + 1, chance)


def test_a_retry_delay_doubles_until_its_limit() -> None:
    fulls = [Retry(9).delay(failures, 0) * 2 for failures in range(1, 12)]
    assert fulls == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_retry_jitter_spreads_over_the_upper_half() -> None:
    assert Retry(1, first_seconds=8).delay(1, 0) == 4
    assert Retry(1, first_seconds=8).delay(1, 0.5) == 6


@pytest.mark.parametrize("failures", [1_025, 10**6, 10**30])
def test_a_huge_number_of_failures_does_not_overflow(failures: int) -> None:
    assert Retry(10**30).delay(failures, 0.0) == 150.0


@given(st.integers(0, 1000), st.integers(1, 2000))
def test_an_operation_is_tried_as_often_as_its_retries_allow(limit: int, failures: int) -> None:
    assert Retry(limit).again(failures) == (failures <= limit)


def test_an_operation_without_declared_retries_is_not_retried() -> None:
    assert not Retry().again(1)


@given(st.integers(0, 100), st.integers(1, 100))
def test_a_run_is_buried_at_its_limit_and_not_before(fruitless: int, limit: int) -> None:
    assert bury(fruitless, limit) == (fruitless >= limit)


@given(st.integers(0, 20_000), st.integers(1, 100))
def test_a_run_that_moves_its_checkpoint_for_ever_is_buried_at_last(moved: int, limit: int) -> None:
    assert bury(0, limit, moved) == (moved >= limit * MOVING_FACTOR)


@given(st.integers(0, 100))
def test_a_finished_step_or_a_new_checkpoint_is_progress(before: int) -> None:
    def after(*, finished: bool = False, checkpoint: str | None = None, known: bool = False) -> int:
        return fruitless_after(Lost(before, finished, checkpoint, known, 0))

    assert after() == before + 1
    assert after(finished=True) == 0
    assert after(checkpoint="new") == 0
    assert after(checkpoint="old", known=True) == before + 1
    assert after(finished=True, checkpoint="old", known=True) == 0


@given(st.lists(st.tuples(st.text(), st.text()), unique_by=lambda pair: pair[0]), st.randoms())
def test_the_order_of_checkpoints_does_not_matter(kept: list[tuple[str, str]], chance: Any) -> None:
    mixed = list(kept)
    chance.shuffle(mixed)
    assert checkpoint_digest(mixed) == checkpoint_digest(kept)
    assert (checkpoint_digest(kept) is None) == (not kept)
    assert checkpoint_digest([*kept, ("\0", "more")]) != checkpoint_digest(kept)


def test_a_run_without_a_limit_of_its_own_is_buried_at_the_default() -> None:
    assert not bury(INTERRUPTION_LIMIT - 1)
    assert bury(INTERRUPTION_LIMIT)


@given(st.integers(1, 100))
def test_a_run_is_suspected_before_it_is_buried(limit: int) -> None:
    assert suspect_from(limit) >= 1
    assert limit == 1 or not bury(suspect_from(limit), limit)


def test_the_start_of_a_step_is_recorded_only_once_a_worker_was_lost() -> None:
    assert [note_begin(interruptions) for interruptions in (0, 1, 2)] == [False, True, True]


@pytest.mark.parametrize(
    ("poll", "beats_every", "idle", "wait"),
    [
        (0.5, 2.25, 60, 2.25),
        (5.0, 2.25, 60, 5.0),
        (0.5, None, IDLE_SECONDS, 0.5),
        (0.5, None, IDLE_SECONDS + 1, 1.5),
    ],
)
def test_an_idle_worker_without_notifications_polls_less_often(
    poll: float, beats_every: float | None, idle: float, wait: float
) -> None:
    assert poll_after(poll, beats_every, idle) == wait
