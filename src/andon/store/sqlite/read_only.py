"""A read-only view of an SQLite store: a backup, a copy, or a file without write permission.

It writes nothing and creates no file beside the database. The files present decide what it shows:

    with -wal and -shm    everything, as it changes: SQLite's own way to read
    with -wal alone       everything, as of opening it; the log's index stays in memory
    without a -wal        the file alone, without the contents of a log that was not copied along
"""

from __future__ import annotations

import os

import apsw

from andon.errors import StoreError
from andon.store import from_root, migrations, notifier, queries
from andon.store.sql.reads import Reads
from andon.store.sqlite.disk import NETWORK_FILE_SYSTEMS, file_system, why_unwritable
from andon.store.sqlite.errors import translated
from andon.store.sqlite.reader import SqliteReader
from andon.store.sqlite.wal import Wal

TYPE_CHECKING = False  # commands must not pay for imports they do not need
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from andon.store.store import Append, Message, Outcome, WorkerRow

    File = str | os.PathLike[str]

# Offset of the write version in a database header: 1 means rollback journal, 2 means WAL.
_WRITE_VERSION = 18
_READ_ONLY = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
_MADE = apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_READWRITE


def is_called_for(path: File, *, lasts: bool = False) -> bool:
    """Return whether a reader should open the file through SqliteView rather than as a store.

    A file without SQLite's other files is a copy, or the next worker that opens it will create
    them; a reader that stays longer (`lasts`) would then miss what that worker writes.
    """
    path = from_root(path)
    if not os.path.isfile(path) or not os.path.getsize(path):
        return False
    copied = not (os.path.exists(path + "-wal") and os.path.exists(path + "-shm"))
    unsafe = file_system(path) in NETWORK_FILE_SYSTEMS
    return unsafe or (copied and not lasts) or bool(why_unwritable(path))


class SqliteView(Reads):
    """The reads of a store in one SQLite file; every write is refused."""

    free_means = "dead"

    def __init__(self, path: File) -> None:
        self.path = from_root(path)
        self.url = f"sqlite:///{self.path}"
        self.folder = self.path + ".d"
        self.note = ""  # data that may be missing from the view
        self.still = ""  # why the view does not follow changes, if it does not
        with translated(self.path):
            self._reader = SqliteReader(self._open(), self.path)
            self._refuse_foreign()
        super().__init__(self._reader.read)

    def _open(self) -> apsw.Connection:
        network = file_system(self.path) in NETWORK_FILE_SYSTEMS
        if not os.path.exists(self.path + "-wal"):
            self.still = "no worker writes it here"
            self.note = self._missing()
            db = apsw.Connection(f"{_uri(self.path)}?immutable=1", flags=_READ_ONLY)
        elif network or not os.path.exists(self.path + "-shm"):
            self.still = "it is shown as it was when this command began"
            if network:
                self.note = "the store is on a network file system, where nothing is locked"
            db = apsw.Connection(self.path, flags=_READ_ONLY, vfs=_UnsharedFiles.registered())
            db.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
        else:
            db = apsw.Connection(f"{_uri(self.path)}?mode=ro", flags=_READ_ONLY)
        db.execute("PRAGMA query_only = 1").fetchall()
        db.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        return db

    def _missing(self) -> str:
        with open(self.path, "rb") as file:
            header = file.read(100)
        if header[_WRITE_VERSION : _WRITE_VERSION + 1] == b"\1":
            return ""  # made by VACUUM INTO, or its log was merged for good: it is complete
        return (
            f"its log, {os.path.basename(self.path)}-wal, is not beside it: a file that was copied "
            "alone lacks what happened last (one made by SQLite's .backup is complete)"
        )

    def _refuse_foreign(self) -> None:
        needs = queries.migrations("sqlite")[-1][0]
        found: int = self._reader.db.execute("PRAGMA user_version").get
        if found == needs:
            return
        self._refuse_lost()
        if found == 0:
            also = f"; but {self.note}" if self.note else ""
            raise StoreError(
                f"{self.path}: has no tables of andon{also}. Set ANDON_STORE to another file."
            )
        migrations.refuse_newer(found, needs)
        raise StoreError(
            f"{self.path}: has schema {found}, expected {needs}, and cannot be upgraded where it "
            "is. Copy it, with its -wal, to a folder of yours and start a worker there; or look "
            "with the version of andon that wrote it."
        )

    def facts(self) -> dict[str, Any]:
        return self._reader.facts()

    def integrity(self) -> str:
        """Check the database, and whether the log holds commits that SQLite does not read."""
        with translated(self.path):
            self._refuse_lost()
        return self._reader.integrity()

    def _refuse_lost(self) -> None:
        log = Wal(self.path + "-wal")
        if log.header:
            log.refuse_lost(log.readable())

    def _refusal(self) -> StoreError:
        why = why_unwritable(self.path) or "it was opened to look at"
        return StoreError(f"{self.path}: {why}; nothing was written.")

    def write(self, batch: Sequence[Message]) -> list[Outcome]:
        raise self._refusal()

    def transact(self, append: Callable[[Any], Append]) -> None:
        raise self._refusal()

    def is_free(self, worker: WorkerRow) -> bool:
        return False  # testing the lock would remove its file

    def notify(self) -> None:
        pass

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Listen for notifications; raises where no socket can be made, and callers then poll."""
        with translated(self.path):
            found = notifier.HostNotifier(self.folder)
            try:
                end = found.listen(callback)
            except OSError:
                found.close()
                raise

        def close() -> None:
            end()
            found.close()

        return close

    def close(self) -> None:
        self._reader.close()


def _uri(path: str) -> str:
    from urllib.parse import quote

    return f"file:{quote(path)}"


class _UnsharedFiles(apsw.VFS):
    """Reads a database and its log without the -shm file that readers and writers share.

    SQLite then keeps the log's index in memory and takes no lock, so no process may write the
    database at the same time.
    """

    name = "andon-alone"
    _one: _UnsharedFiles | None = None

    @classmethod
    def registered(cls) -> str:
        cls._one = cls._one or cls()
        return cls.name

    def __init__(self) -> None:
        super().__init__(self.name, "")

    def xOpen(self, name: Any, flags: list[int]) -> _UnlockedFile:  # noqa: N802 (apsw's)
        flags[0] = (flags[0] & ~_MADE) | apsw.SQLITE_OPEN_READONLY
        return _UnlockedFile("", name, flags)


class _UnlockedFile(apsw.VFSFile):
    """A file without locks and without shared memory, which apsw's files do not offer."""

    def xLock(self, level: int) -> None:  # noqa: N802
        pass

    def xUnlock(self, level: int) -> None:  # noqa: N802
        pass

    def xCheckReservedLock(self) -> bool:  # noqa: N802
        return False
