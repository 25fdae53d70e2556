"""A process's spare connection, besides the ones that write and listen.

It serves reads, and is lent to callers that write in a transaction of their own. One is kept for
the next caller, and closed after some seconds without use, as other processes may need its place.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
from psycopg.pq import TransactionStatus

from andon.store.postgres.connection import Connection, Connector

UNUSED_SECONDS = 5.0


class SpareConnection:
    """Keeps at most one idle connection, and opens more while several are lent at once."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._lock = threading.Lock()
        self._kept: Connection | None = None
        self._used_at = 0.0
        self._closed = False
        self.lent = 0  # to callers of `transact`
        self._watched = False
        self.on_first: Callable[[], None] = lambda: None  # asks for calls of `close_unused`

    @contextlib.contextmanager
    def taken(self) -> Iterator[Connection]:
        """Provide a connection for a read."""
        db = self._take()
        try:
            yield db
        finally:
            self._keep(db)

    def lend(self) -> Connection:
        """Return a connection for a caller's own transaction; `take_lent` takes it back."""
        db = self._take()
        with self._lock:
            self.lent += 1
        db.prepare_threshold = None  # take_lent discards what was prepared
        return db

    def take_lent(self, db: Connection) -> None:
        """Take back a lent connection and keep it, without anything its caller left in it."""
        with self._lock:
            self.lent -= 1
        try:
            if not db.closed and db.info.transaction_status != TransactionStatus.IDLE:
                db.rollback()
            if not db.closed and not self._connector.pooled:
                db.execute("DISCARD ALL", prepare=False)
                self._keep(db)
                return
        except psycopg.Error:
            pass
        db.close()

    def close_unused(self) -> float | None:
        """Close a connection idle for too long; return the seconds until the next look, or None."""
        with self._lock:
            if self._kept is None:
                self._watched = False
                return None
            left = self._used_at + UNUSED_SECONDS - time.monotonic()
            if left > 0:
                return left
            db, self._kept, self._watched = self._kept, None, False
        db.close()
        return None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            db, self._kept = self._kept, None
        if db is not None:
            db.close()

    def _take(self) -> Connection:
        with self._lock:
            db, self._kept = self._kept, None
        return db if db is not None and not db.closed else self._connector.connect()

    def _keep(self, db: Connection) -> None:
        if not db.closed and db.info.transaction_status == TransactionStatus.IDLE:
            with self._lock:
                kept = self._kept is None and not self._closed
                if kept:
                    self._kept, self._used_at = db, time.monotonic()
                    first, self._watched = not self._watched, True
            if kept:
                if first:
                    self.on_first()
                return
        db.close()
