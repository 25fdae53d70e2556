"""The one wait of the supervisor: descriptors, signals, and the time until the next look."""

import math
import os
import select
import signal
from collections.abc import Callable, Iterable

READ, WRITE = select.POLLIN, select.POLLOUT


class Loop:
    """Descriptors and what to call when one is ready. Nothing that is called may block."""

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
        """Wait at most so long, and call what is ready once."""
        for fd, event in self._poll.poll(math.ceil(max(0.0, seconds) * 1000)):
            call = self._calls.get(fd)
            if call is None:  # forgotten by a call of the same turn
                continue
            if event & select.POLLNVAL:  # closed under us: asking again would spin
                self.forget(fd)
            try:
                call(event)
            except Exception as error:
                # A mistake of ours about one descriptor must not end the supervision of others.
                self.forget(fd)
                if self._failed is None:
                    raise
                self._failed(error)


class Signals:
    """Signals are noted when they arrive and acted on by the loop; none is lost, none runs code."""

    def __init__(self, loop: Loop, numbers: Iterable[signal.Signals]) -> None:
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
