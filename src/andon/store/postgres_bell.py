"""Wake-ups and life signs between processes that share a PostgreSQL server.

All of it has its own connections and threads, so that nothing here can hold up a write. A ring is
a NOTIFY: it may be lost, never late by much, and many at once are one. A life sign is a lock that
the server lets go of when the connection ends; as a connection may end without its process, a free
lock only means silence.
"""

import contextlib
import hashlib
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg

from andon.errors import StoreError
from andon.store.postgres_link import Connection, Link

CHANNEL = "andon"
# A reader that waits for a ring is woken 200 times a second at most.
RING_SECONDS = 0.005
# When a server starts nobody holds a lock yet; everybody gets time to come back first.
RESTART_SECONDS = 15.0
# Who has lost only its connection takes its lock again within milliseconds.
RETAKE_SECONDS = 0.5
_LOST = (psycopg.Error, StoreError, OSError)

# A hint need not reach the disk. In one message, thus one transaction: also behind a pooler.
_RING = f"SET LOCAL synchronous_commit TO off; SELECT pg_notify('{CHANNEL}', '')"

_IS_FREE = """
SELECT clock_timestamp() - pg_postmaster_start_time() > make_interval(secs => %(seconds)s)
       AND NOT EXISTS (
         SELECT FROM pg_locks
          WHERE locktype = 'advisory' AND granted AND objsubid = 1
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND classid = (%(key)s::bigint >> 32 & 4294967295)::oid
            AND objid = (%(key)s::bigint & 4294967295)::oid)
"""


def key_of(worker_id: str) -> int:
    """The number of a worker's lock."""
    raw = hashlib.sha256(f"andon worker {worker_id}".encode()).digest()[:8]
    return int.from_bytes(raw, "big", signed=True)


def is_free(db: Connection, lock: str) -> bool:
    [[free]] = db.execute(_IS_FREE, {"key": int(lock), "seconds": RESTART_SECONDS}).fetchall()
    return bool(free)


class Ringer:
    """Sends the rings of one process."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._asked, self._done = threading.Event(), threading.Event()
        self._unsent = False
        self._rung_at = -RING_SECONDS
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def may_ring(self) -> bool:
        """Whether somebody else may ring now; they must, then."""
        now = time.monotonic()
        if self._unsent or now < self._rung_at + RING_SECONDS:
            return False
        self._rung_at = now
        return True

    def ring(self) -> None:
        self._unsent = True
        self._asked.set()
        with self._starting:
            if self._thread is None and not self._done.is_set():
                self._thread = threading.Thread(target=self._work, name="andon-ring", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        db: Connection | None = None
        while self._asked.wait() and (self._unsent or not self._done.is_set()):
            self._done.wait(max(0.0, self._rung_at + RING_SECONDS - time.monotonic()))
            self._asked.clear()
            self._unsent = False
            self._rung_at = time.monotonic()
            try:
                db = db or self._link.connect()
                db.execute(_RING)
            except _LOST:
                _close(db)
                db = None
            if self._done.is_set():
                self._asked.set()
        _close(db)

    def close(self) -> None:
        """What was asked for before is still sent."""
        with self._starting:
            self._done.set()
        self._asked.set()
        if self._thread is not None:
            self._thread.join(timeout=2)


class Listener:
    """Calls back at every ring, and once after every time it could not hear."""

    def __init__(self, link: Link, callback: Callable[[], None]) -> None:
        self._link, self._callback = link, callback
        self._done, self._ready = threading.Event(), threading.Event()
        self._deaf = False
        self._woken, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._work, name="andon-listen", daemon=True)
        self._thread.start()
        self._ready.wait(timeout=5)

    def _work(self) -> None:
        pause = 0.02
        while not self._done.is_set():
            try:
                with contextlib.closing(self._link.connect()) as db:
                    pause = 0.02
                    self._hear(db)
            except _LOST:
                self._deaf = True
                self._done.wait(pause)
                pause = min(pause * 2, 2.0)
        os.close(self._wake)
        os.close(self._woken)

    def _hear(self, db: Connection) -> None:
        db.execute(f"LISTEN {CHANNEL}")
        self._ready.set()
        if self._deaf:
            self._deaf = False
            self._callback()
        self._hear_rings(db)

    def _hear_rings(self, db: Connection) -> None:
        """Until it is to end; raises if the connection is lost."""
        while _wait(db, self._woken, None) and not self._done.is_set():
            if _rung(db) and not self._done.is_set():
                self._callback()

    def close(self) -> None:
        """End it, and wait for its end; but not for a server that does not answer a call."""
        if not self._done.is_set():
            os.write(self._wake, b"!")
            self._done.set()  # the thread closes the pipe after this
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=1)


class LoopListener(Listener):
    """Calls back on an event loop, which hears the rings itself: two switches less for each."""

    def __init__(self, link: Link, loop: Any, callback: Callable[[], None]) -> None:
        self._loop, self._on_loop = loop, callback
        self._over = threading.Event()  # the connection is lost, or nobody listens any more
        super().__init__(link, lambda: self._post(callback))

    def _post(self, function: Callable[..., object], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function, *args)

    def _hear_rings(self, db: Connection) -> None:
        descriptor, removed = db.fileno(), threading.Event()
        lost: list[BaseException] = []

        def hear() -> None:
            try:
                if _rung(db) and not self._done.is_set():
                    self._on_loop()
            except _LOST as error:
                self._loop.remove_reader(descriptor)
                lost.append(error)
                self._over.set()

        def remove() -> None:
            self._loop.remove_reader(descriptor)
            removed.set()

        self._over.clear()
        if self._done.is_set():
            return
        self._post(self._loop.add_reader, descriptor, hear)
        self._over.wait()
        # Not closed while the loop watches it: its number will be another file's.
        self._post(remove)
        while not removed.wait(1.0) and not self._loop.is_closed():
            pass
        if lost:
            raise lost[0]

    def close(self) -> None:
        """From another thread than the loop's."""
        if not self._done.is_set():
            self._done.set()
            self._over.set()
        super().close()


class Holder:
    """Holds the locks of this process's workers on one connection, and takes them again."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._db: Connection | None = None
        self._wanted: set[int] = set()
        self._held: set[int] = set()
        self._woken, self._wake = os.pipe()
        self._thread: threading.Thread | None = None

    def hold(self, key: int) -> None:
        with self._lock:
            self._wanted.add(key)
            try:
                self._take()
            except BaseException:
                self._wanted.discard(key)
                raise
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="andon-hold", daemon=True)
                self._thread.start()

    def release(self, key: int) -> None:
        with self._lock:
            self._wanted.discard(key)
            if key in self._held and self._db is not None:
                self._held.discard(key)
                with contextlib.suppress(*_LOST):
                    self._db.execute("SELECT pg_advisory_unlock(%(key)s)", {"key": key})

    def _take(self) -> None:
        """Take what is wanted and not held. Our own lost connection may keep it for a while."""
        if self._db is None or self._db.closed:
            self._held.clear()
            self._db = self._link.connect()
        for key in self._wanted - self._held:
            [[got]] = self._db.execute(
                "SELECT pg_try_advisory_lock(%(key)s)", {"key": key}
            ).fetchall()
            if got:
                self._held.add(key)

    def _work(self) -> None:
        while not self._done.is_set():
            db = self._db
            try:
                # Something to read on an idle connection is its end. Every second: what is missing.
                if db is not None:
                    _wait(db, self._woken, 1.0)
                with self._lock:
                    if db is not None and _readable(db):
                        db.execute("SELECT 1")
                    if not self._done.is_set():
                        self._take()
            except _LOST:
                with self._lock:
                    _close(self._db)
                    self._db = None
                self._done.wait(0.2)

    def close(self) -> None:
        self._done.set()
        os.write(self._wake, b"!")
        if self._thread is not None:
            self._thread.join(timeout=5)
        with self._lock:
            self._wanted.clear()
            _close(self._db)
        os.close(self._wake)
        os.close(self._woken)


def _close(db: Connection | None) -> None:
    if db is not None:
        with contextlib.suppress(*_LOST):
            db.close()


def _rung(db: Connection) -> bool:
    """Take what has come; many rings are one."""
    db.pgconn.consume_input()
    rung = False
    while db.pgconn.notifies() is not None:
        rung = True
    return rung


def _readable(db: Connection) -> bool:
    watch = select.poll()
    watch.register(db.fileno(), select.POLLIN)
    return bool(watch.poll(0))


def _wait(db: Connection, woken: int, seconds: float | None) -> bool:
    """Wait until the connection or the pipe has something to read. (`select` ends at fd 1023.)"""
    watch = select.poll()
    watch.register(db.fileno(), select.POLLIN)
    watch.register(woken, select.POLLIN)
    watch.poll(None if seconds is None else seconds * 1000)
    return True
