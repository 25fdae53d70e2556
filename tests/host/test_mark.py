"""A mark is inherited, can be read from every process of the host, and is removed again."""

import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from andon.core import mark as marks
from andon.host import mark, proc

LIMIT_SECONDS = 10.0
WAITS = "import sys; sys.stdin.read()"
# Starts another session, a child that starts a child, and leaves that one alone.
ORPHAN = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"], {})
    os._exit(0)
os.wait()
"""


@pytest.fixture
def number() -> int:
    """A mark that no other process on this host has."""
    worker = marks.of_process(proc.boot_id(), "test", os.getpid(), time.monotonic_ns())
    return marks.of_operation(marks.of_attempt(worker, 1), 1)


@contextmanager
def marked(number: int) -> Iterator[None]:
    before = mark.begin(number)
    try:
        yield
    finally:
        mark.finish(before)


@contextmanager
def waiting(number: int, code: str = WAITS) -> Iterator["subprocess.Popen[bytes]"]:
    """A process with that mark; all its descendants end with its standard input."""
    with marked(number):
        process = subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE)
    with process:
        yield process


def until(condition: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.002)
    raise AssertionError(f"in vain: {what}")


def carriers(number: int) -> list[int]:
    found: list[int] = []
    assert mark.carriers(lambda one: marks.belongs(one, number), found.append)
    return found


def test_a_process_that_is_started_under_a_mark_carries_it(number: int) -> None:
    with waiting(number) as process:
        assert mark.of(process.pid) == number
        assert carriers(number) == [process.pid]


def test_the_limit_of_this_process_is_restored_afterwards(number: int) -> None:
    before = resource.getrlimit(10)
    with marked(number):
        assert mark.own() == number
    assert resource.getrlimit(10) == before


def test_a_mark_inside_another_one_restores_the_outer_one(number: int) -> None:
    with marked(number):
        with marked(number + 1):
            assert mark.own() == number + 1
        assert mark.own() == number


def test_an_orphan_of_another_session_without_environment_carries_the_mark(number: int) -> None:
    with waiting(number, ORPHAN) as process:
        process.wait(LIMIT_SECONDS)
        [orphan] = until(lambda: carriers(number), "the orphan")
        assert orphan != process.pid
        assert proc.stat(orphan).parent != os.getpid()  # type: ignore[union-attr]


def test_a_zombie_is_among_the_carriers(number: int) -> None:
    with marked(number):
        process = subprocess.Popen(["true"])
    with process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert carriers(number) == [process.pid]
    assert carriers(number) == []


def test_the_searching_process_is_never_among_the_carriers(number: int) -> None:
    with marked(number):
        assert carriers(number) == []


def test_the_mark_of_a_process_that_refuses_prlimit_is_read_from_its_limits_file(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for another user's process."""

    def refuse(*_: Any) -> Any:
        raise PermissionError(1, "Operation not permitted")

    with waiting(number) as process:
        monkeypatch.setattr(resource, "prlimit", refuse)
        assert mark.of(process.pid) == number
        assert carriers(number) == [process.pid]


def test_a_process_that_is_gone_and_one_without_a_mark_belong_to_nobody() -> None:
    with subprocess.Popen(["true"]) as process:
        pass
    assert mark.of(process.pid) == mark.GONE
    assert not marks.is_mark(mark.of(1))


def test_where_the_limit_was_lowered_no_mark_is_set_and_that_is_reported(number: int) -> None:
    code = f"""
import resource
from andon.host import mark
resource.setrlimit(10, (7, 7))
print(mark.put({number}), mark.own())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "7"]


def test_one_thread_at_a_time_starts_a_process_under_a_mark(number: int) -> None:
    """A process has one limit for all its threads: two marks at once would be mixed up."""
    seen: list[int] = []
    tries, ended = threading.Event(), threading.Event()

    def other() -> None:
        tries.set()
        with marked(number + 1):
            seen.append(mark.own())
        ended.set()

    with marked(number):
        thread = threading.Thread(target=other)
        thread.start()
        assert tries.wait(LIMIT_SECONDS)
        assert not ended.wait(0.05)
        assert (seen, mark.own()) == ([], number)
    assert ended.wait(LIMIT_SECONDS)
    thread.join()
    assert seen == [number + 1]


def test_locks_on_files_do_not_reach_the_limit_of_this_process(number: int, tmp_path: Any) -> None:
    """Linux has not enforced this limit since 2.4.25, however small it is: a mark costs no lock."""
    code = """
import fcntl, resource, sys
resource.setrlimit(10, (0, resource.getrlimit(10)[1]))
with open(sys.argv[1], "w") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    fcntl.flock(file, fcntl.LOCK_EX)
print("locked")
"""
    line = [sys.executable, "-c", code, str(tmp_path / "file")]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert done.stdout == "locked\n"
