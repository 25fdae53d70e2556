"""A grade is the result of a trial on this host, not a promise of a version."""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


def probed(before: tuple[str, ...] = (), source: str = str(ROOT / "src")) -> dict[str, Any]:
    done = subprocess.run(
        [*before, sys.executable, "-P", "-m", "andon.supervisor.trees.grades"],
        capture_output=True,
        check=False,
        cwd="/",
        env={**os.environ, "PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"},
        text=True,
        timeout=60,
    )
    if done.returncode:
        pytest.skip(f"cannot be tried here: {done.stderr[-200:]}")
    return {one["stop"]: one for one in json.loads(done.stdout)}


def test_every_stop_has_a_grade_its_evidence_and_an_improvement() -> None:
    found = probed()
    assert list(found) == ["kill", "pause", "parent death", "network", "keys"]
    for one in found.values():
        assert one["grade"] in {"A", "B", "C", "none"}
        assert one["found"]
        assert one["grade"] == "A" or one["better"]


def test_the_grade_is_that_of_the_best_working_mechanism() -> None:
    found = probed()
    kill, tried = found["kill"], found["kill"]["tried"]
    best = next((n for n in ("cgroup", "pid1", "pidns", "walk") if tried[n] == "works"), "group")
    assert kill["by"] == best
    assert kill["grade"] == {"cgroup": "A", "pid1": "A", "pidns": "B", "walk": "C"}.get(
        best, "none"
    )
    assert found["pause"]["grade"] == ("A" if best == "cgroup" else "C")


def test_processes_beyond_a_parent_death_signal_are_named() -> None:
    found = probed()["parent death"]
    if not hasattr(ctypes.CDLL(None), "prctl"):
        pytest.skip("no parent-death signal here")
    assert found["grade"] == "C"
    assert found["tried"]["child"] == "died"
    assert found["tried"]["grandchild"] == "lived on"
    assert "lived on" in found["found"]
    assert found["tried"]["child that changed its uid later"] in (
        "lived on",
        "not tried: needs root",
    )


def test_network_and_keys_are_not_claimed() -> None:
    found = probed()
    assert {found[name]["grade"] for name in ("network", "keys")} == {"none"}
    assert all("not enforced here" in found[name]["found"] for name in ("network", "keys"))


def test_without_a_cgroup_to_write_to_the_grades_are_lower() -> None:
    # Its own mount namespace, in which the cgroups are read-only; as in a container.
    script = (
        "for at in $(awk '$3 == \"cgroup2\" {print $2}' /proc/mounts); do "
        'mount -o remount,bind,ro "$at" || exit 9; done; exec "$0" "$@"'
    )
    found = probed(("unshare", "--mount", "sh", "-c", script))
    assert found["kill"]["tried"]["cgroup"] != "works"
    assert "Read-only" in found["kill"]["tried"]["cgroup"]
    assert found["kill"]["grade"] in ("B", "C")
    assert found["pause"]["grade"] == "C"
    assert "cgroup" in found["kill"]["better"]
