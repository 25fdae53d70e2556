"""A process that forks children on request, so that their imports happen only once.

It reads orders, one per line, and answers {"pid": …}; when a child ends, it reports {"pid": …,
"status": …}. It must have no threads and no open store, so that its children start clean. The
children end with it, and it ends when the other end of its input is closed. With `sweeps` it also
kills the processes that its children started, even in sessions of their own, once the children are
gone.
"""

import contextlib
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence

import msgspec

from andon.host import proc, syscalls

# A killed process is gone in milliseconds, unless the kernel itself waits for something.
SWEEP_SECONDS = 5.0


def say(**words: object) -> None:
    os.write(1, msgspec.json.encode(words) + b"\n")


def serve(become: Callable[[bytes], None], *, sweeps: bool = False) -> None:
    """Fork a child for each order and call `become` with the order in the child."""
    if not sweeps:
        _serve(become, lambda: None)
        return
    syscalls.become_subreaper()
    kept = proc.children(os.getpid())  # started by an import, shared by all children
    try:
        _serve(become, lambda: _sweep(kept))
    finally:
        _sweep()


def _serve(become: Callable[[bytes], None], sweep: Callable[[], None]) -> None:
    children: set[int] = set()
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(ended, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    unread = b""
    while True:
        ready, _, _ = select.select([0, ended], [], [])
        if ended in ready:
            os.read(ended, 4096)
            ends = _reap(children)
            if ends and not children:
                sweep()
            for pid, status in ends:
                say(pid=pid, status=status)
        if 0 in ready:
            found = os.read(0, 65536)
            if not found:
                return
            *orders, unread = (unread + found).split(b"\n")
            for order in orders:
                pid = _fork(become, order)
                children.add(pid)
                say(pid=pid)


def _fork(become: Callable[[bytes], None], order: bytes) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        syscalls.die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.setpgid(0, 0)  # one group with all that it will start
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        become(order)
    except BaseException:  # noqa: BLE001 (the child must not go on as a second forker)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _reap(children: set[int]) -> list[tuple[int, int]]:
    """Return the children that have ended, with their status; adopted processes are only reaped."""
    ends: list[tuple[int, int]] = []
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = found
            if pid in children:
                children.discard(pid)
                ends.append((pid, os.waitstatus_to_exitcode(status)))
    return ends


def _sweep(kept: Sequence[int] = ()) -> None:
    """Kill all processes below this one, except `kept`."""
    end = time.monotonic() + SWEEP_SECONDS
    while time.monotonic() < end:
        left = [pid for pid in proc.children(os.getpid()) if pid not in kept]
        if not left:
            return
        for pid in (*proc.descendants(left), *left):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        _reap(set())
        time.sleep(0.001)
