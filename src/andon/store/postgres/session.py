"""The connection of a PostgreSQL store that writes."""

import contextlib
import threading
from collections.abc import Callable, Iterator

import psycopg
from psycopg.pq import TransactionStatus

from andon.errors import StoreError
from andon.store.postgres import arrays
from andon.store.postgres.connection import (
    TRANSACTION_SECONDS,
    WRITER_SETTINGS,
    Connection,
    Connector,
)
from andon.store.postgres.direct import Direct
from andon.store.postgres.schema import make_ready


class WriteSession:
    """Opens the connection on first use, and again after it was lost."""

    def __init__(
        self, connector: Connector, sql: dict[str, bytes], renew: Callable[[str], None]
    ) -> None:
        self._connector, self._sql, self._renew = connector, sql, renew
        self.lock = threading.Lock()  # held by the writer, or while batches are in flight
        self.sender: int | None = None  # the thread whose batches are in flight
        self.db: Connection | None = None
        self.closed = False
        self._written = False  # it was open once, so other processes rely on this one
        self._begin = connector.begin()
        self._direct: Direct | None = None

    def connection(self, besides: int = 0) -> Connection:
        if self.closed:
            raise StoreError("the store was closed")
        if self.db is None or self.db.closed:
            again, self._written = self._written, True
            db = self._connector.connect(again=again, besides=besides, **WRITER_SETTINGS)
            for kind, dumper in arrays.DUMPERS:
                db.adapters.register_dumper(kind, dumper)
            try:
                self.db = db
                make_ready(db, self._connector.name, self._renew)
                if db.info.server_version >= 170000 and not self._connector.pooled:
                    db.execute(f"SET transaction_timeout = '{TRANSACTION_SECONDS}s'")
            except BaseException:
                self.drop()
                raise
        return self.db

    def direct(self) -> Direct:
        """Return the open connection for use without waiting."""
        if self.db is None or self.db.closed:
            raise psycopg.OperationalError("no connection")
        if self._direct is None or self._direct.link is not self.db.pgconn:
            self._direct = Direct(self.db, self._sql)
        return self._direct

    def drop(self) -> None:
        if self.db is not None:
            with contextlib.suppress(psycopg.Error):
                self.db.close()
            self.db = None

    def yield_place(self) -> None:
        """Close the connection so that other processes can start; this one cannot yet."""
        with self.lock:
            self.drop()
            self._written = False  # the next connection must check for room again

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Run a transaction; only queries with answers cost a round trip."""
        db = self.connection()
        try:
            # A pipeline ends with a message that would keep a pooler's connection assigned to us.
            with contextlib.nullcontext() if self._connector.pooled else db.pipeline():
                db.execute(self._begin, prepare=False)
                yield db
                db.execute(b"COMMIT", prepare=False)
        except BaseException:
            with contextlib.suppress(psycopg.Error):
                if not db.closed:
                    db.rollback()
                    self._direct = None  # on rollback the driver discards prepared statements
            if db.closed or db.info.transaction_status != TransactionStatus.IDLE:
                self.drop()
            raise
