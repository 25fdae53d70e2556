"""A read-only store can be inspected: a backup, a copy, a mount."""

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest
from tests.cli.terminal import LIMIT_SECONDS, Terminal

from andon.cli.top import screen

_LOOKS = [
    ("ps",),
    ("show", "done"),
    ("logs", "done"),
    ("verify",),
    ("events",),
    ("receipts",),
    ("workers",),
    ("queues",),
    ("versions",),
    ("dead", "list"),
    ("deploys",),
    ("limit",),
    ("top",),
    ("ps", "--watch"),
    ("doctor",),
]
_CHANGES = [
    ("start", "greet"),
    ("pause", "asks"),
    ("resume", "asks"),
    ("answer", "asks", "approve"),
    ("dead", "redrive", "asks"),
    ("limit", "queue:default", "--at-most", "2"),
]
_BESIDE = {"alone": (), "log": ("-wal",), "log and index": ("-wal", "-shm")}


def _obey_modes() -> None:
    """Root may write everything; without these capabilities it obeys file modes."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None)
        for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            assert libc.prctl(24, capability) == 0  # PR_CAPBSET_DROP


@pytest.fixture
def kept(local: Terminal) -> Terminal:
    """A store with a run that is over and one that asks; its worker has gone."""
    with local.worker():
        local.start("greet", "--id", "done")
        local.start("refunds", "orders=[2]", "--id", "asks")
        local("wait", "done")
        local("wait", "asks", "--for", "ask")
    return local


@pytest.fixture
def copied(kept: Terminal, tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Copies the store and its side files into a folder that no user may write to."""
    folder = tmp_path / "backup"
    folder.mkdir()

    def copy(*beside: str) -> Terminal:
        source = kept.url.removeprefix("sqlite:///")
        for end in ("", *beside):
            shutil.copy(source + end, f"{folder}/copy.db{end}")
            os.chmod(f"{folder}/copy.db{end}", 0o444)
        folder.chmod(0o555)
        kept.environment["ANDON_STORE"] = f"sqlite:///{folder}/copy.db"
        return kept

    yield copy
    folder.chmod(0o755)


def listed(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("beside", ["log", "log and index"])
def test_a_read_only_copy_is_shown_in_full(
    copied: Callable[..., Terminal], tmp_path: Path, beside: str
) -> None:
    andon = copied(*_BESIDE[beside])
    before = listed(tmp_path / "backup")
    for words in _LOOKS:
        code = 1 if words == ("doctor",) else 0
        done = andon.run(*words, code=code, preexec_fn=_obey_modes)
        assert "incomplete" not in done.stderr
    rows = andon.json("ps", preexec_fn=_obey_modes)
    assert {row["id"]: row["state"] for row in rows} == {"asks": "suspended", "done": "succeeded"}
    assert andon.json("verify", preexec_fn=_obey_modes)["runs"] == 2
    assert listed(tmp_path / "backup") == before


def test_a_read_only_store_is_watched_live_without_writing(
    copied: Callable[..., Terminal], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    andon = copied("-wal")
    before = listed(tmp_path / "backup")
    monkeypatch.setattr("andon.store.sqlite.read_only.why_unwritable", lambda _: "by its mode")
    reader = screen.Reader(andon.environment["ANDON_STORE"], {}, lambda: None)
    reader.start()
    seen = reader.answers.get(timeout=LIMIT_SECONDS)
    reader.close()
    assert seen.fleet is not None
    assert {row["id"] for row in seen.fleet["rows"]} == {"asks", "done"}
    assert listed(tmp_path / "backup") == before


@pytest.mark.parametrize("words", _CHANGES, ids=lambda words: words[0])
def test_a_command_that_has_to_write_reports_that_it_cannot(
    copied: Callable[..., Terminal], tmp_path: Path, words: tuple[str, ...]
) -> None:
    andon = copied("-wal", "-shm")
    before = listed(tmp_path / "backup")
    said = andon.error(*words, code=1, preexec_fn=_obey_modes)
    assert "the file is read-only here" in said
    assert "can be looked at: andon ps" in said
    assert listed(tmp_path / "backup") == before


def test_a_file_without_its_log_is_shown_with_a_warning_about_missing_data(
    copied: Callable[..., Terminal], kept: Terminal, tmp_path: Path
) -> None:
    with contextlib.closing(apsw.Connection(kept.url.removeprefix("sqlite:///"))) as db:
        db.execute("SELECT count(*) FROM sqlite_schema").fetchall()  # so that it knows of the log
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    andon = copied()
    for words in (("ps",), ("show", "done"), ("verify",)):
        said = andon.run(*words, preexec_fn=_obey_modes).stderr
        assert "maybe incomplete: its log, copy.db-wal, is not beside it" in said
    assert [path.name for path in (tmp_path / "backup").iterdir()] == ["copy.db"]


def test_a_new_file_without_its_log_says_where_its_tables_are(
    copied: Callable[..., Terminal],
) -> None:
    said = copied().error("ps", code=1, preexec_fn=_obey_modes)
    assert "has no tables of andon; but its log, copy.db-wal, is not beside it" in said


def test_a_copy_made_in_one_piece_is_not_called_incomplete(kept: Terminal, tmp_path: Path) -> None:
    target = tmp_path / "whole.db"
    with contextlib.closing(apsw.Connection(kept.url.removeprefix("sqlite:///"))) as db:
        db.execute("VACUUM INTO ?", (str(target),))
    before = target.read_bytes()
    done = kept.run("ps", env={"ANDON_STORE": f"sqlite:///{target}"})
    assert "asks" in done.stdout
    assert "incomplete" not in done.stderr
    assert target.read_bytes() == before
    assert not list(tmp_path.glob("whole.db?*")), "who looks at a copy leaves nothing beside it"


def test_a_file_of_another_user_is_shown_as_it_changes(kept: Terminal, tmp_path: Path) -> None:
    path = kept.url.removeprefix("sqlite:///")
    beside = [path, f"{path}-wal", f"{path}-shm"]
    for one in beside:
        os.chmod(one, 0o444)
    assert "refunds" in kept("ps", preexec_fn=_obey_modes)
    for one in beside:
        os.chmod(one, 0o644)
    kept("cancel", "asks")
    for one in beside:
        os.chmod(one, 0o444)
    [row] = kept.json("ps", "--state", "cancelled", preexec_fn=_obey_modes)
    assert row["id"] == "asks"
    said = kept.error("start", "greet", code=1, preexec_fn=_obey_modes)
    assert "the file is read-only here (by its mode)" in said


_IN_A_MOUNT = """
set -e
mount --bind "$1" "$1"
mount -o remount,ro,bind "$1"
shift
exec "$@"
"""


@pytest.mark.parametrize("beside", ["log", "log and index"])
def test_a_read_only_mount_is_shown_in_full(kept: Terminal, tmp_path: Path, beside: str) -> None:
    folder = tmp_path / "mounted"
    folder.mkdir()
    source = kept.url.removeprefix("sqlite:///")
    for end in ("", *_BESIDE[beside]):
        shutil.copy(source + end, f"{folder}/andon.db{end}")
    before = listed(folder)
    own = [] if os.geteuid() == 0 else ["--map-root-user"]
    inside = ["unshare", *own, "--mount", "sh", "-c", _IN_A_MOUNT, "sh", str(folder)]
    inside += [sys.executable, "-m", "andon", "--store", f"sqlite:///{folder}/andon.db"]
    found = {
        words: subprocess.run(
            [*inside, *words],
            env=kept.environment,
            cwd=kept.folder,
            capture_output=True,
            encoding="utf-8",
            timeout=60,
            check=False,
        )
        for words in (("ps",), ("show", "asks"), ("verify",), ("start", "greet"))
    }
    assert "asks: Refund this much?" in found["ps",].stdout
    assert "run asks" in found["show", "asks"].stdout
    assert "verified: 2 runs" in found["verify",].stdout
    assert (
        "(a read-only file system), and this command has to write" in found["start", "greet"].stderr
    )
    assert listed(folder) == before


def test_waiting_on_a_copy_is_refused_and_does_not_last_for_ever(
    copied: Callable[..., Terminal],
) -> None:
    andon = copied("-wal")
    for words in (("wait", "asks"), ("logs", "-f", "asks"), ("events", "-f")):
        said = andon.error(*words, code=1, preexec_fn=_obey_modes)
        assert "nothing will change in what is seen of it" in said
    assert '"hello world"' in andon("wait", "done", preexec_fn=_obey_modes)


def test_a_log_that_is_damaged_in_its_middle_is_found_in_a_copy(
    copied: Callable[..., Terminal], tmp_path: Path
) -> None:
    andon = copied("-wal")
    log = tmp_path / "backup" / "copy.db-wal"
    log.chmod(0o644)
    written = bytearray(log.read_bytes())
    written[len(written) // 2] ^= 1
    log.write_bytes(written)
    done = andon.run("verify", code=1, preexec_fn=_obey_modes)
    assert "committed after it cannot be read" in done.stdout + done.stderr
