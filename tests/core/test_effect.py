"""An effect is never repeated on a guess.

The laws are asserted for every state, kind, owner and verdict there is.
"""

from itertools import product

import pytest

from andon.core.effect import (
    OPEN,
    SETTLED,
    TRANSITIONS,
    EffectState,
    Kind,
    Move,
    Verdict,
    after_answer,
    kind_of,
    next_move,
)

S, K, V, M = EffectState, Kind, Verdict, Move

STATES: list[EffectState | None] = [None, *EffectState]
REPEATABLE = frozenset({K.PURE, K.IDEMPOTENT})
EVERYTHING = list(product(STATES, Kind, (False, True), Verdict))

everything = pytest.mark.parametrize(("state", "kind", "quiet", "verdict"), EVERYTHING)

# Where a move leads, when it is carried out.
LEADS_TO: dict[Move, set[EffectState]] = {
    M.EXECUTE: {S.STARTED},
    M.PROBE: {S.PLANNED, S.CONFIRMED, S.IN_DOUBT},
    M.RECORD: {S.CONFIRMED},
    M.UNDO: {S.COMPENSATED},
    M.ASK: {S.IN_DOUBT},
    M.ANSWER: set(),
}


@everything
def test_the_laws_hold(
    state: EffectState | None, kind: Kind, quiet: bool, verdict: Verdict
) -> None:
    move = next_move(state, kind, quiet=quiet, verdict=verdict)
    open_ = state in OPEN
    if state in SETTLED:
        assert move is M.ANSWER, "an outcome that is known is answered, never made again"
    else:
        assert move is not M.ANSWER, "there is no outcome to answer with"
    if open_ and kind is K.IRREVERSIBLE:
        assert move is M.ASK, "an irreversible effect is never repeated on a guess"
    if open_ and not quiet and kind not in REPEATABLE:
        assert move is M.ASK, "its first owner may still act"
    if not open_ and state not in SETTLED:
        assert move is M.EXECUTE, "it certainly is not there: it is done"
    if kind in REPEATABLE:
        assert move in (M.EXECUTE, M.ANSWER), "nobody needs to be asked about these"
    if move is M.PROBE:
        assert verdict is V.NOT_ASKED, "the outside is asked once"
    if move in (M.PROBE, M.RECORD):
        assert kind is K.PROBEABLE
    if move is M.UNDO:
        assert kind is K.COMPENSATABLE
        assert quiet
        assert open_


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
def test_a_probe_decides_unless_it_does_not_know(
    state: EffectState, verdict: Verdict, move: Move
) -> None:
    assert next_move(state, K.PROBEABLE, quiet=True, verdict=verdict) is move


@pytest.mark.parametrize("state", sorted(OPEN))
def test_what_can_be_undone_is_undone_before_it_is_done_again(state: EffectState) -> None:
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
def test_a_person_who_does_not_know_is_asked_again(verdict: Verdict, move: Move) -> None:
    assert after_answer(verdict) is move


# ── the table of states ───────────────────────────────────────────────────────────────────────────


def test_every_state_has_a_row() -> None:
    assert set(TRANSITIONS) == set(EffectState)


def test_every_state_can_be_reached() -> None:
    found, new = {S.PLANNED}, [S.PLANNED]
    while new:
        targets = TRANSITIONS[new.pop()] - found
        found |= targets
        new.extend(targets)
    assert found == set(EffectState)


@everything
def test_the_table_allows_what_every_move_leads_to(
    state: EffectState | None, kind: Kind, quiet: bool, verdict: Verdict
) -> None:
    move = next_move(state, kind, quiet=quiet, verdict=verdict)
    assert LEADS_TO[move] <= TRANSITIONS[state or S.PLANNED]


def test_nothing_happens_that_was_not_written_down_as_started_before() -> None:
    before = {state for state, targets in TRANSITIONS.items() if S.CONFIRMED in targets}
    assert before == OPEN


def test_what_happened_can_only_be_undone() -> None:
    assert TRANSITIONS[S.CONFIRMED] == {S.COMPENSATED}


def test_doubt_comes_only_from_a_start() -> None:
    before = {state for state, targets in TRANSITIONS.items() if S.IN_DOUBT in targets}
    assert before == OPEN


@pytest.mark.parametrize("state", EffectState)
def test_an_effect_is_open_settled_or_certainly_not_there(state: EffectState) -> None:
    certainly_not_there = {S.PLANNED, S.COMPENSATED}
    assert [state in OPEN, state in SETTLED, state in certainly_not_there].count(True) == 1


@pytest.mark.parametrize("state", EffectState)
def test_every_effect_can_be_settled(state: EffectState) -> None:
    assert state in SETTLED or TRANSITIONS[state] & (SETTLED | OPEN)


# ── what an effect is ─────────────────────────────────────────────────────────────────────────────


def test_what_declares_nothing_is_irreversible() -> None:
    assert kind_of(None, probe=False, undo=False) is K.IRREVERSIBLE


@pytest.mark.parametrize("undo", [False, True])
def test_asking_is_preferred_to_undoing(undo: bool) -> None:
    assert kind_of(None, probe=True, undo=undo) is K.PROBEABLE


def test_what_can_only_be_undone_is_compensatable() -> None:
    assert kind_of(None, probe=False, undo=True) is K.COMPENSATABLE


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("functions", list(product((False, True), repeat=2)))
def test_a_declared_kind_counts_more_than_its_functions(
    kind: Kind, functions: tuple[bool, bool]
) -> None:
    probe, undo = functions
    assert kind_of(str(kind), probe=probe, undo=undo) is kind


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="harmless"):
        kind_of("harmless", probe=False, undo=False)
