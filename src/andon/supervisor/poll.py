"""The poll loop of the supervisor: its only wait, for descriptors, signals and timeouts."""

import math
import os
import select
import signal
from collections.abc import Callable, Iterable

READ, WRITE = select.POLLIN, select.POLLOUT


class PollLoop:
    """Calls a callback when its descriptor is ready. No callback may block."""

    def __init__(self, failed: Callable[[Exception], None] | None = None) -> None:
        self._failed = failed
        self._poll = select.poll()
        self._calls: dict[int, Callable[[int], None]] = {}

    def watch(self, fd: int, call: Callable[[int], None], mask: int = READ) -> None:
        self._calls[fd] = call
        self._poll.register(fd, mask)

    def change(self, fd: int, mask: int) -> None:
        if fd in self._calls:
            self._poll.modify(fd, mask)

    def forget(self, fd: int) -> None:
        if self._calls.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def turn(self, seconds: float) -> None:
        """Wait at most this long, and call each ready callback once."""
        for fd, event in self._poll.poll(math.ceil(max(0.0, seconds) * 1000)):
            call = self._calls.get(fd)
            if call is None:  # forgotten by a callback of the same turn
                continue
            if event & select.POLLNVAL:  # closed by other code: polling it again would spin
                self.forget(fd)
            try:
                call(event)
            except Exception as error:
                # An internal error on one descriptor must not end the supervision of others.
                self.forget(fd)
                if self._failed is None:
                    raise
                self._failed(error)


class Signals:
    """Records signals for the loop to act on; none is lost, and no handler runs other code."""

    def __init__(self, loop: PollLoop, numbers: Iterable[signal.Signals]) -> None:
        self._noted: list[int] = []
        self._read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, self._note)
        loop.watch(self._read, self._drain)

    def _note(self, number: int, _frame: object) -> None:
        if number not in self._noted:
            self._noted.append(number)

    def _drain(self, _event: int) -> None:
        try:
            while os.read(self._read, 4096):
                pass
        except BlockingIOError:
            pass

    def take(self) -> list[int]:
        noted, self._noted = self._noted, []
        return noted
