"""In-place upgrade: `execve` of new code keeps the pid, the children and the descriptors.

A probe process loads the new code first: a broken installation must not take the children down. The
state passes through a memfd. Signals stay blocked and pending meanwhile, because one that arrived
between the two images would kill the process.
"""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from andon.core.fleet.watchdog import Watched
from andon.host import proc
from andon.supervisor.children.child import Child
from andon.supervisor.children.logs import LogFile
from andon.supervisor.spec import ChildSpec
from andon.supervisor.status import hello

if TYPE_CHECKING:
    from andon.supervisor.supervisor import Supervisor

Answer = Callable[[dict[str, Any]], None]
CHECK_SECONDS = 10.0
BUSY = "not now: something is being stopped; ask again"
_PLAIN = (
    *("state", "run", "env", "pid", "ticks", "pidfd", "adopted", "started_at", "began", "ends"),
    *("due", "deadline", "grace", "asked", "order", "code", "signal", "starts", "ping_fd"),
    *("ping", "log", "stalled"),
)


class Upgrade:
    """An upgrade in progress, and the callers that wait for its outcome."""

    def __init__(self, own: "Supervisor") -> None:
        self._own = own
        self._answers: list[Answer] = []
        self._probe, self._until = 0, 0.0

    def ask(self, answer: Answer) -> None:
        """Begin the upgrade, unless a stop is in progress."""
        if self._is_busy():
            answer({"error": BUSY})
            return
        self._answers.append(answer)
        if self._probe:
            return
        self._until = time.monotonic() + CHECK_SECONDS
        argv = [sys.executable, "-P", "-m", "andon.supervisor", "--check"]
        try:
            self._probe = self._own.probe(argv, 2, self._checked)
        except OSError as error:
            self._fail(f"{argv[0]} does not start: {error}")

    def _is_busy(self) -> bool:
        own = self._own
        return bool(own.halt_state.current or own.kills or own.leaving or own.watchdog.busy)

    def tick(self, now: float) -> None:
        if self._probe and now > self._until:
            with suppress(OSError):
                os.kill(self._probe, signal.SIGKILL)

    def _checked(self, code: int) -> None:
        self._probe = 0
        if code != 0:
            self._fail(f"the new code does not load (exit code {code}); the old code keeps running")
            return
        if self._is_busy():  # a stop may have begun since the request
            self._fail(BUSY)
            return
        self._own.say("supervisor", "upgrade: the new code takes over")
        self._answer({"upgrading": {"pid": os.getpid()}})
        try:
            become_new(self._own)
        except OSError as error:
            self._fail(f"exec failed: {error}")

    def _fail(self, why: str) -> None:
        self._own.say("supervisor", f"upgrade: {why}")
        self._answer({"error": why})

    def _answer(self, said: dict[str, Any]) -> None:
        answers, self._answers = self._answers, []
        for answer in answers:
            answer(said)


def become_new(own: "Supervisor") -> None:
    """Replace the image of this process; returns only on failure, with nothing changed."""
    state, fds = _described(own)
    memory = os.memfd_create("andon-supervisor", 0)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        for number in own.signals.take():  # recorded but not handled: resend them to the new image
            os.kill(os.getpid(), number)
        with os.fdopen(os.dup(memory), "wb") as file:
            file.write(json.dumps(state).encode())
        os.lseek(memory, 0, os.SEEK_SET)
        for fd in [*fds, memory]:
            os.set_inheritable(fd, True)
        argv = [sys.executable, "-P", "-m", "andon.supervisor", "--resume-fd", str(memory)]
        os.execve(argv[0], argv, dict(os.environ))  # noqa: S606
    finally:
        for fd in fds:
            with suppress(OSError):
                os.set_inheritable(fd, False)
        os.close(memory)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _described(own: "Supervisor") -> tuple[dict[str, Any], list[int]]:
    assert own.server is not None
    listener = own.server.listener.fileno()
    fds = [listener, own.channel.fileno]
    children = []
    for child in own.children:
        pipes = [(pipe.fd, pipe.terminal) for pipe in child.pipes if pipe.fd >= 0]
        fds += [child.pidfd, child.ping_fd, *(fd for fd, _ in pipes)]
        children.append(
            {
                **{name: getattr(child, name) for name in _PLAIN},
                "spec": asdict(child.spec),
                "tree": child.tree.describe() if child.tree is not None else None,
                "pipes": pipes,
                "watched": _watched(child.watched),
            }
        )
    state = {
        "spec": own.spec.raw,
        "id": own.id,
        "started_at": own.started_at,
        "file_limits": list(own.file_limits),
        "receipt": own.halt_state.receipt,
        "held": own.halt_state.held,
        "lost": own.lost,
        "contact": own.contact,
        "missed": own.channel.missed,
        "lines": own.channel.detach(),
        "listener": listener,
        "link": own.channel.fileno,
        "children": children,
    }
    return state, [fd for fd in fds if fd >= 0]


def _watched(found: Watched | None) -> list[Any] | None:
    return None if found is None else [found.since, found.heard, found.tick, found.moved]


def recall(own: "Supervisor", state: dict[str, Any]) -> None:
    """Continue in the new image where the old one stopped."""
    own.started_at, own.halt_state.receipt = state["started_at"], state["receipt"]
    own.halt_state.held, own.lost, own.contact = state["held"], state["lost"], state["contact"]
    soft, hard = state["file_limits"]
    own.file_limits = (soft, hard)
    own.children = [_child(own, each) for each in state["children"]]
    own.channel.missed = state["missed"]
    listener = socket.socket(fileno=state["listener"])
    listener.set_inheritable(False)
    own.open(listener)
    if state["link"] >= 0:
        link = socket.socket(fileno=state["link"])
        link.set_inheritable(False)
        own.channel.attach(link)
    own.channel.recall(state["lines"])
    own.save()
    own.channel.greet(hello(own))
    own.say("supervisor", f"upgraded in place (pid {os.getpid()})")


def _child(own: "Supervisor", each: dict[str, Any]) -> Child:
    child = Child(_spec(own, each["spec"]))
    for name in _PLAIN:
        setattr(child, name, each[name])
    if each["watched"] is not None:
        child.watched = Watched(*each["watched"])
    if each["tree"] is not None:
        child.tree = own.mechanism.restore(each["tree"])
    file = LogFile(child.log, own.limits.log_bytes)
    for fd, terminal in each["pipes"]:
        os.set_inheritable(fd, False)
        own.lifecycle.listen(child, fd, file, terminal)
    if child.ping_fd >= 0:
        os.set_inheritable(child.ping_fd, False)
        own.loop.watch(child.ping_fd, lambda _event: own.watchdog.read_ping(child))
    if child.pidfd >= 0:
        os.set_inheritable(child.pidfd, False)
    elif child.pid:
        child.pidfd = proc.open_pidfd(child.pid, child.ticks)
    own.lifecycle.watch(child)
    return child


def _spec(own: "Supervisor", raw: dict[str, Any]) -> ChildSpec:
    """Return our spec's own object if it has one: the single command is found by identity."""
    known = {each.name: each for each in own.spec.children}
    return known.get(raw["name"]) or ChildSpec(**raw)
