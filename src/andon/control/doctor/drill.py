"""A rehearsal of `andon halt`: real processes that resist stopping, and the real command.

A drill runs in a temporary folder with its own home and store, and touches nothing else on the
host. It does not rely on the supervisor's report: every process of the fleet holds a pipe open and
has written its pid and start time to it, so the end of the pipe proves that the last one is gone.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any, Protocol

from andon.control.doctor import hostile_runs
from andon.control.doctor.coverage import DRILLS
from andon.control.doctor.drill_fleet import ORDER, RUNS, Member, counted, fleet, wait_for
from andon.control.doctor.hostile_agents import MEMBERS
from andon.errors import AndonError
from andon.host import home as homes
from andon.host import proc, syscalls
from andon.runtime.requests import requests
from andon.store import open_store

# The drill fails if a phase takes longer than this.
START_SECONDS, HALT_SECONDS, REFUSAL_SECONDS = 90.0, 15.0, 15.0
# The time the storms get to build up.
STORM_SECONDS = 0.1


class Round:
    """One fleet and one halt."""

    def __init__(self, agents: int) -> None:
        self.folder = tempfile.mkdtemp(prefix="andon-drill-")
        self.home = os.path.join(self.folder, "home")
        self.url = f"sqlite:///{self.folder}/store.db"
        self.go = os.path.join(self.folder, "go")
        self.members = fleet(agents, self.folder)
        self._supervisors: list[subprocess.Popen[bytes]] = []

    def run(self, say: "OnProgress") -> dict[str, Any]:
        """Start the fleet, halt it, and try to start one more; returns the report."""
        try:
            self._start(say)
            say("andon halt")
            report = self._halt()
            say("trying to start one more")
            return {**report, **self._try_to_start()}
        finally:
            self.close()

    def _start(self, say: "OnProgress") -> None:
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
        while missing := [member for member in self.members if not member.is_complete]:
            if time.monotonic() > end or self._supervisors[0].poll() is not None:
                raise AndonError(
                    f"expected {MEMBERS} processes of each agent within {START_SECONDS:g} s, "
                    f"found fewer of: {', '.join(member.kind for member in missing)}. "
                    f"The supervisor said: {self._output()}"
                )
            wait_for([member.fd for member in missing], 0.1)
            for member in missing:
                member.listen()
            say(words, sum(member.is_complete for member in self.members), total)
        open(self.go, "x").close()
        time.sleep(STORM_SECONDS)
        for member in self.members:
            member.listen(0.0)
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

    def _output(self) -> str:
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
        path = os.path.join(self.folder, f"spec-{len(self._supervisors)}")
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
        self._supervisors.append(process)
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
        answer, received = process.stdout.fileno(), b""
        ended_ms: float | None = None
        end = began + HALT_SECONDS
        while time.monotonic() < end:
            open_pipes = [member for member in self.members if member.gone_ms is None]
            if ended_ms is not None and not open_pipes:
                break
            fds = [member.fd for member in open_pipes]
            ready = wait_for(fds if ended_ms is not None else [*fds, answer], 0.05)
            now = (time.monotonic() - began) * 1000
            for member in open_pipes:
                if member.fd in ready:
                    member.listen(now)
            if answer in ready:
                part = os.read(answer, 65536)
                received += part
                ended_ms = None if part else now
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        process.kill()
        return self._report(received, ended_ms, process.wait())

    def _report(self, received: bytes, ended_ms: float | None, code: int) -> dict[str, Any]:
        for member in self.members:
            member.left = member.alive()
        try:
            receipt = json.loads(received)
        except ValueError:
            receipt = {}
        owners = [one.get("receipt") or {} for one in receipt.get("supervisors", ())]
        kinds = {kind: [one for one in self.members if one.kind == kind] for kind in ORDER}
        return {
            "kinds": [
                {"kind": kind, "agents": len(of), **counted(of)} for kind, of in kinds.items() if of
            ],
            "agents": len(self.members),
            **counted(self.members),
            "escaped": sum(member.escapees for member in self.members),
            "cli_ms": receipt.get("first_order_ms"),
            "latch_ms": _longest(owners, "latched_ms"),
            "kill_ms": _longest(owners, "verified_ms"),
            "verified_ms": ended_ms,
            "proved": code == 0 and bool(receipt.get("proved")),
            "unknown": list(receipt.get("unknown", ())),
            "load": os.getloadavg()[0] / (os.cpu_count() or 1),
            "receipt": receipt,
            "by": sorted({str(child.get("by")) for o in owners for child in o.get("children", ())}),
        }

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
        for process in self._supervisors:
            with contextlib.suppress(OSError):
                process.terminate()
        for process in self._supervisors:
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
                        received = json.loads(file.readline())
                found = received.get("status", received)["children"]
                return {str(one["child"]): str(one["state"]) for one in found}
    return {}


def passed(report: dict[str, Any]) -> bool:
    """Whether nothing survived, nothing could be started, and the halt reported its proof."""
    return not report["survivors"] and report["refused"] and report["proved"]


class OnProgress(Protocol):
    """A callback for the progress of a drill."""

    def __call__(self, words: str, done: int | None = None, total: int | None = None) -> None: ...


def drill(agents: int, rounds: int, say: OnProgress) -> Iterator[dict[str, Any]]:
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
