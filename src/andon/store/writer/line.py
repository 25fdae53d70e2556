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
LINGER_SECONDS = 0.0005
# After this many answers in a row, ten milliseconds at most, everything else on the loop gets a
# turn.
ROW = 32


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


class BatchLine:
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
        self._speaking = threading.Lock()  # held by the loop, or by the thread in its place
        self._waits = False  # answers are outstanding
        # The wire and the loop that watches it, also between two batches, as the next one usually
        # goes the same way. The loop watches a duplicate descriptor: others may watch the same
        # wire, and the number of a closed connection becomes another file's.
        self._wire: Socket | None = None
        self._eye, self._owned = -1, False
        self._loop: Any = None
        self._home = 0  # the loop's thread
        self._pushing = False  # the network has not taken everything yet
        self._glance = select.poll()
        self._row = 0  # answers that came while lingering
        self._rests, self._pause = 0, 1  # batches not to linger for: now, and after the next miss

    def send(self, items: list[Item]) -> bool:
        """Send a batch behind those in flight; return False if the store does not take it now."""
        with self._speaking:
            if not self._waits and not self.busy.acquire(blocking=False):
                return False
            point("writer:before-commit")
            messages = [message for message, _, _ in items]
            wire = None
            try:
                wire = self.store.send(messages, behind=self._waits)
            except StoreUnavailable:
                self._lose()
            if wire is not None:
                self.sent.append(items)
                self._watch(items[0][1], wire)
            if not self._waits:
                self.busy.release()
            return wire is not None

    def linger(self) -> None:
        """Poll for the answer for a moment before the loop goes to sleep.

        A sleeping process wakes late and with cold caches. Each vain wait makes lingering rarer:
        the store is then too far away for it.
        """
        if self._rests:
            self._rests -= 1
            return
        until = time.monotonic() + LINGER_SECONDS
        while not self._glance.poll(0):
            if time.monotonic() > until:
                self._rests = self._pause = min(2 * self._pause, 64)
                return
        self._pause = 1
        self._row += 1
        self._rests = self._row % ROW == 0
        self.receive()

    def _watch(self, loop: Any, wire: Socket) -> None:
        self._waits, self._home = True, threading.get_ident()
        if self._wire is not wire or self._loop is not loop:
            self._unwatch()
            self._loop, self._wire, self._eye = loop, wire, wire.fileno()
            self._owned = False
            with contextlib.suppress(OSError):  # no descriptor is left: watch the connection's own
                self._eye, self._owned = os.dup(self._eye), True
            # A fresh context: the loop would keep the context of the run that came first for ever.
            Context().run(loop.add_reader, self._eye, self.receive)
            self._glance = select.poll()
            self._glance.register(self._eye, select.POLLIN)
        if self.store.unsent() and not self._pushing:
            self._pushing = True
            Context().run(loop.add_writer, self._eye, self.receive)

    def receive(self) -> None:
        """Take the answers that have arrived, on the loop or in its place."""
        with self._speaking:
            if not self._waits:  # the thread uses the connection, or the connection has ended
                self._at_home(self._look_away)
                return
            answered: list[tuple[list[Outcome], list[int]]] = []
            more = False
            try:
                answered, more = self.store.receive()
            except StoreUnavailable:
                self._lose()
            settled = [(self.sent.popleft(), *one) for one in answered]
            again = [items[place] for items, _, left in settled for place in sorted(left)]
            if again:  # the thread finds out why these were not carried out
                self._write_again(again)
            if not more:
                self._waits = False
                self.busy.release()
            if self._pushing and not (more and self.store.unsent()):
                self._at_home(self._stop_pushing)
        for items, outcomes, left in settled:
            point("writer:after-commit")
            for place in sorted(left, reverse=True):
                del items[place], outcomes[place]
            self._settle(items, outcomes)

    def _stop_pushing(self) -> None:
        if self._pushing and not (self._waits and self.store.unsent()):
            self._pushing = False
            self._loop.remove_writer(self._eye)

    def _look_away(self) -> None:
        if not self._waits:  # else a batch was sent since this call was scheduled
            self._unwatch()

    def _unwatch(self) -> None:
        if self._wire is not None:
            self._wire, self._pushing = None, False
            self._loop.remove_writer(self._eye)
            self._loop.remove_reader(self._eye)
            if self._owned:
                os.close(self._eye)

    def _at_home(self, function: Callable[[], None]) -> None:
        """Call the function on the loop; at once if this is the loop's thread."""
        if threading.get_ident() == self._home:
            function()
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function)

    def _lose(self) -> None:
        """Write again everything in flight, before all else: its outcome is unknown."""
        self._write_again([item for items in self.sent for item in items])
        self.sent.clear()
        self._waits = False
        if self._wire is not None:
            self._at_home(self._look_away)

    def stand_in(self) -> None:
        """Take answers that have arrived and that the loop does not take."""
        if self._waits and self._ready(0.0):
            self.receive()

    def wait(self, seconds: float | None) -> None:
        """Wait for the answers on the loop's thread, which blocks the loop meanwhile."""
        until = None if seconds is None else time.monotonic() + seconds
        while self._waits:
            left = None if until is None else max(0.0, until - time.monotonic())
            if not self._ready(left, writing=self.store.unsent()):
                return
            self.receive()

    def close(self) -> None:
        """Stop watching for answers. Call on the loop, after the last batch."""
        self._unwatch()

    def _ready(self, seconds: float | None, *, writing: bool = False) -> bool:
        watch = select.poll()
        watch.register(self._eye, select.POLLIN | (select.POLLOUT if writing else 0))
        return bool(watch.poll(None if seconds is None else seconds * 1000))
