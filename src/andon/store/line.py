"""Batches that go to the store without the writer's thread: the loop sends them and is told.

Several may be under way at once, so that the store carries out one while the loop executes what the
answer to another one lets go on. A loop that does not take its answers, because code on it does not
let go, must hold up nobody: then the writer's thread takes them.
"""

import asyncio
import contextlib
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from andon.errors import StoreUnavailable
from andon.points import point
from andon.store.store import Message, Outcome, Store

Item = tuple[Message, "asyncio.AbstractEventLoop | None", Any]


class Line:
    """What is under way. Whoever uses the store otherwise takes `busy` first."""

    def __init__(
        self,
        store: Store,
        settle: Callable[[list[Item], list[Outcome]], None],
        write_again: Callable[[list[Item]], None],
    ) -> None:
        self.store = store
        self.busy = threading.Lock()
        self.sent: deque[list[Item]] = deque()
        self._settle, self._write_again = settle, write_again
        self._speaking = threading.Lock()  # the loop, or the thread in its place
        self._watched: tuple[Any, int] | None = None  # a loop, and where the answers come
        self._home = 0  # the thread of the loop
        self._pushing = False  # the network has not taken everything yet

    def send(self, items: list[Item]) -> bool:
        """Send a batch behind what is under way; False if the store does not take it now."""
        with self._speaking:
            if self._watched is None and not self.busy.acquire(blocking=False):
                return False
            point("writer:before-commit")
            messages = [message for message, _, _ in items]
            descriptor = None
            try:
                descriptor = self.store.send(messages, behind=self._watched is not None)
            except StoreUnavailable:
                self._lose()
            if descriptor is not None:
                self.sent.append(items)
                self._watch(items[0][1], descriptor)
            if self._watched is None:
                self.busy.release()
            return descriptor is not None

    def _watch(self, loop: Any, descriptor: int) -> None:
        if self._watched is None:
            self._watched, self._home = (loop, descriptor), threading.get_ident()
            loop.add_reader(descriptor, self.receive, descriptor)
        if self.store.unsent():
            self._pushing = True
            loop.add_writer(descriptor, self.receive, descriptor)

    def receive(self, descriptor: int) -> None:
        """Take the answers that are there. On the loop, or in its place."""
        with self._speaking:
            if self._watched is None:
                return
            watched = self._watched
            answered: list[tuple[list[Outcome], list[int]]] = []
            more = False
            try:
                answered, more = self.store.receive()
            except StoreUnavailable:
                self._lose()
            settled = [(self.sent.popleft(), *one) for one in answered]
            again = [items[place] for items, _, left in settled for place in sorted(left)]
            if again:  # why it was not carried out is found out the long way
                self._write_again(again)
            if not more:
                self._watched = None
                self.busy.release()
            if not more or (self._pushing and not self.store.unsent()):
                self._at_home(self._look_away, *watched)
        for items, outcomes, left in settled:
            point("writer:after-commit")
            for place in sorted(left, reverse=True):
                del items[place], outcomes[place]
            self._settle(items, outcomes)

    def _look_away(self, loop: Any, descriptor: int) -> None:
        if self._pushing:
            self._pushing = False
            loop.remove_writer(descriptor)
        if self._watched is None:
            loop.remove_reader(descriptor)

    def _at_home(self, function: Callable[..., None], loop: Any, *args: Any) -> None:
        """Call it on the loop: at once, if this is it."""
        if threading.get_ident() == self._home:
            function(loop, *args)
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(function, loop, *args)

    def _lose(self) -> None:
        """Of all that is under way nothing is known: it is written again, before all else."""
        self._write_again([item for items in self.sent for item in items])
        self.sent.clear()
        watched, self._watched = self._watched, None
        if watched is not None:
            self._at_home(self._look_away, *watched)

    def stand_in(self) -> None:
        """Take the answers that are there and that the loop does not take."""
        watched = self._watched
        if watched is not None and _ready(watched[1], 0.0):
            self.receive(watched[1])

    def wait(self, seconds: float | None) -> None:
        """Wait for the answers on the loop itself, which does not turn meanwhile."""
        until = None if seconds is None else time.monotonic() + seconds
        while (watched := self._watched) is not None:
            left = None if until is None else max(0.0, until - time.monotonic())
            if not _ready(watched[1], left, writing=self.store.unsent()):
                return
            self.receive(watched[1])


def _ready(descriptor: int, seconds: float | None, *, writing: bool = False) -> bool:
    watch = select.poll()
    watch.register(descriptor, select.POLLIN | (select.POLLOUT if writing else 0))
    return bool(watch.poll(None if seconds is None else seconds * 1000))
