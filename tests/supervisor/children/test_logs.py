"""Output of children is kept within limits, and printing delays nothing."""

import os
from pathlib import Path

from tests.supervisor.harness import Supervised, until

from andon.supervisor.children.logs import LogFile


def test_a_log_has_a_limit_and_keeps_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    log = LogFile(str(path), 1000)
    for number in range(500):
        log.write(b"%09d\n" % number)
    log.close()
    kept = (tmp_path / "a.log.1").read_bytes() + path.read_bytes()
    assert max(path.stat().st_size, (tmp_path / "a.log.1").stat().st_size) <= 1000
    assert kept.splitlines()[-1] == b"000000499"
    assert len(kept) > 1000
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.log", "a.log.1"]


def test_a_reopened_log_is_appended_to(tmp_path: Path) -> None:
    for _ in range(3):
        log = LogFile(str(tmp_path / "a.log"), 1000)
        log.write(b"x" * 100 + b"\n")
        log.close()
    assert (tmp_path / "a.log").stat().st_size == 303


def test_dropped_output_is_counted(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    log = LogFile(str(folder / "a.log"), 1000)
    log.write(b"lost\n")
    assert log.dropped == 5
    folder.mkdir()
    log.write(b"kept\n")
    log.close()
    assert (folder / "a.log").read_bytes() == b"[andon: 5 bytes were not kept]\nkept\n"


def test_a_full_disk_stops_no_child(supervised: Supervised) -> None:
    own = supervised
    (own.home / "logs").mkdir(parents=True)
    (own.home / "logs" / "run-1.log").symlink_to("/dev/full")
    own.start(
        own.child("it", "prints", kind="command", restart="never", run="run-1", log="tee"),
    )
    assert own.wait() == 0
    assert (own.folder / "stdout").read_bytes().endswith(b"the last line\n")


def test_all_output_of_a_child_is_logged_when_it_has_ended(supervised: Supervised) -> None:
    own = supervised
    own.start(own.child("it", "prints", kind="command", restart="never", run="run-1", log="tee"))
    assert own.wait() == 0
    expected = (b"y" * 1023 + b"\n") * 1000 + b"the last line\n"
    assert (own.folder / "stdout").read_bytes() == expected
    assert (own.home / "logs" / "run-1.log").read_bytes() == expected


def test_the_log_of_a_child_that_prints_without_end_is_bounded(supervised: Supervised) -> None:
    own = supervised
    own.start(
        own.child("it", "prints", env={"LINES": "100000000"}, run="run-1"),
        settings={"log_bytes": 100_000},
    )
    until((own.home / "logs" / "run-1.log.1").exists)
    assert own.halt()["proved"], "a flood of output does not keep a halt waiting"
    assert own.marked() == []
    sizes = [path.stat().st_size for path in (own.home / "logs").iterdir()]
    assert len(sizes) == 2
    assert max(sizes) <= 100_000


def test_a_terminal_that_does_not_read_delays_no_kill(supervised: Supervised) -> None:
    own = supervised
    read, write = os.pipe()
    saved = own.folder / "stdout"
    os.mkfifo(saved)
    holder = os.open(saved, os.O_RDWR | os.O_NONBLOCK)  # opened, never read
    own.start(
        own.child("it", "prints", kind="command", env={"LINES": "100000000"}, log="tee"),
        own.child("worker", "prints", env={"LINES": "100000000"}, log="tee"),
    )
    own.is_ready("it", "worker")
    assert own.state("worker")["state"] == "running"
    assert own.halt()["proved"]
    assert own.marked() == []
    for fd in (read, write, holder):
        os.close(fd)
