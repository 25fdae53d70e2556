"""Kill by walking the descendants of a child, again and again until none is left.

The supervisor is a subreaper, so a process that loses its parent becomes the supervisor's child and
is found by its mark. This works everywhere and needs no rights. A fork storm may take half a
second, and a process that changes its own mark and double-forks counts for every tree. Grade C.
"""

import contextlib
import os
import signal
import time
from typing import Any

from andon.host import proc
from andon.supervisor.trees import tree_mark as marks
from andon.supervisor.trees.tree import (
    SETTLE_SECONDS,
    Mechanism,
    Tree,
    TreeSpec,
    Unfit,
    linux_or_not,
    living,
    moving,
    send,
)

# How many times `_late` looks for new children before it gives up.
LOOKS = 10
# How long the marks read from our children are cached.
KEEP_SECONDS = 0.1
GRADES = {"kill": "C", "pause": "C", "parent_death": "C", "by": "walk"}


class WalkTree(Tree):
    """A root process, its descendants, and the orphans that carry its mark."""

    grades = GRADES

    def __init__(self, walk: "Walk", spec: TreeSpec) -> None:
        super().__init__(spec)
        self._walk = walk
        self._adopted = False
        walk.trees.append(self)

    def _root(self) -> set[int]:
        """The child itself, unless its pid was reused by another process."""
        same = self.pid and (not self.ticks or proc.start_ticks(self.pid) == self.ticks)
        return {self.pid} if same else set()

    def members(self) -> list[int]:
        """List all processes of the tree, parents first and zombies included."""
        roots = self._root() | set(self._orphans())
        return [*roots, *proc.descendants(roots)]

    def _orphans(self) -> list[int]:
        return self._walk.orphans_of(self, everywhere=self._adopted)

    def pids(self) -> list[int]:
        found = living(self.members())
        return sorted(found) if found else self._late()

    def _late(self) -> list[int]:
        """List processes that were reparented to us during the look, as their parents died.

        If everything was dead and no new child of ours appears, nothing is left: each living
        process has a living parent, up to a child of ours.
        """
        for _ in range(LOOKS):
            found = living([*self._root(), *self._orphans()])
            if found or self._adopted or not self._walk.look():
                return sorted(found)
        return [self.pid]

    def empty(self) -> bool:
        return not living(self._root()) and not self._late()

    def kill(self) -> None:
        send(self.members(), signal.SIGKILL)

    def freeze(self) -> bool:
        """Stop every process, and look again until none is found running."""
        end = time.monotonic() + SETTLE_SECONDS
        while True:
            found = moving(self.members())
            if not found:
                return True
            if time.monotonic() > end:
                return False
            send(found, signal.SIGSTOP)
            time.sleep(0.001)

    def thaw(self) -> bool:
        """Resume children first, so that a shell does not see its own child stopped."""
        end = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < end:
            found = living(self.members())
            held = [pid for pid in found if set(proc.thread_states(pid)) & set("Tt")]
            if not held:
                return True
            send(reversed(held), signal.SIGCONT)
            time.sleep(0.001)
        return False

    def recall(self, described: dict[str, Any]) -> None:
        super().recall(described)
        # After a crash the orphans are another process's children: only a scan of all processes
        # finds them.
        found = proc.stat(self.pid)
        self._adopted = not (found and found.parent == os.getpid())

    def close(self) -> None:
        with contextlib.suppress(ValueError):
            self._walk.trees.remove(self)


class Walk(Mechanism):
    """Finds processes by descent; knows all its trees, to tell their orphans apart."""

    grades = GRADES

    def __init__(self, want_uid: int | None = None) -> None:
        if not linux_or_not(become_reaper=True) or not proc.start_ticks(os.getpid()):
            raise Unfit("this system has no subreaper or no /proc")
        self.uid = want_uid
        self.trees: list[WalkTree] = []
        self._marks: dict[int, int] = {}
        self._stale_at = self._looked_at = 0.0

    def _tree(self, spec: TreeSpec) -> Tree:
        return WalkTree(self, spec)

    def look(self) -> bool:
        """Look at our own children; whether there is a new one. Marks are read once each."""
        self._looked_at = time.monotonic()
        if self._looked_at > self._stale_at:
            # A pid may have been reused by another process.
            self._marks.clear()
            self._stale_at = self._looked_at + KEEP_SECONDS
        roots = {one.pid for one in self.trees}
        now = [pid for pid in proc.children(os.getpid()) if pid not in roots]
        new = [pid for pid in now if pid not in self._marks]
        self._marks = {pid: self._marks.get(pid, -1) for pid in now}
        self._marks.update((pid, marks.of(pid)) for pid in new)
        return bool(new)

    def orphans_of(self, tree: Tree, *, everywhere: bool = False, age: float = 0.0) -> list[int]:
        """Find the tree's orphans among our children, by mark; the look is at most `age` old.

        An orphan with an unknown mark counts for every tree that is older than it: to kill one
        process too many is safer than to miss one.
        """
        if everywhere:
            return [pid for pid in proc.every_pid() if tree.mark and marks.of(pid) == tree.mark]
        if time.monotonic() - self._looked_at >= age:
            self.look()
        known = {one.mark for one in self.trees}
        found = []
        for pid, mark in self._marks.items():
            stray = mark and mark not in known and not tree.apart
            if (mark and mark == tree.mark) or (stray and proc.start_ticks(pid) >= tree.ticks):
                found.append(pid)
        return found

    def kill_all(self) -> bool:
        """Kill every process below us except trees that stand apart, with one look for all."""
        self.look()
        spared = {0, *(one.mark for one in self.trees if one.apart)}
        roots = {one.pid for one in self.trees if not one.apart and one.pid}
        roots.update(pid for pid, mark in self._marks.items() if mark not in spared)
        send([*roots, *proc.descendants(roots)], signal.SIGKILL)
        return True
