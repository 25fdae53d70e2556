"""Halt targets on this host: the command orders them to stop, and kills them if they do not answer.

A target has `done`; `look` makes progress without blocking, `fds` are the descriptors to poll.

The command signals each supervisor and asks it through its socket. A supervisor that stays silent
does not protect its processes: the command kills them one by one, and then the supervisor. A worker
without a supervisor ends itself when it sees the latch; the command kills it if it does not.
"""

import contextlib
import os
import signal
import time
from typing import Any

from andon.core import mark as marks
from andon.host import home as homes
from andon.host import proc
from andon.host.home import HostEntry
from andon.host.json_lines import LineReader
from andon.host.remains import Remains

# A frozen supervisor cannot answer; one that is only busy gets more time.
FROZEN_SECONDS, SILENT_SECONDS = 1.0, 3.0
# The time a worker gets to end by itself.
WORKER_SECONDS = 0.2


class SupervisorTarget:
    """A supervisor of this host, as seen from the halt command."""

    def __init__(
        self, home: str, entry: HostEntry, spare: set[int], order: str, *, alive: bool
    ) -> None:
        self.home, self.entry, self._spare = home, entry, spare
        self._order, self._was_alive = order, alive
        self.done = False
        self.how = "not answered"
        self.receipt: dict[str, Any] = {}
        self.store: dict[str, Any] = {}  # the state of the order in its store, as it reported
        self.signalled = self.asked = False
        self._socket: Any = None
        self._reader = LineReader()
        self._last = self._began = time.monotonic()
        self._here = homes.is_here(entry)
        self._takeover: _Takeover | None = None

    def order(self) -> bool:
        """Send SIGUSR1, which needs no socket and nothing to parse; whether it was sent."""
        if self._here and not homes.is_gone(self.entry):
            self.signalled = proc.send(self.entry.pid, self.entry.start_ticks, signal.SIGUSR1)
        return self.signalled

    def ask(self, line: bytes) -> bool:
        """Send the request through its socket, without waiting; whether it was sent."""
        if self.entry.socket is None:
            return False
        import socket

        try:
            own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError:  # no descriptors left: the signal has to do
            return False
        try:
            own.setblocking(False)
            with homes.within_reach(self.entry.socket) as path:
                own.connect(path)
            self.asked = own.send(line) == len(line)
        except OSError:
            own.close()
            return False
        self._socket = own
        return self.asked

    def fds(self) -> list[int]:
        return [] if self._socket is None else [self._socket.fileno()]

    def look(self, now: float) -> None:
        if self._takeover is None:
            self._listen(now)  # even when done: its store may report more
        if self.done:
            return
        if self._takeover is not None:
            self.done = self._takeover.strike()
            return
        if self.receipt:
            self.how, self.done = "its own receipt", True
        elif homes.is_gone(self.entry):
            self._ask_the_dead()
        elif self._here:
            limit = FROZEN_SECONDS if proc.is_still(self.entry.pid) else SILENT_SECONDS
            if now - self._last > limit:
                self._take_over("it did not answer")

    def _ask_the_dead(self) -> None:
        """Read the receipt of a supervisor that exited; take over the children of a crashed one."""
        left = homes.take_receipt(self.home, self.entry.id)
        crashed = os.path.lexists(homes.state_path(self.home, self.entry.id))
        if left.get("id") == self._order and not crashed:
            self.receipt, self.how, self.done = left, "the receipt that it left", True
        else:
            self._take_over("it was gone" if crashed else "it has ended")

    def _listen(self, now: float) -> None:
        if self._socket is None:
            return
        try:
            while part := self._socket.recv(65_536):
                self._last = now
                for answer in self._reader.messages(part):
                    if isinstance(answer.get("receipt"), dict):
                        self.receipt = answer["receipt"]
                    if isinstance(answer.get("fleet"), dict):
                        self.store = answer["fleet"]
            self.close()  # end of stream: it will send nothing more
        except BlockingIOError:
            pass
        except OSError:
            self.close()

    def _take_over(self, why: str) -> None:
        """Kill its processes, then itself: while it lives, escaped processes are its children."""
        self._takeover = _Takeover(self.home, self.entry, self._spare)
        self.done = self._takeover.strike()
        found = self._takeover.remains.known
        self.how = (
            f"{why}: this command ended what it owned" if found else f"{why}: nothing is left"
        )

    def counts(self) -> bool:
        """Whether to report it; one that died earlier and left nothing is not reported."""
        return self._takeover is None or bool(self._takeover.remains.known) or self._was_alive

    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = {"id": self.entry.id, "pid": self.entry.pid, "how": self.how}
        report |= {"signalled": self.signalled, "asked": self.asked, "proved": False}
        if self._takeover is not None:
            gone = len(self._takeover.remains.known)
            left = self._takeover.remains.survivors
            return report | {"processes": gone, "survivors": left, "proved": self.done and not left}
        survivors = _numbers(self.receipt.get("survivors"))
        processes = self.receipt.get("processes")
        report |= {"processes": processes if isinstance(processes, int) else 0}
        proved = self.done and self.receipt.get("proved") is True and not survivors
        return report | {"survivors": survivors, "proved": proved, "receipt": self.receipt}

    @property
    def listens(self) -> bool:
        """Whether its socket is open, so that it may still report more."""
        return self._socket is not None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class _Takeover:
    """The processes a supervisor owned, from its state file and from its descendants."""

    def __init__(self, home: str, entry: HostEntry, spare: set[int]) -> None:
        self._entry = entry
        roots, self._cgroups, self._marks = _owned(home, entry)
        living = {p: t for p, t in roots.items() if p not in spare and proc.alive(p, t)}
        workers = [marks.of_process(entry.boot, entry.namespace, *one) for one in roots.items()]
        self.remains = Remains(
            living, lambda found: any(marks.belongs(found, one) for one in workers), spare
        )
        self._spare = spare

    def strike(self) -> bool:
        for folder in self._cgroups:
            self._empty(folder)
        self._find_marked()
        alive = not homes.is_gone(self._entry)
        nothing_left = self.remains.strike(above=self._entry.pid if alive else 0)
        if nothing_left and alive:
            proc.send(self._entry.pid, self._entry.start_ticks, signal.SIGKILL)
            return False
        return nothing_left

    def _find_marked(self) -> None:
        """Find processes that escaped their parents and whose supervisor is gone."""
        from andon.supervisor.trees import tree_mark as trees

        for pid in proc.every_pid() if self._marks else ():
            if pid not in self._spare and trees.of(pid) in self._marks:
                self.remains.add(pid)

    def _empty(self, folder: str) -> None:
        found = _in_cgroup(folder)
        for pid in found - self._spare:
            self.remains.add(pid)
        if found and not found & self._spare:
            with contextlib.suppress(OSError):
                descriptor = os.open(os.path.join(folder, "cgroup.kill"), os.O_WRONLY)
                try:
                    os.write(descriptor, b"1")
                finally:
                    os.close(descriptor)


class WorkerTarget:
    """A worker without a supervisor."""

    def __init__(self, home: str, entry: HostEntry, spare: set[int]) -> None:
        self.home, self.entry = home, entry
        self.done = False
        self.how = "ended by itself"
        self._began = time.monotonic()
        self._here, self._is_self = homes.is_here(entry), entry.pid in spare
        mark = marks.of_process(entry.boot, entry.namespace, entry.pid, entry.start_ticks)
        roots = {entry.pid: entry.start_ticks} if self._here else {}
        self._remains = Remains(roots, lambda found: marks.belongs(found, mark), spare)
        if self._here:
            self._remains.look()

    def fds(self) -> list[int]:
        return []

    def look(self, now: float) -> None:
        if self.done:
            return
        if not self._here:
            # Its pid means another process here, but it removes its entry when it ends.
            self.done = all(entry.id != self.entry.id for entry in homes.entries(self.home))
        elif self._is_self:
            self.how, self.done = "this process, which ends after this answer", True
        elif now - self._began < WORKER_SECONDS:
            self.done = homes.is_gone(self.entry) and self._remains.strike()
        else:
            if not homes.is_gone(self.entry):
                self.how = "killed by this command"
            self.done = self._remains.strike()

    def report(self) -> dict[str, Any]:
        left = [] if self.done else self._remains.survivors
        return {
            "id": self.entry.id,
            "pid": self.entry.pid,
            "how": self.how,
            "processes": len(self._remains.known),
            "survivors": left,
            "proved": self.done and not self._is_self,
        }

    def close(self) -> None:
        return


def _owned(home: str, entry: HostEntry) -> tuple[dict[int, int], set[str], set[int]]:
    """Collect processes, cgroups and marks from a supervisor's state file, at any depth."""
    roots: dict[int, int] = {}
    cgroups: set[str] = set()
    marks: set[int] = set()
    if not homes.is_here(entry):  # of another boot or container: these pids mean other processes
        return roots, cgroups, marks
    waiting = [homes.read_json(homes.state_path(home, entry.id), homes.LONGEST_STATE)]
    while waiting:
        found = waiting.pop()
        if isinstance(found, list):
            waiting.extend(found)
        elif isinstance(found, dict):
            waiting.extend(found.values())
            pid, ticks, mark = (found.get(name) for name in ("pid", "start_ticks", "mark"))
            if isinstance(pid, int) and isinstance(ticks, int) and pid > 1 and ticks > 0:
                roots[pid] = ticks
            if isinstance(mark, int) and mark > 0:
                marks.add(mark)
            if isinstance(found.get("cgroup"), str) and found["cgroup"].startswith("/sys/fs/"):
                cgroups.add(found["cgroup"])
    roots.pop(entry.pid, None)  # the supervisor itself is killed last
    return roots, cgroups, marks


def _in_cgroup(folder: str) -> set[int]:
    pids: set[int] = set()
    for path, _, _ in os.walk(folder):
        text = homes.read(os.path.join(path, "cgroup.procs"))
        pids.update(int(word) for word in text.split() if word.isdigit())
    return pids


def _numbers(found: Any) -> list[int]:
    return [one for one in found if isinstance(one, int)] if isinstance(found, list) else []
