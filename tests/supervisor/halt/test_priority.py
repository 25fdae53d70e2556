"""A stop raises its scheduling priority, and only for as long as the stop takes."""

import os
import subprocess
import sys

import pytest

from andon.supervisor.halt.priority import raise_priority, reset_priority

NOBODY = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_stop_raises_its_own_priority_and_not_that_of_children() -> None:
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
def test_without_permission_the_priority_stays_as_it_is() -> None:
    pid = os.fork()
    if pid == 0:
        os.setresuid(NOBODY, NOBODY, NOBODY)
        raise_priority()
        os._exit(os.sched_getscheduler(0) != os.SCHED_OTHER)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become nobody")
def test_a_process_that_never_raised_its_priority_keeps_it() -> None:
    pid = os.fork()
    if pid == 0:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        reset_priority()
        os._exit(os.sched_getscheduler(0) != os.SCHED_BATCH)
    assert os.waitpid(pid, 0)[1] == 0
