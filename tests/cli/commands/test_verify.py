"""`andon verify` finds every change made behind andon's back."""

import json
import shutil
import sqlite3
import sys
from pathlib import Path

import pytest
from tests.cli.terminal import Terminal

LARGE = "x" * 100_000
RUNS = {"paid", "large", "long"}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with runs that have steps, effects, a large value and a snapshot in parts."""
    folder = tmp_path_factory.mktemp("written")
    terminal = Terminal(folder, f"sqlite:///{folder}/andon.db")
    with terminal.worker():
        terminal("start", "echo", "--input", "-", "--id", "large", input=json.dumps({"x": LARGE}))
        terminal.start("refunds", "orders=[1, 0]", "--id", "paid")
        terminal.start("long", "--id", "long")
        terminal("wait", "large", "--timeout", "30")
        terminal("wait", "long", "--timeout", "30")
        terminal("wait", "paid", "--timeout", "30")
    return folder


@pytest.fixture
def damaged(written: Path, tmp_path: Path) -> Terminal:
    """A copy of it, to be damaged."""
    for path in written.glob("andon.db*"):
        if path.is_file():
            shutil.copy(path, tmp_path)
    return Terminal(tmp_path, f"sqlite:///{tmp_path}/andon.db")


def change(terminal: Terminal, sql: str) -> None:
    with sqlite3.connect(terminal.folder / "andon.db") as db:
        assert db.execute(sql).rowcount != 0
    db.close()


def test_an_undamaged_store_is_verified(andon: Terminal) -> None:
    with andon.worker():
        run_id = andon.start("refunds", "orders=[1]")
        andon("wait", run_id, "--timeout", "30")
    assert andon("verify").startswith("verified: 1 run, ")
    found = andon.json("verify", run_id)
    assert found["ok"] is True
    assert found["damage"] == []
    assert (found["runs"], found["effects"]) == (1, 1)


def test_runs_are_verified_however_they_end_or_wait(andon: Terminal) -> None:
    with andon.worker():
        failed = andon.start("fails", "why=so")
        waiting, paused, killed, gone = (andon.start("listener") for _ in range(4))
        family = andon.start("parent")
        andon("wait", failed, "--timeout", "30", code=1)
        andon("wait", family, "--timeout", "30")
        for word, run in (("pause", paused), ("kill", killed), ("cancel", gone)):
            andon(word, run)
        andon("send", waiting, "go", "1")
        andon("wait", waiting, "--timeout", "30")
        andon("run", "--", sys.executable, "-c", "")
        found = andon.json("verify")
    assert found["damage"] == []
    assert found["runs"] == 8


def test_a_store_without_runs_is_in_order(local: Terminal) -> None:
    with local.worker():
        pass
    assert local("verify") == "verified: 0 runs, 0 entries, 0 effects, 0 blobs\n"


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("UPDATE andon_journal SET body = '9' WHERE run_id = 'paid' AND seq = 1", "its hash"),
        ("UPDATE andon_journal SET at = at + 1 WHERE run_id = 'paid' AND seq = 2", "its hash"),
        ("DELETE FROM andon_journal WHERE run_id = 'paid' AND seq = 2", "missing"),
        ("DELETE FROM andon_journal WHERE run_id = 'paid' AND seq = 0", "missing"),
        ("DELETE FROM andon_journal WHERE run_id = 'paid'", "empty"),
        (
            "DELETE FROM andon_journal WHERE hash IN (SELECT head_hash FROM andon_runs)",
            "its row says",
        ),
        ("UPDATE andon_runs SET head_hash = 'x' WHERE id = 'paid'", "its row says"),
        ("UPDATE andon_runs SET state = 'failed' WHERE id = 'paid'", "its row says failed"),
        ("UPDATE andon_effects SET state = 'planned' WHERE key = '1'", "the ledger says planned"),
        ("UPDATE andon_effects SET kind = 'irreversible'", "the ledger says irreversible"),
        ("UPDATE andon_effects SET fence = 99", "another claim or place"),
        ("UPDATE andon_effects SET seq = seq - 1", "the ledger is at entry"),
        ("DELETE FROM andon_effects", "not in the ledger"),
        ("UPDATE andon_effects SET key = 'other' WHERE key = '1'", "not in the journal"),
        ("UPDATE andon_runs SET agent = 'refunts' WHERE id = 'paid'", "agent 'refunts'"),
        ("UPDATE andon_runs SET state = 'sucCeeded' WHERE id = 'paid'", "which is not a state"),
        ("UPDATE andon_runs SET root_id = 'paie' WHERE id = 'paid'", "part of 'paie'"),
        ("UPDATE andon_runs SET attempt = 2 WHERE id = 'paid'", "it had 2 attempts"),
        ("UPDATE andon_attempts SET fence = 9 WHERE run_id = 'paid'", "later ones"),
        ("UPDATE andon_runs SET labels = '{' WHERE id = 'paid'", "cannot be read"),
        ("DELETE FROM andon_blobs", "is missing"),
        ("UPDATE andon_blobs SET body = body || ' '", "does not match its hash"),
        ("DELETE FROM andon_blobs WHERE body LIKE '\"part%'", "cannot be put together"),
    ],
)
def test_every_damage_is_found(damaged: Terminal, sql: str, words: str) -> None:
    change(damaged, sql)
    done = damaged.run("verify", code=1)
    assert words in done.stdout
    assert "DAMAGED  run " in done.stdout
    assert "backup" in done.stderr
    found = damaged.json("verify", code=1)
    assert found["ok"] is False
    assert found["damage"][0]["run"] in RUNS


def test_one_damaged_run_does_not_hide_the_next(damaged: Terminal) -> None:
    change(damaged, "UPDATE andon_journal SET name = 'x' WHERE seq = 0")
    assert {one["run"] for one in damaged.json("verify", code=1)["damage"]} == RUNS
    assert len(damaged.json("verify", "paid", code=1)["damage"]) == 1


def test_pages_corrupted_by_the_disk_are_found(damaged: Terminal) -> None:
    path = damaged.folder / "andon.db"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(b"\xa5" * (size - size // 2))
    done = damaged.run("verify", code=1)
    assert "damage" in (done.stdout + done.stderr).lower()
    assert "Traceback" not in done.stderr


def test_a_command_that_meets_damage_reports_it_as_damage(damaged: Terminal) -> None:
    change(damaged, "UPDATE andon_runs SET labels = '{' WHERE id = 'paid'")
    done = damaged.run("ps", "--old", code=1)
    assert "the store is damaged" in done.stderr
    assert "Traceback" not in done.stderr


def test_text_that_cannot_be_decoded_is_reported_as_damage(damaged: Terminal) -> None:
    change(damaged, "UPDATE andon_runs SET error = CAST(X'61FF62' AS TEXT) WHERE id = 'paid'")
    done = damaged.run("show", "paid", code=1)
    assert "the file is damaged" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_large_value_that_was_changed_is_not_shown(damaged: Terminal) -> None:
    change(damaged, "UPDATE andon_blobs SET body = replace(body, 'xxxx', 'xyxx')")
    assert "does not match its hash" in damaged.run("wait", "large", code=1).stderr
