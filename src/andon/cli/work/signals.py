"""Signals and deadlines of a process that executes runs.

The signal handler may interrupt any code, even code that holds a lock, so it only sets a flag and
writes a byte. A thread does the rest: it notifies the worker, and exits the process when the grace
period is over, whatever the event loop is doing.

Python calls the handler between two instructions of the main thread, so native code there would
delay it. The C-level handler also writes a byte to the wakeup descriptor, which is enough to begin
the drain. If an event loop takes that descriptor for itself, only the Python handler remains.
"""

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from andon.cli.output import note
from andon.runtime.worker.clock import own_time
from andon.runtime.worker.worker import CLOSE_SECONDS, Worker

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Added to the grace period before this thread exits the process.
SLACK_SECONDS = CLOSE_SECONDS + 0.15
# Programs that signal a process and then its group (timeout, some shells) mean one order.
SAME_SECONDS = 0.02
_NOTIFIED = 0  # not a signal: the worker was notified in another way


class SignalHandler:
    """Handles stop signals for a worker."""

    def __init__(self, worker: Worker, describe: Callable[[], str]) -> None:
        self.worker = worker
        self._describe = describe  # describes the runs in hand, for people
        self._signals = 0
        self._ordered_at = 0.0
        self._over = False
        self.code = 1  # exit code if the grace period runs out
        self._before: dict[int, Any] = {}
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._wakeup_read, self._wakeup_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._installed = False
        self._forking = threading.local()
        self._thread = threading.Thread(target=self._handle, name="andon-orders", daemon=True)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Handle signals while the block runs; also call handlers installed before."""
        self.worker.on_drain = lambda: self._tell_thread(_NOTIFIED)
        self._thread.start()
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._caught)
        before = signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)
        self._installed = True
        os.register_at_fork(
            before=self._block_signals,
            after_in_parent=self._restore_mask,
            after_in_child=self._forked,
        )
        try:
            yield
        finally:
            self._uninstall()
            signal.set_wakeup_fd(before)

    def _uninstall(self) -> None:
        self._installed = False
        signal.set_wakeup_fd(-1)
        for caught, before in self._before.items():
            signal.signal(caught, before if before is not None else signal.SIG_DFL)

    # A forked process inherits these pipes: its signals must not reach this worker.

    def _block_signals(self) -> None:
        if self._installed:
            self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    def _restore_mask(self) -> None:
        mask = self._forking.__dict__.pop("mask", None)
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _forked(self) -> None:
        if self._installed:
            self._uninstall()
        self._restore_mask()

    def stand_down(self) -> None:
        """Stop enforcing the deadline: the worker has ended, and the process may take its time."""
        self._over = True
        self._tell_thread(_NOTIFIED)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        self.worker.draining = True  # the worker claims nothing from here on
        self._tell_thread(number)
        before = self._before[number]
        if callable(before) and before is not signal.default_int_handler:
            before(number, frame)

    def _tell_thread(self, number: int) -> None:
        with contextlib.suppress(OSError):
            os.write(self._write, bytes([number]))

    def _handle(self) -> None:
        watch = select.poll()
        watch.register(self._read, select.POLLIN)
        watch.register(self._wakeup_read, select.POLLIN)
        while True:
            if not watch.poll(self._left_ms()):
                note(
                    "the grace period is over; exiting. Unfinished runs continue on other workers."
                )
                exit_now(self.code)
            if self._over:
                return
            for number in _bytes_of(self._wakeup_read):
                if number in SIGNALS:  # counted when Python calls the handler
                    self.worker.tell(signal.Signals(number).name)
            for number in _bytes_of(self._read):
                if number != _NOTIFIED:
                    self._order(number)

    def _left_ms(self) -> float | None:
        drain = self.worker.drain
        if not drain.begun:
            return None
        end = drain.begun_at + drain.plan.grace_seconds + SLACK_SECONDS
        return max(end - own_time(), 0.0) * 1000

    def _order(self, number: int) -> None:
        since, self._ordered_at = own_time() - self._ordered_at, own_time()
        if self._signals and since < SAME_SECONDS:
            return
        self._signals += 1
        name = signal.Signals(number).name
        match self._signals:
            case 1:
                self.worker.tell(name)
                if self.worker.active:
                    note(f"{name}: {self._describe()} Again: cut the steps off now.")
            case 2:
                self.worker.hurry()
                note(f"{name} again: cutting the steps off now. Once more: exit at once.")
            case _:
                note(
                    f"{name} once more: exiting at once. Unfinished runs continue on other workers."
                )
                exit_now(128 + number)


def _bytes_of(pipe: int) -> bytes:
    try:
        return os.read(pipe, 64)
    except BlockingIOError:
        return b""


def exit_now(code: int) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
