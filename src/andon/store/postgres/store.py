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
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from andon.errors import AndonError, BadInput, StoreError, StoreUnavailable
from andon.store.handlers import Handlers, concerns_others
from andon.store.messages.stops import Order
from andon.store.postgres import batch as batches
from andon.store.postgres import notifier
from andon.store.postgres.connection import (
    CONTENDED,
    RESERVED,
    SPOILED,
    Connection,
    Connector,
    refuse_ended,
)
from andon.store.postgres.pipeline import Pipeline
from andon.store.postgres.reader import PostgresReader
from andon.store.postgres.schema import LOCK, has_newest_tables
from andon.store.postgres.session import WriteSession
from andon.store.postgres.spare_connection import SpareConnection
from andon.store.sql.claims import NO_CLAIM, orders_for
from andon.store.sql.reads import Reads, Rows
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
from andon.store.writer.shared_statements import locks_of

# A deadlock is reported after a second of waiting; three in a row are not chance.
CONTENTION_TRIES = 4
# How long to ask the database for the outcome of a commit before reporting it as unknown.
UNKNOWN_SECONDS = 10.0
_RETURNS = (b"SELECT", b"WITH")
_LOCKS = {"lock_worker", "lock_workers", "lock_limits", "lock_orders", "lock_stops"}
_LOCKS |= {"lock_thread", "share_thread"}
_UNREAD = {"ask_run"}


class PostgresStore(Reads):
    """A store in the schema `andon` of a PostgreSQL database."""

    # A server restart or a broken network ends the connection of a process that is still alive.
    free_means = "silent"

    def __init__(
        self, url: str, *, look: bool = False, lean: bool = False, reserved: bool = False
    ) -> None:
        """`lean`: read on the connection that writes; `reserved`: see Connector.connect."""
        self.url = url
        self.connector = Connector(url, reserved=reserved)
        self.notifies = not self.connector.pooled
        self._sql = batches.load()
        # A pipeline does not wait for these; their errors arrive with the next answer.
        self._silent = {name for name, sql in self._sql.items() if not _answers(sql)}
        self._silent |= _LOCKS | _UNREAD
        self._local = threading.local()  # a thread inside `transact` writes on its own connection
        self._free_since: dict[str, float] = {}  # worker → when its lock was first seen free
        self._handlers = Handlers(self.q, self._claim_usual)
        self._handlers.table[Order] = self._order
        self._handlers.table[Register] = self._register
        self._session = WriteSession(self.connector, self._sql, self._handlers.workers.renew)
        self._spare = SpareConnection(self.connector)  # for reads, or lent by `transact`
        self._notifier = notifier.PostgresNotifier(self.connector, self._spare.close_unused)
        self._spare.on_first = self._notifier.wake
        self._reader = PostgresReader(
            self.connector,
            self._session,
            self._spare,
            self._notifier,
            self._sql,
            lean=lean or reserved,
        )
        super().__init__(self._reader.read)
        self._pipeline = Pipeline(self.connector, self._session, self._notifier)
        self.send, self.receive = self._pipeline.send, self._pipeline.receive
        self.unsent, self.yield_place = self._pipeline.unsent, self._session.yield_place
        try:
            if not look or not self._reader.ask(
                has_newest_tables
            ):  # reading needs no right to write
                with self._session.lock, self._translated():
                    self._session.connection(besides=1)
        except BaseException:
            self._notifier.close()
            raise

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except SPOILED as error:
            raise self.connector.meaning(error) from error

    def q(self, name: str, /, **params: Any) -> Rows:
        db = getattr(self._local, "db", None) or self._session.connection()
        # An explicit cursor: a caller's connection may have other row and cursor factories.
        cursor = psycopg.Cursor(db, row_factory=tuple_row).execute(self._sql[name], params)
        return [] if name in self._silent else cursor.fetchall()

    def orders_for(self, worker_id: str) -> ClaimResult:
        return orders_for(worker_id, self.read("look", worker_id=worker_id, claim=NO_CLAIM))

    def write(self, batch: Sequence[Message]) -> list[Outcome]:
        if self._session.sender == threading.get_ident():
            raise StoreError(
                "a write on the thread of an event loop that waits for another: store calls block, "
                "so make them from another thread (asyncio.to_thread)"
            )
        with self._session.lock:
            outcomes = self._write(batch)
        if concerns_others(batch, outcomes):
            self.notify()
        return outcomes

    def _write(self, batch: Sequence[Message]) -> list[Outcome]:
        for tries in range(1, CONTENTION_TRIES + 1):
            try:
                return self._commit(batch)
            except SPOILED as error:
                if isinstance(error, CONTENDED) and tries < CONTENTION_TRIES:
                    continue
                meaning = self.connector.meaning(error)
                if isinstance(meaning, StoreUnavailable):
                    self._session.drop()
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
        shared = batches.SharedStatements(batch)
        outcomes: list[Outcome] = [None] * len(batch)
        others = shared.others
        if not others and len(shared.queries) == 1:
            # One statement is a transaction by itself; messages it refuses are handled below.
            others = self._write_shared(shared, outcomes)
            shared.queries.clear()
        if others or shared.queries:
            with self._session.transaction() as db:
                for name, params in locks_of(batch):
                    db.execute(self._sql[name], params)
                others = sorted(others + self._write_shared(shared, outcomes))
                with self._handlers.targets.closing_last():
                    for place in others:
                        outcomes[place] = self._handlers.apply(batch[place])
        return outcomes

    def _write_shared(self, shared: batches.SharedStatements, outcomes: list[Outcome]) -> list[int]:
        """Execute the shared statements; return the places of messages not carried out."""
        db = self._session.connection()
        # Send all statements before waiting for the first answer.
        cursors = [db.execute(self._sql[name], given) for name, given, _ in shared.queries]
        return shared.take([cursor.fetchall() for cursor in cursors], outcomes)

    def _claim_usual(self, m: Claim) -> ClaimResult | None:
        name, params = batches.of_claim(m)
        return batches.usual(self.q(name, **params))

    def _order(self, m: Order) -> str:
        """Notify in the order's own commit; orders are too rare for this to slow other writes."""
        stop_id = self._handlers.orders.order(m)
        self._session.connection().execute(_NOTIFY)
        return stop_id

    def _register(self, m: Register) -> tuple[int, float]:
        self._session.connection().execute(LOCK)  # or two could register different parameters
        self.q("share_orders")  # or an order that has already listed the workers could miss it
        return self._handlers.workers.register(m)

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
                    outcome = self._handlers.apply(message)
            if isinstance(outcome, Exception):
                raise outcome
            self._commit_lent(db, message)
        finally:
            self._spare.take_lent(db)

    def _commit_lent(self, db: Connection, message: Append) -> None:
        try:
            db.execute("COMMIT")
        except psycopg.Error as error:
            meaning = self.connector.meaning(error)
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
                new = self._handlers.runs.start_run(run)
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

    def hold(self, worker_id: str) -> str | None:
        """Take a lock that ends with this process's connection; None behind a pooler."""
        if self.connector.pooled:
            return None
        key = notifier.key_of(worker_id)
        with self._translated():
            self._notifier.hold(key, besides=int(self._session.db is None))
        return str(key)

    def release(self, worker_id: str) -> None:
        self._notifier.release(notifier.key_of(worker_id))

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
        gone = [
            one for one in workers if now - seen.get(one.id, now + 1) >= notifier.RETAKE_SECONDS
        ]
        return gone, len(gone) < len(seen)

    def _look_at_locks(self, locks: list[str]) -> set[str]:
        def look(db: Connection) -> set[str]:
            return notifier.free(db, locks)

        if not self._notifier.open:
            return self._reader.ask(look)
        try:
            return self._notifier.ask(look)
        except SPOILED as error:
            raise self.connector.meaning(error) from error

    def notify(self) -> None:
        self._notifier.notify()

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Listen for notifications; a no-op behind a pooler, where polling has to find new work."""
        return self._notifier.listen(callback) if self.notifies else lambda: None

    def listen_on(self, loop: Any, callback: Callable[[], None]) -> Callable[[], None]:
        return self._notifier.listen(callback, loop) if self.notifies else lambda: None

    def facts(self) -> dict[str, Any]:
        settings = ("server_version", "fsync", "synchronous_commit", "full_page_writes")
        [row] = self._reader.ask(
            lambda db: db.execute(
                "SELECT current_setting(%s), current_setting(%s), current_setting(%s),"
                " current_setting(%s), (SELECT version FROM andon.schema),"
                " (SELECT epoch FROM andon.meta)",
                settings,
            ).fetchall()
        )
        facts = {"store": "postgresql", "at": self.connector.name, "pooler": self.connector.pooled}
        if not self.connector.pooled:
            facts["connections"] = {
                **self._reader.ask(self.connector.room)._asdict(),
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
        if not self._session.closed:
            self._session.closed = True
            self._notifier.close()
            with self._session.lock, self._reader.lock:
                self._session.drop()
                self._spare.close()


_NOTIFY = f"SELECT pg_notify('{notifier.CHANNEL}', '')".encode()


def _answers(sql: bytes) -> bool:
    return sql.startswith(_RETURNS) or b"RETURNING" in sql
