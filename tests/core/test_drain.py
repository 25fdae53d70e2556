"""A drain divides the worker's grace period into phases and never exceeds it."""

from hypothesis import given
from hypothesis import strategies as st

from andon.core.drain import OVERRUN, Phase, plan

graces = st.floats(min_value=0.001, max_value=100_000)


@given(graces)
def test_the_phases_follow_each_other_and_end_with_the_grace_period(grace: float) -> None:
    found = plan(grace)
    ends = [found.ends[phase] for phase in Phase]
    assert ends == sorted(ends)
    assert abs(ends[-1] - grace) < 1e-6 * grace
    assert all(share > 0 for share in found.share.values())


@given(graces)
def test_the_steps_in_hand_get_at_least_half_of_the_grace_period(grace: float) -> None:
    assert plan(grace).share[Phase.BOUNDARY] >= grace / 2 - 1e-9


@given(graces)
def test_the_drain_is_announced_within_50_ms(grace: float) -> None:
    assert plan(grace).ends[Phase.ANNOUNCE] <= 0.05


def test_a_usual_grace_period_leaves_most_of_it_to_the_steps() -> None:
    found = plan(25.0)
    assert found.grace_seconds == 25.0
    assert round(found.share[Phase.BOUNDARY], 2) == 16.45
    assert found.share[Phase.CLEANUP] == 5.0


def test_every_phase_says_what_its_overrun_leads_to() -> None:
    assert set(OVERRUN) == set(Phase)
