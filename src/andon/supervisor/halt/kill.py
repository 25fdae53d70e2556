"""Kills process trees for certain: kill, look, and kill again until nothing is left.

    latch, on the disk → kill every tree → look and kill again → nothing left → receipt

The latch comes first, so that nothing starts again, whichever process dies in between. A latch that
cannot be written does not stop the kill; the receipt says so. The control process is spared,
because it is no agent and has to report to the store.
"""

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from andon.core.latch import Pulled
from andon.host.ids import new_order
from andon.host.latch import Latch
from andon.supervisor.children.child import Child
from andon.supervisor.trees.tree import Tree

# One turn of the loop may spend this long on rounds: a fork storm needs them back to back.
BURST_SECONDS = 0.02
REST_SECONDS = 0.1  # between rounds once the deadline has passed
# For trees that one kill reaches as a whole: dying takes processor time, which looking would steal.
DYING_SECONDS, GLANCE_SECONDS = 0.03, 0.01


@dataclass(slots=True)
class KillTarget:
    """A child and the tree it has now; a tree that it gets after a restart is not killed."""

    child: Child
    tree: Tree | None
    pids: set[int] = field(default_factory=set)
    survivors: list[int] = field(default_factory=list)
    took_ms: float | None = None
    again_at: float = 0.0  # earliest time of the next kill

    def describe(self) -> dict[str, Any]:
        return {
            "child": self.child.name,
            "run": self.child.run,
            "pids": len(self.pids),
            "survivors": self.survivors,
            "took_ms": self.took_ms,
            "by": "" if self.tree is None else self.tree.by,
        }

    def look(self) -> list[int]:
        """List the living processes of the tree."""
        if self.tree is None or self.child.tree is not self.tree:
            return []  # already cleared, which happens only once it was empty
        try:
            return self.tree.pids()
        except OSError:  # a tree that cannot be read is not proved to be gone
            return [self.tree.pid]

    def hit(self) -> None:
        """Run one round of kills, without waiting for its effect."""
        if self.tree is not None and self.child.tree is self.tree:
            self.tree.kill()
            self.struck()

    def struck(self) -> None:
        """Give a tree that one kill reaches as a whole time to die before the next round."""
        if self.tree is not None and self.tree.sure:
            self.again_at = time.monotonic() + DYING_SECONDS

    def dying(self) -> bool:
        """Whether one kill has reached the whole tree moments ago and it is not empty yet."""
        if self.tree is None or time.monotonic() >= self.again_at:
            return False
        try:
            return not self.tree.empty()
        except OSError:
            return False


class TreeKill:
    """Kills all processes of these children, until nothing is left."""

    def __init__(
        self,
        children: list[Child],
        done: Callable[["TreeKill"], None],
        *,
        seconds: float,
        order: str = "",
        why: str = "",
    ) -> None:
        self.targets = [KillTarget(child, child.tree) for child in children]
        self.order, self.why = order, why
        self.began = time.monotonic()
        self.deadline = self.began + seconds
        self.overran = False
        self.hit_ms: float | None = None
        self._done = done
        self._next = 0.0

    def covers(self, child: Child) -> bool:
        return any(target.child is child for target in self.targets)

    @property
    def unreaped(self) -> bool:
        """Whether the kernel has not yet reported the exit of one of them."""
        here = (target.child for target in self.targets if target.child.tree is target.tree)
        return any(child.pid and not child.adopted for child in here)

    @property
    def survivors(self) -> list[int]:
        return sorted(pid for target in self.targets for pid in target.survivors)

    @property
    def processes(self) -> int:
        return len({pid for target in self.targets for pid in target.pids})

    def hit(self, fleet: Callable[[], bool] | None = None) -> None:
        """Run the first round: list the processes, then kill, in one call if `fleet` can."""
        for target in self.targets:
            target.survivors = target.look()
            target.pids.update(target.survivors)
        if fleet is None or not fleet():
            for target in self.targets:
                target.hit()
        for target in self.targets:
            target.struck()
        self.hit_ms = self._ms()

    def rounds(self) -> bool:
        """Look and kill again, for at most `BURST_SECONDS`; whether nothing is left."""
        now = time.monotonic()
        if now < self._next:
            return False
        end = now + BURST_SECONDS
        grew = True
        while grew:
            left = [target for target in self.targets if target.took_ms is None]
            # Killed processes need the processor to die, so only new ones cause another round now.
            grew = sum(self._round(target) for target in left) > 0
            if all(target.took_ms is not None for target in left):
                return True
            now = time.monotonic()
            if self.overran:
                self._next = now + REST_SECONDS
            elif all(now < target.again_at for target in left if target.took_ms is None):
                self._next = now + GLANCE_SECONDS
            grew = grew and now < end and not self.overran
        return False

    def _round(self, target: KillTarget) -> bool:
        """Kill what is left of the target; whether a new process was found."""
        if target.dying():
            return False
        target.survivors = target.look()
        if not target.survivors:
            target.took_ms = self._ms()
            return False
        known = len(target.pids)
        target.pids.update(target.survivors)
        target.hit()
        return len(target.pids) > known

    def done(self) -> None:
        self._done(self)

    def _ms(self) -> float:
        return round((time.monotonic() - self.began) * 1000, 3)


@dataclass(slots=True)
class HostHalt:
    """One halt on this host, from the request to the receipt."""

    latch: Latch
    by: str = ""
    why: str = ""
    via: str = ""
    order: str = ""
    asked_at: float = field(default_factory=time.time)
    began: float = field(default_factory=time.monotonic)
    pulled: Pulled | None = None
    latched_ms: float = 0.0
    kill: TreeKill | None = None
    answers: list[Callable[[dict[str, Any]], None]] = field(default_factory=list)
    answered: bool = False
    orders: list[str] = field(default_factory=list)  # others that asked for the same

    def pull(self, *, again: bool = False) -> None:
        """Make the pull durable unless it already is; an error does not stop the kill."""
        try:
            found = self.latch.read()
            other = bool(self.order) and found.order != self.order
            if again or other or not found.pulled or found.unreadable:
                found = self.latch.pull(self.by, self.why, self.via, self.order)
        except Exception as error:  # noqa: BLE001 (any error: the kill goes on)
            found = Pulled(pulled=True, unwritten=f"{type(error).__name__}: {error}")
        self.pulled = found
        self.order = found.order or self.order or new_order()
        self.latched_ms = self.ms()

    def ms(self) -> float:
        return round((time.monotonic() - self.began) * 1000, 3)

    def _verified_ms(self, late: float) -> float:
        """When the last process was seen to be gone, which may be before the report of it."""
        assert self.kill is not None
        took = [target.took_ms for target in self.kill.targets if target.took_ms is not None]
        return round(max(took, default=0.0) + late, 3)

    def receipt(self) -> dict[str, Any]:
        assert self.kill is not None
        assert self.pulled is not None
        late = (self.kill.began - self.began) * 1000
        return {
            "id": self.order,
            "epoch": self.pulled.epoch,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "by": self.pulled.by or self.by,
            "why": self.pulled.why or self.why,
            "via": self.pulled.via or self.via,
            "asked_at": self.asked_at,
            "latched": not self.pulled.unwritten,
            "latch_error": self.pulled.unwritten,
            "latched_ms": self.latched_ms,
            "killed_ms": round((self.kill.hit_ms or 0.0) + late, 3),
            "verified_ms": None if self.kill.survivors else self._verified_ms(late),
            "processes": self.kill.processes,
            "children": [target.describe() for target in self.kill.targets],
            "survivors": self.kill.survivors,
            "proved": not self.kill.survivors,
        }
