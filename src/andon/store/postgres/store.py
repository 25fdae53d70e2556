"""The PostgreSQL store, for more than one machine.

One connection writes; the notifier (notifier.py) listens, notifies and holds locks; a third one is
open while somebody reads. If the server has no room for the third, reads use one of the others. No
batch depends on state kept in a connection, so each transaction may use another one. After an error
in the middle of a commit the outcome is unknown; writing the same batch again is safe.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from andon.errors import AndonError, BadInput, StoreError, StoreFull, StoreUnavailable
from andon.store.messages.stops import Order
from andon.store.postgres import arrays
from andon.store.postgres import batch as batches
from andon.store.postgres import notifier as bell
from andon.store.postgres.connection import (
    CONTENDED,
    RESERVED,
    SPOILED,
    TRANSACTION_SECONDS,
    WRITER_SETTINGS,
    Connection,
    Connector,
    refuse_ended,
)
from andon.store.postgres.pipeline import Sending
from andon.store.postgres.schema import LOCK, has_newest_tables, make_ready
from andon.store.postgres.spare_connection import Spare
from andon.store.sql.reads import Rows
from andon.store.sql.runs import starting
from andon.store.store import (
    Append,
    Claim,
    ClaimResult,
    Message,
    NewRun,
    Outcome,
    Register,
    WorkerRow,
)
from andon.store.writer.groups import locks_of

# A deadlock is reported after a second of waiting; three in a row are not chance.
CONTENTION_TRIES = 4
# How long to ask the database for the outcome of a commit before reporting it as unknown.
UNKNOWN_SECONDS = 10.0
T = TypeVar("T")
_RETURNS = (b"SELECT", b"WITH")
_LOCKS = {"lock_worker", "lock_workers", "lock_limits", "lock_orders", "lock_stops"}
_LOCKS |= {"lock_thread", "share_thread"}
_UNREAD = {"ask_run"}


class PostgresStore(Sending):
    """A store in the schema `andon` of a PostgreSQL database."""

    # A server restart or a broken network ends the connection of a process that is still alive.
    free_means = "silent"

    def __init__(
        self, url: str, *, look: bool = False, lean: bool = False, reserved: bool = False
    ) -> None:
        """`lean`: read on the connection that writes; `reserved`: see Link.connect."""
        super().__init__()
        self.url = url
        self.link = Connector(url, reserved=reserved)
        self._lean = lean or reserved
        self.hears = not self.link.pooled
        self._sql = batches.load()
        # A pipeline does not wait for these; their errors arrive with the next answer.
        self._silent = {name for name, sql in self._sql.items() if not _answers(sql)}
        self._silent |= _LOCKS | _UNREAD
        self._begin = self.link.begin()
        self._local = threading.local()  # a thread inside `transact` writes on its own connection
        self._reading = threading.Lock()
        self._writer: Connection | None = None
        self._written = False  # the writer was open once, so other processes rely on this one
        self._free_since: dict[str, float] = {}  # worker → when its lock was first seen free
        self._closed = False
        self._closing: set[str] | None = None  # orders of this batch that may be proved now
        self._spare = Spare(self.link)  # the third one: for reads, or lent by `transact`
        self._bell = bell.PostgresNotifier(self.link, self._spare.close_unused)
        self._spare.on_first = self._bell.wake
        try:
            if not look or not self._can_be_read():
                with self._writing, self._translated():
                    self._writing_connection(besides=1)
        except BaseException:
            self._bell.close()
            raise

    # ── connections ───────────────────────────────────────────────────────────────────────────

    def _writing_connection(self, besides: int = 0) -> Connection:
        if self._closed:
            raise StoreError("the store was closed")
        if self._writer is None or self._writer.closed:
            again, self._written = self._written, True
            db = self.link.connect(again=again, besides=besides, **WRITER_SETTINGS)
            for kind, dumper in arrays.DUMPERS:
                db.adapters.register_dumper(kind, dumper)
            try:
                self._writer = db
                make_ready(db, self.link.name, self._renew)
                if db.info.server_version >= 170000 and not self.link.pooled:
                    db.execute(f"SET transaction_timeout = '{TRANSACTION_SECONDS}s'")
            except BaseException:
                self._drop_writer()
                raise
        return self._writer

    def _can_be_read(self) -> bool:
        """Return whether the tables are up to date; reading then needs no right to write."""
        found: bool = self._read(has_newest_tables)
        return found

    def _drop_writer(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(psycopg.Error):
                self._writer.close()
            self._writer = None

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except SPOILED as error:
            raise self.link.meaning(error) from error

    # ── queries ───────────────────────────────────────────────────────────────────────────────

    def q(self, name: str, /, **params: Any) -> Rows:
        db = getattr(self._local, "db", None) or self._writing_connection()
        # An explicit cursor: a caller's connection may have other row and cursor factories.
        cursor = psycopg.Cursor(db, row_factory=tuple_row).execute(self._sql[name], params)
        return [] if name in self._silent else cursor.fetchall()

    def read(self, name: str, /, **params: Any) -> Rows:
        return self._read(lambda db: db.execute(self._sql[name], params).fetchall())

    def _read(self, ask: Callable[[Connection], T]) -> T:
        for last in (False, True):
            if self._closed:
                raise StoreError("the store was closed")
            try:
                return self._ask(ask)
            except SPOILED as error:
                meaning = self.link.meaning(error)
                # An idle connection may have ended long ago, which is no reason to fail: retry.
                if (
                    last
                    or isinstance(error, StoreFull)
                    or not isinstance(meaning, StoreUnavailable)
                ):
                    raise meaning from error
        raise AssertionError("unreachable")

    def _ask(self, ask: Callable[[Connection], T]) -> T:
        """Run a read on the spare connection, or on an open one if the server has no room."""
        if self._lean:
            with self._writing:
                return ask(self._writing_connection())
        with self._reading:
            # While the spare is lent, open another one only if the notifier's is not open.
            if not (self._spare.lent and self._bell.open):
                with contextlib.suppress(StoreFull), self._spare.taken() as db:
                    return ask(db)
        if self._bell.open:
            return self._bell.ask(ask)
        if self._sender == threading.get_ident():
            raise StoreUnavailable(f"{self.link.name}: there is no connection left to read on")
        with self._writing:
            return ask(self._writing_connection())

    def yield_place(self) -> None:
        """Close the writing connection so that other processes can start; this one cannot yet."""
        with self._writing:
            self._drop_writer()
            self._written = False  # the next connection must check for room again

    # ── writes ────────────────────────────────────────────────────────────────────────────────

    def write(self, batch: Sequence[Message]) -> list[Outcome]:
        if self._sender == threading.get_ident():
            raise StoreError(
                "a write on the thread of an event loop that waits for another: store calls block, "
                "so make them from another thread (asyncio.to_thread)"
            )
        with self._writing:
            outcomes = self._write(batch)
        self.announce(batch, outcomes)
        return outcomes

    def _write(self, batch: Sequence[Message]) -> list[Outcome]:
        for tries in range(1, CONTENTION_TRIES + 1):
            try:
                return self._commit(batch)
            except SPOILED as error:
                if isinstance(error, CONTENDED) and tries < CONTENTION_TRIES:
                    continue
                meaning = self.link.meaning(error)
                if isinstance(meaning, StoreUnavailable):
                    self._drop_writer()
                if isinstance(meaning, StoreUnavailable) or len(batch) == 1:
                    raise meaning from error
                break
        return [self._write_alone(message) for message in batch]

    def _write_alone(self, message: Message) -> Outcome:
        """Write one message of a spoiled batch in its own commit, to find the one that spoils."""
        try:
            return self._write([message])[0]
        except StoreUnavailable:
            raise
        except AndonError as error:
            return error

    def _commit(self, batch: Sequence[Message]) -> list[Outcome]:
        together = batches.Together(batch)
        outcomes: list[Outcome] = [None] * len(batch)
        others = together.others
        if not others and len(together.queries) == 1:
            # One statement is a transaction by itself; messages it refuses are handled below.
            others = self._write_together(together, outcomes)
            together.queries.clear()
        if others or together.queries:
            with self._transaction():
                for name, params in locks_of(batch):
                    self._writing_connection().execute(self._sql[name], params)
                others = sorted(others + self._write_together(together, outcomes))
                with self._closing_last():
                    for place in others:
                        outcomes[place] = self.apply(batch[place])
        return outcomes

    def _write_together(self, together: batches.Together, outcomes: list[Outcome]) -> list[int]:
        """Execute the shared statements; return the places of messages not carried out."""
        db = self._writing_connection()
        # Send all statements before waiting for the first answer.
        cursors = [db.execute(self._sql[name], given) for name, given, _ in together.queries]
        return together.take([cursor.fetchall() for cursor in cursors], outcomes)

    def _claim_usual(self, m: Claim) -> ClaimResult | None:
        name, params = batches.of_claim(m)
        return batches.usual(self.q(name, **params))

    @contextlib.contextmanager
    def _closing_last(self) -> Iterator[None]:
        """Close orders only at the end of the batch: others may be about to close the same ones."""
        self._closing = closing = set[str]()
        try:
            yield
        finally:
            self._closing = None
        self._close(closing)

    def _close(self, stop_ids: Iterable[str]) -> None:
        if self._closing is None:
            super()._close(stop_ids)
        else:
            self._closing.update(stop_ids)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run a transaction on the writing connection; only queries with answers cost a trip."""
        db = self._writing_connection()
        try:
            # A pipeline ends with a message that would keep a pooler's connection assigned to us.
            with contextlib.nullcontext() if self.link.pooled else db.pipeline():
                db.execute(self._begin, prepare=False)
                yield
                db.execute(b"COMMIT", prepare=False)
        except BaseException:
            with contextlib.suppress(psycopg.Error):
                if not db.closed:
                    db.rollback()
                    self._direct = None  # on rollback the driver discards prepared statements
            if db.closed or db.info.transaction_status != TransactionStatus.IDLE:
                self._drop_writer()
            raise

    def _order(self, m: Order) -> str:
        """Notify in the order's own commit; orders are too rare for this to slow other writes."""
        stop_id = super()._order(m)
        self._writing_connection().execute(_NOTIFY)
        return stop_id

    def _register(self, m: Register) -> tuple[int, float]:
        self._writing_connection().execute(LOCK)  # or two could register different parameters
        self.q("share_orders")  # or an order that has already listed the workers could miss it
        return super()._register(m)

    # ── in the caller's transaction ───────────────────────────────────────────────────────────

    def transact(self, append: Callable[[Any], Append]) -> None:
        """Run the caller's writes and the append in one transaction on a separate connection."""
        with self._translated():
            db = self._spare.lend()
        try:
            with self._translated():
                mark = os.urandom(8).hex()
                db.execute(f"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL andon.mark = '{mark}'")
            message = append(db)
            with self._translated():
                refuse_ended(db, mark)
                with self._on(db):
                    outcome = self.apply(message)
            if isinstance(outcome, Exception):
                raise outcome
            self._commit_lent(db, message)
        finally:
            self._spare.take_lent(db)

    def _commit_lent(self, db: Connection, message: Append) -> None:
        try:
            db.execute("COMMIT")
        except psycopg.Error as error:
            meaning = self.link.meaning(error)
            if not isinstance(meaning, StoreUnavailable):
                raise  # a deferred constraint of the caller's tables: the caller's error
            db.close()
            if not self._was_written(message):
                raise meaning from error

    def _was_written(self, message: Append) -> bool:
        """Ask the database whether a commit whose answer was lost has succeeded."""
        last = message.entries[-1]
        until = time.monotonic() + UNKNOWN_SECONDS
        while True:
            try:
                rows = self.read("entry_hash", run_id=message.run_id, seq=last.seq)
            except StoreUnavailable:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
            else:
                return rows == [(last.hash,)]

    @contextlib.contextmanager
    def _on(self, db: Any) -> Iterator[None]:
        """Send this thread's queries to the given connection."""
        self._local.db = db
        try:
            yield
        finally:
            self._local.db = None

    def start_on(self, connection: Any, run: NewRun) -> bool:
        """Start a run inside the caller's transaction, on the caller's psycopg connection.

        Returns whether the run is new. The run exists, and workers are notified, once the caller
        commits.
        """
        if not isinstance(connection, psycopg.Connection):
            raise BadInput(
                f"expected a psycopg.Connection, found {type(connection).__name__}; for an "
                "AsyncConnection there is start_on_async"
            )
        # On an autocommit connection each statement would be its own transaction.
        own = connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE
        with self._translated(), connection.transaction() if own else contextlib.nullcontext():
            with self._on(connection):
                new = self._start_run(run)
            if new:
                psycopg.Cursor(connection).execute(_NOTIFY)
        return new

    async def start_on_async(self, connection: Any, run: NewRun) -> bool:
        """Like `start_on`, on a psycopg.AsyncConnection."""
        own = connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE
        cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
        with self._translated():
            async with connection.transaction() if own else contextlib.nullcontext():
                queries_of_start = starting(run)
                answer: Rows | None = None
                try:
                    while True:
                        name, params = queries_of_start.send(answer)  # type: ignore[arg-type]
                        await cursor.execute(self._sql[name], params)
                        answer = [] if name in self._silent else await cursor.fetchall()
                except StopIteration as end:
                    new = bool(end.value)
                if new:
                    await cursor.execute(_NOTIFY)
        return new

    # ── liveness and notifications ────────────────────────────────────────────────────────────

    def hold(self, worker_id: str) -> str | None:
        """Take a lock that ends with this process's connection; None behind a pooler."""
        if self.link.pooled:
            return None
        key = bell.key_of(worker_id)
        with self._translated():
            self._bell.hold(key, besides=int(self._writer is None))
        return str(key)

    def release(self, worker_id: str) -> None:
        self._bell.release(bell.key_of(worker_id))

    def is_free(self, worker: WorkerRow) -> bool:
        return bool(self.lost([worker])[0])

    def lost(self, workers: Sequence[WorkerRow]) -> tuple[list[WorkerRow], bool]:
        """Return the workers whose lock stays free: their process or their connection is gone."""
        locks = {one.id: one.lock for one in workers if one.lock is not None}
        free = self._look_at_locks(list(locks.values())) if locks else set()
        now = time.monotonic()
        seen = {one: self._free_since.get(one, now) for one, lock in locks.items() if lock in free}
        for one in locks:
            self._free_since.pop(one, None)
        self._free_since.update(seen)
        gone = [one for one in workers if now - seen.get(one.id, now + 1) >= bell.RETAKE_SECONDS]
        return gone, len(gone) < len(seen)

    def _look_at_locks(self, locks: list[str]) -> set[str]:
        def look(db: Connection) -> set[str]:
            return bell.free(db, locks)

        if not self._bell.open:
            return self._read(look)
        try:
            return self._bell.ask(look)
        except SPOILED as error:
            raise self.link.meaning(error) from error

    def ring(self) -> None:
        self._bell.ring()

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Listen for notifications; a no-op behind a pooler, where polling has to find new work."""
        return self._bell.listen(callback) if self.hears else lambda: None

    def listen_on(self, loop: Any, callback: Callable[[], None]) -> Callable[[], None]:
        return self._bell.listen(callback, loop) if self.hears else lambda: None

    # ── about the database ────────────────────────────────────────────────────────────────────

    def facts(self) -> dict[str, Any]:
        settings = ("server_version", "fsync", "synchronous_commit", "full_page_writes")
        [row] = self._read(
            lambda db: db.execute(
                "SELECT current_setting(%s), current_setting(%s), current_setting(%s),"
                " current_setting(%s), (SELECT version FROM andon.schema),"
                " (SELECT epoch FROM andon.meta)",
                settings,
            ).fetchall()
        )
        facts = {"store": "postgresql", "at": self.link.name, "pooler": self.link.pooled}
        if not self.link.pooled:
            facts["connections"] = {
                **self._read(self.link.room)._asdict(),
                "kept": RESERVED,
            }
        return facts | dict(zip((*settings, "schema", "epoch"), row, strict=True))

    def integrity(self) -> str:
        """Return 'ok' if the server answers; PostgreSQL checks its own files."""
        self.now()
        return "ok"

    def checkpoint(self) -> None:
        """Do nothing: the server does its own upkeep."""

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._bell.close()
            with self._writing, self._reading:
                self._drop_writer()
                self._spare.close()


_NOTIFY = f"SELECT pg_notify('{bell.CHANNEL}', '')".encode()


def _answers(sql: bytes) -> bool:
    return sql.startswith(_RETURNS) or b"RETURNING" in sql
