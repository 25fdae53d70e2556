"""Ways in which agent code starts a process, for tests/runtime/processes/test_attribution.py."""

import asyncio
import contextlib
import multiprocessing
import os
import pty
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

SLEEP = ["sleep", "600"]


class Children:
    """The started processes; all of them are ended and waited for when the test is over."""

    def __init__(self) -> None:
        self.reaping: set[asyncio.Task[int]] = set()
        self._waits: list[tuple[int, Callable[[], object]]] = []

    def add(self, pid: int, wait: Callable[[], object] | None = None) -> int:
        self._waits.append((pid, wait or (lambda: os.waitpid(pid, 0))))
        return pid

    def end(self) -> None:
        for pid, wait in self._waits:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                wait()


def _popen(**options: Any) -> Callable[[Children], int]:
    def start(children: Children) -> int:
        process = subprocess.Popen(SLEEP, **options)
        return children.add(process.pid, process.wait)

    return start


def _fork(children: Children) -> int:
    pid = os.fork()
    if pid == 0:
        _sleep()
    return children.add(pid)


def _pty(children: Children) -> int:
    pid, descriptor = pty.fork()
    if pid == 0:
        _sleep()

    def wait() -> None:
        os.waitpid(pid, 0)
        os.close(descriptor)

    return children.add(pid, wait)


def _sleep() -> None:
    try:
        os.execvp(SLEEP[0], SLEEP)
    finally:
        os._exit(1)


def _posix_spawn(children: Children) -> int:
    return children.add(os.posix_spawn("/bin/sleep", SLEEP, os.environ))


def _posix_spawnp(children: Children) -> int:
    return children.add(os.posix_spawnp("sleep", SLEEP, os.environ))


def _system(children: Children) -> int:
    with tempfile.NamedTemporaryFile("r") as file:
        assert os.system(f"sleep 600 >/dev/null 2>&1 & echo $! >{file.name}") == 0
        return children.add(int(file.read()), lambda: None)


def _multiprocessing(kind: str) -> Callable[[Children], int]:
    def start(children: Children) -> int:
        context: Any = multiprocessing.get_context(kind)
        process = context.Process(target=_sleep)
        process.start()
        assert process.pid is not None

        def wait() -> None:
            process.join()
            process.close()

        return children.add(process.pid, wait)

    return start


WAYS: dict[str, Callable[[Children], int]] = {
    "Popen": _popen(),
    "Popen in a new session": _popen(start_new_session=True),
    "Popen without environment": _popen(env={}, executable="/bin/sleep"),
    "Popen with all descriptors": _popen(close_fds=False),
    "Popen with code before the exec": _popen(preexec_fn=os.setsid),
    "fork": _fork,
    "pty.fork": _pty,
    "posix_spawn": _posix_spawn,
    "posix_spawnp": _posix_spawnp,
    "system": _system,
    "multiprocessing by fork": _multiprocessing("fork"),
    "multiprocessing by spawn": _multiprocessing("spawn"),
}


async def by_asyncio(children: Children) -> int:
    """The loop's own subprocess, which is uvloop's where that is the loop."""
    process = await asyncio.create_subprocess_exec(*SLEEP, start_new_session=True)
    children.reaping.add(asyncio.create_task(process.wait()))
    return children.add(process.pid, lambda: None)


def pids_of_step_and_child() -> list[int]:
    """For a step in a process of its own: its pid, and that of the process it has started."""
    return [os.getpid(), subprocess.Popen(SLEEP, start_new_session=True).pid]


def write_pids_and_wait(file: str) -> None:
    child = subprocess.Popen(SLEEP, start_new_session=True)
    Path(f"{file}.part").write_text(f"{os.getpid()} {child.pid}")
    Path(f"{file}.part").rename(file)
    child.wait()


def fork_that_starts_a_process(children: Children) -> int:
    """The forked child starts a process itself, and reports its pid."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            process = subprocess.Popen(SLEEP)
            os.write(write, b"%d" % process.pid)
            process.wait()
        finally:
            os._exit(0)
    children.add(pid)
    try:
        return children.add(int(os.read(read, 32)), lambda: None)
    finally:
        os.close(read)
        os.close(write)
