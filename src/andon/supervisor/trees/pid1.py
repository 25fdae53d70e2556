"""Kill as PID 1 of a container: one call can end every process that PID 1 sees.

A fleet kill ends every descendant of PID 1, marked or not, because everything in the container is
ours. It spares the control process, and processes that entered from outside, such as an
`andon halt` typed in the container. If new processes still appear after `STORM_SECONDS`, it calls
`kill(-1, SIGKILL)`, which needs no rights and reaches escaped processes and fork storms at once,
but also everything that was to be spared. A single tree is killed by walking. When PID 1 itself
dies the kernel kills the rest. Grade A.
"""

import contextlib
import os
import signal
import time

from andon.host import proc
from andon.supervisor.trees.tree import Tree, TreeSpec, Unfit, send
from andon.supervisor.trees.walk import Walk, WalkTree

# Processes are killed one by one for this long; if more still appear, it is a fork storm.
STORM_SECONDS = 0.05
GRADES = {"kill": "A", "pause": "C", "parent_death": "A", "by": "pid1"}


class Pid1Tree(WalkTree):
    """One of several trees: killed by walking, unless the whole fleet is."""

    grades = GRADES


class Pid1(Walk):
    """A walk whose fleet kill can end in one `kill(-1)`."""

    grades = GRADES

    def __init__(self, want_uid: int | None = None) -> None:
        if os.getpid() != 1:
            raise Unfit("this process is not PID 1")
        super().__init__(want_uid)

    def _tree(self, spec: TreeSpec) -> Tree:
        return Pid1Tree(self, spec)

    def kill_all(self) -> bool:
        # Check again: run by root but not as PID 1, `kill(-1)` would kill the whole machine.
        if os.getpid() != 1:
            return super().kill_all()
        hit: set[int] = set()
        end = time.monotonic() + STORM_SECONDS
        while new := self._below() - hit:
            if time.monotonic() > end:
                with contextlib.suppress(OSError):  # no process is left
                    os.kill(-1, signal.SIGKILL)
                return True
            send(new, signal.SIGKILL)
            hit |= new
        return True

    def _below(self) -> set[int]:
        """Find processes by descent, not mark: an agent may have copied the spared one's mark."""
        spared = {one.pid for one in self.trees if one.apart}
        spared.update(proc.descendants(spared))
        return set(proc.descendants([1])) - spared
