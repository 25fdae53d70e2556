"""A host for the tests: a terminal with a home of its own, and a supervisor in it."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.cli.terminal import Process, Terminal, until

from andon.host.proc import alive
from andon.store import open_store
from andon.store.messages.rows import RunRow
from andon.store.store import Store


class Host(Terminal):
    def __init__(self, folder: Path, url: str, name: str = "home", **settings: object) -> None:
        super().__init__(folder, url)
        self.home = folder / name
        self.environment["ANDON_HOME"] = str(self.home)
        for setting, given in settings.items():
            self.environment[f"ANDON_{setting.upper()}"] = str(given)

    @contextlib.contextmanager
    def store(self) -> Iterator[Store]:
        store = open_store(self.url)
        try:
            yield store
        finally:
            store.close()

    def run_of(self, run_id: str) -> RunRow | None:
        with self.store() as store:
            return store.run(run_id)

    def becomes(self, run_id: str, *states: str) -> RunRow:
        def reached() -> RunRow | None:
            row = self.run_of(run_id)
            return row if row is not None and row.state in states and row.stop is None else None

        row = until(reached, f"run {run_id} {states}: {self.run_of(run_id)}")
        assert isinstance(row, RunRow)
        return row

    @contextlib.contextmanager
    def up(self, *words: str, workers: int = 1) -> Iterator[Process]:
        """A supervisor whose workers are ready."""
        with self.process("up", "agents.py", f"--workers={workers}", *words) as process:
            until(lambda: process.text.count("is ready") >= workers, f"ready: {process.text}")
            yield process

    @contextlib.contextmanager
    def command(self, *words: str, **given: Any) -> Iterator[Process]:
        with self.process("run", *words, **given) as process:
            yield process

    def pid_in(self, name: str) -> int:
        """The pid a process wrote there, as seen from here also across a pid namespace."""
        path = self.folder / name
        found = until(lambda: path.exists() and path.read_text().strip(), f"{name} is written")
        return next(iter(self._called(int(found))), int(found))

    def _called(self, inside: int) -> Iterator[int]:
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError, StopIteration):
                ours = os.readlink(f"/proc/{name}/cwd") == str(self.folder)
                status = Path(f"/proc/{name}/status").read_text().split("\n")
                names = next(line for line in status if line.startswith("NSpid:")).split()
                if ours and int(names[-1]) == inside:
                    yield int(name)

    def control_pid(self) -> int:
        """The control process of the only supervisor of this home."""
        return int(
            next(one["pid"] or 0 for one in self.status()["children"] if one["kind"] == "control")
        )

    def status(self) -> dict[str, Any]:
        import json
        import socket

        [path] = self.home.glob("run/*.sock")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b'{"do":"status"}\n')
            with client.makefile() as answers:
                found: dict[str, Any] = json.loads(answers.readline())["status"]
                return found


def gone(pid: int) -> None:
    until(lambda: not alive(pid), f"process {pid} is gone")


def end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


PIPE = subprocess.PIPE
