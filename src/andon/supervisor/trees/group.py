"""Kill by process group, the fallback where the kernel offers nothing better.

A process that calls setsid escapes. Pause and parent death are not enforced. All grades are "none",
and reported as such.
"""

import contextlib
import os
import signal

from andon.supervisor.trees.tree import Mechanism, Tree, TreeSpec

GRADES = {"kill": "none", "pause": "none", "parent_death": "none", "by": "group"}


class GroupTree(Tree):
    """A process group; a member that leaves the group is lost."""

    grades = GRADES

    def pids(self) -> list[int]:
        """Return the child alone: without /proc the other members cannot be listed."""
        return [self.pid] if not self.empty() else []

    def empty(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            # No remaining process may be signalled: zombies, or another user's.
            return False
        return not self.pid

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def freeze(self) -> bool:
        self._send(signal.SIGSTOP)
        return True

    def thaw(self) -> bool:
        self._send(signal.SIGCONT)
        return True

    def _send(self, number: signal.Signals) -> None:
        if self.pid > 1:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, number)


class Group(Mechanism):
    """Gives each child a process group."""

    grades = GRADES

    def _tree(self, spec: TreeSpec) -> Tree:
        return GroupTree(spec)
