"""A rehearsal of `andon halt`: real processes that resist stopping, and the real command.

A drill runs in a temporary folder with its own home and store, and touches nothing else on the
host. It does not rely on the supervisor's report: every process of the fleet holds a pipe open and
has written its pid and start time to it, so the end of the pipe proves that the last one is gone.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Protocol

from andon.control.doctor import hostile_runs
from andon.control.doctor.coverage import DRILLS
from andon.control.doctor.hostile_agents import ESCAPES, KEEPS, KINDS, MEMBERS, STORM
from andon.errors import AndonError
from andon.host import home as homes
from andon.host import proc, syscalls
from andon.runtime.requests import requests
from andon.store import open_store

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
# The drill fails if a phase takes longer than this.
START_SECONDS, HALT_SECONDS, REFUSAL_SECONDS = 90.0, 15.0, 15.0
# The time the storms get to build up.
STORM_SECONDS = 0.1


@dataclass
class Member:
    """One agent of the fleet, observed through its pipe."""

    kind: str
    name: str
    pipe: str
    is_run: bool
    escapees: int
    fd: int = -1
    told: bytes = b""
    gone_ms: float | None = None
    left: list[int] = field(default_factory=list)

    def listen(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self.fd, 65536):
                self.told += part

    @property
    def processes(self) -> list[tuple[int, int, str]]:
        found = []
        for line in self.told.splitlines():
            pid, ticks, *namespace = line.decode().split()
            found.append((int(pid), int(ticks), namespace[0] if namespace else ""))
        return found

    @property
    def mustered(self) -> bool:
        return self.told.count(b"\n") >= MEMBERS

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


class Round:
    """One fleet and one halt."""

    def __init__(self, agents: int) -> None:
        self.folder = tempfile.mkdtemp(prefix="andon-drill-")
        self.home = os.path.join(self.folder, "home")
        self.url = f"sqlite:///{self.folder}/store.db"
        self.go = os.path.join(self.folder, "go")
        self.members = fleet(agents, self.folder)
        self._started: list[subprocess.Popen[bytes]] = []

    def run(self, say: "Tell") -> dict[str, Any]:
        """Start the fleet, halt it, and try to start one more; returns the report."""
        try:
            self._muster(say)
            say("andon halt")
            report = self._halt()
            say("trying to start one more")
            return {**report, **self._try_to_start()}
        finally:
            self.close()

    # ── the fleet ─────────────────────────────────────────────────────────────────────────────

    def _muster(self, say: "Tell") -> None:
        total = len(self.members)
        words = f"starting {total} agents that resist stopping"
        say(words, 0, total)
        for member in self.members:
            os.mkfifo(member.pipe, 0o600)
            member.fd = os.open(member.pipe, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        runs = [member for member in self.members if member.is_run]
        if runs:
            open_store(self.url, create=True).close()
        self._supervise([*self._control(), *(self._child(member) for member in self.members)])
        self._start_runs(runs)
        end = time.monotonic() + START_SECONDS
        while missing := [member for member in self.members if not member.mustered]:
            if time.monotonic() > end or self._started[0].poll() is not None:
                raise AndonError(
                    f"expected {MEMBERS} processes of each agent within {START_SECONDS:g} s, "
                    f"found fewer of: {', '.join(member.kind for member in missing)}. "
                    f"The supervisor said: {self._said()}"
                )
            _wait([member.fd for member in missing], 0.1)
            for member in missing:
                member.listen()
            say(words, sum(member.mustered for member in self.members), total)
        open(self.go, "x").close()
        time.sleep(STORM_SECONDS)
        for member in self.members:
            _hear(member, 0.0)
        # An agent that ends before the halt would be counted as killed by it.
        ended = [member.kind for member in self.members if member.gone_ms is not None]
        if ended:
            raise AndonError(f"these ended by themselves before the halt: {', '.join(ended)}")

    def _control(self) -> list[dict[str, Any]]:
        """The control process: a halt spares it, and it works with the store meanwhile."""
        module = "andon.control_process.main"
        if not any(member.is_run for member in self.members) or find_spec(module) is None:
            return []
        command = [sys.executable, "-P", "-m", module]
        child = {"name": "control", "kind": "control", "argv": command, "restart": "always"}
        return [{**child, "env": self._environ(), "cwd": self.folder}]

    def _said(self) -> str:
        with contextlib.suppress(OSError), open(os.path.join(self.folder, "said")) as file:
            return file.read()[-500:].strip() or "nothing"
        return "nothing"

    def _child(self, member: Member) -> dict[str, Any]:
        if member.is_run:
            command = ["-m", "andon", "work", os.path.abspath(hostile_runs.__file__)]
        else:
            words = [member.kind, member.pipe, str(member.escapees), self.go]
            command = ["-m", "andon.control.doctor.hostile_agents", *words]
        return {
            "name": member.name,
            "kind": "worker" if member.is_run else "command",
            "argv": [sys.executable, *command],
            "env": self._environ(),
            "cwd": self.folder,
        }

    def _environ(self) -> Mapping[str, str]:
        """An environment without the real home and store."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("ANDON_")}
        path = os.pathsep.join(filter(None, (homes.SOURCE, own.get("PYTHONPATH"))))
        # One run in each worker: a run that holds the GIL would block the others.
        mine = {"ANDON_HOME": self.home, "ANDON_STORE": self.url, "ANDON_CONCURRENCY": "1"}
        return {**own, **mine, "PYTHONPATH": path}

    def _supervise(self, children: list[dict[str, Any]]) -> "subprocess.Popen[bytes]":
        """Start a real supervisor, which dies with this process whatever happens."""
        limits = {"watchdog_seconds": 600, "lost_contact": "continue", "grace_seconds": 1}
        spec = {"home": self.home, "store": self.url, "settings": limits, "children": children}
        path = os.path.join(self.folder, f"spec-{len(self._started)}")
        with open(path, "x") as file:
            json.dump(spec, file)
        fd = os.open(path, os.O_RDONLY)
        try:
            with open(os.path.join(self.folder, "said"), "ab") as said:
                process = subprocess.Popen(  # noqa: S603
                    [sys.executable, "-m", "andon.supervisor", "--spec-fd", str(fd)],
                    cwd=self.folder,
                    env=self._environ(),
                    pass_fds=[fd],
                    preexec_fn=syscalls.die_with_parent,  # noqa: PLW1509 (one thread)
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    start_new_session=True,
                )
        finally:
            os.close(fd)
        self._started.append(process)
        return process

    def _start_runs(self, runs: list[Member]) -> None:
        """Start one run of each kind; any of the workers takes it."""
        if not runs:
            return
        with contextlib.closing(open_store(self.url, create=False)) as store:
            end = time.monotonic() + START_SECONDS
            while len(store.agents()) < len(RUNS) and time.monotonic() < end:
                time.sleep(0.02)
            for member in runs:
                requests.start(store, RUNS[member.kind], kwargs={"pipe": member.pipe})

    # ── the halt ──────────────────────────────────────────────────────────────────────────────

    def _halt(self) -> dict[str, Any]:
        """Run `andon halt`, and watch the pipes from outside until all have ended."""
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "andon", "halt", "--json"],
            cwd=self.folder,
            env=self._environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        answer, told = process.stdout.fileno(), b""
        os.set_blocking(answer, False)
        ended_ms: float | None = None
        end = began + HALT_SECONDS
        while time.monotonic() < end:
            open_pipes = [member for member in self.members if member.gone_ms is None]
            if ended_ms is not None and not open_pipes:
                break
            fds = [member.fd for member in open_pipes]
            ready = _wait(fds if ended_ms is not None else [*fds, answer], 0.05)
            now = (time.monotonic() - began) * 1000
            for member in open_pipes:
                if member.fd in ready:
                    _hear(member, now)
            if answer in ready:
                part = _part(answer)
                told += part or b""
                if part == b"":
                    ended_ms = now
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        process.kill()
        return self._report(told, ended_ms, process.wait())

    def _report(self, told: bytes, ended_ms: float | None, code: int) -> dict[str, Any]:
        for member in self.members:
            member.left = member.alive()
        try:
            receipt = json.loads(told)
        except ValueError:
            receipt = {}
        owners = [one.get("receipt") or {} for one in receipt.get("supervisors", ())]
        gone = [member.gone_ms for member in self.members]
        return {
            "kinds": [self._kind(kind) for kind in ORDER if self._of(kind)],
            "agents": len(self.members),
            "processes": sum(len(member.processes) for member in self.members),
            "escaped": sum(member.escapees for member in self.members),
            "survivors": sum(len(member.left) for member in self.members),
            "cli_ms": receipt.get("first_order_ms"),
            "latch_ms": _longest(owners, "latched_ms"),
            "kill_ms": _longest(owners, "verified_ms"),
            "gone_ms": None if None in gone else max(one for one in gone if one is not None),
            "verified_ms": ended_ms,
            "proved": code == 0 and bool(receipt.get("proved")),
            "unknown": list(receipt.get("unknown", ())),
            "load": os.getloadavg()[0] / (os.cpu_count() or 1),
            "receipt": receipt,
            "by": sorted({str(child.get("by")) for o in owners for child in o.get("children", ())}),
        }

    def _of(self, kind: str) -> list[Member]:
        return [member for member in self.members if member.kind == kind]

    def _kind(self, kind: str) -> dict[str, Any]:
        of = self._of(kind)
        gone = [member.gone_ms for member in of]
        return {
            "kind": kind,
            "agents": len(of),
            "processes": sum(len(member.processes) for member in of),
            "gone_ms": None if None in gone else max(one for one in gone if one is not None),
            "survivors": sum(len(member.left) for member in of),
        }

    # ── after the halt ────────────────────────────────────────────────────────────────────────

    def _try_to_start(self) -> dict[str, Any]:
        """Start a supervisor in the halted home; neither its command nor its worker may start."""
        marker = os.path.join(self.folder, "started")
        command = [sys.executable, "-c", f"open({marker!r}, 'x')"]
        work = [sys.executable, "-m", "andon", "work", os.path.abspath(hostile_runs.__file__)]
        surroundings = {"env": self._environ(), "cwd": self.folder}
        process = self._supervise(
            [
                {"name": "one-more", "kind": "command", "argv": command, **surroundings},
                {"name": "one-worker", "kind": "worker", "argv": work, **surroundings},
            ]
        )
        end = time.monotonic() + REFUSAL_SECONDS
        states: dict[str, str] = {}
        while time.monotonic() < end and not os.path.exists(marker):
            states = _states(self.home, process.pid)
            if states and all(state in ("held", "refused") for state in states.values()):
                return {"refused": True, "startable": states}
            if process.poll() is not None:
                return {"refused": process.returncode != 0, "startable": states}
            time.sleep(0.02)
        return {"refused": False, "startable": states}

    def close(self) -> None:
        """Kill every process that is left, by pid and start time, and remove the folder."""
        for process in self._started:
            with contextlib.suppress(OSError):
                process.terminate()
        for process in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(3.0)
            process.kill()
            process.wait()
        here = proc.pid_namespace()
        for member in self.members:
            for pid, ticks, namespace in member.processes:
                if namespace == here and proc.alive(pid, ticks):
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
            if member.fd >= 0:
                os.close(member.fd)
        shutil.rmtree(self.folder, ignore_errors=True)


def _wait(fds: list[int], seconds: float) -> set[int]:
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(seconds * 1000)}


def _part(fd: int) -> bytes | None:
    try:
        return os.read(fd, 65536)
    except BlockingIOError:
        return None


def _hear(member: Member, now_ms: float) -> None:
    while (part := _part(member.fd)) is not None:
        if not part:
            member.gone_ms = now_ms
            return
        member.told += part


def _longest(owners: list[dict[str, Any]], name: str) -> float | None:
    found = [one[name] for one in owners if isinstance(one.get(name), int | float)]
    return max(found) if found else None


def _states(home: str, pid: int) -> dict[str, str]:
    """The states of a supervisor's children, from its socket; empty while it does not answer."""
    for entry in homes.entries(home):
        if entry.pid == pid and entry.socket:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                with socket.socket(socket.AF_UNIX) as own, homes.within_reach(entry.socket) as path:
                    own.settimeout(1.0)
                    own.connect(path)
                    own.sendall(b'{"do": "status"}\n')
                    with own.makefile("rb") as file:
                        told = json.loads(file.readline())
                found = told.get("status", told)["children"]
                return {str(one["child"]): str(one["state"]) for one in found}
    return {}


# ── several rounds ────────────────────────────────────────────────────────────────────────────


def passed(report: dict[str, Any]) -> bool:
    """Whether nothing survived, nothing could be started, and the halt reported its proof."""
    return not report["survivors"] and report["refused"] and report["proved"]


class Tell(Protocol):
    """A callback for the progress of a drill."""

    def __call__(self, words: str, done: int | None = None, total: int | None = None) -> None: ...


def drill(agents: int, rounds: int, say: Tell) -> Iterator[dict[str, Any]]:
    for number in range(rounds):
        about = f"round {number + 1} of {rounds}: " if rounds > 1 else ""

        def tell(
            words: str, done: int | None = None, total: int | None = None, *, about: str = about
        ) -> None:
            say(about + words, done, total)

        yield Round(agents).run(tell)


def remember(reports: list[dict[str, Any]], home: str, now: float) -> None:
    """Record the drill in the real home, for `andon doctor`."""
    times = [one["verified_ms"] for one in reports if one["verified_ms"] is not None]
    line = {
        "at": now,
        "host": socket.gethostname(),
        "agents": reports[0]["agents"],
        "rounds": len(reports),
        "processes": reports[0]["processes"],
        "survivors": sum(one["survivors"] for one in reports),
        "verified_ms": max(times, default=-1.0),
        "passed": all(map(passed, reports)),
    }
    homes.make(home)
    with open(os.path.join(home, DRILLS), "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
