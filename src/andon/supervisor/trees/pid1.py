"""Kill as PID 1 of a container: one call ends every process that it can see.

Whatever is below us is ended, marked or not, because in a container of our own all of it is ours;
except the control process, and those that came in from outside, as whoever typed `andon halt` in
there. Where that does not keep up, `kill(-1, SIGKILL)`: it needs no right, and reaches escapees
and fork storms at once, and everybody else. One tree of several is still killed by walking. When
PID 1 itself dies the kernel kills the rest. Grade A.
"""

import contextlib
import os
import signal
import time

from andon.host import proc
from andon.supervisor.trees.tree import Tree, Unfit, send
from andon.supervisor.trees.walk import Walk, WalkTree

# So long they are ended one by one; who is still being born then is a storm.
STORM_SECONDS = 0.05
GRADES = {"kill": "A", "pause": "C", "parent_death": "A", "by": "pid1"}


class Pid1Tree(WalkTree):
    """One of several: walked, unless all are to go."""

    by = "pid1"


class Pid1(Walk):
    """A walk whose fleet kill is one call."""

    by = "pid1"

    def __init__(self, want_uid: int | None = None) -> None:
        if os.getpid() != 1:
            raise Unfit("this process is not PID 1")
        super().__init__(want_uid)
        self.grades = dict(GRADES)

    def make(
        self,
        name: str,
        parent: Tree | None = None,
        *,
        kind: str = "worker",
        uid: int | None = None,
        apart: bool = False,
    ) -> Tree:
        uid = self.user(uid, apart=apart)
        return Pid1Tree(self, name, self.grades, uid=uid, apart=apart)

    def kill_all(self) -> bool:
        # Looked at again: for anybody but PID 1 with root's rights this is the whole machine.
        if os.getpid() != 1:
            return super().kill_all()
        hit: set[int] = set()
        end = time.monotonic() + STORM_SECONDS
        while new := self._below() - hit:
            if time.monotonic() > end:
                with contextlib.suppress(OSError):  # nobody is there
                    os.kill(-1, signal.SIGKILL)
                return True
            send(new, signal.SIGKILL)
            hit |= new
        return True

    def _below(self) -> set[int]:
        """By descent alone: an agent may have given itself the mark of the one that is spared."""
        spared = {one.pid for one in self.trees if one.apart}
        spared.update(proc.descendants(spared))
        return set(proc.descendants([1])) - spared
