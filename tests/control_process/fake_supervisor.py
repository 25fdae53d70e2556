"""A control process whose supervisor is the test: the messages it gets, and the ones it sends."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.cli.terminal import LIMIT_SECONDS, SOURCE, until

from andon.control_process.latch_sync import DOUBT_SECONDS
from andon.host.latch import Latch
from andon.host.proc import start_ticks
from andon.runtime.worker.peers import this_process
from andon.store import open_store
from andon.store.store import Store

GRADES = {"kill": "A", "pause": "A", "parent_death": "C", "by": "cgroup"}


class FakeSupervisor:
    """The supervisor's end of the socket."""

    def __init__(self, home: Path, url: str, name: str = "s1", **settings: object) -> None:
        self.home, self.url, self.name = home, url, name
        self.settings = {f"ANDON_{key.upper()}": str(value) for key, value in settings.items()}
        self.latch = Latch(str(home))
        self.latch.init()
        self.socket: socket.socket | None = None
        self.received: list[dict[str, Any]] = []
        self.process: subprocess.Popen[bytes] | None = None
        self.children: list[dict[str, Any]] = []
        self.receipt: dict[str, Any] | None = None

    @property
    def target(self) -> str:
        return f"supervisor:{self.name}"

    def start(self, **env: str) -> None:
        """Starts a control process and greets it."""
        ours, theirs = socket.socketpair()
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ANDON_")}
        environment |= {"PYTHONPATH": str(SOURCE), "ANDON_STORE": self.url, **self.settings, **env}
        environment["ANDON_SUPERVISOR_FD"] = str(theirs.fileno())
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "andon.control_process.main"],
            env=environment,
            cwd=self.home,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._hang_up()
        self.socket = ours
        self._reader = threading.Thread(target=self._read, args=(ours,), daemon=True)
        self._reader.start()
        here = this_process()
        said: dict[str, Any] = {
            "id": self.name,
            "host": here.host,
            "boot": here.boot,
            "home": str(self.home),
        }
        said |= {"namespace": here.namespace, "pid": os.getpid()}
        said |= {"start_ticks": start_ticks(os.getpid()), "grades": GRADES}
        self.send("hello", supervisor=said, children=self.children, receipt=self.receipt)

    def _read(self, ours: socket.socket) -> None:
        with contextlib.suppress(OSError), ours.makefile() as lines:
            for line in lines:
                self.received.append(json.loads(line))

    def send(self, event: str, **words: Any) -> None:
        assert self.socket is not None
        self.socket.sendall(json.dumps({"event": event, **words}).encode() + b"\n")

    def expect(self, do: str, **words: Any) -> dict[str, Any]:
        """Waits for a request with these fields."""

        def found() -> dict[str, Any] | None:
            wanted = {"do": do, **words}
            return next((one for one in self.received if wanted.items() <= one.items()), None)

        answer = until(found, f"{do} {words} in {self.received}")
        assert isinstance(answer, dict)
        return answer

    def last_received(self, do: str) -> dict[str, Any]:
        return [one for one in self.received if one["do"] == do][-1]

    def halted(self, order: str, via: str = "", **words: Any) -> None:
        """The message of a supervisor that has stopped everything."""
        pulled = self.latch.pull(order=order, via=via, by=words.get("by", ""))
        self.receipt = {"id": pulled.order, "epoch": pulled.epoch, "processes": 3, "proved": True}
        self.receipt |= {"verified_ms": 4.2, "survivors": [], "via": via, **words}
        receipt = self.receipt
        # A halt cannot be lifted within the moment of its pull; for that moment the pull is the
        # newer.
        until(lambda: time.time() > pulled.at + 2 * DOUBT_SECONDS, "the moment is over")
        self.send("halted", order=pulled.order, epoch=pulled.epoch, via=via, receipt=receipt)

    def contact(self) -> None:
        """Waits for one more."""
        count = sum(one["do"] == "contact" for one in self.received)
        until(
            lambda: sum(one["do"] == "contact" for one in self.received) > count, "one more contact"
        )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(LIMIT_SECONDS)

    def dies(self) -> None:
        assert self.process is not None
        self.process.wait(LIMIT_SECONDS)

    def end(self) -> int:
        """The supervisor has ended."""
        self.send("ending", code=0, why="over")
        assert self.socket is not None
        assert self.process is not None
        self.socket.shutdown(socket.SHUT_WR)
        return self.process.wait(LIMIT_SECONDS)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        self._hang_up()

    def _hang_up(self) -> None:
        if self.socket is not None:
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)
            self._reader.join(LIMIT_SECONDS)
            self.socket.close()
            self.socket = None


@contextlib.contextmanager
def opened(url: str) -> Iterator[Store]:
    store = open_store(url)
    try:
        yield store
    finally:
        store.close()
