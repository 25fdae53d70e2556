"""The SQLite store: one file, no server.

One connection writes, and only it checkpoints; reads use another one. Every commit reaches the disk
(synchronous=FULL): in WAL mode, NORMAL loses acknowledged commits when the power fails.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time

import apsw

from andon.errors import StoreError, StoreUnavailable
from andon.store import from_root, migrations, notifier, queries
from andon.store.handlers import Handlers, concerns_others
from andon.store.sql.claims import NO_CLAIM, orders_for
from andon.store.sql.reads import Reads
from andon.store.sqlite.batch import RowsMissing, SqliteBatches, refuse_nul
from andon.store.sqlite.disk import make_private, refuse_unsafe, refuse_unwritable
from andon.store.sqlite.errors import BUSY_SECONDS, SPOILED, translate, translated
from andon.store.sqlite.reader import SqliteReader
from andon.store.sqlite.wal import Wal

TYPE_CHECKING = False  # commands must not pay for imports they do not need
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from andon.store.sql.reads import Rows
    from andon.store.sqlite.batch import Advance
    from andon.store.store import Append, ClaimResult, Message, Outcome, WorkerRow

    File = str | os.PathLike[str]

# How long a write on an event loop waits for other processes; the loop has more to do than wait.
MOMENT_SECONDS = 0.05
# Pages in the WAL before the writer moves them into the database, at a moment when nobody waits.
CHECKPOINT_PAGES = 1000

_UNAVAILABLE = (apsw.BusyError, apsw.LockedError, apsw.FullError, apsw.CantOpenError)


class SqliteStore(Reads):
    """A store in one SQLite file."""

    def __init__(self, path: File, *, create: bool = True) -> None:
        self.path = from_root(path)
        self.url = f"sqlite:///{self.path}"
        self._sql = queries.load("sqlite")
        self._handlers = Handlers(self.q)
        self._closed = False
        self._writing = threading.Lock()
        self._local = threading.local()  # a thread inside `transact` writes on its own connection
        self._wal_pages, self._checkpoint_at = 0, CHECKPOINT_PAGES
        self._busy_handler = _BusyHandler()  # the writer's; guarded by its lock
        refuse_unsafe(self.path, create=create)
        refuse_unwritable(self.path)
        with translated(self.path):
            make_private(self.path)
        self.folder = self.path + ".d"
        with translated(self.path):
            log = Wal(self.path + "-wal")
            self._writer = self._connect()
            self._writer.set_busy_handler(self._busy_handler)
            self._refuse_lost(log)
            self._writer.set_wal_hook(self._count_pages)
            if not create:
                self._refuse_foreign()
            self._open()
            self._reader = SqliteReader(self._connect(), self.path)
        super().__init__(self._reader.read)
        self._batches = SqliteBatches(self._writer, self._handlers)
        self._notifier = notifier.HostNotifier(self.folder)

    def _connect(self) -> apsw.Connection:
        db = apsw.Connection(self.path)
        db.set_busy_handler(_BusyHandler())
        for pragma in ("synchronous = FULL", "wal_autocheckpoint = 0"):
            db.execute(f"PRAGMA {pragma}").fetchall()
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        db.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        # Otherwise SQLite plans a statement anew whenever other values are bound to it, as every
        # call does; that takes ten times as long as executing it.
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        return db

    def _refuse_lost(self, log: Wal) -> None:
        """Refuse a damaged log before the first write, which would overwrite what is left of it."""
        self._writer.execute("SELECT count(*) FROM sqlite_schema").fetchall()  # reads the WAL
        read, _ = self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        if log.is_current():
            log.refuse_lost(max(read, 0))

    def _refuse_foreign(self) -> None:
        """Refuse a file without andon's tables: reading must not turn it into a store."""
        if self._version() == 0:
            raise StoreError(
                f"{self.path}: has no andon tables. Start a worker or a run first, or set "
                "ANDON_STORE."
            )

    def _open(self) -> None:
        """Create or upgrade the file, one process at a time, and note whether it was replaced."""
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        with _flock(os.path.join(self.folder, "open.lock")):
            mode = self._writer.execute("PRAGMA journal_mode = WAL").get
            if mode != "wal":
                raise StoreError(f"{self.path}: expected journal mode wal, SQLite answered {mode}")
            migrations.apply("sqlite", self._migrate_one, self._version)
            identity = str(os.stat(self.path).st_ino)
            # Usually there is nothing to write, and then readers do not wait for a writer.
            if self._writer.execute("SELECT identity FROM andon_meta").get == identity:
                return
            with self._writer:
                self._handlers.workers.renew(identity)
                self._writer.execute(
                    "INSERT INTO andon_meta (one, epoch, identity, created_at)"
                    " VALUES (1, 1, ?, unixepoch('subsec')) ON CONFLICT DO NOTHING",
                    (identity,),
                )

    def _version(self) -> int:
        version: int = self._writer.execute("PRAGMA user_version").get
        if (
            version == 0
            and self._writer.execute(
                "SELECT count(*) FROM sqlite_schema WHERE name LIKE 'andon\\_%' ESCAPE '\\'"
            ).get
        ):
            raise StoreError(
                f"{self.path}: has andon's tables but no schema version; it is damaged"
            )
        return version

    def _migrate_one(self, number: int, sql: str) -> None:
        with self._writer:
            self._writer.execute(sql)
            self._writer.execute(f"PRAGMA user_version = {number}")

    def q(self, name: str, /, **params: Any) -> Rows:
        refuse_nul(params.values())
        db = getattr(self._local, "db", None) or self._writer
        return db.execute(self._sql[name], params).fetchall()

    def orders_for(self, worker_id: str) -> ClaimResult:
        return orders_for(worker_id, self.read("look", worker_id=worker_id, claim=NO_CLAIM))

    def write(self, batch: Sequence[Message]) -> list[Outcome]:
        with self._writing:
            outcomes = self._write(batch)
        self._announce(batch, outcomes)
        return outcomes

    def write_at_once(self, batch: Sequence[Message]) -> list[Outcome]:
        if not self._writing.acquire(blocking=False):
            raise StoreUnavailable(f"{self.path}: this process is writing")
        try:
            self._busy_handler.seconds = MOMENT_SECONDS
            outcomes = self._write(batch)
        finally:
            self._busy_handler.seconds = BUSY_SECONDS
            self._writing.release()
        self._announce(batch, outcomes)
        return outcomes

    def _announce(self, batch: Sequence[Message], outcomes: Sequence[Outcome]) -> None:
        if concerns_others(batch, outcomes):
            self.notify()

    def _write(self, batch: Sequence[Message]) -> list[Outcome]:
        try:
            if len(batch) == 1 and self._batches.append_alone(batch[0]):
                return [None]
            return self._commit(batch)
        except (*SPOILED, StoreError) as error:
            if len(batch) == 1 or isinstance(error, _UNAVAILABLE):
                raise translate(error, self.path) from error
        return self._commit_singly(batch)

    def _commit(self, batch: Sequence[Message]) -> list[Outcome]:
        try:
            return self._transact(batch, self._batches.advance_counted)
        except RowsMissing:
            return self._transact(batch, self._batches.advance_named)

    def _transact(self, batch: Sequence[Message], advance: Advance) -> list[Outcome]:
        db = self._writer
        db.execute("BEGIN IMMEDIATE")
        try:
            outcomes = self._batches.apply(batch, advance)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        return outcomes

    def _commit_singly(self, batch: Sequence[Message]) -> list[Outcome]:
        """Give each message of a spoiled batch its own commit, to find the one that spoils it."""
        outcomes: list[Outcome] = []
        for message in batch:
            try:
                outcomes += self._commit([message])
            except (*SPOILED, StoreError) as error:
                outcomes.append(translate(error, self.path))
        return outcomes

    def checkpoint(self) -> None:
        """Move the WAL into the database once it has grown; called when nobody waits.

        A hook counts its pages at each commit, as the file keeps its size when SQLite restarts it.
        """
        if not self.needs_upkeep() or not self._writing.acquire(blocking=False):
            return
        pages = self._wal_pages
        # A reader keeps SQLite from restarting the log; then retry as it grows, not at each commit.
        self._checkpoint_at = pages + CHECKPOINT_PAGES
        try:
            with contextlib.suppress(apsw.Error):  # the next checkpoint will do
                self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                if pages > 4 * CHECKPOINT_PAGES:
                    self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        finally:
            self._writing.release()

    def needs_upkeep(self) -> bool:
        return self._wal_pages >= self._checkpoint_at

    def _count_pages(self, _db: Any, _name: str, pages: int) -> int:
        if pages < self._wal_pages:  # SQLite has restarted the log
            self._checkpoint_at = CHECKPOINT_PAGES
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def transact(self, append: Callable[[Any], Append]) -> None:
        """Run the caller's writes and the append in one transaction on a separate connection."""
        with translated(self.path):
            db = self._connect()
        try:
            with translated(self.path):
                db.execute("BEGIN IMMEDIATE")
            db.authorizer = _hands_off
            try:
                message = append(db)
            finally:
                db.authorizer = None
            self._local.db = db
            try:
                outcome = self._handlers.apply(message)
            finally:
                self._local.db = None
            if isinstance(outcome, Exception):
                raise outcome
            with translated(self.path):
                db.execute("COMMIT")
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")
            db.close()

    def hold(self, worker_id: str) -> str:
        """Take a lock that ends with this process, however the process ends."""
        return notifier.hold(self.folder, worker_id)

    def release(self, worker_id: str) -> None:
        notifier.release(self.folder, worker_id)

    def is_free(self, worker: WorkerRow) -> bool:
        """Return whether the worker's lock is free; its process is then certainly gone."""
        return notifier.is_free(self.folder, worker.id)

    def lost(self, workers: Sequence[WorkerRow]) -> tuple[list[WorkerRow], bool]:
        return [one for one in workers if self.is_free(one)], False

    notifies = True

    # A free file lock is proof: the kernel releases it when the process ends, and not before. It
    # says nothing about processes that the worker had started.
    free_means = "process"

    def notify(self) -> None:
        self._notifier.notify()

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self._notifier.listen(callback)

    def listen_on(self, loop: Any, callback: Callable[[], None]) -> Callable[[], None]:
        return self._notifier.listen_on(loop, callback)

    def facts(self) -> dict[str, Any]:
        return self._reader.facts()

    def integrity(self) -> str:
        return self._reader.integrity()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._notifier.close()
            with self._writing:
                self._writer.close()
                self._reader.close()


class _BusyHandler:
    """A busy handler: sleeps a short random time per try, up to a time limit."""

    def __init__(self) -> None:
        self.seconds, self.until = BUSY_SECONDS, 0.0

    def __call__(self, tries: int) -> bool:
        if tries == 0:
            self.until = time.monotonic() + self.seconds
        time.sleep(0.0001 + os.urandom(1)[0] / 255 * 0.0019)
        return time.monotonic() < self.until


def _hands_off(action: int, first: Any, second: Any, *_: Any) -> int:
    """Authorizer for caller code: deny writes to andon's tables and ending the transaction."""
    writes = (apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE)
    if action in writes and str(first).startswith("andon_"):
        return apsw.SQLITE_DENY
    if action in (apsw.SQLITE_TRANSACTION, apsw.SQLITE_ATTACH):
        return apsw.SQLITE_DENY
    return apsw.SQLITE_OK


@contextlib.contextmanager
def _flock(path: str) -> Iterator[None]:
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
