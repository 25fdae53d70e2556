"""Trials that show whether a mechanism works here, on scratch processes in a scratch child.

The bait is a small hostile tree: it ignores SIGTERM, and a grandchild leaves the session and loses
its parents. A mechanism that finds and kills that grandchild is trusted with real children.
"""

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any

from andon.host import syscalls
from andon.supervisor.trees.tree import Mechanism, Tree, TreeSpec

# A scratch child that takes longer than this is killed and counts as not working.
TRIAL_SECONDS = 3


def apart(trial: Callable[[], Any], seconds: int = TRIAL_SECONDS) -> Any:
    """Run a function in a child and return its answer; OSError if it raises or gives none."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(out)
            signal.alarm(seconds)
            with contextlib.suppress(OSError):
                syscalls.die_with_parent()
            try:
                answer = {"answer": trial()}
            except Exception as error:  # noqa: BLE001 (any failure means: does not work here)
                answer = {"error": f"{type(error).__name__}: {error}"}
            os.write(into, json.dumps(answer).encode())
        finally:
            os._exit(0)
    os.close(into)
    try:
        text = read_all(out, seconds + 0.5)
    finally:
        os.close(out)
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    try:
        answer = json.loads(text)
    except ValueError:
        raise OSError("the scratch child ended without an answer") from None
    if "error" in answer:
        raise OSError(answer["error"])
    return answer["answer"]


def read_all(fd: int, seconds: float, most: int = 1 << 20) -> bytes:
    """Read until the end, `most` bytes, or the time is over."""
    return _read(fd, seconds, most)[0]


def closes(fd: int, seconds: float) -> bool:
    """Whether the other end of the pipe is closed in time."""
    return _read(fd, seconds, 1 << 20)[1]


def _read(fd: int, seconds: float, most: int) -> tuple[bytes, bool]:
    end = time.monotonic() + seconds
    text = b""
    while len(text) < most and select.select([fd], [], [], max(0.0, end - time.monotonic()))[0]:
        part = os.read(fd, most - len(text))
        if not part:
            return text, True
        text += part
    return text, False


class Bait:
    """A tree of three: root, child and escaped grandchild. Each holds a pipe open."""

    def __init__(self, tree: Tree, work: Callable[[int], None] | None = None) -> None:
        self.tree = tree
        self.out, into = os.pipe()
        self.root = os.fork()
        if self.root == 0:
            try:
                os.close(self.out)
                tree.enter()
                _misbehave(into, work or _sleep)
            finally:
                os._exit(1)
        os.close(into)
        tree.started(self.root)
        self.ready = len(read_all(self.out, 1.0, 3))

    def gone(self, seconds: float) -> bool:
        """Whether all of them are dead, judged by the closed pipe and not by the tree."""
        return closes(self.out, seconds)

    def close(self) -> None:
        self.tree.finish(1.0)
        os.close(self.out)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        self.tree.close()


def _misbehave(into: int, work: Callable[[int], None]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.alarm(2 * TRIAL_SECONDS)
    if os.fork() == 0:
        signal.alarm(2 * TRIAL_SECONDS)
        work(into)
    middle = os.fork()
    if middle == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        # The process has no parent left to end it, so the alarm covers a mechanism that fails.
        signal.alarm(2 * TRIAL_SECONDS)
        work(into)
    os.waitpid(middle, 0)
    work(into)


def _sleep(into: int) -> None:
    os.write(into, b"r")
    while True:
        time.sleep(60)


def refute(mechanism: Mechanism) -> str:
    """Return why the mechanism does not work here; empty if it does."""
    try:
        return str(apart(lambda: _try_kill(mechanism)))
    except OSError as error:
        return str(error)


def _try_kill(mechanism: Mechanism) -> str:
    # The scratch child acts as the supervisor: processes that escape become its children.
    with contextlib.suppress(OSError):
        syscalls.become_subreaper()
    bait = Bait(mechanism.make(TreeSpec("trial", kind="command")))
    try:
        if bait.ready < 3:
            return "the scratch tree did not start"
        bait.tree.finish(1.0)
        return "" if bait.gone(1.0) else "a scratch process that escaped its parents survived"
    finally:
        bait.close()
