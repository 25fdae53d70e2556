"""Two stores as one: the same messages, the same clock, and after each message the same rows."""

import json
import select
from collections import Counter
from typing import Any

import psycopg
from psycopg import sql

from andon.store import open_store
from andon.store.store import Message, Start
from verify import promises, questions
from verify.simulated.clock import Clock
from verify.simulated.store import MemoryStore

# Numbers that one database assigns by itself; the other may assign different ones.
COUNTED = {"inbox": {"id"}, "logs": {"id"}, "events": {"id"}, "meta": {"identity", "created_at"}}


class Pair:
    """The two stores, empty at the beginning of each example."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = Clock()
        self.sent: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.again = self.examples = self.sent_only = self._writes = 0
        self._ordered = False  # a sender in this example
        self._sound = True  # after the last write
        self._rang = {"SQLite": False, "PostgreSQL": False}

    def __enter__(self) -> "Pair":
        # Durability is not tested here.
        with psycopg.connect(self.url, autocommit=True) as db:
            name = sql.Identifier(db.info.dbname)
            db.execute(sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(name))
        self.postgres: Any = open_store(self.url)
        self.postgres.notify = lambda: self._ring("PostgreSQL")
        self._db = psycopg.connect(self.url, autocommit=True)
        self._db.execute("CREATE UNLOGGED TABLE public.clock (at double precision)")
        self._db.execute("INSERT INTO public.clock VALUES (0)")
        self._db.execute(
            "CREATE OR REPLACE FUNCTION andon.now() RETURNS double precision LANGUAGE sql VOLATILE"
            " AS 'SELECT at FROM public.clock'"
        )
        found = self._db.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'andon'")
        names = {str(name) for (name,) in found.fetchall()} - {"schema"}
        # No message contains the parts of a graph.
        self.tables = sorted(name for name in names if not name.startswith("graph_"))
        self._columns: dict[str, list[str]] = {}  # of SQLite
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()
        self.postgres.close()

    def empty(self) -> None:
        """Begins anew."""
        self.examples += 1
        self._ordered = False
        self.begin_anew()
        self.set_clock()
        self.compare()
        self._sound = True

    def begin_anew(self, *, alone: bool = False) -> None:
        """`alone`: SQLite."""
        self.clock = Clock()
        self.sqlite = MemoryStore(self.clock, lambda: self._ring("SQLite"))
        if not alone:
            kept = [name for name in self.tables if name != "meta"]
            self._db.execute("; ".join(f"DELETE FROM andon.{name}" for name in kept))
            self._db.execute("UPDATE andon.meta SET epoch = 1")

    def open_targets(self) -> list[tuple[str, str]]:
        """The targets that are fenced, in the order of their orders."""
        rows = [row for row in self._seen.rows["targets"] if row["ended_at"] is None]
        return sorted((row["stop_id"], row["target"]) for row in rows if row["stage"] == "fenced")

    def set_clock(self) -> None:
        self._db.execute("UPDATE public.clock SET at = %s", (self.clock.store_now(),))

    def write(
        self, sqlite: list[Message], postgres: list[Message], *, again: bool = False
    ) -> list[Any]:
        """The outcomes, once both stores have returned the same ones.

        `again`: at the same moment, so that only the messages can change anything.
        """
        self._sound = False
        self.clock.now += 0.0 if again else 1.0
        self.set_clock()
        before, self._rang = self._seen, {"SQLite": False, "PostgreSQL": False}
        first, second = self.sqlite.write(sqlite), self._write_to_postgres(postgres)
        for message, one, other in zip(sqlite, first, second, strict=True):
            name = type(message).__name__
            self.sent[name] += 1
            if isinstance(one, Exception):
                self.refused[type(one).__name__] += 1
            # PostgreSQL closes orders at the end of its batch: a claim that proves one has looked
            # at its window before, and answers with a time to look again although there is no need
            # to.
            self._ordered |= name == "Order"
            if shown(one, hints=not self._ordered) != shown(other, hints=not self._ordered):
                raise AssertionError(f"{name}: SQLite {one!r}, PostgreSQL {other!r}")
        self.compare()
        if wrong := next(promises.broken(before, self._seen, sqlite, first), None):
            raise AssertionError(wrong)
        if whom := promises.concerned(before, self._seen, sqlite, first):
            for name in [name for name, rang in self._rang.items() if not rang]:
                raise AssertionError(f"{name} wakes nobody, and {whom}")
        self._sound = True
        return first

    def ask(self) -> None:
        """Asks every question there is."""
        if not self._sound:  # the violation has been reported already
            return
        self.set_clock()
        if wrong := next(questions.wrong(self._seen, self.sqlite, self.postgres), None):
            raise AssertionError(wrong)

    def write_again(self, sqlite: list[Message], postgres: list[Message], first: list[Any]) -> None:
        """As a writer does whose acknowledgement was lost: nothing is carried out twice."""
        self.again += 1
        before, later = self._seen, self.clock.store_now() != self._seen.now
        second = self.write(sqlite, postgres, again=True)
        if later:  # and time alone changes something
            return
        if wrong := next(promises.done_twice(before, self._seen, sqlite, first, second), None):
            raise AssertionError(wrong)

    def _ring(self, name: str) -> None:
        self._rang[name] = True

    def _write_to_postgres(self, batch: list[Message]) -> list[Any]:
        """Every other time as an event loop does, which only sends, if the store accepts that."""
        self._writes += 1
        wire = self.postgres.send(batch) if self._writes % 2 else None
        if wire is None:
            written: list[Any] = self.postgres.write(batch)
            return written
        self._rang["PostgreSQL"] = any(isinstance(one, Start) for one in batch)  # sent along
        self.sent_only += 1
        outcomes, left = self._answer(wire)
        if left:  # the cause of a refusal is found the slow way
            again = self.postgres.write([batch[place] for place in left])
            for place, outcome in zip(left, again, strict=True):
                outcomes[place] = outcome
        return list(outcomes)

    def _answer(self, wire: Any) -> tuple[list[Any], list[int]]:
        answered: list[Any] = []
        more = True
        while more:
            select.select([wire], [wire] if self.postgres.unsent() else [], [])
            found, more = self.postgres.receive()
            answered += found
        [(outcomes, left)] = answered
        return outcomes, left

    def compare(self) -> None:
        """Compares, and keeps the rows: nothing else writes."""
        with self._db.pipeline():  # one round trip for all of them
            asked = {name: self._db.execute(f"SELECT * FROM andon.{name}") for name in self.tables}
        here = {name: self.rows_of_sqlite(name) for name in self.tables}
        for name, cursor in asked.items():
            one, other = compared(name, here[name]), compared(name, _named(cursor))
            if one != other:
                raise AssertionError(f"{name}: {_differences(one, other)}")
        self._seen = promises.Seen(here, self.clock.store_now())

    def rows_of_postgres(self, name: str) -> list[promises.Row]:
        return _named(self._db.execute(f"SELECT * FROM andon.{name}"))

    def rows_of_sqlite(self, name: str) -> list[promises.Row]:
        if name not in self._columns:
            found = self.sqlite.rows(f"PRAGMA table_info(andon_{name})")
            self._columns[name] = [row[1] for row in found]
        columns = self._columns[name]
        rows = self.sqlite.rows(f"SELECT * FROM andon_{name}")
        return [dict(zip(columns, row, strict=True)) for row in rows]


def _named(cursor: Any) -> list[promises.Row]:
    columns = [one.name for one in cursor.description or ()]
    return [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]


def compared(name: str, rows: list[promises.Row]) -> list[str]:
    without = COUNTED.get(name, set())
    kept = [
        {column: _plain(value) for column, value in row.items() if column not in without}
        for row in rows
    ]
    return sorted(json.dumps(row, sort_keys=True) for row in kept)


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | float) and value is not None:
        return round(float(value), 6)
    return value


def _differences(one: list[str], other: list[str]) -> str:
    """The columns that differ, if the rows can be matched to each other; otherwise the rows."""
    here, there = sorted(set(one) - set(other)), sorted(set(other) - set(one))
    if len(here) != len(there):
        return f"SQLite has {here}, PostgreSQL {there}"
    pairs = [(json.loads(a), json.loads(b)) for a, b in zip(here, there, strict=True)]
    found = [
        f"{a.get('id') or a.get('run_id')} {column}: SQLite {a[column]!r}, PostgreSQL {b[column]!r}"
        for a, b in pairs
        for column in a
        if a[column] != b[column]
    ]
    return "; ".join(found)


def shown(outcome: Any, *, hints: bool = True) -> str:
    """An answer in the form that is compared: the runs of a claim in any order."""
    if isinstance(outcome, Exception):
        return f"{type(outcome).__name__}: {outcome}"
    if hasattr(outcome, "runs"):
        told = sorted(map(repr, outcome.notices))
        runs = sorted(map(repr, outcome.runs))
        wake_in = None if outcome.wake_in is None or not hints else round(outcome.wake_in, 3)
        rest = outcome.returned, outcome.drain, sorted(outcome.recalled), outcome.halted
        return repr((runs, wake_in, told, rest))
    return repr(round(outcome, 6) if isinstance(outcome, float) else outcome)
