"""The life cycle of each child: start, watch, end, clear, and restart by its policy.

    new → (waiting for permission) → running → ended by itself or on request → clearing: what it
    left behind is killed too → resting → running again, or ended, gave_up, held

Nothing is started while the latch is pulled or contact is lost, however late that became known.
"""

import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from andon.core.fleet.restart import Action, after, recent
from andon.core.fleet.watchdog import Watched
from andon.host import descriptors, proc
from andon.points import point
from andon.supervisor.children.child import Child, ChildEnds, spawn
from andon.supervisor.children.logs import LogFile, Pipe
from andon.supervisor.spec import OVER
from andon.supervisor.status import hello
from andon.supervisor.trees.tree import TreeSpec

if TYPE_CHECKING:
    from andon.supervisor.supervisor import Supervisor

MOST_REAPED = 2000  # per turn; a flood of zombies must not delay orders


class Lifecycle:
    """Moves the children of a supervisor through their states."""

    def __init__(self, own: "Supervisor") -> None:
        self._own = own
        self._exits: list[tuple[int, int]] = []  # reaped, not acted on yet

    def begin(self, child: Child) -> None:
        """Start the child, or let it wait for permission if its spec asks for that."""
        if child.spec.wait and not child.starts and child.state == "new":
            child.state = "waiting"
            if child.kind == "command":  # a caller waits for it; a worker may wait for its store
                child.deadline = time.monotonic() + self._own.limits.go_seconds
            return
        self.start(child)

    def start(self, child: Child) -> None:
        own = self._own
        child.due = child.deadline = None
        if own.leaving and child.kind != "control":
            child.state = "ended"
            return
        if child.kind != "control" and own.blocked():
            self.hold(child)
            return
        try:
            self._spawn(child)
        except Exception as error:  # noqa: BLE001 (no process, descriptor or tree: try later)
            own.say(child.name, f"could not be started: {error}")
            self._forget(child)
            child.code, child.signal = None, None
            self._after_crash(child)

    def hold(self, child: Child) -> None:
        """Do not start it now: a worker starts later, a command never."""
        if child.kind == "command":
            child.state = "ended" if child.starts else "refused"
            if not child.starts:
                self._own.say(child.name, f"not started: {self._own.why_blocked()}")
            return
        child.state = "held"

    def _spawn(self, child: Child) -> None:
        own, now = self._own, time.monotonic()
        control = child.kind == "control"
        child.asked = child.order = ""
        child.code = child.signal = None
        name = f"{child.run or child.name}-{own.id}-{child.starts}"
        child.tree = own.mechanism.make(TreeSpec(name, child.kind, child.spec.uid, apart=control))
        ends = self._ends(child)
        try:
            pid = spawn(child, ends, own.file_limits)
            child.tree.started(pid)
        finally:
            ends.close()
        child.pid, child.ticks = pid, proc.start_ticks(pid)
        child.pidfd = proc.open_pidfd(pid)
        child.adopted = False
        self.watch(child)
        child.state, child.began, child.started_at = "running", now, time.time()
        child.starts += 1
        child.watched = Watched(now) if child.ping_fd >= 0 else None
        point("supervisor:spawned")
        own.save()
        own.say(child.name, f"{'started' if child.starts == 1 else 'restarted'} (pid {pid})")
        if control:
            own.channel.greet(hello(own))
        else:
            self.report_start(child)

    def report_start(self, child: Child, **more: Any) -> None:
        grades = self._own.grades(child)
        self._own.channel.send("started", **child.identity(), containment=grades, **more)

    def _ends(self, child: Child) -> ChildEnds:
        """Open the pipes for its output, and the descriptors that only its kind gets."""
        own = self._own
        tee = child.spec.log == "tee"
        name = (child.run or f"{child.name}-{own.id}").replace("/", "_")
        child.log = os.path.join(own.spec.home, "logs", f"{name}.log")
        file = LogFile(child.log, own.limits.log_bytes)
        ends = ChildEnds(-1, -1)
        try:
            ends.out = self._pipe(child, file, 1 if tee else 0)
            ends.err = self._pipe(child, file, 2) if tee else ends.out
            if child.kind == "control":
                ends.named["ANDON_SUPERVISOR_FD"] = own.channel.open()
            if child.kind == "worker":
                child.ping_fd, ends.named["ANDON_PING_FD"] = os.pipe2(os.O_CLOEXEC)
                os.set_blocking(child.ping_fd, False)
                own.loop.watch(child.ping_fd, lambda _event: own.watchdog.read_ping(child))
        except BaseException:
            ends.close()
            raise
        return ends

    def _pipe(self, child: Child, file: LogFile, terminal: int) -> int:
        read, write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read, False)
        self.listen(child, read, file, terminal)
        return write

    def listen(self, child: Child, fd: int, file: LogFile, terminal: int) -> None:
        shown = {0: None, 1: self._own.out, 2: self._own.err}[terminal]
        pipe = Pipe(self._own.loop, fd, file, shown, patient=child.kind == "command")
        pipe.terminal = terminal
        child.pipes.append(pipe)

    def collect(self) -> bool:
        """Reap every exit there is, without acting on it; whether there may be more.

        A fork storm leaves thousands of zombies, and every search for survivors has to look at each
        of them. So they are reaped first, and `reap` acts on the exits later.
        """
        for _ in range(MOST_REAPED):
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return False
            if pid in self._own.probes or self.by_pid(pid) is not None:
                self._exits.append((pid, os.waitstatus_to_exitcode(status)))
        return True

    def reap(self) -> bool:
        """Reap every exit, and act on those of our children; whether there may be more."""
        more = self.collect()
        exits, self._exits = self._exits, []
        for pid, code in exits:
            probe = self._own.probes.pop(pid, None)
            if probe is not None:
                probe(code)
            child = self.by_pid(pid)
            if child is not None:
                self._ended(child, code)
        return more

    def by_pid(self, pid: int) -> Child | None:
        return next((each for each in self._own.children if pid and each.pid == pid), None)

    def watch(self, child: Child) -> None:
        """Watch its pidfd, which reports its end even where `waitpid` cannot.

        That is so for adopted processes, which are not our children, and for processes under a
        tracer: their zombies belong to the tracer, and no SIGCHLD comes.
        """
        if child.pidfd >= 0:
            self._own.loop.watch(child.pidfd, lambda _event: self._gone(child))

    def _gone(self, child: Child) -> None:
        if not child.pid or any(pid == child.pid for pid, _ in self._exits):
            return
        pid, status = 0, 0
        with suppress(ChildProcessError):
            pid, status = os.waitpid(child.pid, os.WNOHANG)
        if pid:
            self._ended(child, os.waitstatus_to_exitcode(status))
        elif not proc.alive(child.pid, child.ticks):
            self._ended(child, None)  # how it ended is unknown

    def _ended(self, child: Child, code: int | None) -> None:
        """Report the end of its process; `code` is negative for a signal, as in `os`."""
        own = self._own
        identity, child.pid = child.identity(), 0
        child.code = child.signal = None
        if code is None:
            how = "cause unknown"
        elif code < 0:
            child.signal, how = -code, proc.signal_name(-code)
        else:
            child.code, how = code, f"code {code}"
        own.loop.forget(child.pidfd)
        descriptors.close(child.pidfd)
        child.pidfd = -1
        kill = own.kill_of(child)
        left = child.pids()  # the event must say whether processes are left
        own.channel.send(
            "exited",
            **identity,
            code=child.code,
            signal=child.signal,
            left=left,
            asked=bool(child.asked),
            by=child.asked,
            order=child.order,
        )
        own.say(child.name, f"exited: {how}" + (f", left {len(left)}" if left else ""))
        child.state = "clearing"
        if child.kind == "control":
            own.channel.close()
        if kill is not None:
            return  # settled when that kill is done
        if left:
            own.kill([child], own.report_killed, why="left behind")  # settled when the kill is done
        else:
            self.settle(child)

    def settle(self, child: Child) -> None:
        """Decide what follows once no process of it is left."""
        if child.state != "clearing" or child.pid:
            return
        self._forget(child)
        own, asked = self._own, child.asked
        if child.kind == "control" and not own.exit.begun:
            self._after_crash(child)
        elif own.leaving or asked in ("term", "drain"):
            child.state = "ended"
        elif asked in ("halt", "lost contact"):
            self.hold(child)
        elif asked == "kill":
            child.state, child.due = "ended", None
            if child.kind == "worker" and child.spec.restart != "never":
                # It was killed for one of its runs; its other runs wait for it to restart.
                child.state, child.due = "resting", time.monotonic()
        else:
            self._after_crash(child)
        own.save()

    def _after_crash(self, child: Child) -> None:
        own, now = self._own, time.monotonic()
        policy = child.spec.policy(own.limits)
        child.ends = [*recent(child.ends, now, policy.seconds), now]
        failed = child.code != 0
        found = after(policy, child.ends, now, failed=failed)
        match found.action:
            case Action.RESTART:
                child.state, child.due = "resting", now + found.delay_seconds
                own.say(child.name, f"will be started again in {found.delay_seconds:g} s")
            case Action.END:
                child.state = "ended"
            case Action.GIVE_UP:
                child.state = "gave_up"
                crashes, seconds = len(child.ends), round(now - child.ends[0], 1)
                own.say(
                    child.name,
                    f"gave up: ended {crashes} times in {seconds} s; its output: {child.log}",
                )
                own.channel.send("gave_up", child=child.name, crashes=crashes, seconds=seconds)

    def _forget(self, child: Child) -> None:
        """Release what the supervisor held for a child that is gone."""
        if child.tree is not None:
            child.tree.close()
        child.tree = None
        for pipe in child.pipes:
            pipe.close()
        child.pipes.clear()
        self._own.loop.forget(child.ping_fd)
        descriptors.close(child.ping_fd)
        child.ping_fd, child.ping_rest, child.watched, child.stalled = -1, b"", None, False

    def term(self, child: Child, grace: float, asked: str, order: str = "") -> None:
        """Send SIGTERM; the child is killed when its grace is over."""
        if not child.alive:
            if child.state not in OVER and child.state != "clearing":
                child.state, child.due = "ended", None
            return
        if child.state == "frozen" and child.tree is not None:
            child.tree.thaw()
        child.state, child.asked, child.order = "stopping", asked, order
        child.grace = grace
        child.deadline = time.monotonic() + grace
        proc.send_to(child.pidfd, signal.SIGTERM)

    def tick(self, now: float) -> None:
        for child in self._own.children:
            late = child.deadline is not None and now > child.deadline
            if child.state == "resting":
                if child.due is not None and now >= child.due:
                    self.start(child)
            elif child.state == "held":
                if not self._own.blocked():
                    self.start(child)
            elif late and child.state == "waiting":
                seconds = self._own.limits.go_seconds
                self.refuse(child, f"no permission to start within {seconds:g} s")
            elif late and child.state == "stopping":
                self._overrun(child)

    def _overrun(self, child: Child) -> None:
        """Kill a child whose grace is over."""
        child.deadline = None
        own = self._own
        own.overrun(f"{child.asked} of {child.name}", child.grace, "it is killed")
        own.kill([child], own.report_killed, order=child.order, why=child.asked)

    def refuse(self, child: Child, why: str) -> None:
        child.state, child.code = "refused", 1
        self._own.say(child.name, f"not started: {why}")
        self._own.channel.send("refused", child=child.name, why=why)
