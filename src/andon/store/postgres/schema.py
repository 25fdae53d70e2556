"""Opens a PostgreSQL database: creates or upgrades the tables, detects that it was replaced.

The store does this at every new connection of its writer, since after a failover the connection
may lead to another server. When nothing has changed, this code only reads.
"""

from collections.abc import Callable

import psycopg

from andon.errors import StoreUnavailable
from andon.store import migrations, queries
from andon.store.postgres.connection import Connection

# Guards work that only one process at a time may do: change the schema, renew the epoch, register.
LOCK = b"SELECT pg_advisory_xact_lock(4701822938610213710)"

# A restored or promoted server has another timeline, a copied database another number.
_IDENTITY = b"""
SELECT (SELECT system_identifier FROM pg_control_system()) || '/' ||
       left(pg_walfile_name(pg_current_wal_lsn()), 8) || '/' ||
       (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_PLAIN_IDENTITY = b"SELECT 'database ' || oid FROM pg_database WHERE datname = current_database()"


def make_ready(db: Connection, name: str, renew: Callable[[str], None]) -> None:
    """Bring the database up to date; call `renew` if it is not the one last written to."""
    if db.execute("SELECT pg_is_in_recovery()").fetchone() == (True,):
        raise StoreUnavailable(
            f"{name}: the server is a read-only standby. Connect to the primary, e.g. with all "
            "hosts and ?target_session_attrs=read-write in the URL."
        )
    migrations.apply("postgres", lambda *change: _migrate_one(db, *change), lambda: _version(db))
    identity = _identity(db)
    if db.execute("SELECT identity FROM andon.meta").fetchall() == [(identity,)]:
        return
    with db.transaction():
        db.execute(LOCK)
        renew(identity)
        db.execute(
            "INSERT INTO andon.meta (one, epoch, identity, created_at)"
            " VALUES (1, 1, %s, andon.now()) ON CONFLICT DO NOTHING",
            [identity],
        )


def has_newest_tables(db: Connection) -> bool:
    return _version(db) == queries.migrations("postgres")[-1][0]


def _migrate_one(db: Connection, number: int, sql: str) -> None:
    with db.transaction():
        # Another process's migration may take long; ours must not begin before it ends.
        db.execute("SET LOCAL lock_timeout = 0")
        db.execute(LOCK)
        if _version(db) < number:
            db.execute(sql.encode())
            db.execute("UPDATE andon.schema SET version = %s", [number])


def _version(db: Connection) -> int:
    # Not to_regclass: it answers from a cache that may predate the lock just waited for.
    found = db.execute(
        "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = 'andon' AND c.relname = 'schema'"
    ).fetchone()
    if found is None:
        return 0
    [[version]] = db.execute("SELECT version FROM andon.schema").fetchall()
    return int(version)


def _identity(db: Connection) -> str:
    try:
        [[identity]] = db.execute(_IDENTITY).fetchall()
    except psycopg.errors.Error as error:
        if not error.sqlstate or error.sqlstate[:2] not in ("42", "0A", "55"):
            raise
        [[identity]] = db.execute(_PLAIN_IDENTITY).fetchall()  # not permitted, or not available
    return str(identity)
