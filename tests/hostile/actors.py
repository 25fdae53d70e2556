"""Processes of shapes that are easily overlooked. Standard library only: they start quickly.

    python -S actors.py SHAPE WITNESS

Each process of a shape that acts writes a line to WITNESS every few milliseconds, with the time.
That act must not happen any more once a stop is proved. Every process ends by itself, whatever
happens to its test.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

PAUSE_SECONDS = 0.005
LIFE_SECONDS = 45.0
# A storm is bounded by itself: nothing else may be able to stop it.
STORM_SECONDS = 15.0

_EXIT, _CLONE = (93, 220) if os.uname().machine == "aarch64" else (60, 56)
_CLONE_VFORK, _NEWPID = 0x4000, 0x20000000
_SET_NAME, _CHILD_SUBREAPER = 15, 36
_SEIZE = 0x4206
_END = time.monotonic() + LIFE_SECONDS


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def once(witness: str) -> None:
    """The act. The file is opened each time: a process may have closed every descriptor."""
    fd = os.open(witness, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(fd, b"%d %d\n" % (os.getpid(), time.monotonic_ns()))
    os.close(fd)


def act(witness: str) -> None:
    while time.monotonic() < _END:
        once(witness)
        time.sleep(PAUSE_SECONDS)


def _child(function: Callable[..., None], *args: Any) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            function(*args)
        finally:
            os._exit(0)
    return pid


def _orphan(function: Callable[..., None], *args: Any) -> None:
    """A child that has lost its parent and left its group."""

    def middle() -> None:
        os.setsid()
        _child(function, *args)

    os.waitpid(_child(middle), 0)


def leave_main_thread() -> None:
    """Ends the main thread by the system call; the other threads go on."""
    _libc().syscall(ctypes.c_long(_EXIT), ctypes.c_long(0))


# ── shapes ────────────────────────────────────────────────────────────────────────────────────


def detached(witness: str) -> None:
    os.setsid()
    act(witness)


def double_fork(witness: str) -> None:
    _orphan(act, witness)


def zombie_leader(witness: str) -> None:
    """A process of its own whose main thread has ended."""
    os.setsid()
    threading.Thread(target=act, args=(witness,)).start()
    leave_main_thread()


def traced(witness: str) -> None:
    """The tracer never waits for the other one, so its zombie stays."""
    trace(_child(detached, witness))
    time.sleep(LIFE_SECONDS)


def trace(pid: int) -> None:
    if _libc().ptrace(ctypes.c_long(_SEIZE), ctypes.c_long(pid), None, None):
        raise OSError(ctypes.get_errno(), "ptrace")


def vfork(witness: str) -> None:
    """The parent is in uninterruptible sleep until the child ends, which never execs.

    It keeps the GIL meanwhile, so that the child has it and no other thread of it moves.
    """
    zero = ctypes.c_long(0)
    flags = ctypes.c_long(_CLONE_VFORK | signal.SIGCHLD)
    library = ctypes.PyDLL(None)
    if library.syscall(ctypes.c_long(_CLONE), flags, zero, zero, zero, zero) == 0:
        try:
            once(witness)
            os.close(os.open(f"{witness}.up", os.O_CREAT | os.O_WRONLY, 0o666))
            act(witness)
        finally:
            os._exit(0)


def namespaced(witness: str) -> None:
    """A pid namespace of its own: its numbers mean other processes outside."""
    if _libc().unshare(ctypes.c_long(_NEWPID)):
        raise OSError(ctypes.get_errno(), "unshare")
    init = _child(_init, witness)
    os.waitpid(init, 0)


def _init(witness: str) -> None:
    _orphan(act, witness)
    while time.monotonic() < _END:
        time.sleep(0.1)


def subreaper(witness: str) -> None:
    """Adopts its orphans before any other process could find them."""
    os.setsid()
    _libc().prctl(ctypes.c_long(_CHILD_SUBREAPER), ctypes.c_long(1), 0, 0, 0)
    _orphan(act, witness)
    _orphan(act, witness)
    time.sleep(LIFE_SECONDS)


def respawned(witness: str) -> None:
    """Two processes that restart each other."""
    _orphan(_watch, witness, 0)


def _watch(witness: str, other: int) -> None:
    """Watches the other one, which watches this one."""
    me = os.getpid()
    while time.monotonic() < _END:
        if not other or not os.path.exists(f"/proc/{other}"):
            told, tell = os.pipe()

            def middle(tell: int = tell) -> None:
                os.setsid()
                pid = _child(_watch, witness, me)
                os.write(tell, b"%d" % pid)

            os.waitpid(_child(middle), 0)
            other = int(os.read(told, 16))
            os.close(told)
            os.close(tell)
        once(witness)
        time.sleep(PAUSE_SECONDS)


def disguised(witness: str) -> None:
    """Another name, another group, no environment, no descriptors."""
    os.setsid()
    if os.fork():
        os._exit(0)
    os.setpgid(0, 0)
    _libc().prctl(ctypes.c_long(_SET_NAME), b"kworker/0:1", 0, 0, 0)
    line = [sys.executable, "-S", os.path.abspath(__file__), "bare", witness]
    os.execve(sys.executable, line, {})


def unlinked(witness: str) -> None:
    """A program that is in no file, without an environment."""
    number = os.memfd_create("nothing", 0)
    with open(os.path.realpath(sys.executable), "rb") as program:
        os.sendfile(number, program.fileno(), 0, os.fstat(program.fileno()).st_size)
    line = ["[kworker/1:2]", "-S", os.path.abspath(__file__), "double-fork", witness]
    os.execve(f"/proc/self/fd/{number}", line, {"PYTHONHOME": sys.base_prefix})


def woken(witness: str) -> None:
    """It stops itself after each act; a sibling in another session wakes it again."""
    sleeper = _child(_stop_again_and_again, witness)
    _orphan(_wake, sleeper)


def _stop_again_and_again(witness: str) -> None:
    os.setsid()
    while time.monotonic() < _END:
        once(witness)
        os.kill(os.getpid(), signal.SIGSTOP)


def _wake(pid: int) -> None:
    while os.path.exists(f"/proc/{pid}"):
        time.sleep(PAUSE_SECONDS)
        os.kill(pid, signal.SIGCONT)


def bare(witness: str) -> None:
    os.closerange(0, 4096)
    act(witness)


def fork_storm(witness: str) -> None:
    """Lineages that replace themselves all the time."""
    os.setsid()
    end = time.monotonic() + STORM_SECONDS
    for _ in range(2):
        if os.fork() == 0:
            break
    while time.monotonic() < end:
        once(witness)
        time.sleep(PAUSE_SECONDS)
        if os.fork():
            os._exit(0)


# ── started by another process ────────────────────────────────────────────────────────────────


def serve(path: str, witness: str) -> None:
    """A daemon from before the run, like at(1) or systemd --user: starts processes on request."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        os.write(1, b"up\n")
        while True:
            client, _ = server.accept()
            with client:
                given = client.recv(65_536).decode()
                if given.startswith("trace="):
                    trace(int(given.removeprefix("trace=")))
                    client.send(b"!")
                    continue
                env = dict(pair.split("=", 1) for pair in given.split("\0") if "=" in pair)
                line = [sys.executable, "-S", os.path.abspath(__file__), "detached", witness]
                subprocess.Popen(line, env=env)
                client.send(b"!")


def _ask(witness: str, given: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(f"{witness}.sock")
        client.sendall(given.encode() or b"\0")
        client.recv(1)


def traced_by_daemon(witness: str) -> None:
    """A debugger that is no child of the run holds this process, and its zombie, for ever."""
    _ask(witness, f"trace={os.getpid()}")


def handed_over(witness: str) -> None:
    _ask(witness, "\0".join(f"{name}={value}" for name, value in os.environ.items()))


def handed_over_bare(witness: str) -> None:
    _ask(witness, "")


SHAPES: dict[str, Callable[[str], None]] = {
    "detached": detached,
    "double-fork": double_fork,
    "zombie-leader": zombie_leader,
    "traced": traced,
    "vfork": vfork,
    "namespaced": namespaced,
    "subreaper": subreaper,
    "respawned": respawned,
    "disguised": disguised,
    "unlinked": unlinked,
    "woken": woken,
    "fork-storm": fork_storm,
    "handed-over": handed_over,
    "handed-over-bare": handed_over_bare,
}

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.argv[1] == "serve":
        serve(*sys.argv[2:])
    else:
        {**SHAPES, "bare": bare}[sys.argv[1]](sys.argv[2])
