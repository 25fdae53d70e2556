"""`andon drill` proves the kill switch on processes that resist, and reports the result."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.terminal import SOURCE
from tests.control.seeded_store import SeededStore
from tests.store.parts import do

from andon.cli.views import drill_view
from andon.control.doctor import coverage, drill, drill_fleet
from andon.control.doctor.drill import Round
from andon.control.doctor.drill_fleet import Member
from andon.errors import AndonError
from andon.host import home as homes
from andon.settings import Settings
from andon.store import open_store
from andon.store.messages.stops import Enlist, SupervisorRow


def andon(home: Path, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """In an empty folder with a home of its own."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("ANDON_")}
    return subprocess.run(
        [sys.executable, "-m", "andon", *words],
        capture_output=True,
        check=False,
        cwd=home.parent,
        env={**own, "PYTHONPATH": str(SOURCE), "ANDON_HOME": str(home), **env},
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=180,
    )


def drills() -> set[str]:
    return {path.name for path in Path("/tmp").glob("andon-drill-*")}


def test_a_drill_ends_every_kind_of_bad_agent_and_touches_no_other_process(tmp_path: Path) -> None:
    home, before = tmp_path / "home", drills()
    done = andon(home, "drill", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    [seen] = found["rounds"]
    assert found["passed"] is True
    assert [one["kind"] for one in seen["kinds"]] == list(drill_fleet.ORDER)
    assert all(one["processes"] == 3 and one["survivors"] == 0 for one in seen["kinds"])
    assert (seen["processes"], seen["survivors"], seen["refused"]) == (36, 0, True)
    assert seen["escaped"] >= 12
    assert set(found["times"]) == {"cli_ms", "latch_ms", "kill_ms", "gone_ms", "verified_ms"}
    assert sorted(path.name for path in home.iterdir() if path.is_file()) == ["drills.jsonl"]
    assert not (tmp_path / ".andon").exists()
    left = [name for name in drills() - before if not _in_use(name)]
    assert not left, "its folder is taken away"


def _in_use(name: str) -> bool:
    """By a drill of another test at the same time."""
    return any(name.encode() in _line(path) for path in Path("/proc").glob("[0-9]*/cmdline"))


def _line(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_drill_prints_its_timings_in_words(tmp_path: Path) -> None:
    done = andon(tmp_path / "home", "drill", "--agents", "3", "--rounds", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    for words in (
        "ignores SIGTERM",
        "first order out",
        "verified",
        "MEDIAN",
        "WORST",
        "0 survived",
    ):
        assert words in done.stdout
    assert "one more worker: refused" in done.stdout
    assert done.stdout.rstrip().endswith("passed")


def test_a_survivor_is_found_by_its_pipe_even_against_the_receipt(tmp_path: Path) -> None:
    """The independent check: a process that was not killed still holds its pipe."""
    one = Round(1)
    [member] = one.members
    os.mkfifo(member.pipe)
    member.fd = os.open(member.pipe, os.O_RDONLY | os.O_NONBLOCK)
    code = "import sys, time; open(sys.argv[1], 'w'); time.sleep(60)"
    script = (
        f"from andon.control.doctor import hostile_agents as b; b.join({member.pipe!r}); " + code
    )
    survivor = subprocess.Popen([sys.executable, "-c", script, member.pipe])
    try:
        end = time.monotonic() + 30
        while not member.received and time.monotonic() < end:
            drill_fleet.wait_for([member.fd], 0.1)
            member.listen()
        report = one._report(b'{"proved": true}', 1.0, 0)
        assert report["proved"] is True
        assert report["survivors"] == 1
        assert member.left == [survivor.pid]
        assert not drill.passed({**report, "refused": True})
    finally:
        survivor.kill()
        survivor.wait()
        one.close()


def test_an_agent_that_ends_by_itself_is_not_counted_as_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = Round(1)
    monkeypatch.setattr(one, "_child", lambda member: _short_lived(one, member))
    with pytest.raises(AndonError, match="by themselves before the halt: cooperative"):
        one.run(lambda *_: None)


def _short_lived(one: Round, member: Member) -> dict[str, Any]:
    code = f"p = open({member.pipe!r}, 'w'); [print(1, 1, file=p) for _ in range(3)]"
    return {
        "name": member.name,
        "kind": "command",
        "argv": [sys.executable, "-c", code],
        "env": dict(one._environ()),
    }


@pytest.mark.parametrize("arguments", [("--agents", "0"), ("--agents", "1000"), ("--rounds", "0")])
def test_a_drill_of_a_size_out_of_range_is_refused(
    tmp_path: Path, arguments: tuple[str, str]
) -> None:
    done = andon(tmp_path / "home", "drill", *arguments)
    assert done.returncode == 2
    assert "expected 1 to" in done.stderr


def report(**other: Any) -> dict[str, Any]:
    return {"survivors": 0, "refused": True, "proved": True, **other}


@pytest.mark.parametrize("wrong", [{"survivors": 1}, {"refused": False}, {"proved": False}])
def test_a_single_unproved_item_fails_the_drill(wrong: dict[str, Any]) -> None:
    assert drill.passed(report())
    assert not drill.passed(report(**wrong))


def test_a_round_without_a_time_has_no_median() -> None:
    names = [name for _, name, _ in drill_view._TIMES]
    good, bad = dict.fromkeys(names, 5.0), {**dict.fromkeys(names, 7.0), "gone_ms": None}
    found = drill_view.times([good, bad, good])
    assert found["cli_ms"] == {"median": 5.0, "worst": 7.0}
    assert found["gone_ms"] == {"median": None, "worst": None}


# ── in the doctor ─────────────────────────────────────────────────────────────────────────────


def remembered(home: Path, **other: Any) -> tuple[str, str, str, str]:
    one = {"agents": 8, "processes": 24, "verified_ms": 120.0, **report(), **other}
    drill.remember([one], str(home), now=1000.0)
    return coverage._drilled(str(home), now=1000.0 + other.get("later", 60.0))


def test_the_doctor_knows_when_the_last_drill_was(tmp_path: Path) -> None:
    name, status, found, advice = coverage._drilled(str(tmp_path), now=1000.0)
    assert (name, status, advice) == ("drill", "warn", "andon drill")
    assert "never" in found
    assert remembered(tmp_path)[1:] == (
        "ok",
        "60 s ago: 24 processes, 0 survived, verified in 120 ms",
        "",
    )
    assert remembered(tmp_path, later=31 * 86_400.0)[1] == "warn"
    name, status, found, advice = remembered(tmp_path, survivors=2)
    assert status == "warn"
    assert found.startswith("FAILED")
    with (tmp_path / "drills.jsonl").open("a") as file:
        file.write('{"at": "yesterday"}\n[1]\nhalf a li')
    assert coverage._drilled(str(tmp_path), now=1060.0)[2] == found, (
        "what cannot be read is nothing"
    )


def test_an_installation_without_alerts_is_warned_about() -> None:
    name, status, _, advice = coverage._alerted(Settings())
    assert (name, status) == ("alerts", "warn")
    assert "ANDON_ALERT" in advice


def test_the_doctor_grades_by_trial_and_says_what_a_halt_cannot_reach(tmp_path: Path) -> None:
    done = andon(tmp_path / "home", "doctor", "--json")
    found = json.loads(done.stdout)["checks"]
    names = {one["name"] for one in found}
    assert {"kill", "pause", "parent death", "drill", "alerts", coverage.BEYOND} <= names
    beyond = " ".join(one["found"] for one in found if one["name"] == coverage.BEYOND)
    assert "network: not enforced here" in beyond
    assert "keys: not enforced here" in beyond
    assert all(set(one) == {"name", "status", "found", "advice"} for one in found)


def test_a_worker_without_a_supervisor_is_pointed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = str(tmp_path / "home")
    homes.make(home)
    homes.register(home, homes.this_process("w1", "worker"))
    monkeypatch.setenv("ANDON_HOME", home)
    [(name, status, found, advice)] = list(coverage._alone())
    assert (name, status) == (coverage.BEYOND, "warn")
    assert f"1 worker of this host without a supervisor (pid {os.getpid()})" in found
    assert "andon up" in advice


def test_hosts_without_a_supervisor_are_named(store_url: str) -> None:
    store = open_store(store_url, create=True)
    seeded = SeededStore(store)
    owner = SupervisorRow(
        id="s1", host="far", boot="b", namespace="n", pid=1, start_ticks=1, home="/h"
    )
    do(store, Enlist(supervisor=owner, lease_seconds=60))
    seeded.worker("owned", host="far", boot="b", supervisor="s1")
    assert list(coverage.elsewhere(store)) == []
    seeded.worker("alone", host="farther", boot="c")
    seeded.worker("orphan", host="farthest", boot="d", supervisor="gone")
    [(name, status, found, _)] = list(coverage.elsewhere(store))
    store.close()
    assert (name, status) == (coverage.BEYOND, "warn")
    assert "2 other hosts with workers but no supervisor (farther, farthest)" in found
