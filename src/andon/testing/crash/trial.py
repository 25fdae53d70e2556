"""One trial: a run on a fresh store and folder, workers that are killed, and one that ends it.

The trial also plays everybody around the run: it approves what the agent asks, sends the events
that it was given, and moves the clock to the next time that the run waits for. It does not answer
for a person who is asked about an effect in doubt: there the trial ends.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from andon.core.run import TERMINAL, State
from andon.errors import AndonError, BadInput
from andon.runtime.agent import Agent
from andon.runtime.requests import requests
from andon.runtime.worker.embedded_latch import refuse_if_pulled
from andon.store import open_store
from andon.store.messages.rows import Filter, RunRow
from andon.testing.clock import Clock
from andon.testing.crash.kills import Kill
from andon.testing.crash.lines import Line, read
from andon.testing.crash.scratch import HookFailed
from andon.testing.crash.worker import WorkerOrder, due

RUN = "crashtest"
# An agent that asks, sleeps or waits more often than this is in an endless loop.
MOST_TURNS = 1000
IMPORT_SECONDS = 120.0
LOOK_SECONDS = 0.5
CLOSE_SECONDS = 10.0


class TrialOutcome(msgspec.Struct, kw_only=True):
    """The outcome of a trial."""

    kills: tuple[Kill, ...]
    died: int = 0  # how many of the kills were reached
    state: str = ""  # of the run; hung: it did not end in time
    result: Any = None
    error: str = ""
    waits: str = ""  # things that the run waits for in vain
    asked: list[str] = []  # effects that a person is asked about
    world: str = ""  # the check's report on the outside world
    lines: list[Line] = []
    seconds: float = 0.0

    @property
    def succeeded(self) -> bool:
        return self.state == State.SUCCEEDED


class Forker:
    """The process that forks workers; each has its own hash seed, as two machines would."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self._ended: dict[int, int] = {}
        self._unread = b""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environ,
        )
        self._pids: list[int] = []
        self._ready = False

    def spawn(self, order: WorkerOrder) -> int:
        end = time.monotonic() + IMPORT_SECONDS
        while not self._ready:
            self._listen(end)
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        self._process.stdin.flush()
        while not self._pids:
            self._listen(end)
        return self._pids.pop(0)

    def wait(self, pid: int, until: float) -> int | None:
        """Return its status: -9 after SIGKILL, None if it has not ended by then."""
        while pid not in self._ended and time.monotonic() < until:
            self._listen(until, patient=False)
        return self._ended.get(pid)

    def _listen(self, until: float, *, patient: bool = True) -> None:
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        if not select.select([output], [], [], max(until - time.monotonic(), 0.0))[0]:
            if patient:
                raise AndonError("the process that starts workers does not answer; try again")
            return
        found = os.read(output, 65536)
        if not found:
            raise AndonError("the process that starts workers has ended; try again")
        *said, self._unread = (self._unread + found).split(b"\n")
        for words in map(json.loads, said):
            match words:
                case {"error": message}:
                    raise BadInput(message)
                case {"pid": pid, "status": status}:
                    self._ended[pid] = status
                case {"pid": pid}:
                    self._pids.append(pid)
                    self._ended.pop(pid, None)  # a pid may be reused
                case _:
                    self._ready = True

    def close(self) -> None:
        """Close its input: it then kills all that its workers left behind, and exits."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_SECONDS if self._ready else 0)  # not ready: still importing
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


class Site(msgspec.Struct, kw_only=True):
    """The settings and processes that all trials of a crash test share."""

    agent: Agent
    given: dict[str, Any]
    folder: Path
    forkers: tuple[Forker, Forker]
    new_store: Callable[[Path], str]
    send: dict[str, Any]
    before: Callable[[Path], object] | None
    check: Callable[[Path], object] | None
    number: int = 0

    def trial(self, *kills: Kill, until: float, other: bool = False) -> TrialOutcome:
        """Run one trial; with `other`, in the forker that shares nothing with the first."""
        self.number += 1
        return _Trial(self, kills, until, other).run()


class _Trial:
    def __init__(self, site: Site, kills: tuple[Kill, ...], until: float, other: bool) -> None:
        self.site, self.until = site, until
        self.folder = site.folder / f"{site.number:04}"
        self.work = self.folder / "work"
        self.work.mkdir(parents=True)
        self.outcome = TrialOutcome(kills=kills)
        self.lives = int(other)
        self.turns = 0

    def run(self) -> TrialOutcome:
        site, began = self.site, time.monotonic()
        if site.before is not None:
            site.before(self.work)
        self.url = site.new_store(self.folder)
        with Clock(self.url) as self.clock:
            self.store = open_store(self.url)
            try:
                requests.start(self.store, site.agent, (), site.given, id=RUN)
                for kill in (*self.outcome.kills, None):
                    if not self._live(kill):
                        break
                self._settle()
            finally:
                self.store.close()
        self.outcome.lines = read(self.folder / "lines")
        if site.check is not None:
            self.outcome.world = self._checked(site.check)
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    def _checked(self, check: Callable[[Path], object]) -> str:
        """Return the check's answer; after a kill its failure is an answer, not an error."""
        try:
            found = check(self.work)
        except Exception as error:
            if not self.outcome.kills:
                raise
            if isinstance(error, HookFailed):
                return error.found
            return f"{type(error).__name__}: {error}"
        return "" if found is None else str(found)

    def _live(self, kill: Kill | None) -> bool:
        """Run workers until one is killed or nothing is left to do; return whether one was."""
        while not self._over():
            status = self._work(kill)
            if status == -signal.SIGKILL and kill is not None:
                self.outcome.died += 1
                return True
            if status is None:
                self.outcome.state = "hung"
                return False
            if status != 0:
                how = f"signal {-status}" if status < 0 else f"exit {status}"
                raise AndonError(
                    f"a worker of the test ended by itself ({how}). An agent must not end its own "
                    f"process. It said:\n{self._said()}"
                )
            if not self._attend():
                return False
        return False

    def _work(self, kill: Kill | None) -> int | None:
        forker = self.site.forkers[self.lives % 2]
        self.lives += 1
        pid = forker.spawn(
            WorkerOrder(
                url=self.url,
                folder=str(self.work),
                lines=str(self.folder / "lines"),
                output=str(self.folder / "output"),
                kill=kill,
                ahead=self.clock.ahead,
            )
        )
        status = None
        try:
            while status is None and time.monotonic() < self.until:
                refuse_if_pulled()  # a halt stops tests, too
                status = forker.wait(pid, min(self.until, time.monotonic() + LOOK_SECONDS))
        finally:
            # Includes processes that the worker started, and the worker if it did not end in time.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        if status is None:
            forker.wait(pid, time.monotonic() + 10)
        return status

    def _said(self) -> str:
        path = self.folder / "output"
        said = path.read_text("utf-8", "replace")[-2000:].strip() if path.exists() else ""
        return said or "nothing"

    @property
    def row(self) -> RunRow:
        return requests.find(self.store, RUN)

    def _over(self) -> bool:
        return self.row.state in TERMINAL or self.row.state == State.STRANDED

    def _attend(self) -> bool:
        """Do what the run waits for if no worker can continue it; return whether it can go on."""
        self.turns += 1
        if self._over() or self.turns > MOST_TURNS:
            return False
        return due(self.store) or self._answer() or self._send() or self._wait()

    def _answer(self) -> bool:
        asks = [ask for ask in self.store.asks() if ask.about == "value" and ask.answer is None]
        for ask in asks:
            requests.answer(self.store, ask.run_id, "approve", ask=ask.id, by="andon crashtest")
        return bool(asks)

    def _send(self) -> bool:
        wanted = [
            (row.id, wait["name"])
            for row in self._open()
            for wait in json.loads(row.waits or "[]")
            if wait["kind"] == "event" and wait["name"] in self.site.send
        ]
        for run_id, name in wanted:
            requests.send(self.store, run_id, name, self.site.send[name])
        return bool(wanted)

    def _wait(self) -> bool:
        times = [row.wake_at for row in self._open() if row.wake_at is not None]
        times += [row.available_at for row in self._open() if row.state == State.QUEUED]
        if not times:
            return False
        self.clock.advance(max(min(times) - self.store.now(), 0.0) + 0.001)
        return True

    def _open(self) -> list[RunRow]:
        states = (State.QUEUED, State.RUNNING, State.SUSPENDED)
        return list(self.store.runs(Filter(states=states, limit=1000)))

    def _settle(self) -> None:
        outcome, row = self.outcome, self.row
        outcome.state = outcome.state or row.state
        described = requests.described(self.store, row)
        outcome.result = described.result
        if described.error:
            outcome.error = "{type}: {message}".format_map(described.error)
        asks = [ask for ask in self.store.asks() if ask.about != "value" and ask.answer is None]
        ids = {ask.id.rpartition("#")[0] for ask in asks}
        lines = read(self.folder / "lines")
        outcome.asked = sorted({line.name for line in lines if _doubt(line) in ids})
        waits = [wait for one in self._open() for wait in json.loads(one.waits or "[]")]
        found = [f"{wait['kind']} {wait['name']!r}" for wait in waits]
        queued = [one for one in self._open() if one.state == State.QUEUED]
        found += [f"a worker that serves agent {one.agent!r}" for one in queued]
        outcome.waits = ", ".join(found)


def _doubt(line: Line) -> str:
    """Return the start of an ask's id about that effect; names and keys may have any characters."""
    return f"effect:{line.name}/{line.place or line.key}"
