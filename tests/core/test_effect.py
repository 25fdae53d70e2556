"""An effect is never repeated on a guess.

The laws are asserted for every state, kind, owner and verdict there is.
"""

from collections.abc import Iterable
from itertools import product
from typing import NamedTuple

import pytest

from andon.core.effect import (
    OPEN,
    SETTLED,
    TRANSITIONS,
    EffectKind,
    EffectMove,
    EffectState,
    Sight,
    Verdict,
    after_answer,
    is_certain,
    kind_of,
    next_move,
)

S, K, V, M = EffectState, EffectKind, Verdict, EffectMove

REPEATABLE = frozenset({K.PURE, K.IDEMPOTENT})


class Case(NamedTuple):
    state: EffectState | None
    kind: EffectKind
    quiet: bool
    verdict: Verdict

    @property
    def move(self) -> EffectMove:
        return next_move(self.state, self.kind, quiet=self.quiet, verdict=self.verdict)


# A run whose effects are being undone calls no code that could ask what to do next.
STATES = [None, *(state for state in EffectState if state is not EffectState.UNDOING)]
CASES = [Case(*case) for case in product(STATES, EffectKind, (False, True), Verdict)]
OPEN_CASES = [case for case in CASES if case.state in OPEN]


def moves(cases: Iterable[Case]) -> set[EffectMove]:
    return {case.move for case in cases}


# ── the laws ──────────────────────────────────────────────────────────────────────────────────────


def test_a_started_irreversible_effect_is_never_executed_again() -> None:
    assert moves(case for case in OPEN_CASES if case.kind is K.IRREVERSIBLE) == {M.ASK}


def test_an_effect_whose_owner_may_still_act_is_not_probed_undone_or_executed() -> None:
    restless = (case for case in OPEN_CASES if not case.quiet and case.kind not in REPEATABLE)
    assert moves(restless) == {M.ASK}


def test_a_known_outcome_is_answered_and_nothing_else_is() -> None:
    assert moves(case for case in CASES if case.state in SETTLED) == {M.ANSWER}
    assert M.ANSWER not in moves(case for case in CASES if case.state not in SETTLED)


def test_an_effect_that_certainly_did_not_happen_is_executed() -> None:
    certainly_not = (case for case in CASES if case.state in (None, S.PLANNED, S.COMPENSATED))
    assert moves(certainly_not) == {M.EXECUTE}


@pytest.mark.parametrize("kind", EffectKind)
def test_an_effect_that_is_being_undone_is_not_executed(kind: EffectKind) -> None:
    assert next_move(S.UNDOING, kind, quiet=True) is M.ASK


def test_an_effect_that_may_be_repeated_asks_no_person() -> None:
    assert moves(case for case in OPEN_CASES if case.kind in REPEATABLE) == {M.EXECUTE}


def test_only_a_probeable_effect_is_probed_and_only_once() -> None:
    probed = {(case.kind, case.verdict) for case in CASES if case.move is M.PROBE}
    assert probed == {(K.PROBEABLE, V.NOT_ASKED)}


def test_only_a_compensatable_effect_is_undone_and_only_when_its_owner_is_quiet() -> None:
    undone = {(case.state, case.kind, case.quiet) for case in CASES if case.move is M.UNDO}
    assert undone == {(state, K.COMPENSATABLE, True) for state in OPEN}


def test_only_a_probe_that_found_the_effect_records_an_outcome() -> None:
    recorded = {(case.kind, case.verdict) for case in CASES if case.move is M.RECORD}
    assert recorded == {(K.PROBEABLE, V.HAPPENED)}


@pytest.mark.parametrize("state", sorted(OPEN))
@pytest.mark.parametrize(
    ("verdict", "move"),
    [
        (V.NOT_ASKED, M.PROBE),
        (V.HAPPENED, M.RECORD),
        (V.DID_NOT_HAPPEN, M.EXECUTE),
        (V.UNKNOWN, M.ASK),
    ],
)
def test_a_probe_decides_unless_its_verdict_is_unknown(
    state: EffectState, verdict: Verdict, move: EffectMove
) -> None:
    assert next_move(state, K.PROBEABLE, quiet=True, verdict=verdict) is move


@pytest.mark.parametrize("state", sorted(OPEN))
def test_a_compensatable_effect_is_undone_before_it_is_executed_again(state: EffectState) -> None:
    assert next_move(state, K.COMPENSATABLE, quiet=True) is M.UNDO
    assert next_move(S.COMPENSATED, K.COMPENSATABLE, quiet=True) is M.EXECUTE


@pytest.mark.parametrize(
    ("verdict", "move"),
    [
        (V.NOT_ASKED, M.ASK),
        (V.HAPPENED, M.RECORD),
        (V.DID_NOT_HAPPEN, M.EXECUTE),
        (V.UNKNOWN, M.ASK),
    ],
)
def test_a_person_who_does_not_know_is_asked_again(verdict: Verdict, move: EffectMove) -> None:
    assert after_answer(verdict) is move


# ── the table of states ───────────────────────────────────────────────────────────────────────────


def test_every_effect_state_has_a_row_in_the_table() -> None:
    assert set(TRANSITIONS) == set(EffectState)


def test_every_effect_state_can_be_reached() -> None:
    found, new = {S.PLANNED}, [S.PLANNED]
    while new:
        targets = TRANSITIONS[new.pop()] - found
        found |= targets
        new.extend(targets)
    assert found == set(EffectState)


# The state that a move leads to, once it is carried out.
LEADS_TO: dict[EffectMove, set[EffectState]] = {
    M.EXECUTE: {S.STARTED},
    M.PROBE: {S.PLANNED, S.CONFIRMED, S.IN_DOUBT},
    M.RECORD: {S.CONFIRMED},
    M.UNDO: {S.STARTED, S.COMPENSATED},  # the intent is written before the effect is executed
    M.ASK: {S.IN_DOUBT},
    M.ANSWER: set(),
}


def test_the_table_allows_the_state_that_each_move_leads_to() -> None:
    for case in CASES:
        assert LEADS_TO[case.move] <= TRANSITIONS[case.state or S.PLANNED], case


def test_nothing_happens_that_was_not_written_down_as_started_before() -> None:
    before = {state for state, targets in TRANSITIONS.items() if S.CONFIRMED in targets}
    assert before == OPEN | {S.UNDOING}


def test_an_effect_that_happened_can_only_be_undone() -> None:
    assert TRANSITIONS[S.CONFIRMED] == {S.UNDOING}


def test_only_a_started_effect_can_be_in_doubt() -> None:
    before = {state for state, targets in TRANSITIONS.items() if S.IN_DOUBT in targets}
    assert before == OPEN


@pytest.mark.parametrize("state", EffectState)
def test_an_effect_is_open_settled_or_certainly_did_not_happen(state: EffectState) -> None:
    others = {S.PLANNED, S.COMPENSATED}, {S.UNDOING}
    assert [state in kind for kind in (OPEN, SETTLED, *others)].count(True) == 1


@pytest.mark.parametrize("state", EffectState)
def test_every_effect_can_be_settled(state: EffectState) -> None:
    assert state in SETTLED or TRANSITIONS[state] & (SETTLED | OPEN)


# ── the kind of an effect ─────────────────────────────────────────────────────────────────────────


def test_an_effect_that_declares_nothing_is_irreversible() -> None:
    assert kind_of(None, probe=False, undo=False) is K.IRREVERSIBLE


@pytest.mark.parametrize("undo", [False, True])
def test_a_probe_is_preferred_to_an_undo(undo: bool) -> None:
    assert kind_of(None, probe=True, undo=undo) is K.PROBEABLE


def test_an_effect_with_only_an_undo_is_compensatable() -> None:
    assert kind_of(None, probe=False, undo=True) is K.COMPENSATABLE


@pytest.mark.parametrize("kind", EffectKind)
@pytest.mark.parametrize("functions", list(product((False, True), repeat=2)))
def test_a_declared_kind_wins_over_the_declared_functions(
    kind: EffectKind, functions: tuple[bool, bool]
) -> None:
    probe, undo = functions
    assert kind_of(str(kind), probe=probe, undo=undo) is kind


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="harmless"):
        kind_of("harmless", probe=False, undo=False)


# ── when the end of an owner is certain ───────────────────────────────────────────────────────────


@pytest.mark.parametrize("sight", Sight)
@pytest.mark.parametrize("has_started", [False, True])
def test_an_owner_is_gone_when_nothing_of_it_can_act(sight: Sight, has_started: bool) -> None:
    seen_whole = sight is Sight.ALL or (sight is Sight.PROCESS and not has_started)
    assert is_certain(sight, has_started=has_started) == seen_whole


def test_an_observer_that_sees_more_is_never_less_certain() -> None:
    for more, less in ((Sight.ALL, Sight.PROCESS), (Sight.PROCESS, Sight.NOTHING)):
        for started in (False, True):
            assert is_certain(more, has_started=started) >= is_certain(less, has_started=started)
