"""The simulated fleet: thousands of stories, each of them deterministic."""

import os
import subprocess
import sys
from pathlib import Path

from verify import simulation
from verify.layer import Effort

ROOT = Path(__file__).parent.parent.parent


def test_five_thousand_stories_break_no_law() -> None:
    found = simulation.check(Effort("ci", 0.1), print)
    assert not found.violations
    assert not found.guards  # every kind of fault struck
    assert found.runs >= 5_000
    assert found.faults > 5 * found.runs


def told_elsewhere(seed: int, hash_seed: str) -> str:
    """The story of a seed, in a process whose sets and dicts have another order."""
    command = [sys.executable, str(ROOT / "verify" / "verify.py"), "--only", "simulation"]
    done = subprocess.run(
        [*command, "--seed", str(seed)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""  # a dead process leaves no coroutine that is never awaited
    return done.stdout.partition("green:")[0]


def test_a_seed_gives_the_same_story_everywhere() -> None:
    one, other = told_elsewhere(4, "1"), told_elsewhere(4, "2")
    assert one == other
    assert "a person starts r0" in one


def test_the_first_story_of_a_process_runs_like_the_later_ones() -> None:
    """Imports on the way pass points too."""
    twice = "from verify.simulation import story; print(story(3897)[0] == story(3897)[0])"
    done = subprocess.run(
        [sys.executable, "-c", twice], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n"
