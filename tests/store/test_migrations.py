"""A store made by an earlier release is migrated when it is opened, completely or not at all."""

import hashlib
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from andon.runtime.requests import requests
from andon.store import open_store, queries

RUN = (
    "INSERT INTO {runs} (id, agent, version, queue, state, priority, available_at, labels, root_id,"
    " head_seq, head_hash, created_at, changed_at)"
    " VALUES ('old', 'agent', '1', 'default', 'queued', 0, 0, '{{}}', 'old', 0, 'h', 1, 1)"
)
AGENT = (
    "INSERT INTO {agents} (name, version, queue, parameters, retries, registered_at)"
    " VALUES ('agent', '{version}', 'default', '{{\"parameters\": [], \"extra\": false}}', 0, {at})"
)
EFFECT = (
    "INSERT INTO {effects} (run_id, name, key, place, kind, state, seq, fence, quiet)"
    " VALUES ('old', 'pay', 'k', ':0', 'idempotent', 'confirmed', 1, 1, {no})"
)


def first_schema(dialect: str) -> str:
    [(number, _, sql), *_] = queries.migrations(dialect)
    assert number == 1
    return sql


def rows(dialect: str) -> list[str]:
    dot = "andon." if dialect == "postgres" else "andon_"
    names = {name: dot + name for name in ("runs", "agents", "effects")}
    return [
        RUN.format(**names),
        AGENT.format(**names, version="1", at=10),
        AGENT.format(**names, version="2", at=20),
        EFFECT.format(**names, no="false" if dialect == "postgres" else "0"),
    ]


def check(url: str) -> None:
    store: Any = open_store(url)
    try:
        newest = queries.migrations("sqlite")[-1][0]
        assert store.facts()["schema"] == newest
        assert store.run("old").state == "queued"
        assert [one.undo for one in store.ledger("old")] == [None]
        assert [one.version for one in store.agents("agent")] == ["2", "1"], (
            "the newest is promoted"
        )
        started = requests.start(store, "agent")
        assert store.run(started).version == "2"
    finally:
        store.close()


def test_an_sqlite_file_of_the_first_schema_is_migrated(tmp_path: Path) -> None:
    path = tmp_path / "andon.db"
    db = apsw.Connection(str(path))
    db.execute("PRAGMA journal_mode = WAL").fetchall()
    with db:
        db.execute(first_schema("sqlite")).fetchall()
        db.execute("PRAGMA user_version = 1").fetchall()
        for sql in rows("sqlite"):
            db.execute(sql).fetchall()
    db.close()
    check(f"sqlite:///{path}")


def test_a_postgresql_database_of_the_first_schema_is_migrated(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute(first_schema("postgres").encode())
        db.execute("UPDATE andon.schema SET version = 1")
        for sql in rows("postgres"):
            db.execute(sql.encode())
    check(postgres_url)


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_migrations_are_numbered_without_gaps(dialect: str) -> None:
    numbers = [number for number, _, _ in queries.migrations(dialect)]
    assert numbers == list(range(1, len(numbers) + 1))


# Stores of the first schema exist: its definition must not be rewritten.
LANDED = {"sqlite": "63b5a53d9ee331bd", "postgres": "6942142b1353e528"}


@pytest.mark.parametrize("dialect", sorted(LANDED))
def test_a_released_migration_is_not_changed(dialect: str) -> None:
    found = hashlib.sha256(first_schema(dialect).encode()).hexdigest()[:16]
    assert found == LANDED[dialect], "write the next migration instead"
