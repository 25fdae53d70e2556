"""The physical limit: the least work of a durable system, on the same database and disk.

A step is one row of 1 KB, found by its run and number, in its own durable commit; many runs share
the commit of all waiting steps (one statement, no timer); a start is an insert and the claim that
finds it. No fence, no journal, no replay, no agent. docs/decisions/0018 says why the row has a key.
"""

import asyncio
import itertools
import statistics
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import apsw
import psycopg
from scenes import RESULT
from system import Absent, System, main

Row = tuple[str, int, str]


class SqliteTable:
    insert = "INSERT INTO steps VALUES (?, ?, ?)"
    enqueue = "INSERT INTO queue (state) VALUES ('queued')"
    claim = """UPDATE queue SET state = 'running' WHERE id =
        (SELECT id FROM queue WHERE state = 'queued' ORDER BY id LIMIT 1) RETURNING id"""

    def __init__(self, system: System) -> None:
        self._db = apsw.Connection(str(system.sqlite))
        for pragma in ("journal_mode = WAL", "synchronous = FULL"):
            self._db.execute(f"PRAGMA {pragma}").fetchall()
        self._db.execute(
            """CREATE TABLE IF NOT EXISTS steps (
                run TEXT, seq INTEGER, result TEXT, PRIMARY KEY (run, seq));
            CREATE TABLE IF NOT EXISTS queue (id INTEGER PRIMARY KEY, state TEXT);
            CREATE INDEX IF NOT EXISTS queued ON queue (id) WHERE state = 'queued'"""
        )
        self.execute = self._db.execute

    def write(self, rows: list[Row]) -> None:
        if len(rows) == 1:
            self._db.execute(self.insert, rows[0])
            return
        with self._db:
            self._db.executemany(self.insert, rows)

    def fill(self, count: int) -> None:
        self._db.execute(
            """WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?)
            INSERT INTO queue (state) SELECT 'done' FROM n""",
            (count,),
        )


class PostgresTable:
    insert = "INSERT INTO steps VALUES (%b, %b, %b)"
    many = "INSERT INTO steps SELECT * FROM unnest(%b::text[], %b::bigint[], %b::text[])"
    enqueue = "INSERT INTO queue (state) VALUES ('queued')"
    claim = """UPDATE queue SET state = 'running' WHERE id =
        (SELECT id FROM queue WHERE state = 'queued' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
        RETURNING id"""

    def __init__(self, system: System) -> None:
        self._db = psycopg.connect(system.postgres, autocommit=True, prepare_threshold=1)
        self._db.execute(
            """CREATE TABLE IF NOT EXISTS steps (
                run text, seq bigint, result text, PRIMARY KEY (run, seq));
            CREATE TABLE IF NOT EXISTS queue (id bigserial PRIMARY KEY, state text);
            CREATE INDEX IF NOT EXISTS queued ON queue (id) WHERE state = 'queued'"""
        )
        self.execute = self._db.execute

    def write(self, rows: list[Row]) -> None:
        if len(rows) == 1:
            self._db.execute(self.insert, rows[0])
        else:
            self._db.execute(self.many, [list(column) for column in zip(*rows, strict=True)])

    def fill(self, count: int) -> None:
        self._db.execute(
            "INSERT INTO queue (state) SELECT 'done' FROM generate_series(1, %b::bigint)", (count,)
        )


class GroupCommit:
    """One thread that writes all waiting steps."""

    def __init__(self, write: Callable[[list[Row]], None]) -> None:
        self._write, self._loop = write, asyncio.get_running_loop()
        self._queue: SimpleQueue[tuple[Row, asyncio.Future[None]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    async def step(self, row: Row) -> None:
        written = self._loop.create_future()
        self._queue.put((row, written))
        await written

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            batch = [first]
            while not self._queue.empty() and (another := self._queue.get()) is not None:
                batch.append(another)
            self._write([row for row, _ in batch])
            self._loop.call_soon_threadsafe(_tell, [written for _, written in batch])


def _tell(waiters: list[Any]) -> None:
    for one in waiters:
        one.set_result(None)


class Raw(System):
    def open(self) -> dict[str, str]:
        self.table = SqliteTable(self) if self.store == "sqlite" else PostgresTable(self)
        self._names = (f"run-{number}" for number in itertools.count())
        if self.store == "sqlite":
            return {"SQLite": apsw.sqlite_lib_version()}
        row = self.table.execute("SHOW server_version").fetchone()
        return {"PostgreSQL": row[0].split()[0], "psycopg": psycopg.__version__}

    def worker(self, concurrency: int) -> Any:
        raise Absent("it executes nothing")

    def _timed(self, work: Callable[[], Any], count: int) -> list[float]:
        times = []
        for _ in range(count):
            began = time.perf_counter()
            work()
            times.append(time.perf_counter() - began)
        return sorted(times)

    def steps(self, count: int) -> dict[str, Any]:
        run, seq = next(self._names), itertools.count()
        times = self._timed(lambda: self.table.write([(run, next(seq), RESULT)]), count)
        return {"step": statistics.median(times), "p99": times[int(0.99 * (count - 1))]}

    def plain(self, count: int) -> dict[str, Any]:
        return {"plain": self.steps(count)["step"]}

    def crowd(self, runs: int, steps: int, workers: int = 1) -> dict[str, Any]:
        if workers > 1:
            raise Absent("the limit of one connection")
        return {"rate": runs * steps / asyncio.run(self._crowd(runs, steps))}

    async def _crowd(self, runs: int, steps: int) -> float:
        group = GroupCommit(self.table.write)

        async def run(name: str) -> None:
            for number in range(steps):
                await group.step((name, number, RESULT))

        began = time.perf_counter()
        await asyncio.gather(*(run(name) for name in itertools.islice(self._names, runs)))
        took = time.perf_counter() - began
        group.close()
        return took

    def latency(self, count: int) -> dict[str, Any]:
        def start() -> None:
            self.table.execute(self.table.enqueue)
            called.append(time.perf_counter() - began)
            list(self.table.execute(self.table.claim))

        starts, called = [], list[float]()
        for _ in range(count):
            time.sleep(0.01)
            began = time.perf_counter()
            start()
            starts.append(time.perf_counter() - began)
        return {"start": statistics.median(starts), "enqueue": statistics.median(called)}

    def short(self, count: int) -> dict[str, Any]:
        """A run of one step in three groups of commits: enqueue, claim, end with the result."""
        return {"rate": self.crowd(100, max(1, 3 * count // 100))["rate"] / 3}

    def storage(self, steps: int, messages: int) -> dict[str, Any]:
        before, run = self.size(), next(self._names)
        self.table.write([(run, number, RESULT) for number in range(steps)])
        return {"per step": (self.size() - before) / steps}

    def fill(self, count: int) -> None:
        self.table.fill(count)


if __name__ == "__main__":
    main(Raw)
