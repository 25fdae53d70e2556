"""Notifications and liveness between processes that share a PostgreSQL server.

Each process uses one connection for both, with a thread of its own, so that nothing here can delay
a write. A notification is a NOTIFY: it may be lost, never arrives much later, and many at once are
merged into one. A worker proves that it is alive by an advisory lock, which the server releases
when the connection ends. As a connection may end before its process does, a free lock only means
silence.
"""

import contextlib
import hashlib
import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import Context
from typing import Any, TypeVar

import psycopg

from andon.errors import StoreError
from andon.store.postgres.connection import Connection, Connector
from andon.store.postgres.spare_connection import UNUSED_SECONDS

CHANNEL = "andon"
# At most 200 notifications a second wake the readers that wait for them.
NOTIFY_SECONDS = 0.005
# After a server starts nobody holds a lock yet, so every worker first gets time to reconnect.
RESTART_SECONDS = 15.0
# A worker that has lost only its connection takes its lock again within milliseconds.
RETAKE_SECONDS = 0.5
# How often to retry a lock that this process's own lost connection still holds.
MISSING_SECONDS = 1.0
_LOST = (psycopg.Error, StoreError, OSError)
# The event for a closed peer. If the loop takes a connection's notifications, the thread polls only
# for this.
_CLOSED = getattr(select, "POLLRDHUP", 0)
T = TypeVar("T")

# A hint need not reach the disk. Both commands go in one message and so in one transaction, which
# also works behind a pooler.
_NOTIFY = f"SET LOCAL synchronous_commit TO off; SELECT pg_notify('{CHANNEL}', '')"

# One query tests the locks of any number of workers.
_FREE = """
SELECT key FROM unnest(%(keys)s::bigint[]) AS asked (key)
 WHERE clock_timestamp() - pg_postmaster_start_time() > make_interval(secs => %(seconds)s)
   AND key NOT IN (
         SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks
          WHERE locktype = 'advisory' AND granted AND objsubid = 1
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
"""


def key_of(worker_id: str) -> int:
    """Return the number of a worker's advisory lock."""
    raw = hashlib.sha256(f"andon worker {worker_id}".encode()).digest()[:8]
    return int.from_bytes(raw, "big", signed=True)


def free(db: Connection, locks: Sequence[str]) -> set[str]:
    """Return those of the locks that nobody holds."""
    keys = [int(lock) for lock in locks]
    found = db.execute(_FREE, {"keys": keys, "seconds": RESTART_SECONDS}).fetchall()
    return {str(key) for (key,) in found}


class Listener:
    """One listener: a callback to call in any thread, or on an event loop."""

    def __init__(self, callback: Callable[[], None], loop: Any = None) -> None:
        self._callback, self.loop = callback, loop
        self.over = False

    def notify(self, here: Any = None) -> None:
        """Notify this listener; `here` is the loop that executes this call, if one does."""
        if self.loop is None or self.loop is here:
            self._call()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self._call)

    def _call(self) -> None:
        if not self.over:
            self._callback()


class PostgresNotifier:
    """The connection that notifies, listens and holds workers' locks, with its thread.

    It opens on first use, and reopens as long as there is a listener or a wanted lock. The thread
    calls `unused` now and then to close other idle connections; `unused` returns the seconds until
    the next call, or None if there are none to close.
    """

    def __init__(
        self, connector: Connector, unused: Callable[[], float | None] = lambda: None
    ) -> None:
        self._connector, self._unused = connector, unused
        # Guards the connection and the fields below.
        self._use = threading.RLock()
        self._db: Connection | None = None
        self._used_at = 0.0
        self._held: set[int] = set()
        self._wanted: set[int] = set()
        self._listeners: list[Listener] = []
        self._listening = False  # LISTEN was sent on this connection
        self._missed = False  # notifications may have been lost
        self._noted = False  # the driver has found one along with an answer
        self._known = False  # it held a lock once, so other processes rely on it
        self._unsent = False
        self._notified_at = -NOTIFY_SECONDS
        self._done = False
        self._asked = False  # `wake` was called since the thread last looked
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # The event loop that receives notifications itself, two thread switches sooner. It watches
        # a duplicate descriptor, as the number of a closed connection becomes another file's.
        self._loop: Any = None
        self._watched: tuple[Connection, int] | None = None

    @property
    def open(self) -> bool:
        return self._db is not None

    def may_notify(self) -> bool:
        """Return whether the caller may send a notification now; if True, the caller must send."""
        now = time.monotonic()
        if self._unsent or now < self._notified_at + NOTIFY_SECONDS:
            return False
        self._notified_at = now
        return True

    def notify(self) -> None:
        """Ask the thread to send a notification; never waits."""
        if not self._unsent:
            self._unsent = True
            self.wake()

    def hold(self, key: int, besides: int = 0) -> None:
        """Take a lock for as long as this process lives, or until it is released.

        `besides`: how many further connections the process needs to be of any use.
        """
        with self._use:
            self._wanted.add(key)
            try:
                with self._opened_connection(besides):
                    pass  # opening the connection takes all wanted locks
            except BaseException:
                self._wanted.discard(key)
                raise
        self.wake()

    def release(self, key: int) -> None:
        with self._use:
            self._wanted.discard(key)
            if key in self._held and self._db is not None:
                self._held.discard(key)
                with contextlib.suppress(*_LOST):
                    self._db.execute("SELECT pg_advisory_unlock(%(key)s)", {"key": key})

    def listen(self, callback: Callable[[], None], loop: Any = None) -> Callable[[], None]:
        """Call back at every notification, and once after each gap in which some may be lost."""
        listener = Listener(callback, loop)
        with self._use:
            self._listeners.append(listener)
            self._loop = self._loop or loop
            with contextlib.suppress(*_LOST), self._opened_connection():
                pass  # if the connection cannot be opened, the thread tries again
        self.wake()

        def end() -> None:
            listener.over = True
            with self._use:
                if listener in self._listeners:
                    self._listeners.remove(listener)
                if loop is not None and not any(one.loop is loop for one in self._listeners):
                    self._stop_watching()
            self.wake()

        return end

    def ask(self, question: Callable[[Connection], T]) -> T:
        """Run one question on the connection; it must leave nothing open."""
        with self._opened_connection() as db:
            return question(db)

    def close(self) -> None:
        """End the thread; a notification asked for before is still sent."""
        with self._starting:
            self._done = True
        thread = self._thread  # which clears the field as it ends
        if thread is None:
            self._close_pipe()
            return
        self.wake()
        if threading.current_thread() is not thread:
            thread.join(timeout=2)

    def wake(self) -> None:
        """Wake the thread, and start it if it does not run."""
        with self._starting:
            self._asked = True
            if self._thread is None and not self._done:
                self._thread = threading.Thread(
                    target=self._work, name="andon-notifier", daemon=True
                )
                self._thread.start()
            with contextlib.suppress(OSError):  # the thread is awake already, or it has ended
                os.write(self._wake, b"!")

    @contextlib.contextmanager
    def _opened_connection(self, besides: int = 0) -> Iterator[Connection]:
        """Provide the open connection; afterwards pass on notifications that arrived meanwhile."""
        notified = False
        try:
            with self._use:
                try:
                    db = self._opened(besides)
                    yield db
                except _LOST:
                    # A statement may have failed on a connection that is still good.
                    if self._db is not None and self._db.closed:
                        self._drop()
                    raise
                finally:
                    self._used_at = time.monotonic()
                    notified = self._take_notifications()
        finally:
            if notified:
                self._call_listeners()

    def _opened(self, besides: int) -> Connection:
        if self._db is None or self._db.closed:
            self._drop()
            # A reconnect reuses the place it had before, as other processes rely on its lock.
            again = self._known and bool(self._wanted)
            db = self._db = self._connector.connect(again=again, besides=besides)
            db.add_notify_handler(self._note_one)
        if self._listeners and not self._listening:
            self._db.execute(f"LISTEN {CHANNEL}")
            self._listening = True
        for key in self._wanted - self._held:
            asked = self._db.execute("SELECT pg_try_advisory_lock(%(key)s)", {"key": key})
            if asked.fetchone() == (True,):
                self._held.add(key)
                self._known = True
        self._watch()
        return self._db

    def _drop(self) -> None:
        db, self._db = self._db, None
        self._missed = self._missed or self._listening
        self._listening = False
        self._held.clear()
        self._stop_watching(forget_loop=False)
        if db is not None:
            with contextlib.suppress(*_LOST):
                db.close()
            self.wake()  # the thread must stop polling the old descriptor

    def _note_one(self, _notify: Any) -> None:
        """Record a notification that the driver found along with the answer to something else."""
        self._noted = True

    def _take_notifications(self) -> bool:
        """Take all pending notifications; return whether there were any."""
        notified, self._noted = self._noted, False
        if self._db is not None and not self._db.closed:
            while self._db.pgconn.notifies() is not None:
                notified = True
            if (
                self._missed and self._listening
            ):  # notifications sent meanwhile are lost: assume one
                self._missed, notified = False, True
        return notified

    def _call_listeners(self, here: Any = None) -> None:
        for listener in list(self._listeners):
            listener.notify(here)

    def _watch(self) -> None:
        """Let the event loop receive this connection's notifications."""
        if self._loop is None or self._db is None or self._watched is not None or self._done:
            return
        try:
            descriptor = os.dup(self._db.fileno())
        except OSError:  # no descriptor is left: the thread receives them
            return
        self._watched = self._db, descriptor
        if not _posted(self._loop, self._add_reader, self._loop, self._db, descriptor):
            self._watched, self._loop = None, None
            os.close(descriptor)

    def _stop_watching(self, *, forget_loop: bool = True) -> None:
        """Stop the loop from receiving notifications: of this connection, or of any later one."""
        if self._watched is not None:
            descriptor = self._watched[1]
            if not _posted(self._loop, _unwatch, self._loop, descriptor):
                os.close(descriptor)
            self._watched = None
        if forget_loop:
            self._loop = None

    def _add_reader(self, loop: Any, db: Connection, descriptor: int) -> None:
        if self._watched == (
            db,
            descriptor,
        ):  # else it was dropped meanwhile, and `_unwatch` closes it next
            loop.add_reader(descriptor, self._receive, loop, db, descriptor)

    def _receive(self, loop: Any, db: Connection, descriptor: int) -> None:
        """Receive notifications on the loop."""
        if self._db is not db:  # the connection was dropped; `_unwatch` runs right after this
            loop.remove_reader(descriptor)
        elif self._use.acquire(blocking=False):  # else its current user takes the notifications
            notified = False
            try:
                _consume(db)
                notified = self._take_notifications()
            except _LOST:
                self._drop()
                self.wake()
            finally:
                self._use.release()
            if notified:
                self._call_listeners(loop)

    def _work(self) -> None:
        pause = 0.02
        while True:
            try:
                seconds = self._turn()
                pause = 0.02
            except _LOST:
                with self._use:
                    self._drop()
                seconds = pause
                pause = min(pause * 2, 0.2 if self._wanted else 2.0)
                if self._done:
                    break
            if self._done and not self._unsent:
                break
            if seconds is None and self._ended():
                return
            self._wait(seconds)
        with self._use:
            self._wanted.clear()
            self._listeners.clear()
            self._drop()
        self._close_pipe()

    def _turn(self) -> float | None:
        """Do what is due; return the seconds until something else will be, or None."""
        self._asked = False
        times = [self._unused()]
        now = time.monotonic()
        may_notify = self._done or now >= self._notified_at + NOTIFY_SECONDS
        if self._unsent and may_notify:
            self._unsent, self._notified_at = False, now
            try:
                self.ask(lambda db: db.execute(_NOTIFY))
            except _LOST:
                self._unsent = not self._done  # send it once the server is back
                raise
        elif self._unsent:
            times.append(self._notified_at + NOTIFY_SECONDS - now)
        elif self._wanted or self._listeners:
            self.ask(_look)
        with self._use:
            if self._wanted - self._held:
                times.append(MISSING_SECONDS)
            if self._db is not None and not (self._wanted or self._listeners or self._unsent):
                left = self._used_at + UNUSED_SECONDS - time.monotonic()
                if left <= 0:
                    self._drop()
                else:
                    times.append(left)
        return min((one for one in times if one is not None), default=None)

    def _wait(self, seconds: float | None) -> None:
        """Wait until there is something to do; `select` cannot watch descriptors above 1023."""
        watch = select.poll()
        watch.register(self._woken, select.POLLIN)
        with self._use:
            if self._db is not None and not self._db.closed:
                taken = self._watched is not None and _CLOSED
                watch.register(self._db.fileno(), _CLOSED if taken else select.POLLIN)
        watch.poll(None if seconds is None else seconds * 1000)
        with contextlib.suppress(OSError):
            os.read(self._woken, 4096)

    def _ended(self) -> bool:
        """Return whether the thread may end, as nothing is pending; `wake` starts another one."""
        with self._starting:
            pending = (self._asked, self._unsent, self._wanted, self._listeners, self._db)
            if any(pending):
                return False
            self._thread = None
            return True

    def _close_pipe(self) -> None:
        with self._starting:
            self._thread = None
            for end in (self._woken, self._wake):
                with contextlib.suppress(OSError):
                    os.close(end)


def _look(db: Connection) -> None:
    """Read pending input without waiting; that input may be the end of the connection."""
    watch = select.poll()
    watch.register(db.fileno(), select.POLLIN)
    if watch.poll(0):
        _consume(db)


def _consume(db: Connection) -> None:
    db.pgconn.consume_input()
    if db.closed:
        raise psycopg.OperationalError("the connection was lost")


def _posted(loop: Any, function: Callable[..., object], *args: Any) -> bool:
    try:
        # A fresh context: the loop would keep the calling run's context for as long as it watches.
        loop.call_soon_threadsafe(function, *args, context=Context())
    except RuntimeError:  # the loop is closed and watches nothing
        return False
    return True


def _unwatch(loop: Any, descriptor: int) -> None:
    loop.remove_reader(descriptor)
    os.close(descriptor)
