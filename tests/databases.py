"""PostgreSQL databases with andon's tables and no rows, recycled between tests.

Copying a database that has the tables takes PostgreSQL longer than most tests; emptying one does
not. So each database is emptied after its test and given to another one under another name: a
connection of the earlier test finds nothing. If a test has changed more than rows, its database is
dropped.
"""

import secrets
from typing import Any

import psycopg
from psycopg import sql

from andon.store import open_store
from andon.testing.postgres import Cluster

Connection = psycopg.Connection[tuple[Any, ...]]

GONE_MS = 10_000
# Larger tables get new files, as if they had never been large.
LARGE_BYTES = 4 * 8192

# Each definition with the transaction that wrote it; of tables, only what TRUNCATE preserves.
DEFINITIONS = """
WITH ours AS (SELECT * FROM pg_namespace
              WHERE nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema'),
tables AS (SELECT c.* FROM pg_class c JOIN ours ON ours.oid = c.relnamespace)
SELECT md5(string_agg(found, ' ' ORDER BY found)) FROM (
  SELECT concat_ws(',', 'n', oid, nspname, nspowner, nspacl) FROM ours
  UNION ALL SELECT concat_ws(',', 'c', oid, relname, relowner, relkind, relpersistence, relnatts,
    relacl, reloptions, relhasrules, relhastriggers, relrowsecurity, relreplident) FROM tables
  UNION ALL SELECT concat_ws(',', 'a', a.attrelid, a.attnum, a.xmin) FROM pg_attribute a
    JOIN tables ON tables.oid = a.attrelid
  UNION ALL SELECT concat_ws(',', 'i', i.indexrelid, i.xmin) FROM pg_index i
    JOIN tables ON tables.oid = i.indrelid
  UNION ALL SELECT concat_ws(',', 'o', o.oid, o.xmin) FROM pg_constraint o
    JOIN ours ON ours.oid = o.connamespace
  UNION ALL SELECT concat_ws(',', 't', t.oid, t.xmin) FROM pg_trigger t
    JOIN tables ON tables.oid = t.tgrelid
  UNION ALL SELECT concat_ws(',', 'p', p.oid, p.xmin) FROM pg_proc p
    JOIN ours ON ours.oid = p.pronamespace
  UNION ALL SELECT concat_ws(',', 's', setrole, setconfig) FROM pg_db_role_setting
    JOIN pg_database d ON d.oid = setdatabase WHERE d.datname = current_database()
) AS all_of_them (found)
"""


class Databases:
    """The databases of one server."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._empty: list[str] = []
        cluster.start()
        url = cluster.fresh_database()
        open_store(url).close()
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("DELETE FROM andon.meta")  # else a copy would be taken for a restored one
            self._definitions = db.execute(DEFINITIONS).fetchall()
        self._first = url.rpartition("/")[2]

    def take(self) -> str:
        """The URL of an empty database."""
        self._cluster.start()  # a test may have ended with the server killed
        if not self._empty:
            name = self._new_name()
            self._execute("CREATE DATABASE {} TEMPLATE {}", name, self._first)
            self._empty.append(name)
        return self._cluster.url(self._empty.pop())

    def give_back(self, url: str) -> None:
        """Take it back, and disconnect every client that still uses it."""
        self._cluster.start()
        name = url.rpartition("/")[2]
        if self._emptied(url):
            self._empty.append(self._new_name())
            self._execute("ALTER DATABASE {} RENAME TO {}", name, self._empty[-1])
        else:
            self._cluster.drop_database(name)

    def _new_name(self) -> str:
        return f"{self._first}_{secrets.token_hex(4)}"

    def _emptied(self, url: str) -> bool:
        with psycopg.connect(url) as db:
            if not disconnect(db) or db.execute(DEFINITIONS).fetchall() != self._definitions:
                return False
            empty(db, kept=("andon.schema",))
        return True

    def _execute(self, statement: str, *names: str) -> None:
        with psycopg.connect(self._cluster.url(), autocommit=True) as db:
            db.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


def disconnect(db: Connection) -> bool:
    """End all other connections to this database; whether they are gone."""
    ended = db.execute(
        "SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()",
        [GONE_MS],
    )
    return all(gone for (gone,) in ended.fetchall())


def empty(db: Connection, *, kept: tuple[str, ...]) -> None:
    """Delete all rows and restart the sequences, except in the tables that are kept."""
    tables = db.execute(
        "SELECT format('%%I.%%I', nspname, relname), pg_table_size(c.oid) FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = relnamespace"
        " WHERE nspname IN ('andon', 'public') AND relkind = 'r'"
        " AND concat(nspname, '.', relname) <> ALL (%s)",
        [list(kept)],
    ).fetchall()
    names = [name for name, _ in tables]
    # Nothing of it has to survive a crash, and the last writer may be about to commit.
    commands = ["SET LOCAL synchronous_commit = off", f"LOCK TABLE {', '.join(names)}"]
    commands += [f"DELETE FROM {name}" for name, size in tables if size <= LARGE_BYTES]
    if large := [name for name, size in tables if size > LARGE_BYTES]:
        commands.append(f"TRUNCATE {', '.join(large)}")
    commands.append(
        "SELECT setval(c.oid::regclass, 1, false) FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = 'andon' AND relkind = 'S'"
    )
    db.execute("; ".join(commands).encode())
