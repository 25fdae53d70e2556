"""The life of a run is a table of transitions, and no state in it is a trap."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from andon.core.run import TERMINAL, TRANSITIONS, Event, State, advance
from andon.errors import IllegalTransition

every_state = pytest.mark.parametrize("state", State)
LEGAL = [(state, event) for state, row in TRANSITIONS.items() for event in row]
ILLEGAL = [(s, e) for s in State for e in Event if (s, e) not in set(LEGAL)]


def reachable_from(state: State) -> set[State]:
    found, new = {state}, [state]
    while new:
        for target in TRANSITIONS[new.pop()].values():
            if target not in found:
                found.add(target)
                new.append(target)
    return found


def test_every_run_state_has_a_row_in_the_table() -> None:
    assert set(TRANSITIONS) == set(State)


def test_every_event_can_happen_to_some_run() -> None:
    assert {event for _, event in LEGAL} == set(Event)


@every_state
def test_every_run_state_can_be_reached_from_the_queue(state: State) -> None:
    assert state in reachable_from(State.QUEUED)


@every_state
def test_no_run_is_trapped_without_an_end(state: State) -> None:
    assert reachable_from(state) & TERMINAL


def test_an_ended_run_stays_ended_except_that_it_may_be_undone_and_a_dead_one_redriven() -> None:
    rows = {state: TRANSITIONS[state] for state in TERMINAL}
    undo = {Event.COMPENSATE: State.QUEUED}
    assert rows == {
        State.SUCCEEDED: undo,
        State.FAILED: undo,
        State.CANCELLED: undo,
        State.DEAD: {Event.REDRIVE: State.QUEUED, Event.DROP: State.FAILED, **undo},
    }


@pytest.mark.parametrize("state", sorted(set(State) - TERMINAL))
def test_every_run_that_has_not_ended_can_be_cancelled(state: State) -> None:
    assert advance(state, Event.CANCEL) is State.CANCELLED


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING, State.SUSPENDED])
def test_every_run_that_could_move_by_itself_can_be_paused(state: State) -> None:
    assert advance(state, Event.PAUSE) is State.PAUSED


@pytest.mark.parametrize("state", [State.PAUSED, State.STRANDED, State.KILLED])
def test_a_run_that_waits_for_a_person_goes_on_only_by_a_person(state: State) -> None:
    stops = {Event.PAUSE, Event.KILL}  # from one held state to another
    assert set(TRANSITIONS[state]) - stops == {Event.RESUME, Event.CANCEL, Event.COMPENSATE}
    assert {TRANSITIONS[state].get(event, "killed") for event in stops} <= {"paused", "killed"}


@pytest.mark.parametrize("state", sorted(set(State) - TERMINAL - {State.KILLED}))
def test_every_run_that_is_not_over_can_be_killed(state: State) -> None:
    assert advance(state, Event.KILL) is State.KILLED


def test_a_run_starts_to_run_only_by_a_claim_from_the_queue() -> None:
    ways = {(s, e) for s, row in TRANSITIONS.items() for e, to in row.items() if to == "running"}
    assert ways == {(State.QUEUED, Event.CLAIM)}


@pytest.mark.parametrize("end", sorted(TERMINAL - {State.CANCELLED}))
def test_only_the_owner_of_a_run_settles_it(end: State) -> None:
    dropped = {State.DEAD} if end == State.FAILED else set()  # a person has given it up
    givers = {state for state, row in TRANSITIONS.items() if end in row.values()}
    assert givers == {State.RUNNING} | dropped


@pytest.mark.parametrize(("state", "event"), LEGAL)
def test_a_legal_event_leads_where_the_table_says(state: State, event: Event) -> None:
    assert advance(state, event) is TRANSITIONS[state][event]


@pytest.mark.parametrize(("state", "event"), ILLEGAL)
def test_an_illegal_event_is_refused_by_run_state_and_event(state: State, event: Event) -> None:
    with pytest.raises(IllegalTransition) as refused:
        advance(state, event, run_id="r-17")
    assert str(refused.value) == f"run r-17: cannot {event} while {state}"
    assert (refused.value.run_id, refused.value.state, refused.value.event) == (
        "r-17",
        state,
        event,
    )


@given(st.lists(st.sampled_from(Event), max_size=40))
def test_refused_events_change_nothing(events: list[Event]) -> None:
    state, legal_only = State.QUEUED, [State.QUEUED]
    for event in events:
        try:
            state = advance(state, event)
        except IllegalTransition:
            assert event not in TRANSITIONS[state]
        else:
            legal_only.append(state)
        assert state is legal_only[-1]
