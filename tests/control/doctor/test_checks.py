"""`andon doctor` names each problem and its remedy, and changes nothing."""

import os
import signal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.cli.terminal import Terminal, until
from tests.control.seeded_store import SeededStore
from tests.store.parts import do

from andon.control.doctor import checks, coverage, grace
from andon.settings import Settings
from andon.store import open_store
from andon.store.messages.rows import StepTime


def by_name(found: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The checks by name; of several with one name the worst."""
    order = ["ok", "warn", "fail"]
    return {
        one["name"]: one
        for one in sorted(found["checks"], key=lambda one: order.index(one["status"]))
    }


def test_a_healthy_installation_is_all_ok(andon: Terminal) -> None:
    with andon.worker():
        found = andon.json("doctor")
        text = andon("doctor")
    assert found["ok"] is True
    # The grade of a halt depends on the host, not on the store and the runs.
    switch = {"kill", "pause", "parent death", "drill", "alerts", coverage.BEYOND}
    rest = [one for one in found["checks"] if one["name"] not in switch]
    assert {one["status"] for one in rest} == {"ok"}
    assert {"pidfd", "database", "write", "clock", "workers", "runs"} <= set(by_name(found))
    assert text.count("\nok    ") >= len(rest)


def test_each_database_gets_the_checks_that_concern_it(local: Terminal, postgres_url: str) -> None:
    with local.worker():
        assert {"sqlite", "file system", "folder", "disk", "lock files"} <= set(
            by_name(local.json("doctor"))
        )
    found = by_name(local.json("doctor", "--store", postgres_url))
    assert {"postgresql", "pooler", "fsync", "synchronous_commit"} <= set(found)


def test_a_missing_store_is_no_failure_and_none_is_created(local: Terminal) -> None:
    found = local.json("doctor")
    assert found["ok"] is True
    assert by_name(found)["database"]["status"] == "warn"
    assert "andon work" in by_name(found)["database"]["advice"]
    assert sorted(path.name for path in local.folder.iterdir()) == ["agents.py"]


def test_runs_that_need_a_person_are_named(andon: Terminal) -> None:
    with andon.worker() as worker:
        andon.start("refunds", "orders=[5]", "--id", "r-1")
        until(lambda: andon.state("r-1") == "suspended", "the ask")
        worker.signal(signal.SIGKILL)
        worker.ends()
    andon.start("greet", "--id", "q-1")
    until(lambda: andon.state("q-1") == "stranded", "the allowance for a restart")
    before = andon.json("show", "r-1"), andon.json("show", "q-1")
    found = by_name(andon.json("doctor"))
    assert found["workers"]["status"] == "warn"
    assert "q-1: no running worker serves greet (version 1)" in found["stranded runs"]["found"]
    assert found["runs"]["found"] == "1 stranded, 1 suspended"
    assert found["asks"]["advice"] == "andon show r-1"
    if andon.url.startswith("sqlite"):
        assert "1 left by dead ones" in found["lock files"]["found"]
        assert by_name(andon.json("doctor"))["lock files"] == found["lock files"]
    assert (andon.json("show", "r-1"), andon.json("show", "q-1")) == before


def test_a_file_that_is_not_a_database_fails_the_check(local: Terminal) -> None:
    path = Path(local.url.removeprefix("sqlite:///"))
    path.write_bytes(b"this is no database" * 1000)
    done = local.run("doctor", code=1)
    assert "FAIL  database" in done.stdout
    assert "not an SQLite database" in done.stdout


@pytest.mark.parametrize("path", ["/proc/nowhere/andon.db", "/dev/null/andon.db"])
def test_a_folder_that_cannot_be_written_to_fails(local: Terminal, path: str) -> None:
    done = local.run("doctor", "--store", f"sqlite:///{path}", code=1)
    assert "FAIL  folder" in done.stdout
    assert done.stderr == ""
    assert "Traceback" not in local.error("start", "greet", "--store", f"sqlite:///{path}", code=1)


def test_a_server_that_is_away_fails_without_its_password(local: Terminal) -> None:
    url = "postgresql://ann:secret@127.0.0.1:9/db"
    done = local.run("doctor", "--store", url, code=1)
    assert "FAIL  database" in done.stdout
    assert "secret" not in done.stdout + done.stderr


def test_a_server_that_may_lose_commits_fails(postgres_url: str, local: Terminal) -> None:
    name = postgres_url.rpartition("/")[2]
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
    done = local.run("doctor", "--store", postgres_url, code=1)
    assert "FAIL  synchronous_commit" in done.stdout
    assert "ALTER" in done.stdout


@pytest.mark.parametrize("error", [AttributeError("pidfd_open"), PermissionError("no")])
def test_a_machine_without_pidfd_is_warned_about(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(_: int) -> int:
        raise error

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert checks._pidfd().status == "warn"


# ── leaving in time ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("own", "orchestrator", "status", "words"),
    [
        (25, 0, "ok", "not known (set ANDON_ORCHESTRATOR_GRACE_SECONDS)"),
        (25, 30, "ok", "of the orchestrator's 30 s"),
        (25, 27, "warn", "leaves 2 s to exit"),
        (25, 25, "fail", "kills after 25 s"),
        (80, 30, "fail", "kills after 30 s"),
    ],
)
def test_the_grace_period_fits_into_the_orchestrators(
    own: float, orchestrator: float, status: str, words: str
) -> None:
    settings = Settings(grace_seconds=own, orchestrator_grace_seconds=orchestrator)
    found, text, advice = grace.judge_orchestrator(settings)
    assert found == status
    assert words in text
    if status != "ok":
        enough = f"terminationGracePeriodSeconds: {30 if own == 25 else 90}"
        assert enough in advice
        fits = float(advice.rpartition("ANDON_GRACE_SECONDS=")[2])
        again = Settings(grace_seconds=fits, orchestrator_grace_seconds=orchestrator)
        assert grace.judge_orchestrator(again)[0] == "ok", "its own advice is good"


def test_even_the_shortest_limit_gets_advice() -> None:
    settings = Settings(grace_seconds=25, orchestrator_grace_seconds=2)
    assert "ANDON_GRACE_SECONDS=1" in grace.judge_orchestrator(settings)[2]


def test_steps_that_would_be_cut_are_counted() -> None:
    def took(name: str, count: int, longer: int, longest: float) -> StepTime:
        return StepTime(agent="bot", name=name, count=count, longer=longer, longest_seconds=longest)

    status, found, advice = grace.judge_steps(
        Settings(), [took("plan", 30, 3, 61.0), took("say", 70, 0, 1.0)]
    )
    assert status == "warn"
    assert "the longest took 61 s in the last 7 days (bot plan)" in found
    assert "each has 16 s of grace_seconds 25: 3 % of 100 steps could be cut" in found
    assert "ANDON_GRACE_SECONDS=80 and terminationGracePeriodSeconds: 90" in advice
    enough = Settings(grace_seconds=80)
    assert grace.judge_steps(enough, [took("plan", 30, 0, 61.0)])[0] == "ok"
    assert "none in the last 7 days" in grace.judge_steps(Settings(), [])[1]
    few = grace.judge_steps(Settings(), [took("plan", 10_000, 2, 61.0)])
    assert "2 of 10,000 steps" in few[1]


@pytest.mark.parametrize(
    ("pid", "above", "status"),
    [
        (1, [], "ok"),
        (7, [["sh", "-c", "andon work a.py"]], "warn"),
        (7, [["/bin/bash", "/entrypoint.sh"]], "warn"),
        (7, [["/bin/sh", "-c", "andon work"], ["/sbin/tini", "--", "sh"]], "warn"),
        (7, [["/sbin/tini", "--", "andon"]], "ok"),
        (7, [["-bash"], ["sshd"], ["/sbin/init"]], "ok"),  # a terminal signals its whole group
        (7, [["/bin/sh", "-c", "andon work"], ["/lib/systemd/systemd"]], "ok"),  # the whole cgroup
        (7, [[], ["/sbin/init"]], "ok"),
    ],
)
def test_a_shell_that_keeps_the_signal_is_found(
    pid: int, above: list[list[str]], status: str
) -> None:
    found, text, advice = grace.judge_signals(pid, [["andon", "work"], *above])
    assert found == status
    assert ("exec andon work" in advice) == (status == "warn")
    assert text


def test_the_ancestor_processes_are_read_up_to_pid_1() -> None:
    lines = grace.lines_above(os.getpid())
    assert any("python" in word or "pytest" in word for word in lines[0])
    assert len(lines) > 1
    assert grace.lines_above(2**22 + 1) == []


def test_a_stop_file_is_pointed_out(local: Terminal) -> None:
    (local.folder / ".stop").touch()
    found = by_name(local.json("doctor"))["stop file"]
    assert found["status"] == "warn"
    assert "rm .stop" in found["advice"]


def test_the_orchestrators_limit_is_compared(local: Terminal) -> None:
    done = local.run("doctor", code=1, env={"ANDON_ORCHESTRATOR_GRACE_SECONDS": "10"})
    assert "FAIL  grace" in done.stdout
    assert "terminationGracePeriodSeconds: 30" in done.stdout


def test_a_slow_step_and_a_late_drain_are_warned_about(andon: Terminal) -> None:
    store = open_store(andon.url)
    seeded = SeededStore(store)
    seeded.worker("late")
    seeded.start("r")
    [held] = seeded.take("late", "r")
    now = store.now()
    do(store, held.append(of={"name": "think", "since": now - 61, "at": now}))
    seeded.drain("late", ago=60.0)
    store.close()
    found = by_name(andon.json("doctor"))
    assert "(agent think)" in found["steps"]["found"]
    assert "100 % of 1 steps could be cut" in found["steps"]["found"]
    assert found["drain"]["status"] == "warn"
    assert "late has overrun its grace period, 1 in hand: run r" in found["drain"]["found"]
