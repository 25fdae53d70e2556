"""`andon doctor` says what is wrong and what to do, and changes nothing."""

import os
import signal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.control.terminal import Terminal, until

from andon.control import doctor as checks


def by_name(found: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The checks by name; of several of one name the worst."""
    order = ["ok", "warn", "fail"]
    return {
        one["name"]: one
        for one in sorted(found["checks"], key=lambda one: order.index(one["status"]))
    }


def test_a_healthy_place_is_all_ok(andon: Terminal) -> None:
    with andon.worker():
        found = andon.json("doctor")
        text = andon("doctor")
    assert found["ok"] is True
    assert {one["status"] for one in found["checks"]} == {"ok"}
    assert {"pidfd", "database", "write", "clock", "workers", "runs"} <= set(by_name(found))
    assert text.count("\nok    ") == len(found["checks"])


def test_each_database_is_asked_what_matters_for_it(local: Terminal, postgres_url: str) -> None:
    with local.worker():
        assert {"sqlite", "file system", "folder", "disk", "lock files"} <= set(
            by_name(local.json("doctor"))
        )
    found = by_name(local.json("doctor", "--store", postgres_url))
    assert {"postgresql", "pooler", "fsync", "synchronous_commit"} <= set(found)


def test_no_store_yet_is_no_failure_and_none_is_made(local: Terminal) -> None:
    found = local.json("doctor")
    assert found["ok"] is True
    assert by_name(found)["database"]["status"] == "warn"
    assert "andon work" in by_name(found)["database"]["advice"]
    assert sorted(path.name for path in local.folder.iterdir()) == ["agents.py"]


def test_runs_that_need_somebody_are_named(andon: Terminal) -> None:
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
    assert "q-1: no live worker carries greet 1" in found["stranded runs"]["found"]
    assert found["runs"]["found"] == "1 stranded, 1 suspended"
    assert found["asks"]["advice"] == "andon show r-1"
    if andon.url.startswith("sqlite"):
        assert "1 left by dead ones" in found["lock files"]["found"]
        assert by_name(andon.json("doctor"))["lock files"] == found["lock files"]
    assert (andon.json("show", "r-1"), andon.json("show", "q-1")) == before


def test_a_database_that_is_none_fails(local: Terminal) -> None:
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
