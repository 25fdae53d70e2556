"""No interleaving of two workers and one effect ends in an accident: see verify/takeover.py.

A check that cannot fail proves nothing, so each rule is also taken away, and the search has to find
the accident that the rule prevents.
"""

from functools import cache

import pytest

from andon.core.effect import OPEN, EffectKind, EffectState
from verify.takeover import (
    CHANGING,
    MOST_CLAIMS,
    Accident,
    Model,
    Search,
    always_quiet,
    confirmed_in_vain,
    last_writer,
    process_is_enough,
    repeats,
    stuck,
    twice,
)


@cache
def searched(kind: EffectKind) -> Search:
    return Search(Model(kind))


def accident(model: Model, what: Accident) -> list[str]:
    """The shortest way to an accident."""
    found = Search(model, what).accident
    assert found is not None, "the search found no accident"
    return found


def in_order(path: list[str], *labels: str) -> bool:
    """Whether these steps happen in the path, in this order."""
    left = iter(path)
    return all(label in left for label in labels)


# A pure effect changes nothing outside, so nothing about it can go wrong there.


every_kind = pytest.mark.parametrize("kind", CHANGING)


# ── the promises ──────────────────────────────────────────────────────────────────────────────────


@every_kind
def test_no_effect_happens_twice(kind: EffectKind) -> None:
    assert not [w for w in searched(kind).came_from if twice(w)]


@every_kind
def test_a_confirmed_effect_did_happen(kind: EffectKind) -> None:
    assert not [w for w in searched(kind).came_from if confirmed_in_vain(w)]


def test_an_idempotent_effect_is_called_again_and_still_happens_once() -> None:
    worlds = searched(EffectKind.IDEMPOTENT).came_from
    ended = [world for world in worlds if world.ledger.state is EffectState.CONFIRMED]
    assert {world.happened for world in ended} == {1}
    assert {world.calls for world in ended} == {1, 2}


@every_kind
def test_every_run_can_still_end(kind: EffectKind) -> None:
    search = searched(kind)
    found = stuck(search, MOST_CLAIMS)
    assert not found, search.path(found[0])


@every_kind
def test_only_an_idempotent_effect_never_asks_a_person(kind: EffectKind) -> None:
    asked = any(world.asking for world in searched(kind).came_from)
    assert asked == (kind is not EffectKind.IDEMPOTENT)


def test_the_search_reaches_every_state_of_an_open_effect() -> None:
    for kind in CHANGING:
        assert {world.ledger.state for world in searched(kind).came_from} >= OPEN


def test_an_effect_that_acts_through_a_program_happens_once_and_its_run_can_end() -> None:
    """`make verify` models the other kinds too; this one can go wrong in the most ways."""
    search = Search(Model(EffectKind.PROBEABLE, apart=True))
    assert not [w for w in search.came_from if twice(w) or confirmed_in_vain(w)]
    assert not stuck(search, MOST_CLAIMS)


# ── the accidents that happen without each rule ───────────────────────────────────────────────────


def test_a_rule_that_ignores_quiet_lets_a_frozen_worker_act_after_the_probe() -> None:
    path = accident(Model(EffectKind.PROBEABLE, rule=always_quiet), twice)
    assert in_order(
        path,
        "A claims",
        "A starts",
        "A freezes",
        "A has its lease end",
        "B claims",
        "B probes: did_not_happen",
        "B starts",
        "B acts",
    )
    assert in_order(path, "B probes: did_not_happen", "A acts")


def test_a_rule_that_ignores_quiet_lets_a_late_effect_follow_its_undo() -> None:
    path = accident(Model(EffectKind.COMPENSATABLE, rule=always_quiet), twice)
    assert in_order(path, "A starts", "A freezes", "B claims", "B undoes", "B acts")
    assert in_order(path, "B undoes", "A acts")


def test_a_rule_that_repeats_an_irreversible_effect_executes_it_twice() -> None:
    path = accident(Model(EffectKind.IRREVERSIBLE, rule=repeats), twice)
    assert in_order(path, "A acts, and sees an error", "A doubts", "A starts", "A acts")


def test_a_provider_that_ignores_keys_makes_an_idempotent_effect_happen_twice() -> None:
    model = Model(EffectKind.IDEMPOTENT, provider_knows_keys=False)
    assert in_order(accident(model, twice), "A acts, and sees an error", "A acts")


def test_the_end_of_a_worker_that_only_asked_proves_nothing_about_the_one_that_started() -> None:
    path = accident(Model(EffectKind.PROBEABLE, fold=last_writer), twice)
    assert in_order(
        path,
        "A starts",
        "A freezes",
        "A has its lease end",
        "B claims",
        "B asks",
        "B is certainly gone, and replaced",
        "B claims",
        "B probes: did_not_happen",
        "B acts",
    )
    assert in_order(path, "B probes: did_not_happen", "A acts")


def test_an_undo_that_is_not_written_first_takes_back_what_another_worker_did() -> None:
    model = Model(EffectKind.COMPENSATABLE, undo_is_written_first=False)
    path = accident(model, confirmed_in_vain)
    assert in_order(path, "A freezes", "A has its lease end", "B undoes", "B acts", "A undoes")


@pytest.mark.parametrize(
    "kind", [EffectKind.IRREVERSIBLE, EffectKind.PROBEABLE, EffectKind.COMPENSATABLE]
)
def test_a_persons_no_while_the_first_worker_may_still_act_causes_a_second_effect(
    kind: EffectKind,
) -> None:
    path = accident(Model(kind, person_makes_certain=False), twice)
    assert in_order(
        path, "A starts", "A freezes", "B asks", "a person says: did_not_happen", "A acts"
    )


def test_a_successor_that_leaves_orphans_alive_acts_beside_one() -> None:
    path = accident(Model(EffectKind.PROBEABLE, apart=True, programs_are_ended=False), twice)
    assert in_order(
        path,
        "A starts a program",
        "A dies",
        "A is certainly gone, and replaced",
        "A probes: did_not_happen",
        "the program of claim 1 acts",
    )


def test_a_process_that_is_gone_proves_nothing_about_the_processes_it_had_started() -> None:
    path = accident(Model(EffectKind.PROBEABLE, apart=True, certain=process_is_enough), twice)
    assert in_order(
        path,
        "A starts a program",
        "A is gone as seen from another host, and replaced",
        "A probes: did_not_happen",
        "the program of claim 1 acts",
    )


def test_a_program_that_is_recorded_after_its_start_is_unknown_to_another_host() -> None:
    path = accident(Model(EffectKind.PROBEABLE, apart=True, programs_are_noted_first=False), twice)
    assert in_order(path, "A starts a program", "A dies", "A probes: did_not_happen")
    assert "A notes that it has started a program" not in path


def test_a_call_that_raised_and_left_its_program_alive_acts_after_the_probe() -> None:
    path = accident(Model(EffectKind.PROBEABLE, apart=True, doubt_ends_programs=False), twice)
    assert in_order(path, "A sees an error", "A doubts", "A probes: did_not_happen")
