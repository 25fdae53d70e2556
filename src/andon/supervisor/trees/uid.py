"""Kill every process of one user, for a child that runs under a uid of its own.

A helper process switches to that user permanently and calls `kill(-1, SIGKILL)`, which reaches all
processes of the user and no others. This needs root, and a uid that nothing else uses. Grade B.
"""

import contextlib
import os
import signal
import time

from andon.host import proc, syscalls
from andon.supervisor.trees.tree import Tree, TreeSpec, Unfit, become, living
from andon.supervisor.trees.walk import Walk, WalkTree

GRADES = {"kill": "B", "pause": "C", "parent_death": "C", "by": "uid"}
# Covers a fork, a change of user and a signal. The helper may be killed by the processes it hunts.
_SWEEP_SECONDS = 0.5


def sweep(uid: int) -> None:
    """Kill every process of that user, in one round."""
    if uid in (0, os.getuid(), os.geteuid()):
        raise ValueError(f"uid {uid} is this process's own or root: that would kill the machine")
    pid = os.fork()
    if pid == 0:
        try:
            become(uid)
            syscalls.die_with_parent()
            # Check all three: the real and the effective uid both grant the right to signal.
            if os.getresuid() == (uid, uid, uid):
                os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    end = time.monotonic() + _SWEEP_SECONDS
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < end:
            time.sleep(0.0002)


def of_user(uid: int) -> list[int]:
    """List the processes that have that uid as their real, effective or saved uid."""
    return [pid for pid in proc.every_pid() if uid in proc.uids(pid)[:3]]


class UidTree(WalkTree):
    """A walked tree, plus every other process of its user."""

    grades = GRADES

    def members(self) -> list[int]:
        found = super().members()
        if self.uid is None:
            return found
        return [*found, *(pid for pid in of_user(self.uid) if pid not in set(found))]

    def empty(self) -> bool:
        return super().empty() and not (self.uid and living(of_user(self.uid)))

    def kill(self) -> None:
        super().kill()
        if self.uid is not None:
            sweep(self.uid)


class Uid(Walk):
    """A walk that also finds processes by their user."""

    grades = GRADES

    def __init__(self, want_uid: int | None) -> None:
        if os.geteuid() != 0:
            raise Unfit("another user's processes can only be started by root")
        if want_uid is None or want_uid == 0:
            raise Unfit("needs a uid of its own for the child")
        super().__init__(want_uid)

    def _tree(self, spec: TreeSpec) -> Tree:
        # One that stands apart keeps our own user, whose other processes must live on.
        return super()._tree(spec) if spec.apart else UidTree(self, spec)

    def kill_all(self) -> bool:
        done = super().kill_all()
        for uid in {one.uid for one in self.trees if one.uid and not one.apart}:
            sweep(uid)
        return done
