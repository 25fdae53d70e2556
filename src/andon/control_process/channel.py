"""The wire to the supervisor: JSON lines over a descriptor that was inherited from it.

A thread reads, so that an order of the supervisor never waits for a database; whoever attends
takes what has come. The end of the wire is the end of the supervisor.
"""

import contextlib
import json
import queue
import socket
import threading
from collections.abc import Callable
from typing import Any

LONGEST_LINE = 8_388_608


class Wire:
    """`at_once` is called from the thread that reads, for each message, before it is taken."""

    def __init__(
        self,
        descriptor: int,
        wake: Callable[[], None],
        at_once: Callable[[dict[str, Any]], None],
    ) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(True)
        self._wake, self._at_once = wake, at_once
        self._heard: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._sending = threading.Lock()
        self.ended = False
        self._thread = threading.Thread(target=self._read, name="andon-wire", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def take(self) -> list[dict[str, Any]]:
        """What has come since the last time, in order."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._heard.get_nowait())
        return found

    def send(self, do: str, **words: Any) -> None:
        """An order for the supervisor. One that is gone needs none."""
        line = json.dumps({"do": do, **words}).encode() + b"\n"
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(line)

    def _read(self) -> None:
        rest = b""
        while True:
            try:
                part = self._socket.recv(65_536)
            except OSError:
                part = b""
            if not part:
                break
            *lines, rest = (rest + part).split(b"\n")
            if len(rest) > LONGEST_LINE:
                rest = b""
            for line in lines:
                self._understand(line)
            self._wake()
        self.ended = True
        self._wake()

    def _understand(self, line: bytes) -> None:
        with contextlib.suppress(ValueError, RecursionError):
            message = json.loads(line)
            if isinstance(message, dict):
                self._at_once(message)
                self._heard.put(message)
