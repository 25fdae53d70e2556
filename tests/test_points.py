"""Tests may kill or freeze a process at a named point; without faults, points do nothing."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from andon import points

PASS_THREE_TIMES = """
from andon.points import point
for n in (1, 2, 3):
    point("effect:started")
    point("effect:executed")
    print(n, flush=True)
"""


@contextmanager
def started(faults: str | None) -> Iterator["subprocess.Popen[str]"]:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environ.pop("ANDON_FAULTS", None)
    if faults is not None:
        environ["ANDON_FAULTS"] = faults
    with subprocess.Popen(
        [sys.executable, "-c", PASS_THREE_TIMES],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()  # a process that froze again would be waited for without end


@pytest.mark.parametrize("faults", [None, "", "step:stored=kill"])
def test_a_process_without_a_fault_passes_every_point(faults: str | None) -> None:
    with started(faults) as process:
        printed, _ = process.communicate(timeout=60)
    assert (process.returncode, printed.split()) == (0, ["1", "2", "3"])


@pytest.mark.parametrize(
    ("faults", "printed"),
    [
        ("effect:executed=kill", []),
        ("effect:executed=kill@1", []),
        ("effect:executed=kill@2", ["1"]),
        ("effect:started=kill@3", ["1", "2"]),
    ],
)
def test_a_process_is_killed_at_the_named_point_the_nth_time(
    faults: str, printed: list[str]
) -> None:
    with started(faults) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert output.split() == printed


def test_a_frozen_process_stops_at_the_point_and_continues_after_sigcont() -> None:
    with started("effect:executed=freeze@2") as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert os.WSTOPSIG(status) == signal.SIGSTOP
        process.send_signal(signal.SIGCONT)
        printed, _ = process.communicate(timeout=60)
    assert (process.returncode, printed.split()) == (0, ["1", "2", "3"])


@pytest.mark.parametrize(
    "faults",
    ["effect:executed", "effect:executed=", "effect:executed=hang", "nowhere=kill", "=kill@1",
     "effect:executed=kill@two", "effect:executed=kill@-1", "kill"],
)  # fmt: skip
def test_an_invalid_fault_ends_the_process_before_it_begins(faults: str) -> None:
    """Otherwise a crash test with a misspelt fault would pass for ever."""
    with started(faults) as process:
        printed, said = process.communicate(timeout=60)
    assert (process.returncode, printed) == (1, "")
    assert said == f"ANDON_FAULTS={faults!r}: expected POINT=kill|freeze[@COUNT]\n"


def test_no_point_is_declared_twice() -> None:
    assert len(set(points.POINTS)) == len(points.POINTS)


def test_the_declared_points_are_exactly_the_passed_ones() -> None:
    sources = Path(points.__file__).parent.rglob("*.py")
    passed = re.compile(r'\bpoint\("([^"]+)"[,)]')
    found = {name for path in sources for name in passed.findall(path.read_text("utf-8"))}
    assert found == set(points.POINTS)
