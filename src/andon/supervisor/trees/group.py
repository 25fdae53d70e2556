"""What is left where the kernel offers nothing: the process group.

Whoever calls setsid has escaped. There is no pause and no parent death. Grade none, and said so.
"""

import contextlib
import os
import signal
from typing import Any

from andon.supervisor.trees.tree import Mechanism, Tree

GRADES = {"kill": "none", "pause": "none", "parent_death": "none", "by": "group"}


class GroupTree(Tree):
    """A process group, as long as its members stay in it."""

    by = "group"

    def pids(self) -> list[int]:
        """The child alone: other members of the group cannot be listed without /proc."""
        return [self.pid] if not self.empty() else []

    def empty(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            # Of what is left none can be signalled: zombies, or another user's.
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
    by = "group"

    def __init__(self) -> None:
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
        return GroupTree(name, self.grades, uid=uid, apart=apart)

    def restore(self, described: dict[str, Any]) -> Tree:
        tree = self.make(str(described["name"]), uid=described.get("uid"))
        tree.recall(described)
        return tree
