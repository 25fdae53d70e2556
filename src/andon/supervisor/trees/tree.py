"""A process tree that can be listed, frozen and killed as a whole, without its cooperation.

A `Mechanism` is one way to own trees; `choose` tries each for real and takes the best. A `Tree` is
one child of the supervisor with everything that it starts. The order of calls:

    tree = mechanism.make("run-7")
    pid = os.fork()
    if pid == 0:
        tree.enter()            # after the descriptors are in place, right before exec
        os.execvpe(...)
    tree.started(pid)
    tree.kill(); tree.empty()   # repeat until empty: one round does not wait

Nothing here blocks, except `freeze` and `thaw` for at most `SETTLE_SECONDS` and `finish` for at
most its argument. Use it in single-threaded processes only: the kernel binds a parent-death signal
to the thread that forked.
"""

import contextlib
import errno
import os
import pwd
import select
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from andon.host import proc, syscalls
from andon.host.proc import Stat
from andon.supervisor.trees import marks

# A tree that has not settled by then counts as not frozen.
SETTLE_SECONDS = 0.5

Grades = dict[str, str]


class Tree(ABC):
    """One child and everything it starts."""

    by = "?"
    sure = False  # one kill reaches everything, including processes being forked

    def __init__(
        self, name: str, grades: Grades, *, uid: int | None = None, apart: bool = False
    ) -> None:
        self.name = name
        self.grades = dict(grades)
        self.uid = uid
        self.apart = apart
        self.pid = 0
        self.ticks = 0
        self.mark = marks.make()
        self._owner = os.getpid()

    def enter(self, *, own_group: bool = True, die_with_parent: bool = True) -> None:
        """Become the root of the tree. Call it in the forked child before exec; it returns once.

        The child exits if the supervisor is already gone, because nothing would own it.
        """
        if own_group:
            with contextlib.suppress(PermissionError):
                os.setsid()
        marks.put(self.mark)
        if os.getppid() != self._owner:
            os._exit(1)
        self._join()
        if self.uid is not None:
            become(self.uid)
        if die_with_parent:
            self._die_with_parent()

    def _die_with_parent(self) -> None:
        # Set last: a change of uid clears it. The check afterwards closes the race with a
        # supervisor that died before the signal was set.
        with contextlib.suppress(OSError):
            syscalls.die_with_parent()
        if os.getppid() != self._owner:
            os._exit(1)

    def _join(self) -> None:  # noqa: B027 (a group has nothing to join)
        """Move this process to where the mechanism can reach it."""

    def started(self, pid: int) -> None:
        """Record the forked child; called in the supervisor."""
        self.pid = pid
        self.ticks = proc.start_ticks(pid)

    @abstractmethod
    def pids(self) -> list[int]:
        """List its living processes by the pids of this process's namespace. No zombies."""

    @abstractmethod
    def kill(self) -> None:
        """Run one round of kills without waiting; new forks are left to the next round."""

    @abstractmethod
    def freeze(self) -> bool:
        """Freeze the tree; whether every process has stopped."""

    @abstractmethod
    def thaw(self) -> bool:
        """Thaw the tree; whether every process may run again."""

    def empty(self) -> bool:
        """Whether no process of it executes any more."""
        return not self.pids()

    def fileno(self) -> int:
        """A descriptor that polls POLLPRI when `empty` may have changed; -1 if there is none."""
        return -1

    def close(self) -> None:  # noqa: B027
        """Release the kernel resources of the tree. Its processes are not touched."""

    def describe(self) -> dict[str, Any]:
        """Return what `Mechanism.restore` needs after an upgrade or crash of the supervisor."""
        return {
            "by": self.by,
            "name": self.name,
            "pid": self.pid,
            "start_ticks": self.ticks,
            "mark": self.mark,
            "uid": self.uid,
            "apart": self.apart,
            "grades": self.grades,
        }

    def recall(self, described: dict[str, Any]) -> None:
        """Load the state that `describe` returned."""
        self.pid = int(described.get("pid") or 0)
        self.ticks = int(described.get("start_ticks") or 0)
        self.mark = int(described.get("mark") or 0)

    def finish(self, seconds: float) -> list[int]:
        """Kill until it is empty; return the survivors. For probes: blocks and reaps all."""
        end = time.monotonic() + seconds
        while True:
            self.kill()
            # Reap orphans: an unreaped one would be looked at again in every round.
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if self.empty():
                return []
            left = end - time.monotonic()
            if left <= 0:
                return self.pids()
            self._pause(min(left, 0.002))

    def _pause(self, seconds: float) -> None:
        fd = self.fileno()
        poller = select.poll()
        if fd >= 0:
            poller.register(fd, select.POLLPRI)
        poller.poll(seconds * 1000)


class Mechanism(ABC):
    """One way to own process trees on this host."""

    by = "?"
    grades: Grades
    uid: int | None = None  # for trees that are made without a uid

    def user(self, uid: int | None, *, apart: bool) -> int | None:
        """The uid that a tree runs under; one that stands apart keeps our own user."""
        return self.uid if uid is None and not apart else uid

    @abstractmethod
    def make(
        self,
        name: str,
        parent: Tree | None = None,
        *,
        kind: str = "worker",
        uid: int | None = None,
        apart: bool = False,
    ) -> Tree:
        """Make an empty tree, inside `parent` where trees nest.

        `kind`: a "command" may get a pid namespace of its own; a worker must know its real pid.
        `uid`: run as this user. `apart`: not part of the fleet; `kill_all` spares it if it can.
        """

    @abstractmethod
    def restore(self, described: dict[str, Any]) -> Tree:
        """Rebuild a tree from what `Tree.describe` returned."""

    def kill_all(self) -> bool:
        """Kill the whole fleet in one round; False if each tree must be killed on its own."""
        return False

    def close(self) -> None:  # noqa: B027
        """Release the kernel resources of the mechanism, unless processes still use them."""


def become(uid: int) -> None:
    """Switch this process to that user, permanently."""
    try:
        gid = pwd.getpwuid(uid).pw_gid
    except KeyError:
        gid = uid
    with contextlib.suppress(PermissionError):
        os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        if pid > 1:
            with contextlib.suppress(OSError):
                os.kill(pid, number)


def moving(pids: Iterable[int]) -> list[int]:
    """Return the pids that have a runnable thread, or that another process may resume.

    A tracer outside `pids` can resume the process that it stopped, so such a process counts as
    moving.
    """
    found = living(pids)
    return [
        pid
        for pid in found
        if not proc.is_still(pid) or ((by := proc.tracer(pid)) and by not in found)
    ]


def living(pids: Iterable[int]) -> dict[int, Stat]:
    """Return the pids that still execute, with their stat."""
    return {pid: found for pid in pids if (found := proc.stat(pid)) and proc.executes(pid, found)}


# ── choosing a mechanism ──────────────────────────────────────────────────────────────────────


class Unfit(Exception):
    """This mechanism does not work here; the message says why."""


def choose(home: Path | str, *, want_uid: int | None = None, quick: bool = False) -> Mechanism:
    """Return the best mechanism that works here; each is tried in a scratch child first.

    `home` names the fleet in the kernel's own lists. `quick` takes the first mechanism that can be
    set up, without a trial: for an upgrade, where the children already exist.
    """
    from andon.supervisor.trees import trial

    linux_or_not(become_reaper=True)
    for build in mechanisms(str(home), want_uid):
        with contextlib.suppress(Unfit, OSError):
            found = build()
            if quick or not trial.refute(found):
                return found
            found.close()
    from andon.supervisor.trees.group import Group

    return Group()


def mechanisms(home: str, want_uid: int | None = None) -> list[Callable[[], Mechanism]]:
    """Return the constructors, best first; one that cannot work raises OSError or Unfit."""
    from andon.supervisor.trees.cgroup import Cgroup
    from andon.supervisor.trees.namespace import Namespace
    from andon.supervisor.trees.pid1 import Pid1
    from andon.supervisor.trees.uid import Uid
    from andon.supervisor.trees.walk import Walk

    found: list[Callable[[], Mechanism]] = [lambda: Cgroup(home, want_uid), lambda: Pid1(want_uid)]
    if want_uid is not None:
        found.append(lambda: Uid(want_uid))
    return [*found, lambda: Namespace(want_uid), lambda: Walk(want_uid)]


def linux_or_not(*, become_reaper: bool) -> bool:
    """Whether this kernel lets us adopt orphans; becoming a subreaper is harmless."""
    try:
        if become_reaper:
            syscalls.become_subreaper()
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EINVAL, errno.EPERM):
            raise
        return False
    return True
