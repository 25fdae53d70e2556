"""Forks worker processes on request: importing costs 0.4 s, and is done once.

Reads orders as JSON lines and answers {"pid": …}; when a child ends, says {"pid": …, "status": …}.
It has no threads and no open store, so that its children start clean. They end with it.
"""

import ctypes
import os
import select
import signal
import sys
import traceback
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.chaos import agents, worker

import andon.runtime.requests
import andon.store.postgres
import andon.store.sqlite

PR_SET_PDEATHSIG = 1
LOADED = (andon.runtime.requests, andon.store.postgres, andon.store.sqlite, agents)


def fork(order: worker.Order) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        worker.obey(order)
    except BaseException:  # noqa: BLE001 (a child must not become a second forker)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def say(**words: int) -> None:
    os.write(1, msgspec.json.encode(words) + b"\n")


def reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        say(pid=pid, status=os.waitstatus_to_exitcode(status))


def main() -> None:
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
            reap()
        if 0 in ready:
            found = os.read(0, 65536)
            if not found:
                return
            *orders, unread = (unread + found).split(b"\n")
            for order in orders:
                say(pid=fork(msgspec.json.decode(order, type=worker.Order)))


if __name__ == "__main__":
    main()
