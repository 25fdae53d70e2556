"""The channel to the supervisor: JSON lines over a descriptor inherited from it.

A thread reads, so that messages of the supervisor are received while the main thread waits for a
database; the main thread takes them later. End of file means that the supervisor has ended.
"""

import contextlib
import queue
import socket
import threading
from collections.abc import Callable
from typing import Any

from andon.host.json_lines import LineReader, encoded

LONGEST_LINE = 8_388_608


class Channel:
    """The channel. The reading thread calls `at_once` for each message, before it can be taken."""

    def __init__(
        self,
        descriptor: int,
        wake: Callable[[], None],
        at_once: Callable[[dict[str, Any]], None],
    ) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(True)
        self._wake, self._at_once = wake, at_once
        self._received: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._sending = threading.Lock()
        self.ended = False
        self._thread = threading.Thread(target=self._read, name="andon-channel", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def take(self) -> list[dict[str, Any]]:
        """The messages received since the last call, in order."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._received.get_nowait())
        return found

    def send(self, do: str, **words: Any) -> None:
        """Send a request to the supervisor; does nothing if the supervisor has ended."""
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(encoded({"do": do, **words}))

    def _read(self) -> None:
        reader = LineReader(LONGEST_LINE)
        while True:
            try:
                part = self._socket.recv(65_536)
            except OSError:
                part = b""
            if not part:
                break
            for message in reader.messages(part):
                self._at_once(message)
                self._received.put(message)
            self._wake()
        self.ended = True
        self._wake()
