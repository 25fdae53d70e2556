"""Real worker processes for the chaos tests: start, kill, freeze, and wait for them."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from tests.chaos import world
from tests.chaos.worker import Order

import andon
from andon.core.run import TERMINAL
from andon.runtime.requests import requests
from andon.store.messages.rows import Filter

ROOT = Path(__file__).parents[2]
# No promise: only the limit of a test that would hang.
LIMIT_SECONDS = 60.0


def until(condition: Callable[[], Any], what: str = "", seconds: float = LIMIT_SECONDS) -> Any:
    """Wait until the condition holds, and return its value; fail after the limit."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what or condition}")
        time.sleep(0.005)
    return found


def environment() -> dict[str, str]:
    # The very andon that is tested: it may be a copy with a planted bug.
    path = os.pathsep.join([str(Path(andon.__file__).parents[1]), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "default"}


class Process:
    """One worker process."""

    def __init__(self, forker: "Forker", pid: int) -> None:
        self.forker, self.pid = forker, pid

    @property
    def status(self) -> int | None:
        """None while it lives; -9 after SIGKILL."""
        self.forker.pump(0)
        return self.forker.ended.get(self.pid)

    def wait(self, seconds: float = LIMIT_SECONDS) -> int:
        until(lambda: self.status is not None, f"the end of process {self.pid}", seconds)
        return self.forker.ended[self.pid]

    def send(self, number: signal.Signals) -> None:
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.send(signal.SIGKILL)
        self.wait()

    def freeze(self) -> None:
        self.send(signal.SIGSTOP)
        until(lambda: self.frozen, "SIGSTOP")

    def thaw(self) -> None:
        self.send(signal.SIGCONT)

    @property
    def frozen(self) -> bool:
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] == "T"


class Forker:
    """The process that forks workers."""

    def __init__(
        self,
        environ: dict[str, str] | None = None,
        inside: tuple[str, ...] = (),
        program: tuple[str, ...] = (str(Path(__file__).with_name("forker.py")),),
    ) -> None:
        """`inside`: a command that starts it in another place, e.g. in another network."""
        self.ended: dict[int, int] = {}
        self._pids: list[int] = []
        self._unread = b""
        self._process = subprocess.Popen(
            [*inside, sys.executable, *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**environment(), **(environ or {})},
        )

    def spawn(self, order: msgspec.Struct) -> Process:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        self._process.stdin.flush()
        while not self._pids:
            self.pump(LIMIT_SECONDS)
        return Process(self, self._pids.pop(0))

    def pump(self, seconds: float) -> None:
        """Read the messages of the forker."""
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        while select.select([output], [], [], seconds)[0]:
            found = os.read(output, 65536)
            if not found:
                raise AssertionError("the forker is gone")
            *said, self._unread = (self._unread + found).split(b"\n")
            for words in map(json.loads, said):
                if "status" in words:
                    self.ended[words["pid"]] = words["status"]
                else:
                    self._pids.append(words["pid"])
                    self.ended.pop(words["pid"], None)  # a process number may be reused
            seconds = 0

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()


class Site:
    """A store, a world, and the processes that act on them."""

    def __init__(self, forker: Forker, store: Any, url: str, folder: Path) -> None:
        self.forker, self.store, self.url, self.folder = forker, store, url, folder
        self.processes: list[Process] = []
        self.asked = 0
        folder.mkdir(exist_ok=True)

    def worker(self, **order: Any) -> Process:
        """Start a worker process; keywords are an Order's, `settings` are the worker's."""
        given = {"world": str(self.folder), "errors": str(self.folder / "stderr"), **order}
        process = self.forker.spawn(Order(url=self.url, **given))
        self.processes.append(process)
        return process

    def ready_worker(self, **order: Any) -> Process:
        """Start a worker process and wait until it has registered."""
        process = self.worker(**order)
        until(lambda: self.incarnations(process), "its registration")
        return process

    def incarnations(self, process: Process) -> list[Any]:
        return [row for row in self.store.workers() if row.pid == process.pid]

    def end(self) -> None:
        for process in self.processes:
            process.send(signal.SIGKILL)
        for process in self.processes:
            process.wait()

    @property
    def errors(self) -> str:
        path = self.folder / "stderr"
        return path.read_text() if path.exists() else ""

    def set_flag(self, name: str) -> None:
        """Set a flag that agents and effects look for."""
        (self.folder / name).touch()

    def clear_flag(self, name: str) -> None:
        (self.folder / name).unlink()

    def start(self, agent: Any, *args: Any, run: str) -> str:
        return requests.start(self.store, agent, args, id=run)

    def state(self, run: str) -> str:
        return str(self.store.run(run).state)

    def rows(self) -> list[Any]:
        return list(self.store.runs(Filter(limit=10_000)))

    def open_runs(self) -> list[Any]:
        return [row for row in self.rows() if row.state not in TERMINAL]

    def count(self, what: str, key: str) -> int:
        return world.count(what, key, self.folder)

    def interrupted(self) -> int:
        """The number of attempts that ended without a settlement from their worker."""
        found = [attempt for row in self.rows() for attempt in self.store.attempts(row.id)]
        return sum(attempt.ending == "interrupted" for attempt in found)

    def answer_open_asks(self) -> int:
        """Answer every open ask: about an effect, by looking at the world."""
        asks = self.store.asks()
        for ask in asks:
            if ask.about == "effect":
                name, _, key = ask.id.partition(":")[2].partition("#")[0].partition("/")
                what = name.removeprefix("shaky_").removeprefix("plain_")
                there = world.stands(what, key, self.folder)
                decision = "happened" if there else "did_not_happen"
                requests.answer(
                    self.store, ask.run_id, decision, key if there else None, ask=ask.id
                )
            else:
                requests.answer(self.store, ask.run_id, "approve", ask=ask.id)
        self.asked += len(asks)
        return len(asks)

    def send_awaited_events(self) -> None:
        for row in self.store.runs(Filter(states=("suspended",), limit=1000)):
            for wait in json.loads(row.waits or "[]"):
                if wait["kind"] == "event":
                    requests.send(self.store, row.id, wait["name"], "went", id=f"{row.id}-went")

    def finish(self, seconds: float = LIMIT_SECONDS) -> None:
        """Answer asks and send awaited events until every run has ended."""

        def over() -> bool:
            self.answer_open_asks()
            self.send_awaited_events()
            return not self.open_runs()

        try:
            until(over, "the end of all runs", seconds)
        except AssertionError as error:
            left = [f"{row.id}: {row.state} {row.waits} {row.worker}" for row in self.open_runs()]
            raise AssertionError(
                f"{error}\n" + "\n".join(left) + f"\n{self.errors[-4000:]}"
            ) from None
