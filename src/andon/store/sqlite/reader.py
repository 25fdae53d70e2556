"""The connection to an SQLite store that only reads."""

from __future__ import annotations

import threading

import apsw

from andon.store import queries
from andon.store.sqlite.batch import refuse_nul
from andon.store.sqlite.disk import file_system
from andon.store.sqlite.errors import translated

TYPE_CHECKING = False  # commands must not pay for imports they do not need
if TYPE_CHECKING:
    from typing import Any

    from andon.store.sql.reads import Rows


class SqliteReader:
    """Runs one query at a time."""

    def __init__(self, db: apsw.Connection, path: str) -> None:
        self.db, self.path = db, path
        self._lock = threading.Lock()
        self._sql = queries.load("sqlite")

    def read(self, name: str, /, **params: Any) -> Rows:
        with self._lock, translated(self.path):
            refuse_nul(params.values())
            return self.db.execute(self._sql[name], params).fetchall()

    def facts(self) -> dict[str, Any]:
        return {
            "store": "sqlite",
            "path": self.path,
            "sqlite": apsw.sqlite_lib_version(),
            "file_system": file_system(self.path),
            "schema": self._ask("PRAGMA user_version"),
            "epoch": self.read("epoch")[0][0],
        }

    def integrity(self) -> str:
        answer: str = self._ask("PRAGMA integrity_check(1)")
        return answer

    def _ask(self, sql: str) -> Any:
        with self._lock, translated(self.path):
            return self.db.execute(sql).get

    def close(self) -> None:
        with self._lock:
            self.db.close()
