"""What an order does to a run, and when a stop is proved."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from andon.core.run import TERMINAL, State
from andon.core.stop import (
    OPEN,
    POLITE,
    Deed,
    Stage,
    StopKind,
    StopScope,
    after_word,
    afterwards,
    deed,
    ends_worker,
    latches,
    lifted_by,
    replaces,
    severest,
    storable,
    verdict,
)

kinds = st.sampled_from(list(StopKind))


@pytest.mark.parametrize(("kind", "state"), list(itertools.product(StopKind, sorted(TERMINAL))))
def test_a_stop_after_the_end_changes_nothing(kind: StopKind, state: State) -> None:
    assert deed(kind, state, owes=True) is Deed.NOTHING


@pytest.mark.parametrize("kind", StopKind)
def test_only_polite_orders_ask_and_hard_ones_fence(kind: StopKind) -> None:
    asks = deed(kind, State.RUNNING, owes=False) is Deed.ASK
    assert asks == (kind in (StopKind.PAUSE, StopKind.CANCEL))
    assert asks or deed(kind, State.RUNNING, owes=False) is Deed.FENCE


@pytest.mark.parametrize(
    ("kind", "state", "owes", "what"),
    [
        (StopKind.PAUSE, State.QUEUED, False, Deed.HOLD),
        (StopKind.PAUSE, State.SUSPENDED, True, Deed.HOLD),
        (StopKind.PAUSE, State.KILLED, False, Deed.NOTHING),
        (StopKind.PAUSE, State.STRANDED, False, Deed.NOTHING),
        (StopKind.CANCEL, State.PAUSED, False, Deed.END),
        (StopKind.CANCEL, State.KILLED, True, Deed.UNDO),
        (StopKind.KILL, State.STRANDED, True, Deed.PUT_AWAY),
        (StopKind.HALT, State.PAUSED, False, Deed.PUT_AWAY),
        (StopKind.KILL, State.KILLED, False, Deed.NOTHING),
    ],
)
def test_an_order_decides_about_a_run_that_no_worker_executes(
    kind: StopKind, state: State, owes: bool, what: Deed
) -> None:
    assert deed(kind, state, owes=owes) is what


def test_only_a_cancelled_run_is_over() -> None:
    ends = {kind: afterwards(kind, owes=False) for kind in StopKind}
    assert ends == {
        StopKind.PAUSE: Deed.HOLD,
        StopKind.CANCEL: Deed.END,
        StopKind.KILL: Deed.PUT_AWAY,
        StopKind.HALT: Deed.PUT_AWAY,
    }
    assert afterwards(StopKind.CANCEL, owes=True) is Deed.UNDO


@given(st.lists(kinds))
def test_the_severest_latch_on_the_path_is_in_force(found: list[StopKind]) -> None:
    assert severest(found) == (max(found, key=list(StopKind).index) if found else None)


def test_a_cancel_and_a_stop_of_one_run_leave_no_latch() -> None:
    held = {(k, s) for k in StopKind for s in StopScope if latches(k, s)}
    assert held == {
        (k, s) for k in StopKind for s in StopScope if k != StopKind.CANCEL and s != StopScope.RUN
    }


def test_a_hard_stop_is_lifted_only_by_a_reauthorization() -> None:
    assert {kind: lifted_by(kind) for kind in (StopKind.PAUSE, StopKind.KILL, StopKind.HALT)} == {
        StopKind.PAUSE: "resume",
        StopKind.KILL: "reauthorize",
        StopKind.HALT: "reauthorize",
    }


@given(kinds, kinds)
def test_a_milder_order_does_not_soften_a_severer_one(new: StopKind, old: StopKind) -> None:
    order = list(StopKind)
    assert replaces(new, old) == (new is StopKind.CANCEL or order.index(new) > order.index(old))


@given(st.lists(st.sampled_from(list(Stage))))
def test_an_order_is_stopped_only_when_every_target_is_proved(stages: list[Stage]) -> None:
    said = verdict(stages)
    assert (said == "proved") == all(stage is Stage.VERIFIED for stage in stages)
    assert (said == "stopping") == any(stage in OPEN for stage in stages)


@given(st.text())
@example("odd \ud800 and \0")
def test_every_reason_can_be_stored_and_an_ordinary_one_as_it_is(text: str) -> None:
    found = storable(text)
    assert "\0" not in found
    assert found.encode("utf-8").decode("utf-8") == found
    plain = "\0" not in text and not any("\ud800" <= one <= "\udfff" for one in text)
    assert (found == text) == plain


@pytest.mark.parametrize(
    ("spare", "embedded", "ends"),
    [
        (None, False, True),
        (None, True, False),
        (True, False, False),
        (True, True, False),
        (False, False, True),
        (False, True, True),
    ],
)
def test_a_hard_stop_ends_the_process_unless_it_is_spared(
    spare: bool | None, embedded: bool, ends: bool
) -> None:
    assert ends_worker(spare, embedded=embedded) is ends


@pytest.mark.parametrize("kind", StopKind)
@pytest.mark.parametrize("ends", [True, False])
def test_the_word_of_a_worker_proves_polite_stops_and_no_hard_one(
    kind: StopKind, ends: bool
) -> None:
    stage = after_word(kind, ends=ends)
    if kind in POLITE:
        assert stage is Stage.VERIFIED
    else:
        assert stage is (Stage.FENCED if ends else Stage.UNPROVED)
