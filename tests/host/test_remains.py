"""Processes that are to end are signalled, looked for, and signalled again until none is left."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.host.test_mark import marked, until, waiting
from tests.hostile import actors

from andon.core import mark as marks
from andon.host import mark, proc
from andon.host.remains import MOST_NAMED, Remains

LIMIT_SECONDS = 10.0
SHAPES = (
    *("detached", "double-fork", "zombie-leader", "subreaper"),
    *("respawned", "disguised", "fork-storm"),
)
# Removes its mark, and starts a process that has none either.
ESCAPED = """
import resource, subprocess, sys
resource.setrlimit(10, (5, resource.getrlimit(10)[1]))
child = subprocess.Popen([sys.executable, "-S", "-c", "import sys; sys.stdin.read()"])
print(child.pid, flush=True)
child.wait()
"""
# The same below a shell, which keeps its mark.
BELOW = (
    "import os, sys; "
    f"os.spawnl(os.P_WAIT, sys.executable, sys.executable, '-S', '-c', '''{ESCAPED}''')"
)


@pytest.fixture
def number() -> int:
    """A mark that no other process on this host has."""
    worker = marks.of_process(proc.boot_id(), "remains", os.getpid(), time.monotonic_ns())
    return marks.of_operation(marks.of_attempt(worker, 1), 1)


def of_mark(number: int, **more: Any) -> Remains:
    return Remains(matches=lambda found: marks.belongs(found, number), **more)


def of_process(process: "subprocess.Popen[Any]", **more: Any) -> Remains:
    return Remains({process.pid: proc.start_ticks(process.pid)}, **more)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_process_with_the_mark_is_ended_whatever_its_kind(
    number: int, tmp_path: Path, shape: str
) -> None:
    witness = tmp_path / "witness"
    with marked(number):
        process = subprocess.Popen([sys.executable, "-S", actors.__file__, shape, str(witness)])
    with process:
        until(witness.exists, "it acts")
        found = of_mark(number)
        assert found.end(LIMIT_SECONDS)
        acted = witness.stat().st_size
        assert found.survivors == []
        assert any(str(witness) in words for words in found.commands.values())
        left = [pid for pid in proc.every_pid() if mark.of(pid) == number and proc.alive(pid)]
        assert (left, witness.stat().st_size) == ([], acted)


def test_a_process_that_removed_its_mark_is_ended_below_one_that_has_it(number: int) -> None:
    with marked(number):
        line = [sys.executable, "-S", "-c", BELOW]
        process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert mark.of(child) == 5
        found = of_mark(number)
        assert child in found.look()
        assert found.end(LIMIT_SECONDS)
        assert not proc.alive(child)


def test_a_process_that_was_seen_is_ended_even_if_nothing_leads_to_it_any_more(number: int) -> None:
    """By the second look its parent, with the mark, is gone."""
    with marked(number):
        line = [sys.executable, "-S", "-c", BELOW]
        process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        found = of_mark(number)
        first = set(found.look())
        assert child in first
        for pid in first - {child}:
            os.kill(pid, signal.SIGKILL)
        process.wait()
        until(lambda: found.look() == [child], "the end of the others")
        assert found.end(LIMIT_SECONDS)
        assert not proc.alive(child)


def test_a_later_process_with_the_same_number_is_not_signalled(number: int) -> None:
    with waiting(number) as process:
        found = Remains({process.pid: proc.start_ticks(process.pid) - 1})
        assert found.end(LIMIT_SECONDS)
        assert process.poll() is None


def test_another_mark_and_a_spared_process_are_left_alone(number: int) -> None:
    with waiting(number) as one, waiting(number + 1) as other, waiting(number) as spared:
        assert of_mark(number, spare=[spared.pid]).end(LIMIT_SECONDS)
        assert one.wait(LIMIT_SECONDS) == -signal.SIGKILL
        assert (other.poll(), spared.poll()) == (None, None)


def test_the_searching_process_is_spared(number: int) -> None:
    found = Remains({}, matches=lambda _: False)
    before = mark.begin(number)
    try:
        assert of_mark(number).end(LIMIT_SECONDS)
        assert found.look() == []
    finally:
        mark.finish(before)


def test_a_polite_signal_comes_first_if_the_caller_wants_that(number: int) -> None:
    with waiting(number) as process:
        assert not of_mark(number).strike(signal.SIGTERM)
        assert process.wait(LIMIT_SECONDS) == -signal.SIGTERM


def test_a_process_that_cannot_be_ended_is_named_when_the_time_is_over(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like a process stuck in the kernel: no signal arrives."""
    with waiting(number) as process:
        monkeypatch.setattr(proc, "send", lambda *_: True)
        found = of_mark(number)
        assert not found.end(0.02)
        assert found.survivors == [process.pid]
        assert found.named(found.survivors).startswith(f"{process.pid} {sys.executable}")


def test_a_process_missing_from_the_first_list_of_a_look_is_found_in_the_next(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parent had ended by the time it could be seen."""
    with waiting(number) as process:
        looks: list[int] = []
        pids = proc.every_pid

        def blind_at_first() -> list[int]:
            looks.append(1)
            return [1] if len(looks) == 1 else pids()

        monkeypatch.setattr(proc, "every_pid", blind_at_first)
        assert of_mark(number).end(LIMIT_SECONDS)
        assert process.wait(LIMIT_SECONDS) == -signal.SIGKILL


def test_the_command_of_a_process_is_remembered_after_its_end(number: int) -> None:
    with waiting(number) as process:
        # The kernel sets the command line a moment after Popen has seen the program begin.
        until(lambda: proc.command(process.pid).startswith(sys.executable), "its words")
        found = of_mark(number)
        assert found.end(LIMIT_SECONDS)
        assert found.named([process.pid]).startswith(f"{process.pid} {sys.executable} -S -c")


def test_of_very_many_processes_some_are_named_and_the_others_counted() -> None:
    found = Remains()
    found.commands = dict.fromkeys(range(100), "sh")
    text = found.named(range(MOST_NAMED + 3))
    assert text.count("sh") == MOST_NAMED
    assert text.endswith("19 sh and 3 more")
    assert found.named([1000]) == "1000 ?"


def test_all_processes_below_a_known_one_are_ended_without_any_mark() -> None:
    assert resource.getrlimit(10)[0] == -1, "the tests themselves carry no mark"
    line = [sys.executable, "-S", "-c", ESCAPED]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        found = of_process(process)
        assert found.look() == sorted([process.pid, child])
        assert found.end(LIMIT_SECONDS)
        assert not proc.alive(child)
