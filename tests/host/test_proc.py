"""The state of a process is read in one place, and no kind is mistaken for another."""

import ctypes
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from andon.host import proc

# The main thread leaves by the system call, and one thread goes on.
WITHOUT_LEADER = """
import ctypes, os, threading, time
def act():
    while True:
        time.sleep(60)
threading.Thread(target=act).start()
print("up", flush=True)
ctypes.CDLL(None).syscall(60, 0)
"""
LIMIT_SECONDS = 10.0


def until(condition: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.002)
    raise AssertionError(f"in vain: {what}")


@contextmanager
def running(code: str, *args: str, **more: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """A Python program that has reported that it is up."""
    line = [sys.executable, "-c", code, *args]
    with subprocess.Popen(line, stdout=subprocess.PIPE, **more) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            yield process
        finally:
            process.kill()


@contextmanager
def without_leader() -> Iterator[int]:
    with running(WITHOUT_LEADER) as process:
        until(lambda: _state(process.pid) == "Z", "the end of its main thread")
        yield process.pid


def _state(pid: int) -> str:
    found = proc.stat(pid)
    return found.state if found else ""


@contextmanager
def zombie() -> Iterator[int]:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        yield process.pid


# ── alive ─────────────────────────────────────────────────────────────────────────────────────


def test_a_process_whose_main_thread_has_ended_is_alive() -> None:
    with without_leader() as pid:
        found = proc.stat(pid)
        assert found is not None
        assert (found.state, found.threads, found.alive) == ("Z", 2, True)
        assert proc.alive(pid, found.start_ticks)
        until(lambda: proc.thread_states(pid) == "ZS", "the sleep of its other thread")


def test_a_zombie_is_not_alive() -> None:
    with zombie() as pid:
        found = proc.stat(pid)
        assert found is not None
        assert (found.state, found.threads, found.alive) == ("Z", 1, False)
        assert not proc.alive(pid)
        assert proc.thread_states(pid) == "Z"


def test_threads_that_a_tracer_keeps_after_their_end_are_not_alive() -> None:
    with without_leader() as pid:
        (thread,) = (int(one) for one in os.listdir(f"/proc/{pid}/task") if int(one) != pid)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.ptrace(16, thread, 0, 0):  # PTRACE_ATTACH
            pytest.skip(f"this host lets nobody trace: {os.strerror(ctypes.get_errno())}")
        os.waitpid(thread, 0x40000000)  # __WALL: it has stopped
        os.kill(pid, signal.SIGKILL)
        until(lambda: proc.thread_states(pid) == "ZZ", "the end of both threads")
        found = proc.stat(pid)
        assert found is not None
        assert (found.state, found.threads) == ("Z", 2)  # the second was not waited for
        assert not proc.alive(pid)
        os.waitpid(thread, 0x40000000)


def test_a_process_with_another_start_time_is_a_different_process() -> None:
    me = os.getpid()
    ticks = proc.start_ticks(me)
    assert ticks > 0
    assert proc.alive(me, ticks)
    assert not proc.alive(me, ticks + 1)
    assert not proc.alive(2**22 + 1)
    assert proc.start_ticks(2**22 + 1) == 0


@pytest.mark.parametrize("pid", [0, -1])
def test_the_number_of_a_process_group_is_no_process(pid: int) -> None:
    assert not proc.alive(pid)


def test_a_process_that_cannot_be_examined_is_not_taken_for_dead() -> None:
    with zombie() as dead, without_leader() as living:
        highest = max(int(one) for one in os.listdir("/proc/self/fd")) + 1
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        kept = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, before[1]))
        try:
            while True:
                kept.append(os.dup(0))
        except OSError:  # no descriptor is left
            answers = [proc.alive(pid) for pid in (living, dead, 2**22 + 1)]
        finally:
            for fd in kept:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert answers == [True, True, False]


# ── frozen ────────────────────────────────────────────────────────────────────────────────────


def test_a_process_is_frozen_when_all_its_threads_are() -> None:
    with without_leader() as pid:
        assert not proc.is_still(pid), "its main thread has ended, and the other one runs"
        os.kill(pid, signal.SIGSTOP)
        until(lambda: proc.thread_states(pid) == "ZT", "the stop")
        assert proc.is_still(pid)


# ── command and namespace ─────────────────────────────────────────────────────────────────────


def test_a_process_without_its_main_thread_still_has_its_command_and_namespace() -> None:
    with without_leader() as pid:
        assert Path(f"/proc/{pid}/cmdline").read_bytes() == b""
        assert proc.command(pid).startswith(f"{sys.executable} -c import ctypes")
        assert len(proc.command(pid)) <= proc.LONGEST_COMMAND
        assert proc.pid_namespace(pid) == proc.pid_namespace()


def test_a_command_has_no_control_characters() -> None:
    with running("print('up', flush=True); input()", "\x1b[2J\n;", stdin=subprocess.PIPE) as own:
        shown = proc.command(own.pid)
    assert shown.isprintable()
    assert shown.endswith(" [2J ;")


def test_a_process_without_a_command_line_is_named_in_brackets() -> None:
    with zombie() as pid:
        assert proc.command(pid) == "[true]"
    assert proc.command(pid) == ""


def test_the_fields_are_those_of_the_kernel() -> None:
    found = proc.stat(os.getpid())
    assert found is not None
    assert found.parent == os.getppid()
    assert found.group == os.getpgrp()
    assert found.session == os.getsid(0)
    assert proc.uids(os.getpid())[:2] == (os.getuid(), os.geteuid())
    assert proc.tracer(os.getpid()) == 0


def test_a_name_with_brackets_and_spaces_is_not_taken_for_a_state(tmp_path: Path) -> None:
    program = tmp_path / "a) Z 1 (b"
    program.symlink_to(sys.executable)
    with running(
        "print('up', flush=True); input()", stdin=subprocess.PIPE, executable=program
    ) as own:
        found = proc.stat(own.pid)
    assert found is not None
    assert found.alive
    assert found.parent == os.getpid()


def test_limits_are_read_by_their_names() -> None:
    code = """
import resource, sys
resource.setrlimit(resource.RLIMIT_LOCKS if hasattr(resource, "RLIMIT_LOCKS") else 10, (7, 9))
resource.setrlimit(resource.RLIMIT_CPU, (-1, -1))
print("up", flush=True)
input()
"""
    with running(code, stdin=subprocess.PIPE) as own:
        assert proc.limit(own.pid, "Max file locks") == (7, 9)
        assert proc.limit(own.pid, "Max cpu time") == (-1, -1)
        assert proc.limit(own.pid, "Max nonsense") is None
    assert proc.limit(2**22 + 1, "Max file locks") is None


def test_children_of_every_thread_are_found() -> None:
    code = """
import subprocess, threading
def start():
    subprocess.Popen(["sleep", "60"])
    print("up", flush=True)
    input()
threading.Thread(target=start).start()
"""
    with running(code, stdin=subprocess.PIPE) as own:
        (child,) = proc.children(own.pid)
        assert list(proc.descendants([own.pid])) == [child]
        assert list(proc._by_scan()(own.pid)) == [child]
        os.kill(child, signal.SIGKILL)


# ── signals ───────────────────────────────────────────────────────────────────────────────────


def test_a_signal_reaches_that_process_and_no_later_one_with_its_number() -> None:
    with running("print('up', flush=True); input()", stdin=subprocess.PIPE) as own:
        ticks = proc.start_ticks(own.pid)
        assert not proc.send(own.pid, ticks + 1, signal.SIGKILL)
        assert own.poll() is None
        assert proc.send(own.pid, ticks, signal.SIGKILL)
        assert own.wait() == -signal.SIGKILL
        assert not proc.send(own.pid, ticks, signal.SIGKILL)


def test_a_process_without_its_main_thread_is_ended_by_a_signal() -> None:
    with without_leader() as pid:
        assert proc.send(pid, proc.start_ticks(pid), signal.SIGKILL)
        until(lambda: not proc.alive(pid), "its end")


# In a pid namespace of its own, where the next number can be chosen.
REUSED = """
import os, signal, time
from andon.host import proc
from andon.host import syscalls as linux
from andon.host.remains import Remains as Killing

def sleeper():
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
    return pid

linux.unshare(linux.NEWPID | linux.NEWNS)
init = os.fork()
if init:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(init, 0)[1]))
linux.mount_proc()
first = sleeper()
ticks = proc.start_ticks(first)
kept = proc.open_pidfd(first, ticks)
killing = Killing({first: ticks}, spare=set())
while time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK") < ticks + 2:
    time.sleep(0.001)  # the kernel counts starts in ticks
os.kill(first, signal.SIGKILL)
os.waitpid(first, 0)
with open("/proc/sys/kernel/ns_last_pid", "w") as last:
    last.write(str(first - 1))
second = sleeper()
assert second == first, f"expected the number {first} again, got {second}"
assert not proc.alive(first, ticks)
assert not proc.send(first, ticks, signal.SIGKILL)
assert killing.strike(), "the one that was meant is gone"
try:
    signal.pidfd_send_signal(kept, signal.SIGKILL)
except ProcessLookupError:
    pass
else:
    raise AssertionError("a descriptor of the first one reached the second one")
assert os.waitpid(second, os.WNOHANG) == (0, 0), "the second one has been hit"
"""


def test_a_process_that_reused_a_number_is_never_signalled() -> None:
    if os.geteuid() != 0:
        pytest.skip("a pid namespace takes root")
    done = subprocess.run(
        [sys.executable, "-c", REUSED], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


# ── the one place ─────────────────────────────────────────────────────────────────────────────

SOURCES = Path(proc.__file__).parent.parent
LIFE = re.compile(r"/proc.{0,40}\bstat\b|\bstat\b.{0,40}rpartition|task/.{0,30}/(stat|children)\b")


def test_no_other_module_reads_the_state_of_a_process() -> None:
    found = [
        f"{path.relative_to(SOURCES)}: {line.strip()}"
        for path in sorted(SOURCES.rglob("*.py"))
        if "host" not in path.relative_to(SOURCES).parts
        for line in path.read_text("utf-8").splitlines()
        if LIFE.search(line)
    ]
    assert not found, "andon.host.proc reads it"
