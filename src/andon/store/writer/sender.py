"""Batches that the event loop sends to the store itself, without the writer's thread.

Several batches may be in flight at once: the store carries out one while the loop runs the code
that the answer to another unblocks. If code on the loop blocks and the loop does not take its
answers, it must not delay others: then the writer's thread takes them.
"""

import asyncio
import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any, Protocol

from andon.errors import StoreUnavailable
from andon.points import point
from andon.store.store import Message, Outcome

Item = tuple[Message, "asyncio.AbstractEventLoop | None", Any]


# Longer than a server on the same machine takes for a commit, and no longer than a commit of SQLite
# may block the loop.
POLL_SECONDS = 0.0005
# After this many answers in a row, ten milliseconds at most, everything else on the loop gets a
# turn.
POLLS_IN_A_ROW = 32


class Socket(Protocol):
    """The object whose descriptor receives answers; a new one after every lost connection."""

    def fileno(self) -> int: ...


class RemoteStore(Protocol):
    """A store behind a network, to which a loop sends batches without waiting."""

    def send(self, batch: Sequence[Message], *, behind: bool = False) -> Socket | None:
        """Send without waiting; return the object to watch for answers, or None if unable to send.

        `behind`: the caller has batches in flight, and this one queues behind them. Raises
        StoreUnavailable if the outcome of everything in flight is unknown.
        """

    def receive(self) -> tuple[list[tuple[list[Outcome], list[int]]], bool]:
        """Return the batches answered since the last call, and whether more are in flight.

        Each batch is its outcomes, and the places of the messages that were not carried out. Raises
        StoreUnavailable as `send` does.
        """

    def unsent(self) -> bool:
        """Return whether the caller must also call `receive` when the socket becomes writable."""


class BatchSender:
    """The batches in flight. Any other user of the store must take `busy` first."""

    def __init__(
        self,
        store: RemoteStore,
        settle: Callable[[list[Item], list[Outcome]], None],
        write_again: Callable[[list[Item]], None],
    ) -> None:
        self.store = store
        self.busy = threading.Lock()
        self.sent: deque[list[Item]] = deque()
        self._settle, self._write_again = settle, write_again
        self._lock = threading.Lock()  # held by the loop, or by the thread in its place
        self._outstanding = False  # answers are outstanding
        # The socket and the loop that watches it, also between two batches, as the next one usually
        # goes the same way. The loop watches a duplicate descriptor: others may watch the same
        # socket, and the number of a closed connection becomes another file's.
        self._socket: Socket | None = None
        self._descriptor, self._owned = -1, False
        self._loop: Any = None
        self._loop_thread = 0  # the loop's thread
        self._watching_writes = False  # the network has not taken everything yet
        self._poll = select.poll()
        self._polled = 0  # answers that came while polling
        self._skips, self._pause = 0, 1  # batches not to poll for: now, and after the next miss

    def send(self, items: list[Item]) -> bool:
        """Send a batch behind those in flight; return False if the store does not take it now."""
        with self._lock:
            if not self._outstanding and not self.busy.acquire(blocking=False):
                return False
            point("writer:before-commit")
            messages = [message for message, _, _ in items]
            socket = None
            try:
                socket = self.store.send(messages, behind=self._outstanding)
            except StoreUnavailable:
                self._give_back()
            if socket is not None:
                self.sent.append(items)
                self._watch(items[0][1], socket)
            if not self._outstanding:
                self.busy.release()
            return socket is not None

    def poll_briefly(self) -> None:
        """Poll for the answer for a moment before the loop goes to sleep.

        A sleeping process wakes late and with cold caches. Each vain poll makes polling rarer:
        the store is then too far away for it.
        """
        if self._skips:
            self._skips -= 1
            return
        until = time.monotonic() + POLL_SECONDS
        while not self._poll.poll(0):
            if time.monotonic() > until:
                self._skips = self._pause = min(2 * self._pause, 64)
                return
        self._pause = 1
        self._polled += 1
        self._skips = self._polled % POLLS_IN_A_ROW == 0
        self.receive()

    def _watch(self, loop: Any, socket: Socket) -> None:
        self._outstanding, self._loop_thread = True, threading.get_ident()
        if self._socket is not socket or self._loop is not loop:
            self._unwatch()
            self._loop, self._socket, self._descriptor = loop, socket, socket.fileno()
            self._owned = False
            with contextlib.suppress(OSError):  # no descriptor is left: watch the connection's own
                self._descriptor, self._owned = os.dup(self._descriptor), True
            # A fresh context: the loop would keep the context of the run that came first for ever.
            Context().run(loop.add_reader, self._descriptor, self.receive)
            self._poll = select.poll()
            self._poll.register(self._descriptor, select.POLLIN)
        if self.store.unsent() and not self._watching_writes:
            self._watching_writes = True
            Context().run(loop.add_writer, self._descriptor, self.receive)

    def receive(self) -> None:
        """Take the answers that have arrived, on the loop or in its place."""
        with self._lock:
            if not self._outstanding:  # the thread uses the connection, or the connection has ended
                self._on_loop(self._unwatch_if_idle)
                return
            answered: list[tuple[list[Outcome], list[int]]] = []
            more = False
            try:
                answered, more = self.store.receive()
            except StoreUnavailable:
                self._give_back()
            settled = [(self.sent.popleft(), *one) for one in answered]
            again = [items[place] for items, _, left in settled for place in sorted(left)]
            if again:  # the thread finds out why these were not carried out
                self._write_again(again)
            if not more:
                self._outstanding = False
                self.busy.release()
            if self._watching_writes and not (more and self.store.unsent()):
                self._on_loop(self._unwatch_writes)
        for items, outcomes, left in settled:
            point("writer:after-commit")
            for place in sorted(left, reverse=True):
                del items[place], outcomes[place]
            self._settle(items, outcomes)

    def _unwatch_writes(self) -> None:
        if self._watching_writes and not (self._outstanding and self.store.unsent()):
            self._watching_writes = False
            self._loop.remove_writer(self._descriptor)

    def _unwatch_if_idle(self) -> None:
        if not self._outstanding:  # else a batch was sent since this call was scheduled
            self._unwatch()

    def _unwatch(self) -> None:
        if self._socket is not None:
            self._socket, self._watching_writes = None, False
            self._loop.remove_writer(self._descriptor)
            self._loop.remove_reader(self._descriptor)
            if self._owned:
                os.close(self._descriptor)

    def _on_loop(self, function: Callable[[], None]) -> None:
        """Call the function on the loop; at once if this is the loop's thread."""
        if threading.get_ident() == self._loop_thread:
            function()
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function)

    def _give_back(self) -> None:
        """Write again everything in flight, before all else: its outcome is unknown."""
        self._write_again([item for items in self.sent for item in items])
        self.sent.clear()
        self._outstanding = False
        if self._socket is not None:
            self._on_loop(self._unwatch_if_idle)

    def receive_late(self) -> None:
        """Take answers that have arrived and that the loop does not take."""
        if self._outstanding and self._ready(0.0):
            self.receive()

    def wait(self, seconds: float | None) -> None:
        """Wait for the answers on the loop's thread, which blocks the loop meanwhile."""
        until = None if seconds is None else time.monotonic() + seconds
        while self._outstanding:
            left = None if until is None else max(0.0, until - time.monotonic())
            if not self._ready(left, writing=self.store.unsent()):
                return
            self.receive()

    def close(self) -> None:
        """Stop watching for answers. Call on the loop, after the last batch."""
        self._unwatch()

    def _ready(self, seconds: float | None, *, writing: bool = False) -> bool:
        watch = select.poll()
        watch.register(self._descriptor, select.POLLIN | (select.POLLOUT if writing else 0))
        return bool(watch.poll(None if seconds is None else seconds * 1000))
