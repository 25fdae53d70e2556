"""Group commit: one thread per process commits all waiting messages together.

There is no timer: the first write never waits for a second one. The messages that a loop submits in
one turn, or that arrive during a commit, form the next batch. A cancelled awaiter does not lose its
commit. The writer writes a batch again if its outcome is unknown (the database went away); every
message is idempotent.

A batch takes the first of these routes whose condition holds (docs/decisions/0022):

    at once on the loop    SQLite, at most one run, nothing queued                 write
    at once by the sender  PostgreSQL, at most one run, nothing queued             write
    the turn on the loop   SQLite, every run has a message in this turn            _commit_turn
    the turn by the sender PostgreSQL, every run waits for it or for one in flight _send_turn
    by the thread          all else, all refused, and all of unknown outcome       _work

Besides, `Store.transact` commits one append with the caller's own writes.
"""

import asyncio
import contextlib
import itertools
import logging
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol, cast

from andon.errors import StoreError, StoreUnavailable
from andon.points import point
from andon.store.store import Checkpoint, Log, Message, Outcome, Start, Store
from andon.store.writer.sender import BatchSender, Item, RemoteStore

log = logging.getLogger("andon")

# In a larger batch the first message would wait noticeably for the last.
BATCH = 512

# Halve turns of at least this many messages. Two commits instead of one pay off where a commit
# takes less time than the loop needs to execute so many steps: two milliseconds.
HALVED = 64
# A loop that has not taken its answers after this long is busy with something else.
LATE_SECONDS = 0.05

# Messages that a run writes while it does something else.
_ASIDE = frozenset({Checkpoint, Log})


class LocalStore(Protocol):
    """A store whose commits are quick enough for an event loop to wait for."""

    def write_at_once(self, batch: Sequence[Message]) -> list[Outcome]:
        """Write from an event loop: raises StoreUnavailable if another writer is not done soon."""

    def needs_upkeep(self) -> bool:
        """Return whether `checkpoint` is due."""


class Writer:
    """The only way in which a process that executes runs writes to its store."""

    def __init__(self, store: Store, *, patience_seconds: float) -> None:
        self.store = store
        self.patience_seconds = patience_seconds
        self.commits = 0
        # How many runs the loop executes. If all of them wait for the same commit, the thread gains
        # nothing and costs two switches; if the database is a local file, the loop commits itself.
        self.runs = 0
        self._local = cast("LocalStore", store) if store.url.startswith("sqlite") else None
        self._items: queue.SimpleQueue[list[Item] | None] = queue.SimpleQueue()
        self._turn: list[Item] = []  # submitted in this turn of the loop
        self._again: list[Item] = []  # sent before anything queued, with unknown outcome
        # Item lists the thread has yet to commit, including those taken from the queue. Otherwise
        # the loop could commit a later message before them.
        self._waiting = 0
        self._counting = threading.Lock()
        self._sender = BatchSender(cast("RemoteStore", store), self._answered, self._write_again)
        self._closed = False
        self._away = False
        self._thread = threading.Thread(target=self._work, name="andon-writer", daemon=True)
        self._thread.start()

    async def write(self, message: Message) -> Any:
        """Commit the message and answer its outcome."""
        if self.runs <= 1 and not self._turn and not self._waiting:
            if self._local is not None:
                if self._sender.busy.acquire(blocking=False):
                    try:
                        [outcome] = self._commit_at_once(self._local, [message])
                    except StoreUnavailable:  # the thread tries again
                        return await self.submit(message)
                    if outcome is None or not isinstance(outcome, BaseException):
                        return outcome
                    raise outcome
            else:
                loop = asyncio.get_running_loop()
                future: asyncio.Future[Any] = loop.create_future()
                if self._sender.send([(message, loop, future)]):
                    self._sender.poll_briefly()
                    return await future
        return await self.submit(message)

    def _commit_at_once(self, store: "LocalStore", messages: list[Message]) -> list[Outcome]:
        """Commit on the loop without waiting for other processes; the thread does the waiting."""
        try:
            point("writer:before-commit")
            outcomes = store.write_at_once(messages)
            self.commits += 1
            point("writer:after-commit")
        finally:
            self._sender.busy.release()
        if store.needs_upkeep():
            self._put([])
        return outcomes

    def _put(self, items: list[Item]) -> None:
        with self._counting:
            self._waiting += 1
        self._items.put(items)

    def submit(self, message: Message) -> "asyncio.Future[Any]":
        """Queue the message now, in order; the future is done once it is committed.

        The writer hands over all messages at the end of the loop's turn: a thread that began at the
        first one would compete with the loop for the interpreter instead of taking them all.
        """
        # get_running_loop costs a system call.
        loop = (self._turn and self._turn[0][1]) or asyncio.get_running_loop()
        if not self._turn:
            loop.call_soon(self._hand_over)
        future: asyncio.Future[Any] = asyncio.Future(loop=loop)
        self._turn.append((message, loop, future))
        return future

    def _hand_over(self) -> None:
        items, self._turn = self._turn, []
        if self._closed:
            _resolve([(future, StoreError("the store was closed")) for _, _, future in items])
        elif items and not self._commit_turn(items) and not self._send_turn(items):
            self._put(items)

    def _commit_turn(self, items: list[Item]) -> bool:
        """Commit on the loop if every run that it executes has a message in this turn."""
        if self._local is None or not 0 < self.runs <= len(items) or self._waiting:
            return False
        messages = [message for message, _, _ in items]
        if self.runs > len(items) - sum(map(_ASIDE.__contains__, map(type, messages))):
            return False
        if not self._sender.busy.acquire(blocking=False):
            return False
        try:
            outcomes = self._commit_at_once(self._local, messages)
        except StoreUnavailable:  # others hold it or the outcome is unknown: let the thread wait
            return False
        except Exception as error:  # noqa: BLE001 (the awaiter must get the error)
            outcomes = [error] * len(items)
        _resolve(
            [(future, outcome) for (_, _, future), outcome in zip(items, outcomes, strict=True)]
        )
        return True

    def _send_turn(self, items: list[Item]) -> bool:
        """Send without the thread if every run waits for this turn or for batches in flight.

        A large turn goes in two halves: while the store carries out one, the loop executes the runs
        that waited for the other.
        """
        if self._local is not None or self._waiting or not self._all_wait(items):
            return False
        middle = len(items) // 2
        if len(items) < HALVED or self._sender.sent or not self._sender.send(items[:middle]):
            return self._sender.send(items)
        if not self._sender.send(items[middle:]):
            self._put(items[middle:])
        return True

    def _all_wait(self, items: list[Item]) -> bool:
        """Return whether every run that the loop executes waits for a commit."""
        if len(items) > BATCH:
            return False
        if self.runs <= 1 and len(items) == 1 and isinstance(items[0][0], Start):
            return True
        waiting = itertools.chain(items, *self._sender.sent)
        return 0 < self.runs <= sum(type(message) not in _ASIDE for message, _, _ in waiting)

    def submit_from_thread(self, message: Message) -> "Future[Any]":
        future: Future[Any] = Future()
        if self._closed:
            future.set_exception(StoreError("the store was closed"))
        else:
            self._put([(message, None, future)])
        return future

    def close(self, timeout: float | None = None) -> None:
        """Write everything queued, then end. Call this on the loop that submits."""
        self._hand_over()
        self._sender.wait(timeout)
        self._sender.close()
        self._closed = True
        self._items.put(None)
        self._thread.join(timeout)

    def _work(self) -> None:
        while (items := self._items.get()) is not None:
            # Wait until batches in flight are answered; messages that arrive meanwhile join this
            # batch.
            while not self._sender.busy.acquire(timeout=LATE_SECONDS):
                self._sender.receive_late()
            try:
                batch, taken = [*self._again, *items], 1
                self._again = []
                last = False
                while len(batch) < BATCH and not self._items.empty() and not last:
                    following = self._items.get()
                    last = following is None
                    batch += following or ()
                    taken += 1
                if batch:
                    self._settle(batch, self._outcomes([message for message, _, _ in batch]))
                with self._counting:
                    self._waiting -= taken
            finally:
                self._sender.busy.release()
            if last:
                return
            if self._items.empty():
                self.store.checkpoint()

    def _write_again(self, items: list[Item]) -> None:
        """Queue messages again that the sender did not carry out, or whose outcome is unknown."""
        self._again += items
        self._put([])

    def _answered(self, items: list[Item], outcomes: list[Outcome]) -> None:
        """Pass on the outcomes of a batch that the sender has committed."""
        self.commits += 1
        if threading.current_thread() is self._thread:
            self._settle(items, outcomes)
        else:
            futures = [future for _, _, future in items]
            _resolve(list(zip(futures, outcomes, strict=True)))

    def _outcomes(self, messages: list[Message]) -> list[Outcome]:
        """Commit, retrying until it works, is refused, or patience ends."""
        until = time.monotonic() + self.patience_seconds
        pause = 0.02
        while True:
            try:
                outcomes = self._commit(messages)
            except StoreUnavailable as error:
                if time.monotonic() + pause > until or self._closed:
                    return [error] * len(messages)
                if pause > 0.2 and not self._away:  # do not warn about a momentary outage
                    self._away = True
                    most = self.patience_seconds
                    log.warning("waiting for the store, up to %s s: %s", most, error)
                time.sleep(pause)
                pause = min(pause * 2, 0.5)
            except Exception as error:  # noqa: BLE001 (the awaiter must get the error)
                return [error] * len(messages)
            else:
                if self._away:
                    self._away = False
                    log.warning("the store answers again")
                return outcomes

    def _commit(self, messages: list[Message]) -> list[Outcome]:
        point("writer:before-commit")
        outcomes = self.store.write(messages)
        self.commits += 1
        point("writer:after-commit")
        return outcomes

    def _settle(self, batch: list[Item], outcomes: list[Outcome]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Any, Outcome]]] = {}
        for (_, loop, future), outcome in zip(batch, outcomes, strict=True):
            if loop is None:
                _resolve([(future, outcome)])
            else:
                by_loop.setdefault(loop, []).append((future, outcome))
        for loop, pairs in by_loop.items():
            with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits
                loop.call_soon_threadsafe(_resolve, pairs)


def _resolve(pairs: list[tuple[Any, Outcome]]) -> None:
    for future, outcome in pairs:
        if future.done():  # its awaiter was cancelled; the commit stands
            continue
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
