"""Agents that resist stopping, for `andon drill`. Standard library only: fifty must start quickly.

    python -m andon.control.doctor.hostile_agents KIND PIPE ESCAPEES

Each agent is three processes: itself and two members, of which one or two have left the process
group and lost their parents. All three hold PIPE open and write their identity to it, so that the
end of the pipe proves that all are gone. Every process ends by itself, whatever happens to the
drill.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from andon.host import proc, syscalls

MEMBERS = 3
# No process outlives this, whatever goes wrong.
LIFE_SECONDS = 180
# A storm limits itself: nothing else may be able to stop it.
STORM_SECONDS = 5.0
STORM_PAUSE_SECONDS = 0.005


def join(pipe: str) -> int:
    """Hold the pipe open and write this process's identity to it."""
    signal.alarm(LIFE_SECONDS)
    into = os.open(pipe, os.O_WRONLY)
    write_identity(into)
    return into


def write_identity(into: int) -> None:
    pid = os.getpid()
    os.write(into, f"{pid} {proc.start_ticks(pid)} {proc.pid_namespace()}\n".encode())


def fork_members(into: int, escapees: int) -> None:
    """Fork the two members, which inherit the pipe."""
    for number in range(MEMBERS - 1):
        (_escape if number < escapees else _follow)(into)


def fork_members_from(pipe: str) -> None:
    """Start the members on behalf of a process with threads, which must not fork itself."""
    fork_members(os.open(pipe, os.O_WRONLY), 1)


def _follow(into: int) -> None:
    if os.fork() == 0:
        _stay(into)


def _escape(into: int) -> None:
    """Start a member that leaves the process group and the terminal, and loses its parent."""
    middle = os.fork()
    if middle == 0:
        os.setsid()
        if os.fork() == 0:
            _stay(into)
        os._exit(0)
    os.waitpid(middle, 0)


def _stay(into: int) -> None:
    try:
        signal.alarm(LIFE_SECONDS)
        write_identity(into)
        ignores_sigterm()
    finally:
        os._exit(1)


def _ignore_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def cooperative() -> None:
    """Ends on SIGTERM or SIGINT."""
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


def ignores_sigterm() -> None:
    _ignore_signals()
    while True:
        time.sleep(LIFE_SECONDS)


def swallows_cancellation() -> None:
    """A task that ignores every cancellation."""
    asyncio.run(swallow())


async def swallow() -> None:
    """Catch every cancellation, for LIFE_SECONDS."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(RuntimeError, ValueError):
            loop.add_signal_handler(number, lambda: None)
    end = time.monotonic() + LIFE_SECONDS
    while time.monotonic() < end:
        try:
            await asyncio.sleep(LIFE_SECONDS)
        except BaseException:  # noqa: BLE001, S112 (the fault this agent shows)
            continue


def holds_the_gil() -> None:
    """Calls into C with the GIL held: no other thread and no Python signal handler runs."""
    _sleep_in(ctypes.PyDLL(None))


def blocked_in_c() -> None:
    """A thread that waits in C and cannot be interrupted."""
    thread = threading.Thread(target=wait_in_c, daemon=True)
    thread.start()
    _ignore_signals()
    while thread.is_alive():
        thread.join(LIFE_SECONDS)


def wait_in_c() -> None:
    _sleep_in(ctypes.CDLL(None))


def _sleep_in(library: ctypes.CDLL) -> None:
    end = time.monotonic() + LIFE_SECONDS
    while time.monotonic() < end:
        library.usleep(ctypes.c_uint(900_000))


def main_thread_ended() -> None:
    """Ends the main thread: the process looks like a zombie while its other thread goes on."""
    threading.Thread(target=wait_in_c).start()
    syscalls.exit_thread()


def traced() -> None:
    """A tracer that never waits: its tracees stay zombies when they are killed."""
    for member in proc.children(os.getpid()):
        syscalls.trace(member)
    ignores_sigterm()


def uninterruptible() -> None:
    """Waits in the kernel for a child that never ends; only SIGKILL has an effect."""
    _ignore_signals()
    if syscalls.fork_and_wait() == 0:
        _ignore_signals()
        signal.alarm(LIFE_SECONDS)
        time.sleep(LIFE_SECONDS)
        os._exit(0)


def fork_storm(into: int, go: str) -> None:
    """Two processes that fork a successor and exit, all the time, once the file `go` exists."""
    _ignore_signals()
    for _ in range(MEMBERS - 1):
        if os.fork() == 0:
            try:
                os.setsid()
                signal.alarm(LIFE_SECONDS)
                write_identity(into)
                _storm(go)
            finally:
                os._exit(1)
    end = time.monotonic() + LIFE_SECONDS
    while time.monotonic() < end:
        time.sleep(0.01)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)


def _storm(go: str) -> None:
    while not os.path.exists(go):
        time.sleep(0.02)
    end = time.monotonic() + STORM_SECONDS
    while time.monotonic() < end:
        time.sleep(STORM_PAUSE_SECONDS)
        if os.fork():
            os._exit(0)


ESCAPES, STORM, KEEPS = "double-forks, setsid", "fork storm", "keeps its orphans"
KINDS: dict[str, Callable[[], None]] = {
    "cooperative": cooperative,
    "ignores SIGTERM": ignores_sigterm,
    ESCAPES: ignores_sigterm,
    KEEPS: ignores_sigterm,  # a subreaper: it adopts orphans before the supervisor can
    "traces its child": traced,
    "sleeps in the kernel": uninterruptible,
    "main thread has ended": main_thread_ended,
    "swallows cancellation": swallows_cancellation,
    "holds the GIL": holds_the_gil,
    "blocked in C": blocked_in_c,
}


def main(kind: str, pipe: str, escapees: str, go: str) -> None:
    into = join(pipe)
    if kind == STORM:
        fork_storm(into, go)
        return
    if kind == KEEPS:
        syscalls.become_subreaper()
    fork_members(into, int(escapees))
    KINDS[kind]()


if __name__ == "__main__":
    main(*sys.argv[1:])
