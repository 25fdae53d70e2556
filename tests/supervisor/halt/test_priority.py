"""Whoever stops others goes before them, and only for as long as that takes."""

import os
import subprocess
import sys

import pytest

from andon.supervisor.halt.priority import raise_priority, reset_priority

NOBODY = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_it_goes_first_and_what_it_starts_does_not() -> None:
    before = os.sched_getscheduler(0)
    raise_priority()
    try:
        assert os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_RR
        code = "import os; print(os.sched_getscheduler(0))"
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
        assert int(said) == os.SCHED_OTHER
    finally:
        reset_priority()
    assert os.sched_getscheduler(0) == before == os.SCHED_OTHER


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become nobody")
def test_who_may_not_goes_on_as_it_is() -> None:
    pid = os.fork()
    if pid == 0:
        os.setresuid(NOBODY, NOBODY, NOBODY)
        raise_priority()
        os._exit(os.sched_getscheduler(0) != os.SCHED_OTHER)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become nobody")
def test_who_never_went_ahead_stays_as_it_was_started() -> None:
    pid = os.fork()
    if pid == 0:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        reset_priority()
        os._exit(os.sched_getscheduler(0) != os.SCHED_BATCH)
    assert os.waitpid(pid, 0)[1] == 0
