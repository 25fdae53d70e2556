"""The watchdog: workers must send heartbeats; one that stops is recorded and killed.

A worker writes heartbeat lines ("pings") to its ping pipe. Other lines do not count, however many
there are. Before it kills a stalled worker the watchdog writes evidence to `stacks/`: always what
the kernel reports, and the stacks from py-spy where it is installed, else from the worker's own
faulthandler, which needs no cooperation of Python code.
"""

import os
import shutil
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from andon.core.fleet import watchdog
from andon.host import proc
from andon.host.json_lines import parsed
from andon.supervisor.children.child import Child
from andon.supervisor.children.logs import LogFile

if TYPE_CHECKING:
    from andon.supervisor.supervisor import Supervisor

# A control process may wait for a store several times in a turn, but not for ever.
STILL_SECONDS = 120.0
LONGEST_PING = 65_536
EVIDENCE_SECONDS = 1.0
EVIDENCE_BYTES = 1_000_000


@dataclass(slots=True)
class StallCase:
    """A stalled child while its evidence is collected."""

    child: Child
    pid: int
    stall: watchdog.Stall
    file: LogFile
    until: float
    probe: int = 0


class Watchdog:
    """Watches the heartbeats of all children."""

    def __init__(self, own: "Supervisor") -> None:
        self._own = own
        self._cases: list[StallCase] = []

    @property
    def busy(self) -> bool:
        return bool(self._cases)

    def _ends(self, child: Child) -> bool:
        """Whether a stall ends the child; a control process that hangs is always ended."""
        return child.kind == "control" or self._own.limits.on_stall != "show"

    def read_ping(self, child: Child) -> None:
        """Read the ping pipe of a worker."""
        try:
            content = os.read(child.ping_fd, LONGEST_PING)
        except BlockingIOError:
            return
        except OSError:
            content = b""
        if not content:  # closed: no more pings come, and `tick` notices that
            self._own.loop.forget(child.ping_fd)
            return
        *lines, rest = (child.ping_rest + content).split(b"\n")
        child.ping_rest = rest if len(rest) <= LONGEST_PING else b""
        for line in reversed(lines):  # only the last ping counts
            ping = parsed(line)
            if ping is not None and isinstance(ping.get("tick"), int) and child.watched is not None:
                child.ping = ping
                child.watched = watchdog.heard(child.watched, ping["tick"], time.monotonic())
                return

    def control_ping(self, turn: int) -> None:
        """Take a heartbeat of the control process; the first one starts the watch."""
        now = time.monotonic()
        control = self._own.control
        if control is not None and control.pid:
            control.watched = watchdog.heard(control.watched or watchdog.Watched(now), turn, now)

    def excuse(self, seconds: float) -> None:
        """Do not count time in which the supervisor itself was stopped or asleep."""
        for child in self._own.children:
            if child.watched is not None:
                child.watched = watchdog.excused(child.watched, seconds)

    def tick(self, now: float) -> None:
        limits = self._own.limits
        for child in self._own.children:
            known = any(case.child is child for case in self._cases)
            if child.state != "running" or child.watched is None or known:
                continue
            found = watchdog.stall(
                child.watched,
                now,
                limit=limits.watchdog_seconds,
                start_limit=limits.start_seconds,
                still_limit=STILL_SECONDS if child.kind == "control" else None,
            )
            if found is None:
                child.stalled = False
            elif not child.asked and not child.stalled:
                self._open(child, found, now)
        for case in self._cases[:]:
            written = case.probe and case.probe not in self._own.probes
            if case.child.pid != case.pid or now > case.until or written:
                self._close(case)

    def restart(self, child: Child) -> None:
        """Restart the watch of a child that was silent because it was frozen."""
        if child.watched is not None:
            child.watched = watchdog.Watched(time.monotonic())

    def _open(self, child: Child, found: watchdog.Stall, now: float) -> None:
        child.stalled = True
        if self._ends(child):
            child.asked = "stall"
        name = f"{child.name}-{child.pid}-{int(time.time())}.txt".replace("/", "_")
        file = LogFile(os.path.join(self._own.spec.home, "stacks", name), EVIDENCE_BYTES)
        head = f"{child.name} (pid {child.pid}) {found.why} for {found.seconds:.1f} s\n"
        file.write(head.encode() + proc.evidence(child.pid))
        case = StallCase(child, child.pid, found, file, now + EVIDENCE_SECONDS)
        self._cases.append(case)
        if proc.is_still(child.pid):
            case.until = now  # stopped: it cannot answer, and reading its memory may hang
            return
        if not self._ask_py_spy(case):
            self._ask_itself(case)

    def _ask_itself(self, case: StallCase) -> None:
        """Make the worker dump its own stacks, by a SIGABRT that also ends it."""
        child = case.child
        if self._ends(child) and child.pid == case.pid:
            for pipe in child.pipes:
                pipe.extra = case.file
            proc.send_to(child.pidfd, signal.SIGABRT)

    def _ask_py_spy(self, case: StallCase) -> bool:
        found = shutil.which("py-spy")
        if found is None:
            return False
        argv = [found, "dump", "--nonblocking", "--pid", str(case.pid)]
        try:
            out = os.open(case.file.path, os.O_WRONLY | os.O_APPEND)
        except OSError:
            return False
        try:
            case.probe = self._own.probe(argv, out, lambda code: self._spied(case, code))
        except OSError:
            return False
        finally:
            os.close(out)
        return True

    def _spied(self, case: StallCase, code: int) -> None:
        """Fall back to faulthandler if py-spy failed.

        Without root a kernel may not let py-spy look at a process that is not its own child.
        """
        if code > 0 and case in self._cases:
            case.probe = 0
            self._ask_itself(case)

    def _close(self, case: StallCase) -> None:
        self._cases.remove(case)
        own, child = self._own, case.child
        if case.probe in own.probes:
            os.kill(case.probe, signal.SIGKILL)
        for pipe in child.pipes:
            pipe.take()
            pipe.extra = None
        case.file.close()
        then = "it is ended" if self._ends(child) else f"evidence: {case.file.path}"
        own.say(child.name, f"stalled: {case.stall.why} for {case.stall.seconds:.1f} s; {then}")
        own.channel.send(
            "stalled",
            child=child.name,
            pid=case.pid,
            why=case.stall.why,
            seconds=round(case.stall.seconds, 3),
            evidence=case.file.path,
        )
        if child.pid == case.pid and self._ends(child):
            own.kill([child], own.report_killed, why="stall")
