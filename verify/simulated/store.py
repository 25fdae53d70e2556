"""The real SQLite store in memory, with a clock that can be moved and answers that can be lost.

`unixepoch` is replaced on the connection: the SQL is exactly the product's own.
"""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import apsw

from andon.errors import StoreUnavailable
from andon.store import migrations, queries
from andon.store.handlers import Handlers
from andon.store.sql.reads import Reads
from andon.store.sqlite.batch import SqliteBatches
from andon.store.sqlite.reader import SqliteReader
from andon.store.sqlite.store import SqliteStore
from andon.store.store import Append, Message, Outcome, Settle
from verify.simulated.clock import Clock

if TYPE_CHECKING:
    from verify.simulated.process import Process

_now: Callable[[], float]  # of the simulation that runs in this process
_kept: list[apsw.Connection] = []  # one for all simulations: its statements are prepared once


def _connection() -> apsw.Connection:
    """A database with andon's tables and nothing in them."""
    if not _kept:
        db = apsw.Connection(":memory:", statementcachesize=1000)
        migrations.apply("sqlite", lambda _, sql: list(db.execute(sql)).clear(), lambda: 0)
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)  # otherwise it plans anew at every call
        db.execute("CREATE TABLE booked (key TEXT)")  # the user's
        db.create_scalar_function("unixepoch", lambda *_: _now(), -1)
        _kept.append(db)
    [db] = _kept
    tables = db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    with db:
        for (name,) in tables:
            db.execute(f"DELETE FROM {name}")
        db.execute("INSERT INTO andon_meta (one, epoch, identity, created_at) VALUES (1, 1, '', 0)")
    return db


class _SharedConnection:
    """The one connection, for a caller that opens one of its own and closes it again."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self.authorizer: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def close(self) -> None:
        """The others continue to use it."""


class MemoryStore(SqliteStore):
    """The store that all simulated processes share."""

    def __init__(self, clock: Clock, on_notify: Callable[[], None]) -> None:
        global _now  # noqa: PLW0603 (the connection outlives the simulation)
        _now = clock.store_now
        self.path, self.url = "memory", "sqlite:///memory"
        self._sql = queries.load("sqlite")
        self._local, self._writing = threading.local(), threading.Lock()
        self._writer = _connection()
        self._reader = SqliteReader(self._writer, self.path)
        Reads.__init__(self, self._reader.read)
        self._handlers = Handlers(self.q)
        self._batches = SqliteBatches(self._writer, self._handlers)
        self._on_notify = on_notify

    def _connect(self) -> Any:
        return _SharedConnection(self._writer)

    def notify(self) -> None:
        self._on_notify()

    def rows(self, sql: str, *given: Any) -> list[tuple[Any, ...]]:
        """For the checks: past andon's own reads."""
        found: list[tuple[Any, ...]] = self._writer.execute(sql, given).fetchall()
        return found


class ProcessStore:
    """The same store as one process has it: its answer may be late, lost, or for a dead process."""

    def __init__(self, store: MemoryStore, process: "Process") -> None:
        self._store, self._process = store, process
        self.url = store.url
        self.free_means = process.fleet.free_means

    def __getattr__(self, name: str) -> Any:
        self._process.refuse_dead()
        return getattr(self._store, name)

    def write(self, batch: Sequence[Message]) -> list[Outcome]:
        process, fleet = self._process, self._process.fleet
        process.refuse_dead()
        fleet.pass_time(fleet.chance.uniform(0.0, 0.004))
        if fleet.strikes("slow disk"):
            fleet.pass_time(fleet.chance.uniform(0.1, 0.6) * fleet.lease_seconds)
        if fleet.strikes("refused commit"):
            fleet.tell(process, "the store refuses a commit")
            raise StoreUnavailable("the simulation refuses this commit")
        outcomes = self._store.write(batch)
        for message, outcome in zip(batch, outcomes, strict=True):
            fleet.note_write(process, message, outcome)
            if isinstance(message, Append | Settle) and not isinstance(outcome, Exception):
                fleet.world.look_at_certain(process, message.effects)
        if fleet.strikes("slow disk"):
            fleet.pass_time(fleet.chance.uniform(0.1, 0.6) * fleet.lease_seconds)
        if fleet.strikes("lost acknowledgement"):
            fleet.tell(process, "the acknowledgement of a commit is lost")
            raise StoreUnavailable("the simulation loses this acknowledgement")
        return outcomes

    def transact(self, append: Callable[[Any], Append]) -> None:
        process, fleet = self._process, self._process.fleet
        process.refuse_dead()
        if fleet.strikes("refused commit"):
            raise StoreUnavailable("the simulation refuses this transaction")
        self._store.transact(append)
        if fleet.strikes("lost acknowledgement"):
            raise StoreUnavailable("the simulation loses this acknowledgement")

    write_at_once = write  # no other process holds the lock of a store in memory

    def hold(self, worker_id: str) -> str:
        return worker_id

    def release(self, worker_id: str) -> None:
        self._process.refuse_dead()

    def listen_on(self, _: Any, callback: Callable[[], None]) -> Callable[[], None]:
        return self.listen(callback)

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._process.listener = callback
        return self._process.stop_listening

    def checkpoint(self) -> None:
        """There is no log to empty."""

    def needs_upkeep(self) -> bool:
        return False

    def close(self) -> None:
        """Others continue to use it."""
