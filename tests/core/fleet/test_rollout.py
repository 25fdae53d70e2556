"""Counts of a deploy: each hold is counted once, repeats and losses are always found."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from andon.core.fleet.rollout import (
    GAP_SECONDS,
    GIVEN_BACK,
    Departure,
    Hold,
    Part,
    deploys,
    doubled,
    grace_for,
    is_lost,
    last_sign,
    left_in_doubt,
    orchestrator_for,
    overruns,
    part_of,
    steps_have,
    tally,
    versions_after,
)
from andon.core.journal import Entry, EntryKind
from andon.core.run import State

NOW = 1000.0
times = st.floats(0, NOW)
maybe = st.none() | times
endings = st.sampled_from(
    [None, "returned", "cut", "untouched", "interrupted", "succeeded", "failed", "suspended"]
)
holds = st.lists(
    st.builds(
        Hold,
        run_id=st.text("ab", min_size=1, max_size=2),
        fence=st.integers(1, 9),
        ending=endings,
        ended_at=maybe,
        next_claimed_at=maybe,
        state=st.sampled_from([*State]),
    )
)
leavings = st.lists(
    st.builds(
        Departure, worker=st.text("abc", min_size=1, max_size=4), told_at=maybe, ended_at=maybe
    )
)


def hold(ending: str | None = "returned", **changes: Any) -> Hold:
    plain: dict[str, Any] = {
        "run_id": "r",
        "fence": 1,
        "ending": ending,
        "ended_at": 10.0,
        "next_claimed_at": None,
        "state": "queued",
    }
    return Hold(**plain | changes)


# ── counting ──────────────────────────────────────────────────────────────────────────────────


@given(holds)
def test_each_hold_is_counted_once(found: list[Hold]) -> None:
    counted = tally(found)
    parts = (counted.finished, counted.saved, counted.cut, counted.untouched, counted.interrupted)
    assert counted.times == sum(parts)
    assert counted.times + counted.held == len(found)
    assert counted.runs == len({one.run_id for one in found if one.part is not Part.HELD})
    assert counted.dead <= counted.runs
    assert counted.resumed + counted.unresumed <= sum(one.part in GIVEN_BACK for one in found)
    if counted.resumed:
        assert counted.recovery_median is not None
        assert counted.recovery_worst is not None
        assert 0 <= counted.recovery_median <= counted.recovery_worst
    else:
        assert counted.recovery_median is counted.recovery_worst is None


@pytest.mark.parametrize(
    ("ending", "part"),
    [
        (None, Part.HELD),
        ("returned", Part.SAVED),
        ("cut", Part.CUT),
        ("untouched", Part.UNTOUCHED),
        ("interrupted", Part.INTERRUPTED),
        ("succeeded", Part.FINISHED),
        ("suspended", Part.FINISHED),
        ("failed", Part.FINISHED),
        ("a word of tomorrow", Part.FINISHED),
    ],
)
def test_the_ending_of_a_hold_says_what_became_of_its_run(ending: str | None, part: Part) -> None:
    assert part_of(ending) is part


def test_a_returned_run_is_resumed_once_another_worker_claims_it() -> None:
    assert hold(next_claimed_at=10.5).recovery == 0.5
    assert not hold(next_claimed_at=10.5).unresumed
    assert hold().recovery is None
    assert hold().unresumed
    assert hold("cut", state="stranded").unresumed


def test_the_recovery_time_of_a_lost_run_counts_from_its_loss() -> None:
    assert hold("interrupted", lost_at=7.0, next_claimed_at=10.5).recovery == 3.5
    assert hold("interrupted", next_claimed_at=10.5).recovery == 0.5
    assert hold("returned", lost_at=7.0, next_claimed_at=10.5).recovery == 0.5


@given(st.floats(0, 9), st.lists(st.one_of(st.none(), st.floats(0, 9))))
def test_a_loss_that_nobody_observed_counts_from_the_last_heartbeat(
    noticed: float, signs: list[float | None]
) -> None:
    found = last_sign(noticed, signs)
    assert found <= noticed
    assert all(sign is None or sign > noticed or sign <= found for sign in signs)


def test_a_buried_run_is_counted_once() -> None:
    given_up = [hold("interrupted", state="dead"), hold("interrupted", state="dead", fence=2)]
    assert tally([*given_up, hold("interrupted", run_id="other")]).dead == 1
    assert tally([hold("returned", state="dead")]).dead == 0


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled", "dead", "paused"])
def test_a_finished_or_paused_run_waits_for_no_worker(state: str) -> None:
    assert not hold(state=state).unresumed


def test_a_hold_that_ended_by_itself_needs_no_successor() -> None:
    assert not hold("suspended", state="suspended").unresumed
    assert hold("suspended", next_claimed_at=99.0).recovery is None


def test_the_median_and_the_worst_recovery_are_reported() -> None:
    counted = tally(hold(next_claimed_at=10.0 + took) for took in (1.0, 2.0, 9.0))
    assert (counted.recovery_median, counted.recovery_worst) == (2.0, 9.0)


# ── grouping ──────────────────────────────────────────────────────────────────────────────────


@given(leavings)
def test_all_workers_that_left_together_are_in_one_deploy(found: list[Departure]) -> None:
    groups = deploys(found, NOW)
    assert sorted(one.worker for group in groups for one in group) == sorted(
        one.worker for one in found
    )
    assert all(groups)


@given(leavings)
def test_deploys_are_separated_by_a_gap_and_have_none_inside(found: list[Departure]) -> None:
    groups = [[one.window(NOW) for one in group] for group in deploys(found, NOW)]
    for earlier, later in pairwise(groups):
        assert min(begin for begin, _ in later) > max(end for _, end in earlier) + GAP_SECONDS
    for group in groups:
        until = group[0][1]
        for begin, end in group:
            assert begin <= until + GAP_SECONDS
            until = max(until, end)


def test_a_worker_that_is_still_draining_drains_until_now() -> None:
    assert Departure(worker="w", told_at=5.0, ended_at=None).window(NOW) == (5.0, NOW)
    assert Departure(worker="w", told_at=None, ended_at=7.0).window(NOW) == (7.0, 7.0)
    set_back = Departure(worker="w", told_at=9.0, ended_at=7.0)
    assert set_back.window(NOW) == (7.0, 7.0), "a clock that was set back"


def test_the_versions_that_newly_appeared_are_the_successors() -> None:
    before = frozenset({("a", "1"), ("b", "7")})
    staying = frozenset({("a", "1"), ("a", "2"), ("b", "7"), ("c", "1")})
    assert versions_after(before, staying) == {"a": (["1"], ["2"]), "b": (["7"], ["7"])}
    assert versions_after(before, frozenset()) == {"a": (["1"], []), "b": (["7"], [])}


# ── lost ──────────────────────────────────────────────────────────────────────────────────────


def test_a_run_held_by_an_ended_worker_is_lost() -> None:
    ended = {"w": 10.0}
    assert is_lost("running", "w", ended, 21.0, 10.0)
    assert is_lost("running", None, ended, 21.0, 10.0)
    assert not is_lost("running", "w", ended, 19.0, 10.0), "it may have been read too early"
    assert not is_lost("running", "alive", ended, 21.0, 10.0)


@pytest.mark.parametrize("state", [state for state in State if state != State.RUNNING])
def test_a_run_that_no_worker_holds_is_not_lost(state: str) -> None:
    assert not is_lost(state, None, {}, NOW, 10.0)


# ── doubled ───────────────────────────────────────────────────────────────────────────────────


def journal(*lines: tuple[str, str, dict[str, Any]]) -> list[Entry]:
    return [
        Entry(seq=seq, kind=kind, state=state, **{"place": ":0", "name": "n"} | more)
        for seq, (kind, state, more) in enumerate(lines)
    ]


def step(state: str, **more: Any) -> tuple[str, str, dict[str, Any]]:
    return EntryKind.STEP, state, more


def effect(state: str, **more: Any) -> tuple[str, str, dict[str, Any]]:
    return EntryKind.EFFECT, state, {"key": "k"} | more


def test_a_step_that_was_executed_twice_is_found() -> None:
    [twice] = doubled(journal(step("begun"), step("done"), step("begun"), step("done")))
    assert (twice.kind, twice.name, twice.spot, twice.first, twice.again) == (
        "step",
        "n",
        ":0",
        1,
        3,
    )


def test_each_further_execution_adds_one() -> None:
    assert len(doubled(journal(step("done"), step("done"), step("done")))) == 2


@pytest.mark.parametrize(
    "lines",
    [
        [step("done"), step("done", place=":1")],
        [step("done", key="a"), step("done", key="b")],
        [step("retrying"), step("failed"), (EntryKind.RETRY, "reopened", {}), step("done")],
        [step("done"), (EntryKind.RETRY, "reopened", {}), step("done")],
        [step("done"), step("reopened"), step("done")],
        [step("done", key="a"), (EntryKind.SNAPSHOT, "done", {}), step("done", key="a")],
        [(EntryKind.START, "done", {}), (EntryKind.END, "done", {})],
        [effect("started"), effect("in_doubt"), effect("started"), effect("confirmed")],
        [effect("confirmed"), effect("compensated"), effect("started"), effect("confirmed")],
        [effect("confirmed"), effect("confirmed", key="other")],
        [effect("confirmed"), effect("confirmed", name="other")],
        [effect("confirmed"), step("done", key="k")],
    ],
    ids=range(12),
)
def test_an_operation_that_may_be_repeated_is_not_counted_as_doubled(lines: list[Any]) -> None:
    assert doubled(journal(*lines)) == []


def test_an_effect_that_was_confirmed_twice_is_found() -> None:
    found = doubled(journal(effect("confirmed"), effect("started"), effect("confirmed")))
    assert [(one.kind, one.spot) for one in found] == [("effect", "k")]


def test_a_doubled_operation_with_a_key_is_found_at_any_place() -> None:
    assert doubled(journal(step("done", key="a"), step("done", key="a", place="1:7")))


def test_the_retry_of_another_step_reopens_nothing() -> None:
    lines = journal(step("done"), (EntryKind.RETRY, "reopened", {"place": ":5"}), step("done"))
    assert len(doubled(lines)) == 1


# ── doubts, overruns, grace ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("state", "fence", "left"),
    [
        ("started", 3, True),
        ("started", 4, False),  # the next owner has it in hand
        ("in_doubt", 3, True),
        ("in_doubt", 4, True),  # the next owner asks a person
        ("confirmed", 3, False),
        ("planned", 3, False),
    ],
)
def test_an_effect_left_in_doubt_by_the_deploy_is_reported(
    state: str, fence: int, left: bool
) -> None:
    assert left_in_doubt(state, fence, 3) is left


def test_a_drain_reports_its_own_overrun_and_is_measured_otherwise() -> None:
    phases = [("announce", False), ("boundary", True), ("cleanup", True)]
    assert overruns(phases, ended="overrun", took=1, grace_seconds=9) == ["cleanup"]
    assert overruns(phases[:2], ended="overrun", took=1, grace_seconds=9) == ["exit"]
    assert overruns([], ended=None, took=2.5, grace_seconds=2.0) == ["grace"]
    assert overruns([], ended=None, took=1.5, grace_seconds=2.0) == []
    assert overruns([], ended=None, took=None, grace_seconds=2.0) == []
    assert overruns([], ended=None, took=5.0, grace_seconds=None) == []


def test_a_step_that_was_cut_off_in_time_is_no_overrun() -> None:
    assert overruns([("boundary", True)], ended="clean", took=99, grace_seconds=1) == []


@given(st.floats(0.001, 100_000))
def test_the_advised_grace_covers_the_longest_step(longest: float) -> None:
    grace = grace_for(longest)
    assert steps_have(grace) >= longest
    assert steps_have(grace - 5) < longest * 1.1 if grace > 5 else True
    assert grace % 5 == 0
    assert orchestrator_for(grace) >= grace + 5


def test_the_advised_grace_for_a_step_of_a_minute() -> None:
    assert (grace_for(61), orchestrator_for(80), orchestrator_for(25)) == (80, 90, 30)
