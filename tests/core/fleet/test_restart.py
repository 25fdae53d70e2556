"""A process that ends is restarted by its policy, and given up if it keeps ending."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from andon.core.fleet.restart import Action, Mode, Next, RestartPolicy, after, backoff, recent


@pytest.mark.parametrize(
    ("mode", "failed", "expected"),
    [
        (Mode.ALWAYS, True, Next(Action.RESTART, 0.5)),
        (Mode.ALWAYS, False, Next(Action.RESTART, 0.5)),
        (Mode.ON_FAILURE, True, Next(Action.RESTART, 0.5)),
        (Mode.ON_FAILURE, False, Next(Action.END)),
        (Mode.NEVER, True, Next(Action.END)),
        (Mode.NEVER, False, Next(Action.END)),
    ],
)
def test_the_restart_mode_decides_about_the_first_exit(
    mode: Mode, failed: bool, expected: Next
) -> None:
    assert after(RestartPolicy(mode), [100.0], 100.0, failed=failed) == expected


def test_each_further_exit_doubles_the_pause_up_to_its_limit() -> None:
    policy = RestartPolicy(Mode.ALWAYS)
    found = [backoff(policy, count) for count in range(9)]
    assert found == [0.5, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


@pytest.mark.parametrize(("ends", "given_up"), [(5, False), (6, True), (60, True)])
def test_more_exits_than_the_limit_within_the_window_are_too_many(
    ends: int, given_up: bool
) -> None:
    times = [40.0 + n / 1000 for n in range(ends)]
    found = after(RestartPolicy(Mode.ON_FAILURE), times, 60.0, failed=True)
    assert (found.action is Action.GIVE_UP) == given_up


def test_exits_before_the_window_do_not_count() -> None:
    times = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 100.0]
    assert recent(times, 100.0, 60.0) == [100.0]
    assert after(RestartPolicy(Mode.ALWAYS), times, 100.0, failed=True) == Next(Action.RESTART, 0.5)


def test_without_a_limit_a_process_is_never_given_up_and_never_restarts_in_a_tight_loop() -> None:
    policy = RestartPolicy(Mode.ALWAYS, limit=None)
    assert after(policy, [1.0] * 10_000, 1.0, failed=True) == Next(Action.RESTART, 30.0)


@given(st.integers(min_value=0, max_value=10**9))
def test_a_pause_is_never_zero_and_never_unbounded(count: int) -> None:
    assert 0.5 <= backoff(RestartPolicy(Mode.ALWAYS), count) <= 30.0
