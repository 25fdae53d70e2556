"""A process is stalled when it is silent or stands still, and only if the watcher was there."""

import pytest

from andon.core.fleet.watchdog import Stall, Watched, excused, heard, stall


def seen(watched: Watched, now: float) -> Stall | None:
    return stall(watched, now, limit=10.0, start_limit=60.0)


def test_a_process_that_reports_and_makes_progress_is_alive() -> None:
    watched = Watched(since=0.0)
    for tick in range(100):
        watched = heard(watched, tick, tick * 0.25)
        assert seen(watched, tick * 0.25) is None


def test_a_silent_process_is_stalled_after_the_limit() -> None:
    watched = heard(Watched(since=0.0), 7, 5.0)
    assert seen(watched, 15.0) is None
    assert seen(watched, 15.5) == Stall("is silent", 10.5)


def test_a_process_that_reports_while_its_loop_is_blocked_is_stalled() -> None:
    watched = heard(Watched(since=0.0), 7, 5.0)
    for now in (6.0, 9.0, 12.0, 15.0, 16.0):
        watched = heard(watched, 7, now)
    assert seen(watched, 15.0) is None
    assert seen(watched, 16.0) == Stall("its event loop stands still", 11.0)


def test_a_loop_that_waits_for_others_may_be_blocked_longer_than_a_process_may_be_silent() -> None:
    watched = heard(heard(Watched(since=0.0), 7, 5.0), 7, 16.0)
    limits = {"limit": 10.0, "start_limit": 60.0, "still_limit": 30.0}
    assert stall(watched, 16.0, **limits) is None
    assert stall(watched, 27.0, **limits) == Stall("is silent", 11.0)
    assert stall(heard(watched, 7, 36.0), 36.0, **limits) is not None


def test_a_loop_whose_counter_restarted_counts_as_moving() -> None:
    watched = heard(heard(Watched(since=0.0), 900, 1.0), 1, 20.0)
    assert seen(watched, 21.0) is None


@pytest.mark.parametrize(("now", "stalled"), [(59.0, False), (61.0, True)])
def test_a_process_that_never_reported_gets_a_longer_limit(now: float, stalled: bool) -> None:
    assert (seen(Watched(since=0.0), now) is not None) == stalled


def test_a_watcher_that_was_away_concludes_nothing_from_silence() -> None:
    never = Watched(since=0.0)
    alive = heard(never, 1, 1.0)
    assert seen(alive, 101.0) is not None
    assert seen(excused(alive, 95.0), 101.0) is None
    assert seen(never, 101.0) is not None
    assert seen(excused(never, 95.0), 101.0) is None
