"""A process tree that can be listed, frozen and killed as a whole, without its cooperation.

A `Mechanism` is one way to own trees; `choose` tries each for real and takes the best. A `Tree` is
one child of the supervisor with everything that it starts. The order of calls:

    tree = mechanism.make(TreeSpec("run-7"))
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
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from andon.host import proc, syscalls
from andon.host.proc import Stat
from andon.supervisor.trees import tree_mark as marks

# A tree that has not settled by then counts as not frozen.
SETTLE_SECONDS = 0.5

Grades = dict[str, str]


@dataclass(frozen=True, slots=True)
class TreeSpec:
    """The properties that a tree is made with."""

    name: str
    kind: str = "worker"  # a "command" may get a pid namespace; a worker must know its real pid
    uid: int | None = None  # the user to run as, if not the mechanism's own
    apart: bool = False  # not part of the fleet: `kill_all` spares it if it can
    parent: "Tree | None" = None  # the tree to make it in, where trees nest


class Tree(ABC):
    """One child and everything it starts."""

    grades: Grades
    sure = False  # one kill reaches everything, including processes being forked

    def __init__(self, spec: TreeSpec) -> None:
        self.name, self.uid, self.apart = spec.name, spec.uid, spec.apart
        self.pid = 0
        self.ticks = 0
        self.mark = marks.make()
        self._owner = os.getpid()

    @property
    def by(self) -> str:
        """The name of its mechanism."""
        return self.grades["by"]

    def enter(self) -> None:
        """Become the root of the tree. Call it in the forked child before exec; it returns once.

        The child exits if the supervisor is already gone, because nothing would own it.
        """
        with contextlib.suppress(PermissionError):
            os.setsid()
        marks.put(self.mark)
        if os.getppid() != self._owner:
            os._exit(1)
        self._join()
        if self.uid is not None:
            become(self.uid)
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
            time.sleep(min(left, 0.001))


class Mechanism(ABC):
    """One way to own process trees on this host."""

    grades: Grades
    uid: int | None = None  # for trees whose spec has no uid

    def make(self, spec: TreeSpec) -> Tree:
        """Make an empty tree; one that stands apart keeps our own user."""
        if spec.uid is None and not spec.apart:
            spec = replace(spec, uid=self.uid)
        return self._tree(spec)

    @abstractmethod
    def _tree(self, spec: TreeSpec) -> Tree:
        """Make the tree of this mechanism for a complete spec."""

    def restore(self, described: dict[str, Any]) -> Tree:
        """Rebuild a tree from what `Tree.describe` returned."""
        tree = self.make(spec_of(described))
        tree.recall(described)
        return tree

    def kill_all(self) -> bool:
        """Kill the whole fleet in one round; False if each tree must be killed on its own."""
        return False

    def close(self) -> None:  # noqa: B027
        """Release the kernel resources of the mechanism, unless processes still use them."""


def spec_of(described: dict[str, Any]) -> TreeSpec:
    """Return the spec of a tree that `Tree.describe` described."""
    return TreeSpec(
        str(described["name"]),
        kind="command" if described.get("by") == "pidns" else "worker",
        uid=described.get("uid"),
        apart=bool(described.get("apart")),
    )


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


class Unfit(Exception):
    """This mechanism does not work here; the message says why."""


def choose(*, want_uid: int | None = None, quick: bool = False) -> Mechanism:
    """Return the best mechanism that works here; each is tried in a scratch child first.

    `quick` takes the first mechanism that can be set up, without a trial: for an upgrade, where the
    children already exist.
    """
    from andon.supervisor.trees import trial

    linux_or_not(become_reaper=True)
    for build in mechanisms(want_uid):
        with contextlib.suppress(Unfit, OSError):
            found = build()
            if quick or not trial.refute(found):
                return found
            found.close()
    from andon.supervisor.trees.group import Group

    return Group()


def mechanisms(want_uid: int | None = None) -> list[Callable[[], Mechanism]]:
    """Return the constructors, best first; one that cannot work raises OSError or Unfit."""
    from andon.supervisor.trees.cgroup import Cgroup
    from andon.supervisor.trees.namespace import Namespace
    from andon.supervisor.trees.pid1 import Pid1
    from andon.supervisor.trees.uid import Uid
    from andon.supervisor.trees.walk import Walk

    found: list[Callable[[], Mechanism]] = [lambda: Cgroup(want_uid), lambda: Pid1(want_uid)]
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
