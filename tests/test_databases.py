"""A test finds nothing that an earlier test left in its database."""

import psycopg
import pytest
from tests.databases import Databases

from andon.store import open_store
from andon.testing.postgres import Cluster

DDL = [
    "ALTER TABLE andon.runs ADD COLUMN mine integer",
    "ALTER TABLE andon.runs ALTER COLUMN state SET DEFAULT 'x'",
    "ALTER TABLE andon.runs SET (autovacuum_enabled = off)",
    "ALTER TABLE andon.runs ADD CONSTRAINT mine CHECK (fence >= 0)",
    "CREATE INDEX mine ON andon.runs (state)",
    "CREATE TABLE public.mine (n integer)",
    "CREATE SCHEMA mine",
    "CREATE OR REPLACE FUNCTION andon.now() RETURNS double precision LANGUAGE sql AS 'SELECT 1.0'",
    "CREATE FUNCTION mine() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
    (
        "CREATE TRIGGER mine BEFORE UPDATE ON andon.runs FOR EACH ROW"
        " EXECUTE FUNCTION suppress_redundant_updates_trigger()"
    ),
    (
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off',"
        " current_database()); END $$"
    ),
]


@pytest.fixture(scope="module")
def own_databases(cluster: Cluster) -> Databases:
    """Databases that only this test takes."""
    return Databases(cluster)


def oid_of(url: str) -> object:
    """The identity of a database, independent of its name."""
    with psycopg.connect(url) as db:
        return db.execute(
            "SELECT oid FROM pg_database WHERE datname = current_database()"
        ).fetchone()


def test_a_recycled_database_has_no_rows_fresh_sequences_and_another_name(
    own_databases: Databases,
) -> None:
    url = own_databases.take()
    store = open_store(url)  # still open when it is given back
    with psycopg.connect(url, autocommit=True) as db:
        log = (
            "INSERT INTO andon.logs (run_id, attempt, at, level, text)"
            " VALUES ('r', 1, 0, 'info', %s) RETURNING id"
        )
        first = [db.execute(log, [text]).fetchone() for text in ("x", "y" * 100_000)]
    before = oid_of(url)
    own_databases.give_back(url)
    store.close()
    again = own_databases.take()
    assert oid_of(again) == before
    assert again != url
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)
    with psycopg.connect(again, autocommit=True) as db:
        for table in ("logs", "meta"):
            assert db.execute(f"SELECT count(*) FROM andon.{table}".encode()).fetchone() == (0,)
        assert db.execute(log, ["x"]).fetchone() == first[0]
    own_databases.give_back(again)


@pytest.mark.parametrize("change", DDL)
def test_a_database_with_a_changed_schema_is_not_recycled(
    own_databases: Databases, change: str
) -> None:
    url = own_databases.take()
    before = oid_of(url)
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(change.encode())
    own_databases.give_back(url)
    again = own_databases.take()
    assert oid_of(again) != before
    own_databases.give_back(again)
