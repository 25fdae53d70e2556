"""The channel to the control process: JSON lines over a non-blocking socket pair.

Events that could not be sent because the control process was dead or slow are kept, within a limit,
and sent to the next one after its greeting. Each control process gets a socket pair of its own.
"""

import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from andon.host.json_lines import LineReader, encoded
from andon.supervisor.poll import READ, WRITE, PollLoop

MOST_KEPT = 2000
AT_ONCE = 65_536


class ControlChannel:
    """The supervisor's end of the channel, with the events that are not sent yet."""

    def __init__(self, loop: PollLoop, received: Callable[[dict[str, Any]], None]) -> None:
        self._loop, self._received = loop, received
        self._socket: socket.socket | None = None
        self._kept: deque[bytes] = deque()
        self._sent = 0  # bytes of the first line that are sent
        self._reader = LineReader()
        self.missed = 0  # events dropped because too many were kept

    @property
    def fileno(self) -> int:
        return -1 if self._socket is None else self._socket.fileno()

    def open(self) -> int:
        """Make a new pair; return the control process's descriptor, which the caller closes."""
        self.close()
        ours, theirs = socket.socketpair()
        self.attach(ours)
        return theirs.detach()

    def attach(self, ours: socket.socket) -> None:
        ours.setblocking(False)
        self._socket, self._sent, self._reader = ours, 0, LineReader()
        self._loop.watch(ours.fileno(), self._ready)

    def detach(self) -> list[str]:
        """Return the lines that are not fully sent, whole, for the next image of this process."""
        return [line.decode() for line in self._kept]

    def recall(self, lines: list[str]) -> None:
        self._kept.extend(line.encode() for line in lines)

    def greet(self, hello: dict[str, Any]) -> None:
        """Send the greeting before any kept event."""
        self._kept.appendleft(encoded({**hello, "missed": self.missed}))
        self._push()

    def send(self, event: str, **facts: Any) -> None:
        """Report an event; it is kept until a control process has received it."""
        if len(self._kept) >= MOST_KEPT:
            oldest = 1 if self._sent else 0  # a partly sent line must be finished
            del self._kept[oldest]
            self.missed += 1
        self._kept.append(encoded({"event": event, **facts, "at": time.time()}))
        self._push()

    @property
    def idle(self) -> bool:
        """Whether everything is sent, or no control process is connected."""
        return self._socket is None or not self._kept

    def finish(self) -> None:
        """Close the sending side: the control process reads to the end and exits."""
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_WR)
            except OSError:
                self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._loop.forget(self._socket.fileno())
            self._socket.close()
            self._socket, self._sent = None, 0

    def _push(self) -> None:
        if self._socket is None:
            return
        try:
            while self._kept:
                line = self._kept[0]
                self._sent += self._socket.send(line[self._sent :])
                if self._sent >= len(line):
                    self._kept.popleft()
                    self._sent = 0
        except BlockingIOError:
            self._loop.change(self._socket.fileno(), READ | WRITE)
            return
        except OSError:
            self.close()
            return
        self._loop.change(self._socket.fileno(), READ)

    def _ready(self, event: int) -> None:
        if event & WRITE:
            self._push()
        if event & ~WRITE and self._socket is not None:
            self._take(self._socket)

    def _take(self, ours: socket.socket) -> None:
        try:
            content = ours.recv(AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            content = b""
        if not content:
            self.close()
            return
        for message in self._reader.messages(content):
            self._received(message)
