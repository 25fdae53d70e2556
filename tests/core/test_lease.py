"""The holder of a lease stops early, never late."""

from hypothesis import given
from hypothesis import strategies as st

from andon.core.lease import Fence, may_expire_others, renew_every, trusted_until

times = st.floats(min_value=0, max_value=4e9)
leases = st.floats(min_value=0.01, max_value=86_400)
counts = st.integers(min_value=0, max_value=2**63 - 1)


@given(times, leases, st.floats(min_value=0, max_value=3600))
def test_the_holder_stops_trusting_its_lease_before_it_ends(
    asked_at: float, lease: float, travel: float
) -> None:
    granted_at = asked_at + travel  # the store counts from when the request reached it
    assert asked_at < trusted_until(asked_at, lease) < granted_at + lease


@given(times, leases)
def test_a_clock_that_runs_a_tenth_slow_is_tolerated(asked_at: float, lease: float) -> None:
    believed = trusted_until(0, lease)
    assert believed * 1.1 < lease
    assert trusted_until(asked_at, lease) <= asked_at + lease * 0.81


@given(times, leases)
def test_two_lost_heartbeats_do_not_end_the_trust(asked_at: float, lease: float) -> None:
    third = 3 * renew_every(lease)
    assert third < trusted_until(0, lease) < third + renew_every(lease)


@given(counts, counts, counts, counts)
def test_the_epoch_outweighs_every_counter(e1: int, c1: int, e2: int, c2: int) -> None:
    older, newer = Fence(e1, c1), Fence(e2, c2)
    assert (older < newer) == (e1 < e2 or (e1 == e2 and c1 < c2))


def test_a_fence_is_shown_with_its_epoch() -> None:
    assert str(Fence(3, 41)) == "3.41"


@given(times, leases, leases)
def test_a_worker_that_was_away_waits_one_lease_before_it_expires_others(
    back_at: float, lease: float, later: float
) -> None:
    now = back_at + later
    assert may_expire_others(back_at, now, lease) == (now - back_at >= lease)
    assert not may_expire_others(back_at, back_at, lease)


def test_after_exactly_one_lease_a_worker_may_expire_others() -> None:
    assert not may_expire_others(100.0, 109.9, 10.0)
    assert may_expire_others(100.0, 110.0, 10.0)
