"""The fleet of a drill: its agents, each observed from outside through the pipe that it holds."""

import contextlib
import os
import select
from dataclasses import dataclass, field
from typing import Any

from andon.control.doctor.hostile_agents import ESCAPES, KEEPS, KINDS, MEMBERS, STORM
from andon.host import proc

# These kinds are durable runs in real workers, one of each; all further agents are commands.
RUNS = {
    "swallows cancellation": "swallows_cancellation",
    "holds the GIL": "holds_the_gil",
    "blocked in C": "blocked_in_c",
    "main thread has ended": "main_thread_ended",
    "spawns a child run": "spawns_a_child_run",
}
ORDER = (
    "cooperative",
    "ignores SIGTERM",
    ESCAPES,
    STORM,
    KEEPS,
    "traces its child",
    "sleeps in the kernel",
    *RUNS,
)
# One storm is enough for the proof; more would measure how slow a busy machine is.
MORE = tuple(kind for kind in ORDER if kind in KINDS)
MOST_AGENTS = 200


@dataclass
class Member:
    """One agent of the fleet."""

    kind: str
    name: str
    pipe: str
    is_run: bool
    escapees: int
    fd: int = -1
    received: bytes = b""
    gone_ms: float | None = None
    left: list[int] = field(default_factory=list)

    def listen(self, now_ms: float | None = None) -> None:
        """Read what its processes have written; `now_ms` is noted once the last of them is gone.

        Before they have all opened the pipe, its end means nothing.
        """
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self.fd, 65536):
                self.received += part
            self.gone_ms = now_ms

    @property
    def processes(self) -> list[tuple[int, int, str]]:
        found = []
        for line in self.received.splitlines():
            pid, ticks, *namespace = line.decode().split()
            found.append((int(pid), int(ticks), namespace[0] if namespace else ""))
        return found

    @property
    def is_complete(self) -> bool:
        return self.received.count(b"\n") >= MEMBERS

    def alive(self) -> list[int]:
        """Pids that are alive, by pid and start time; [0] if only the open pipe shows life.

        Processes in another pid namespace can only be observed through the pipe.
        """
        here = proc.pid_namespace()
        found = [p for p, ticks, of in self.processes if of == here and proc.alive(p, ticks)]
        return found or ([] if self.gone_ms is not None else [0])


def fleet(agents: int, folder: str) -> list[Member]:
    """The members: one of each kind, then more of those that are commands."""
    members: list[Member] = []
    for number in range(agents):
        kind = ORDER[number] if number < len(ORDER) else MORE[number % len(MORE)]
        is_run = number < len(ORDER) and kind in RUNS
        # One or two of an agent's three processes escape: half of them over the whole fleet.
        escapees = 1 if is_run else 2 if kind == ESCAPES else 1 + number % 2
        pipe = os.path.join(folder, f"pipe-{number}")
        members.append(Member(kind, f"agent-{number}", pipe, is_run, escapees))
    return members


def counted(members: list[Member]) -> dict[str, Any]:
    """How many processes there were, how long the last one took to end, and how many survived."""
    gone = [member.gone_ms for member in members]
    return {
        "processes": sum(len(member.processes) for member in members),
        "gone_ms": None if None in gone else max(one for one in gone if one is not None),
        "survivors": sum(len(member.left) for member in members),
    }


def wait_for(fds: list[int], seconds: float) -> set[int]:
    """The descriptors that can be read within that time."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(seconds * 1000)}
