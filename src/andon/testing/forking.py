"""A process that forks others on request: what they import is imported once.

It reads orders, one a line, and answers {"pid": …}; when a child ends, it says {"pid": …,
"status": …}. It must have no threads and no open store, so that its children start clean. They end
with it, and it ends with whoever holds the other end of its input.
"""

import ctypes
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable

import msgspec

PR_SET_PDEATHSIG = 1


def say(**words: object) -> None:
    os.write(1, msgspec.json.encode(words) + b"\n")


def serve(become: Callable[[bytes], None]) -> None:
    """Fork a child for each order; the child becomes what was ordered."""
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
            _reap()
        if 0 in ready:
            found = os.read(0, 65536)
            if not found:
                return
            *orders, unread = (unread + found).split(b"\n")
            for order in orders:
                say(pid=_fork(become, order))


def _fork(become: Callable[[bytes], None], order: bytes) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.setpgid(0, 0)  # with all that it will start
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        become(order)
    except BaseException:  # noqa: BLE001 (a child must not become a second one that forks)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        say(pid=pid, status=os.waitstatus_to_exitcode(status))
