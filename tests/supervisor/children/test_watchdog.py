"""A worker that is silent or frozen is noticed from outside, recorded and ended."""

import os
import signal
import time
from pathlib import Path

import pytest
from tests.supervisor.harness import Supervised, until

SHORT = {"watchdog_seconds": 0.5, "start_seconds": 1.0, "restart_seconds": 1.0}


def test_a_worker_that_shows_signs_of_life_is_left_alone(supervised: Supervised) -> None:
    own = supervised
    own.start(own.with_control(), own.child("one", "pings"), settings={"watchdog_seconds": 2.0})
    own.is_ready("one")
    began = time.monotonic()
    until(lambda: time.monotonic() - began > 2.5, "longer than the limit")
    found = own.state("one")
    assert (found["state"], found["starts"]) == ("running", 1)
    assert found["ping"]["tick"] > 5
    assert own.events("stalled") == []


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ("spins", "its event loop stands still"),
        ("mute", "has not begun to answer"),
        ("floods", "has not begun to answer"),
    ],
)
def test_a_worker_with_a_stuck_event_loop_is_ended_and_restarted(
    supervised: Supervised, shape: str, why: str
) -> None:
    own = supervised
    own.start(own.with_control(), own.child("one", shape), settings=SHORT)
    told = own.event("stalled", child="one")
    assert told["why"] == why
    assert told["seconds"] > 0.4
    assert f"/proc/{told['pid']}/status" in Path(told["evidence"]).read_text()
    assert own.event("exited", child="one", pid=told["pid"])["by"] == "stall"
    own.is_ready("one", count=2)


def test_a_stopped_worker_is_ended(supervised: Supervised) -> None:
    own = supervised
    own.start(own.with_control(), own.child("one", "pings"), settings=SHORT)
    until(lambda: own.state("one")["ping"], "a sign of life")
    pid = own.state("one")["pid"]
    os.kill(pid, signal.SIGSTOP)
    told = own.event("stalled", child="one")
    assert (told["pid"], told["why"]) == (pid, "is silent")
    assert own.event("exited", pid=pid)["signal"] == signal.SIGKILL
    own.is_ready("one", count=2)


@pytest.mark.parametrize("py_spy", ["not installed", "not permitted"])
def test_the_stack_of_a_python_worker_is_evidence(
    supervised: Supervised, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, py_spy: str
) -> None:
    """By its own faulthandler, where py-spy is of no use."""
    own = supervised
    if py_spy == "not permitted":
        (tmp_path / "py-spy").write_text("#!/bin/sh\necho Permission denied\nexit 1\n")
        (tmp_path / "py-spy").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    env = {"PYTHONFAULTHANDLER": "1"}
    child = own.child("one", "spins", env=env)
    child["argv"].remove("-E")
    own.start(own.with_control(), child, settings=SHORT)
    told = own.event("stalled", child="one")
    assert 'shapes.py", line' in Path(told["evidence"]).read_text()
    assert own.event("exited", pid=told["pid"])["signal"] == signal.SIGABRT


def test_a_worker_frozen_by_order_is_not_stalled(supervised: Supervised) -> None:
    own = supervised
    own.start(own.with_control(), own.child("one", "pings"), settings={"watchdog_seconds": 1.5})
    own.is_ready("one")
    own.order(do="freeze", child="one")
    own.event("frozen")
    began = time.monotonic()
    until(lambda: time.monotonic() - began > 2.0, "longer than the limit")
    own.is_in("one", "frozen")
    own.order(do="thaw", child="one")
    own.event("thawed")
    assert own.is_in("one", "running")["starts"] == 1
    assert own.events("stalled") == []


def test_a_worker_that_keeps_stalling_is_given_up(supervised: Supervised) -> None:
    own = supervised.start(
        supervised.child("one", "mute"),
        settings={**SHORT, "start_seconds": 0.2, "restart_limit": 1, "restart_seconds": 600},
    )
    assert own.wait() == 1
    own.says("gave up: ended 2 times")


def test_a_stall_may_be_recorded_without_a_kill(supervised: Supervised) -> None:
    own = supervised
    settings = {**SHORT, "on_stall": "show"}
    own.start(own.with_control(), own.child("one", "pings"), settings=settings)
    until(lambda: own.state("one")["ping"], "a sign of life")
    pid = own.state("one")["pid"]
    os.kill(pid, signal.SIGSTOP)
    told = own.event("stalled", child="one")
    assert Path(told["evidence"]).read_text().startswith(f"one (pid {pid}) is silent")
    os.kill(pid, signal.SIGCONT)
    tick = own.state("one")["ping"]["tick"]
    until(lambda: own.state("one")["ping"]["tick"] > tick, "it goes on")
    assert own.state("one")["starts"] == 1
    assert len(own.events("stalled")) == 1
