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
from typing import Any

from andon.host import home as homes
from andon.supervisor.adoption import adopt, save
from andon.supervisor.api.control_channel import Link
from andon.supervisor.api.requests import RequestHandler
from andon.supervisor.api.socket_server import Socketry
from andon.supervisor.children.child import Child
from andon.supervisor.children.lifecycle import Lives
from andon.supervisor.children.logs import OutputStream
from andon.supervisor.children.watchdog import Watchdog
from andon.supervisor.exit import Ending
from andon.supervisor.halt.kill import Killing
from andon.supervisor.halt.state import Cord
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
        self.killings: list[Killing] = []
        self.probes: dict[int, Callable[[int], None]] = {}
        self.lost = False  # whether contact with the store is lost
        self.contact = time.monotonic()
        self.leaving = ""
        self.failures = 0
        self._complained = -1.0
        self._more = self._changed = False
        self._ticked = time.monotonic()
        self.lives, self.watchdog, self.orders = Lives(self), Watchdog(self), RequestHandler(self)
        self.cord = Cord(self)
        self.ending, self.upgrading = Ending(self), Upgrade(self)
        self.link = Link(self.loop, self.orders.from_control)
        self.socketry: Socketry | None = None
        self.signals = Signals(self.loop, [n for n in SIGNALS if not _ignored(n)])

    # ── the loop ──────────────────────────────────────────────────────────────────────────────

    def open(self, listener: socket.socket) -> None:
        """Accept clients, and register this supervisor as alive."""
        self.socketry = Socketry(self.loop, listener, self.orders.from_people)
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
        self.cord.begin()
        adopt(self)
        if self.cord.held:
            self.say("supervisor", f"nothing is started: {self.why_blocked()}")
            if any(child.alive for child in self.children):
                self.cord.halt(via="latch")
        for child in sorted(self.children, key=lambda each: each.kind != "control"):
            if child.state == "new":
                self.lives.begin(child)

    def run(self) -> int:
        """Run until nothing is left to do; return the exit code."""
        while self.ending.code is None:
            self.loop.turn(self._pause())
            self.turn()
        return self.ending.finish()

    def turn(self) -> None:
        """Run every part of a turn except the poll; an error in one must not stop the others."""
        # Killing first: exits are recorded once it is certain that no process is alive.
        parts = (self._heed, self._kill_on, self._reap, self._tick, self.ending.look, self._save)
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
        if self.cord.halting is None or self.cord.halting.told:  # exits can wait, a halt cannot
            self._more = self.lives.reap()

    def _pause(self) -> float:
        if self._more:
            return 0.0
        if any(not killing.overran for killing in self.killings):
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
        self.cord.tick()
        self._look_at_contact(now)
        self.watchdog.tick(now)
        self.lives.tick(now)
        self.upgrading.tick(now)
        if self.socketry is not None:
            self.socketry.tick(now)
        for terminal in (self.out, self.err):
            terminal.push()
        for child in self.children:
            for pipe in child.pipes:
                pipe.wake()

    def _heed(self) -> None:
        for number in self.signals.take():
            if number == signal.SIGUSR1:
                self.cord.halt(via="SIGUSR1")
            elif number == signal.SIGUSR2:
                self.upgrade(lambda _said: None)
            elif number != signal.SIGCHLD:
                self.leave(signal.Signals(number).name)

    # ── ending processes ──────────────────────────────────────────────────────────────────────

    def killing(self, child: Child) -> Killing | None:
        return next((each for each in self.killings if each.covers(child)), None)

    def kill(
        self,
        children: list[Child],
        done: Callable[[Killing], None],
        *,
        order: str = "",
        why: str = "",
        fleet: bool = False,
    ) -> Killing:
        """Kill these children; call `done` when nothing is left, and when it takes too long."""
        seconds = self.limits.halt_seconds
        killing = Killing(children, done, seconds=seconds, order=order, why=why)
        killing.hit(self.mechanism.kill_all if fleet else None)
        self.killings.append(killing)
        return killing

    def _kill_on(self) -> None:
        if self.killings:
            self._more = self.lives.collect()
        for killing in self.killings[:]:
            empty = killing.rounds()
            if empty:
                self.lives.reap()  # so that the report knows how they ended
                if killing.unreaped and time.monotonic() < killing.deadline:
                    continue  # dead, but the kernel has yet to report the exit
                self.killings.remove(killing)
                killing.done()
                for target in killing.targets:
                    self.lives.settle(target.child)
            elif not killing.overran and time.monotonic() > killing.deadline:
                killing.overran = True
                names = ", ".join(t.child.name for t in killing.targets if t.survivors)
                what = f"{killing.why or 'kill'} of {names}"
                self.overrun(what, self.limits.halt_seconds, "hit again every 100 ms")
                killing.done()

    def report_killed(self, killing: Killing) -> None:
        for target in killing.targets:
            said = target.describe()
            number = f"{said['pids']} process{'' if said['pids'] == 1 else 'es'}"
            text = f"killed: {number} in {said['took_ms'] or 0:.0f} ms"
            if target.survivors:
                text = f"NOT killed yet: {target.survivors} are still alive"
            self.say(target.child.name, text)
            self.link.tell({"event": "killed", **said, "order": killing.order, "why": killing.why})

    def overrun(self, what: str, seconds: float, then: str) -> None:
        self.say("supervisor", f"overrun: {what} takes longer than {seconds:.1f} s; {then}")
        self.link.tell(
            {"event": "overrun", "what": what, "seconds": round(seconds, 3), "next": then}
        )

    # ── permission to start ───────────────────────────────────────────────────────────────────

    def blocked(self) -> bool:
        """Whether nothing may be started; checked before every start."""
        return self.lost or self.cord.holds()

    def why_blocked(self) -> str:
        return "contact with the store is lost" if self.lost else self.cord.why()

    def in_contact(self) -> None:
        self.contact = time.monotonic()
        if self.lost:
            self.lost = False
            then = "the latch holds" if self.cord.held else "workers are started again"
            self.say("supervisor", f"contact is back; {then}")

    def _look_at_contact(self, now: float) -> None:
        seconds = now - self.contact
        watched = any(child.kind == "control" for child in self.children)
        if self.lost or not watched or seconds <= self.limits.lost_contact_seconds or self.leaving:
            return
        if self.limits.lost_contact != "stop":
            return
        self.lost = True
        targets = [child for child in self.children if child.kind != "control" and child.tree]
        for child in targets:
            child.asked = "lost contact"
        for child in self.children:
            if child.kind != "control" and child.state in ("waiting", "resting"):
                self.lives.hold(child)
        names = ", ".join(child.name for child in targets) or "nothing"
        self.say("supervisor", f"lost contact for {seconds:.0f} s; stopped: {names}")
        event = {"event": "lost_contact", "seconds": round(seconds, 3)}
        self.link.tell({**event, "did": [child.name for child in targets]})
        if targets:
            self.kill(targets, self.report_killed, why="lost contact")

    # ── exiting ───────────────────────────────────────────────────────────────────────────────

    def leave(self, why: str) -> None:
        """Drain: ask the children to exit; on a second call kill them at once."""
        others = [child for child in self.children if child.kind != "control"]
        if not self.leaving:
            self.leaving = why
            grace = self.limits.grace_seconds
            self.say("supervisor", f"{why}: children have {grace:g} s to exit; again: at once")
            for child in others:
                self.lives.term(child, grace, "drain")
            return
        alive = [child for child in others if child.alive]
        if alive:
            self.say("supervisor", f"{why} again: children are ended now")
            self.kill(alive, self.report_killed, why="drain")
        self.ending.hurry()

    def upgrade(self, answer: Callable[[dict[str, Any]], None]) -> None:
        self.upgrading.ask(answer)

    # ── reporting ─────────────────────────────────────────────────────────────────────────────

    def say(self, name: str, text: str) -> None:
        """Print a line to stderr; a child's name cannot send control codes to the terminal."""
        if self.spec.foreground.get("quiet") and text.startswith(ROUTINE):
            return  # the terminal belongs to the command
        line = f"{time.strftime('%H:%M:%S')}  {name}  {text}"
        clean = "".join(letter if letter.isprintable() else "?" for letter in line)
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


def stand_in() -> None:
    """Open 0, 1 and 2 if closed, so that none of our descriptors is mistaken for them."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
