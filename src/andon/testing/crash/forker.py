"""Forks the workers of a crash test, in a process of its own (`command`).

Importing andon and the user's agent takes a second, and is done once. Reads orders as JSON lines
and answers {"pid": …}; when a child ends, says {"pid": …, "status": …}. It has no threads and no
open store, so that its children start clean; agents whose import starts threads are imported in
each child instead. Everything here ends with the process that asked for it.
"""

import ctypes
import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import msgspec

import andon.runtime.requests
import andon.store.sqlite
from andon.control import loading
from andon.errors import AndonError, BadInput
from andon.runtime.agent import Agent
from andon.testing.crash import worker

PR_SET_PDEATHSIG = 1
LOADED = (andon.runtime.requests, andon.store.sqlite)
LATE = "late"  # the agent is imported in each child
# All of andon is imported before their folders are searched: their queue.py is theirs.
_START = """
import sys
sys.path.append(sys.argv[1])
from andon.testing.crash.forker import main
main()
"""


def command(source: str, agent: str, path: Sequence[str], *more: str) -> list[str]:
    """What starts it: for an agent of a file or module, with that path for its imports."""
    home = str(Path(andon.__file__).parent.parent)
    words = [home, source, agent, json.dumps(list(path))]
    return [sys.executable, "-P", "-c", _START, *words, *more]


def say(**words: object) -> None:
    os.write(1, msgspec.json.encode(words) + b"\n")


def die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def load(source: str, name: str, path: str) -> list[Agent]:
    """All agents of the file: the one that is tested may start runs of the others."""
    sys.path[:] = json.loads(path)
    agents = loading.load(source)
    if all(agent.name != name for agent in agents):
        known = ", ".join(sorted(agent.name for agent in agents))
        raise BadInput(f"{source}: expected agent {name!r} at its top level; it has: {known}")
    return agents


def fork(order: worker.Order, agents: list[Agent] | None) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        die_with(parent)
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        worker.obey(order, load(*sys.argv[2:5]) if agents is None else agents)
    except BaseException:  # noqa: BLE001 (a child must not become a second forker)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        say(pid=pid, status=os.waitstatus_to_exitcode(status))


def serve(agents: list[Agent] | None) -> None:
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
                say(pid=fork(msgspec.json.decode(order, type=worker.Order), agents))


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asked for the test ends it
    answers = os.dup(1)
    os.dup2(2, 1)  # what an import prints is no answer
    error, agents = "", None
    try:
        agents = None if LATE in sys.argv[5:] else load(*sys.argv[2:5])
    except AndonError as found:
        error = str(found)
    os.dup2(answers, 1)
    if error:
        say(error=error)
        return
    if agents is not None and len(os.listdir("/proc/self/task")) > 1:
        again = command(*sys.argv[2:4], json.loads(sys.argv[4]), LATE)
        os.execv(sys.executable, again)  # noqa: S606
    say(ready=True)
    serve(agents)
