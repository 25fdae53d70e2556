"""The orchestrator's termination grace period holds the whole drain."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from andon.core.fleet.grace import fits, stop_period


@pytest.mark.parametrize(("grace", "period"), [(80, 90), (25, 35), (0.5, 11)])
def test_the_period_is_grace_and_pre_stop_and_margin(grace: float, period: int) -> None:
    assert stop_period(grace) == period


@given(st.floats(0, 1e6))
def test_the_rendered_stop_period_fits_its_own_grace(grace: float) -> None:
    assert fits(grace, stop_period(grace))


def test_a_period_without_room_for_the_exit_does_not_fit() -> None:
    assert not fits(30, 30)
    assert not fits(25, 29.9)
    assert fits(25, 30)
    assert fits(25, 0)  # not known
