"""Finished runs by the hundred thousand: copies of one that was really executed, made with SQL.

    python copies.py sqlite|postgres STORE COPIES COUNT

The store's own maintenance (autovacuum, checkpoints) runs as usual; nothing is vacuumed or analysed
here. A program of its own: two SQLite libraries in one process undo each other's locks.
"""

import json
import sqlite3
import sys
from typing import Any

import psycopg

AT_ONCE = 50_000
# A table, its rows that belong to the sample, and the columns that differ in copy number n.
Copies = dict[str, tuple[str, dict[str, str]]]


def fill_sqlite(path: str, copies: Copies, count: int) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA synchronous = OFF")
    for table, (where, differs) in copies.items():
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
        db.execute(f"CREATE TEMP TABLE sample AS SELECT * FROM {table} WHERE {where}")
        for first in range(0, count, AT_ONCE):
            last = min(count, first + AT_ONCE) - 1
            numbers = (
                f"WITH RECURSIVE numbers (n) AS (SELECT {first} UNION ALL "
                f"SELECT n + 1 FROM numbers WHERE n < {last}) "
            )
            db.execute(numbers + _insert(table, columns, differs, "sample, numbers"))
        db.execute("DROP TABLE sample")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


def fill_postgres(url: str, copies: Copies, count: int) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        for table, (where, differs) in copies.items():
            columns = [row[0] for row in db.execute(PLAIN_COLUMNS, (table,)).fetchall()]
            db.execute(f"CREATE TEMP TABLE sample AS SELECT * FROM {table} WHERE {where}")
            for first in range(0, count, AT_ONCE):
                last = min(count, first + AT_ONCE) - 1
                source = f"sample, generate_series({first}, {last}) AS numbers (n)"
                db.execute(_insert(table, columns, differs, source))
            db.execute("DROP TABLE sample")


PLAIN_COLUMNS = """
SELECT attname FROM pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped
  AND attgenerated = '' AND attidentity = ''
ORDER BY attnum"""


def _insert(table: str, columns: list[str], differs: dict[str, str], source: str) -> Any:
    names = ", ".join(f'"{column}"' for column in columns)
    values = ", ".join(differs.get(column, f'sample."{column}"') for column in columns)
    return f"INSERT INTO {table} ({names}) SELECT {values} FROM {source}"


if __name__ == "__main__":
    kind, place, told, count = sys.argv[1:]
    fill = fill_sqlite if kind == "sqlite" else fill_postgres
    fill(place, json.loads(told), int(count))
