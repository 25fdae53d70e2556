"""A worker is not live only if a restart would help, and ready only if it takes work."""

from typing import Any

import pytest

from andon.core.fleet.health import Vitals, begun, live, ready

LIMIT = 30.0
WELL = Vitals(started=True, draining=False, loop_silent=0.0, contact_age=1.0, store_up_for=100.0)


def test_a_working_worker_is_live_and_ready() -> None:
    assert live(WELL, LIMIT).status == "live"
    assert ready(WELL, LIMIT).status == "ready"
    assert live(WELL, LIMIT).ok
    assert ready(WELL, LIMIT).ok


def test_a_worker_whose_event_loop_does_not_answer_is_not_live() -> None:
    stuck = WELL._replace(loop_silent=31.0)
    assert not live(stuck, LIMIT).ok
    assert not ready(stuck, LIMIT).ok
    assert live(stuck, LIMIT).why == "its event loop has not answered for 31 s"
    assert live(WELL._replace(loop_silent=29.0), LIMIT).ok


def test_a_worker_that_cannot_reach_an_available_store_is_not_live() -> None:
    cut_off = WELL._replace(contact_age=31.0)
    assert not live(cut_off, LIMIT).ok
    assert not ready(cut_off, LIMIT).ok
    assert "the store answers" in live(cut_off, LIMIT).why


def test_an_unavailable_database_makes_no_worker_restart() -> None:
    outage = WELL._replace(contact_age=3600.0, store_up_for=None)
    assert live(outage, LIMIT).ok
    assert "away" in live(outage, LIMIT).why
    assert ready(outage, LIMIT) == (False, "store away", "the store does not answer")


def test_a_worker_has_time_to_reconnect_once_the_store_is_back() -> None:
    back = WELL._replace(contact_age=3600.0, store_up_for=1.0)
    assert live(back, LIMIT).ok
    assert not live(back._replace(store_up_for=31.0), LIMIT).ok


@pytest.mark.parametrize(
    "also", [{}, {"loop_silent": 99.0}, {"contact_age": 99.0}, {"store_up_for": None}]
)
def test_a_leaving_worker_is_not_ready_and_stays_live(also: dict[str, Any]) -> None:
    leaving = WELL._replace(draining=True, **also)
    assert live(leaving, LIMIT) == (True, "draining", "")
    assert ready(leaving, LIMIT).status == "draining"
    assert not ready(leaving, LIMIT).ok
    assert begun(leaving).ok


def test_a_starting_worker_is_live_and_not_ready() -> None:
    early = WELL._replace(started=False, contact_age=99.0)
    assert live(early, LIMIT).ok
    assert ready(early, LIMIT).status == "starting"
    assert not begun(early).ok
    assert begun(WELL).ok
    assert not live(early._replace(loop_silent=31.0), LIMIT).ok
