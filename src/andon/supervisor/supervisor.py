"""The supervisor's loop: signals, exits, requests, pings and output, plus a tick every 100 ms.

It has one thread and one `poll`, and nothing else blocks. Requests from every source (signal,
socket, control process, file) end in the same few methods here, and each is safe to repeat.
"""

import os
import resource
import signal
import socket
import time
import traceback
from collections.abc import Callable
from contextlib import suppress

from andon.core.text import plural
from andon.host import home as homes
from andon.supervisor.adoption import adopt, save
from andon.supervisor.api.control_channel import ControlChannel
from andon.supervisor.api.requests import RequestHandler
from andon.supervisor.api.socket_server import SocketServer
from andon.supervisor.children.child import Child
from andon.supervisor.children.lifecycle import Lifecycle
from andon.supervisor.children.logs import OutputStream
from andon.supervisor.children.watchdog import Watchdog
from andon.supervisor.exit import SupervisorExit
from andon.supervisor.halt.kill import TreeKill
from andon.supervisor.halt.state import HaltState
from andon.supervisor.poll import PollLoop, Signals
from andon.supervisor.spec import Spec
from andon.supervisor.trees.tree import Mechanism
from andon.supervisor.upgrade import Upgrade

TICK_SECONDS = 0.1
AWAY_SECONDS = 1.0  # a tick this late means that we were stopped, or the host was asleep
# Routine lines, not shown for a command that a user runs in a terminal.
ROUTINE = ("started (", "restarted (", "exited:", "will be started again")
SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGCHLD,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


class Supervisor:
    """The state of a supervisor process, and the loop that drives it."""

    def __init__(self, spec: Spec, mechanism: Mechanism, name: str) -> None:
        self.spec, self.limits, self.mechanism, self.id = spec, spec.limits, mechanism, name
        self.started_at = time.time()
        self.file_limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.loop = PollLoop(self.failed)
        self.out, self.err = OutputStream(1), OutputStream(2)
        self.children = [Child(each, run=each.run) for each in spec.children]
        self.kills: list[TreeKill] = []
        self.probes: dict[int, Callable[[int], None]] = {}
        self.lost = False  # whether contact with the store is lost
        self.contact = time.monotonic()
        self.leaving = ""
        self.failures = 0
        self._complained = -1.0
        self._more = self._changed = False
        self._ticked = time.monotonic()
        self.lifecycle, self.watchdog = Lifecycle(self), Watchdog(self)
        self.halt_state, self.requests = HaltState(self), RequestHandler(self)
        self.exit, self.upgrading = SupervisorExit(self), Upgrade(self)
        self.channel = ControlChannel(self.loop, self.requests.from_control)
        self.server: SocketServer | None = None
        self.signals = Signals(self.loop, [n for n in SIGNALS if not _ignored(n)])

    @property
    def control(self) -> Child | None:
        """The control process, if there is one."""
        return next((child for child in self.children if child.kind == "control"), None)

    @property
    def supervised(self) -> list[Child]:
        """All children but the control process."""
        return [child for child in self.children if child.kind != "control"]

    def open(self, listener: socket.socket) -> None:
        """Accept clients, and register this supervisor as alive."""
        self.server = SocketServer(self.loop, listener, self.requests.from_people)
        entry = homes.this_process(
            self.id,
            "supervisor",
            socket=listener.getsockname(),
            store=homes.without_password(self.spec.store) if self.spec.store else None,
            started_at=self.started_at,
        )
        with suppress(OSError):
            homes.register(self.spec.home, entry)

    def begin(self) -> None:
        """Adopt what a dead supervisor left, then start our own children."""
        self.halt_state.begin()
        adopt(self)
        if self.halt_state.held:
            self.say("supervisor", f"nothing is started: {self.why_blocked()}")
            if any(child.alive for child in self.children):
                self.halt_state.halt(via="latch")
        for child in sorted(self.children, key=lambda each: each.kind != "control"):
            if child.state == "new":
                self.lifecycle.begin(child)

    def run(self) -> int:
        """Run until nothing is left to do; return the exit code."""
        while self.exit.code is None:
            self.loop.turn(self._pause())
            self.turn()
        return self.exit.finish()

    def turn(self) -> None:
        """Run every part of a turn except the poll; an error in one must not stop the others."""
        # Killing first: exits are recorded once it is certain that no process is alive.
        parts = (
            self._handle_signals,
            self._advance_kills,
            self._reap,
            self._tick,
            self.exit.look,
            self._save,
        )
        for part in parts:
            try:
                part()
            except Exception as error:  # noqa: BLE001
                self.failed(error)

    def failed(self, error: Exception) -> None:
        """Report an internal error, at most once a second: one in every turn would fill a disk."""
        now = time.monotonic()
        self.failures += 1
        if now - self._complained > 1.0:
            self._complained = now
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{os.path.basename(place.filename)}:{place.lineno}"
            self.say("supervisor", f"internal error {self.failures} at {where}: {error!r}")

    def _reap(self) -> None:
        halt = self.halt_state.current
        if halt is None or halt.answered:  # exits can wait, a halt cannot
            self._more = self.lifecycle.reap()

    def _pause(self) -> float:
        if self._more:
            return 0.0
        if any(not kill.overran for kill in self.kills):
            return 0.001
        now = time.monotonic()
        dues = [child.due - now for child in self.children if child.due is not None]
        return max(0.0, min([TICK_SECONDS - (now - self._ticked), *dues]))

    def _tick(self) -> None:
        now = time.monotonic()
        due = any(child.due is not None and now >= child.due for child in self.children)
        if now - self._ticked < TICK_SECONDS and not due:
            return
        away = now - self._ticked - TICK_SECONDS
        self._ticked = now
        if away > AWAY_SECONDS:
            self.watchdog.excuse(away)
            self.contact += away
        self.halt_state.tick()
        self._look_at_contact(now)
        self.watchdog.tick(now)
        self.lifecycle.tick(now)
        self.upgrading.tick(now)
        if self.server is not None:
            self.server.tick(now)
        for terminal in (self.out, self.err):
            terminal.push()
        for child in self.children:
            for pipe in child.pipes:
                pipe.wake()

    def _handle_signals(self) -> None:
        for number in self.signals.take():
            if number == signal.SIGUSR1:
                self.halt_state.halt(via="SIGUSR1")
            elif number == signal.SIGUSR2:
                self.upgrading.ask(lambda _reply: None)
            elif number != signal.SIGCHLD:
                self.leave(signal.Signals(number).name)

    def kill_of(self, child: Child) -> TreeKill | None:
        return next((each for each in self.kills if each.covers(child)), None)

    def kill(
        self,
        children: list[Child],
        done: Callable[[TreeKill], None],
        *,
        order: str = "",
        why: str = "",
        fleet: bool = False,
    ) -> TreeKill:
        """Kill these children; call `done` when nothing is left, and when it takes too long."""
        seconds = self.limits.halt_seconds
        kill = TreeKill(children, done, seconds=seconds, order=order, why=why)
        kill.hit(self.mechanism.kill_all if fleet else None)
        self.kills.append(kill)
        return kill

    def _advance_kills(self) -> None:
        if self.kills:
            self._more = self.lifecycle.collect()
        for kill in self.kills[:]:
            empty = kill.rounds()
            if empty:
                self.lifecycle.reap()  # so that the report knows how they ended
                if kill.unreaped and time.monotonic() < kill.deadline:
                    continue  # dead, but the kernel has yet to report the exit
                self.kills.remove(kill)
                kill.done()
                for target in kill.targets:
                    self.lifecycle.settle(target.child)
            elif not kill.overran and time.monotonic() > kill.deadline:
                kill.overran = True
                names = ", ".join(t.child.name for t in kill.targets if t.survivors)
                what = f"{kill.why or 'kill'} of {names}"
                self.overrun(what, self.limits.halt_seconds, "hit again every 100 ms")
                kill.done()

    def report_killed(self, kill: TreeKill) -> None:
        for target in kill.targets:
            said = target.describe()
            processes = plural(said["pids"], "process", "processes")
            text = f"killed: {processes} in {said['took_ms'] or 0:.0f} ms"
            if target.survivors:
                text = f"NOT killed yet: {target.survivors} are still alive"
            self.say(target.child.name, text)
            self.channel.send("killed", **said, order=kill.order, why=kill.why)

    def overrun(self, what: str, seconds: float, then: str) -> None:
        self.say("supervisor", f"overrun: {what} takes longer than {seconds:.1f} s; {then}")
        self.channel.send("overrun", what=what, seconds=round(seconds, 3), next=then)

    def blocked(self) -> bool:
        """Whether nothing may be started; checked before every start."""
        return self.lost or self.halt_state.holds()

    def why_blocked(self) -> str:
        return "contact with the store is lost" if self.lost else self.halt_state.why()

    def in_contact(self) -> None:
        self.contact = time.monotonic()
        if self.lost:
            self.lost = False
            then = "the latch holds" if self.halt_state.held else "workers are started again"
            self.say("supervisor", f"contact is back; {then}")

    def _look_at_contact(self, now: float) -> None:
        seconds, limits = now - self.contact, self.limits
        if seconds <= limits.lost_contact_seconds or limits.lost_contact != "stop":
            return
        if self.lost or self.leaving or self.control is None:
            return
        self.lost = True
        targets = [child for child in self.supervised if child.tree]
        for child in targets:
            child.asked = "lost contact"
        for child in self.supervised:
            if child.state in ("waiting", "resting"):
                self.lifecycle.hold(child)
        names = ", ".join(child.name for child in targets) or "nothing"
        self.say("supervisor", f"lost contact for {seconds:.0f} s; stopped: {names}")
        did = [child.name for child in targets]
        self.channel.send("lost_contact", seconds=round(seconds, 3), did=did)
        if targets:
            self.kill(targets, self.report_killed, why="lost contact")

    def leave(self, why: str) -> None:
        """Drain: ask the children to exit; on a second call kill them at once."""
        if not self.leaving:
            self.leaving = why
            grace = self.limits.grace_seconds
            self.say("supervisor", f"{why}: children have {grace:g} s to exit; again: at once")
            for child in self.supervised:
                self.lifecycle.term(child, grace, "drain")
            return
        alive = [child for child in self.supervised if child.alive]
        if alive:
            self.say("supervisor", f"{why} again: children are ended now")
            self.kill(alive, self.report_killed, why="drain")
        self.exit.skip_wait()

    def say(self, name: str, text: str) -> None:
        """Print a line to stderr; a child's name cannot send control codes to the terminal."""
        if self.spec.foreground.get("quiet") and text.startswith(ROUTINE):
            return  # the terminal belongs to the command
        line = f"{time.strftime('%H:%M:%S')}  {name}  {text}"
        clean = "".join(one if one.isprintable() else "?" for one in line)
        self.err.show(clean.encode("utf-8", "replace") + b"\n")

    def probe(self, argv: list[str], out: int, done: Callable[[int], None]) -> int:
        """Start a helper program that is not a child; `done` gets its exit code."""
        actions = [(os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_DUP2, out, 2)]
        pid = os.posix_spawn(
            argv[0],
            argv,
            dict(os.environ),
            file_actions=actions,
            setsid=False,
            setsigmask=[],
            setsigdef=[n for n in signal.valid_signals() if n not in (9, 19)],
        )
        self.probes[pid] = done
        return pid

    def save(self) -> None:
        """Save the state once at the end of the turn, however much has changed."""
        self._changed = True

    def _save(self) -> None:
        if self._changed:
            self._changed = False
            save(self)

    def grades(self, child: Child) -> dict[str, str]:
        return dict(child.tree.grades if child.tree is not None else self.mechanism.grades)


def _ignored(number: signal.Signals) -> bool:
    """Whether to ignore it: under nohup a closed terminal is not a request to stop."""
    return number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN


def raise_file_limit() -> None:
    """Raise our descriptor limit, to at most 65,536; children get the previous limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if wanted > soft:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
