"""A supervisor sees, freezes and ends every process of a tree, whatever its shape."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
MECHANISMS = ("cgroup", "cgroup+uid", "uid", "pidns", "walk")
SHAPES = ("flat", "chain", "escape", "headless", "storm")
WORKS = ("busy", "memory")
# Relay and init.
EXTRA = {"pidns": 2}


def command(*arguments: str, before: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    return subprocess.run(
        [*before, sys.executable, "-m", "tests.supervisor.scratch_tree", *arguments],
        capture_output=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        text=True,
        timeout=60,
    )


def scratch(*arguments: str, before: tuple[str, ...] = ()) -> dict[str, Any]:
    """The observations of a scratch supervisor."""
    done = command(*arguments, before=before)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    assert not answer.pop("left_behind"), "its cgroups are still alive"
    return answer


@cache
def why_not(mechanism: str) -> str:
    """By trial, not guessed from the name of the system."""
    done = command("kill", mechanism, "flat")
    return "" if done.returncode == 0 else done.stderr.strip()[-200:]


def need(mechanism: str) -> None:
    reason = why_not(mechanism)
    if reason:
        pytest.skip(f"{mechanism} does not work here: {reason}")


every_mechanism = pytest.mark.parametrize("mechanism", MECHANISMS)


@pytest.mark.parametrize("shape", SHAPES)
@every_mechanism
def test_a_tree_of_any_shape_is_killed(mechanism: str, shape: str) -> None:
    need(mechanism)
    seen = scratch("kill", mechanism, shape)
    assert seen["gone"], "a process still holds the pipe"
    assert (seen["survivors"], seen["empty"], seen["pids"]) == ([], True, [])
    if shape != "storm":
        assert seen["seen"] == 12 + EXTRA.get(mechanism, 0)
        assert mechanism in EXTRA or seen["missed"] == []


@every_mechanism
def test_a_tree_that_replaces_itself_is_gone_when_the_kill_says_so(mechanism: str) -> None:
    need(mechanism)
    seen = scratch("halt", mechanism, "storm")
    # A supervisor that has to search is not always quicker than the tree; it then names survivors.
    assert seen["survivors"] == [] or mechanism == "walk"
    assert seen["gone"] or seen["survivors"]


@pytest.mark.parametrize("work", WORKS)
@every_mechanism
def test_a_tree_at_work_is_killed(mechanism: str, work: str) -> None:
    need(mechanism)
    seen = scratch("kill", mechanism, "escape", work)
    assert (seen["gone"], seen["survivors"]) == (True, [])


@pytest.mark.parametrize("shape", ["chain", "escape", "headless"])
@every_mechanism
def test_a_frozen_tree_stands_still_runs_when_thawed_and_dies_when_killed(
    mechanism: str, shape: str
) -> None:
    need(mechanism)
    seen = scratch("freeze", mechanism, shape)
    assert seen["seen"] == [True] * 5, "moved, froze, stood still, thawed, moved"
    assert seen["killed_frozen"]


@pytest.mark.parametrize("mechanism", ["cgroup", "pidns", "walk"])
def test_killing_one_tree_leaves_another_of_the_same_name_alone(mechanism: str) -> None:
    need(mechanism)
    assert scratch("kill_one", mechanism, "escape") == {"gone": True, "other_moves": True}


@pytest.mark.parametrize("mechanism", ["cgroup", "cgroup+uid", "walk"])
def test_the_fleet_is_killed_and_exempt_processes_are_spared(mechanism: str) -> None:
    need(mechanism)
    assert scratch("kill_all", mechanism, "escape") == {"gone": [True] * 3, "spared": 2}


def test_a_process_that_leaves_its_cgroup_and_its_parents_is_killed_too() -> None:
    need("cgroup")
    if os.geteuid():
        pytest.skip("only root can leave")
    seen = scratch("left", "cgroup", "-")
    assert (seen["survivors"], seen["gone"], seen["empty"]) == ([], True, True)


def test_a_process_without_its_mark_still_belongs_to_its_own_tree() -> None:
    need("cgroup")
    seen = scratch("stray", "cgroup", "-")
    assert seen == {"of_first": [], "of_second": 12, "moves": True, "gone": True}


def test_a_kill_of_a_tree_includes_the_trees_inside_it() -> None:
    need("cgroup")
    seen = scratch("nested", "cgroup", "escape")
    assert seen == {"seen": 24, "survivors": [], "gone": [True, True]}


@pytest.mark.parametrize(
    ("mechanism", "action"), [("cgroup", "orphaned"), ("cgroup", "forgotten"), ("walk", "orphaned")]
)
def test_a_tree_that_outlives_its_supervisor_is_found_and_killed(
    mechanism: str, action: str
) -> None:
    need(mechanism)
    seen = scratch(action, mechanism, "escape")
    assert seen["before"] == 12
    assert seen["root_died"], "the parent-death signal"
    assert seen["left"] == 11, "it reaches no grandchild: that is grade C"
    assert (seen["survivors"], seen["alive"]) == ([], [])


def test_the_cgroups_of_a_killed_supervisor_are_removed_by_the_next_one() -> None:
    need("cgroup")
    seen = scratch("abandoned", "cgroup", "-")
    assert seen == {"left": True, "swept": True, "own_is_there": True}


@pytest.mark.parametrize("mechanism", ["pidns", "walk"])
def test_a_tree_has_the_exit_status_of_its_command(mechanism: str) -> None:
    need(mechanism)
    assert scratch("ends", mechanism, "-") == {"found": [0, 137, -9, -6]}


def test_nothing_in_a_pid_namespace_outlives_its_supervisor() -> None:
    need("pidns")
    seen = scratch("orphaned", "pidns", "escape")
    assert seen["before"] == 14
    assert (seen["root_died"], seen["survivors"], seen["alive"]) == (True, [], [])


@pytest.mark.parametrize("mechanism", ["cgroup+uid", "uid"])
def test_a_child_under_its_own_uid_can_do_nothing_to_its_supervisor(mechanism: str) -> None:
    need(mechanism)
    seen = scratch("free", mechanism, "-")
    assert (seen["own"], seen["groups"]) == (True, [])
    no = "PermissionError"
    assert (seen["signal"], seen["root"], seen["leave"], seen["memory"]) == (no, no, no, no)


def test_pid_1_kills_everything_below_it_except_exempt_processes() -> None:
    before = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    try:
        done = command("kill_all", "pid1", "escape", before=before)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    if done.returncode:
        pytest.skip(f"no pid namespace here: {done.stderr[-200:]}")
    seen = json.loads(done.stdout)
    assert (seen["gone"], seen["spared"]) == ([True] * 3, 1)
