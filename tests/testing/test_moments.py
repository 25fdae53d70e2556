"""Named moments: a test acts, or a process dies, exactly there."""

import asyncio
import signal
import subprocess
import sys

import pytest

import andon
from andon import points
from andon.errors import BadInput
from andon.testing import at, point

DIES = """
from andon.testing import at, freeze, kill, point
with at("after-upload", kill, nth=2):
    point("after-upload")
    print("once", flush=True)
    point("after-upload")
    print("twice", flush=True)
"""


def test_a_process_dies_the_nth_time_it_passes_a_point_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", DIES], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "once\n")


async def double(number: int) -> int:
    return number * 2


@andon.agent
async def doubles(ctx: andon.Context) -> list[int]:
    return [await ctx.step(double, number) for number in range(3)]


def test_a_test_acts_when_a_point_is_passed(andon_store: str) -> None:
    seen = []
    with at("step:stored", lambda: seen.append("second"), nth=2):
        assert asyncio.run(doubles.run()) == [0, 2, 4]
    assert seen == ["second"]
    assert points.watch is None


def test_blocks_may_be_nested_and_a_point_alone_does_nothing() -> None:
    seen = []
    point("mine")
    with at("mine", lambda: seen.append(1)), at("mine", lambda: seen.append(2)):
        point("mine")
    point("mine")
    assert sorted(seen) == [1, 2]


@pytest.mark.parametrize(("name", "nth"), [("effect:nowhere", 1), ("mine", 0)])
def test_a_moment_that_cannot_come_is_refused(name: str, nth: int) -> None:
    with pytest.raises(BadInput), at(name, lambda: None, nth=nth):
        pass
