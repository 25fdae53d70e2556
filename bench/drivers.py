"""Which PostgreSQL driver should andon use: psycopg 3 or asyncpg?

    python bench/drivers.py [--rounds N] [--uvloop] [postgresql://...]

Needs `asyncpg`, which andon itself does not. Without a URL a private server is started; with one,
the schema `bench_drivers` is created there and dropped again.

The variants of a measurement take turns in every round, in an order that changes. A figure is the
median over the rounds (of the medians within a round, where a round is many calls). A ratio is
taken within a round, against the first variant of the measurement, and is the median over the
rounds, so that a slow moment of the machine hits both sides of it; half of the rounds lie within
the range beside it. CPU is that of this process only: driver, event loop and hand-off, not the
server.
"""

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from statistics import median, quantiles
from typing import Any, LiteralString, NamedTuple
from urllib.parse import urlsplit

import asyncpg  # type: ignore[import-untyped]
import psycopg

from andon.testing.postgres import Cluster

sys.path.pop(0)  # this folder, in which `bench` would be bench.py
sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.pooler import Pooler

COROUTINES = 100
STEPS = 50  # of each coroutine
CALLS = 100  # in a round, where one call is one step
BODY = json.dumps([{"role": "tool", "name": "search", "content": "x" * 80}] * 8)  # 1 KB

SCHEMA = """
DROP SCHEMA IF EXISTS bench_drivers CASCADE;
CREATE SCHEMA bench_drivers;
CREATE TABLE bench_drivers.raw (body text NOT NULL);
CREATE TABLE bench_drivers.runs (
    id bigint PRIMARY KEY, fence bigint NOT NULL, head_seq bigint NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE bench_drivers.journal (
    run bigint, seq bigint, body text NOT NULL, PRIMARY KEY (run, seq)
);
"""
RESET = """
TRUNCATE bench_drivers.raw, bench_drivers.runs, bench_drivers.journal;
INSERT INTO bench_drivers.runs SELECT id, 1, 0 FROM generate_series(0, 99) AS id;
"""
INSERT = "INSERT INTO bench_drivers.raw (body) VALUES ($1::text) RETURNING 1"
STEP = """
WITH head AS (
    UPDATE bench_drivers.runs SET head_seq = head_seq + 1
    WHERE id = $1::bigint AND fence = $2::bigint RETURNING id, head_seq
)
INSERT INTO bench_drivers.journal (run, seq, body) SELECT id, head_seq, $3::text FROM head
RETURNING run, seq
"""
BATCH = """
WITH step AS (
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[]) AS step (id, fence, body)
), head AS (
    UPDATE bench_drivers.runs SET head_seq = head_seq + 1 FROM step
    WHERE runs.id = step.id AND runs.fence = step.fence
    RETURNING runs.id, runs.head_seq, step.body
)
INSERT INTO bench_drivers.journal (run, seq, body) SELECT id, head_seq, body FROM head
RETURNING run, seq
"""

Rows = Sequence[Sequence[Any]]
Block = Callable[[LiteralString, Sequence[object]], Rows]
Execute = Callable[[LiteralString, Sequence[object]], Awaitable[Rows]]
Sample = Callable[[], Awaitable[tuple[float, float]]]
"""One round of one variant: seconds, and seconds of CPU, of one step."""


# Each driver is a function that runs one statement durably and returns its rows.


def in_psycopg(mark: LiteralString = "%b") -> dict[LiteralString, LiteralString]:
    """Translates the statements: `%b` sends parameters in binary, the usual `%s` arrays as text."""
    return {
        sql: sql.replace("$1", mark).replace("$2", mark).replace("$3", mark)
        for sql in (INSERT, STEP, BATCH)
    }


def psycopg_blocking(connection: psycopg.Connection, mark: LiteralString = "%b") -> Block:
    sqls = in_psycopg(mark)
    return lambda sql, arguments: connection.execute(sqls[sql], arguments).fetchall()


def unthreaded(block: Block) -> Execute:
    """Without a thread: it blocks the event loop, which has nothing else to do here."""

    async def execute(sql: LiteralString, arguments: Sequence[object]) -> Rows:
        return block(sql, arguments)

    return execute


def psycopg_in_loop(connection: psycopg.AsyncConnection) -> Execute:
    sqls = in_psycopg()

    async def execute(sql: LiteralString, arguments: Sequence[object]) -> Rows:
        cursor = await connection.execute(sqls[sql], arguments)
        return await cursor.fetchall()

    return execute


def asyncpg_in_loop(connection: asyncpg.Connection) -> Execute:
    async def execute(sql: LiteralString, arguments: Sequence[object]) -> Rows:
        rows: Rows = await connection.fetch(sql, *arguments)
        return rows

    return execute


def asyncpg_in_transaction(connection: asyncpg.Connection) -> Execute:
    async def execute(sql: LiteralString, arguments: Sequence[object]) -> Rows:
        async with connection.transaction():
            rows: Rows = await connection.fetch(sql, *arguments)
        return rows

    return execute


class Connections:
    """Opens connections of both drivers and closes them all at the end."""

    def __init__(self, url: str, stack: contextlib.AsyncExitStack) -> None:
        self._url = url
        self._stack = stack

    def open_psycopg(self, *, threshold: int | None) -> psycopg.Connection:
        connection = psycopg.connect(self._url, autocommit=True, prepare_threshold=threshold)
        return self._stack.enter_context(connection)

    async def open_psycopg_async(self, *, threshold: int | None) -> psycopg.AsyncConnection:
        connection = await psycopg.AsyncConnection.connect(
            self._url, autocommit=True, prepare_threshold=threshold
        )
        return await self._stack.enter_async_context(connection)

    async def open_asyncpg(self, *, cache: int) -> asyncpg.Connection:
        connection = await asyncpg.connect(self._url, statement_cache_size=cache)
        self._stack.push_async_callback(connection.close)
        return connection


# Group commit: the queued steps become one statement and one commit.


class Step(NamedTuple):
    run: int
    body: str
    done: asyncio.Future[int]


def statement(batch: list[Step]) -> tuple[LiteralString, Sequence[object]]:
    if len(batch) == 1:
        return STEP, (batch[0].run, 1, batch[0].body)
    fences = [1] * len(batch)
    return BATCH, ([step.run for step in batch], fences, [step.body for step in batch])


def resolve(batch: list[Step], rows: Rows) -> None:
    heads = {row[0]: row[1] for row in rows}
    for step in batch:
        step.done.set_result(heads[step.run])


class ThreadWriter:
    """A writer thread with a synchronous connection; the loop is woken once per batch."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Step | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def submit(self, run: int, body: str) -> asyncio.Future[int]:
        done = self._loop.create_future()
        self._queue.put(Step(run, body, done))
        return done

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (step := self._queue.get()) is not None:
            batch = [step]
            while not self._queue.empty() and (step := self._queue.get()) is not None:
                batch.append(step)
            rows = self._block(*statement(batch))
            self._loop.call_soon_threadsafe(resolve, batch, rows)


class LoopWriter:
    """A writer task in the event loop with an asynchronous connection."""

    def __init__(self, execute: Execute) -> None:
        self._execute = execute
        self._queue: asyncio.Queue[Step] = asyncio.Queue()
        self._task = asyncio.create_task(self._run())

    def submit(self, run: int, body: str) -> asyncio.Future[int]:
        done = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(Step(run, body, done))
        return done

    def close(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            batch = [await self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get_nowait())
            resolve(batch, await self._execute(*statement(batch)))


Writer = ThreadWriter | LoopWriter


# The samples of a round.


class Rounds:
    """Makes samples on freshly emptied tables, whose server work is therefore the same."""

    def __init__(self, admin: psycopg.Connection) -> None:
        self._admin = admin

    def calls(self, execute: Execute, sql: LiteralString, *arguments: object) -> Sample:
        """One statement after the other."""
        return self._repeated(lambda: execute(sql, arguments))

    def handed(self, writer: Writer) -> Sample:
        """One step after the other through a writer: always a batch of one."""
        return self._repeated(lambda: writer.submit(0, BODY))

    def crowd(self, writer: Writer) -> Sample:
        """Many coroutines, each with its own run, each waiting for a step before the next one."""

        async def steps(run: int) -> None:
            for seq in range(STEPS):
                assert await writer.submit(run, BODY) == seq + 1

        async def sample() -> tuple[float, float]:
            self._admin.execute(RESET)
            wall, cpu = time.perf_counter(), time.process_time()
            await asyncio.gather(*(steps(run) for run in range(COROUTINES)))
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            return wall / COROUTINES / STEPS, cpu / COROUTINES / STEPS

        return sample

    def _repeated(self, call: Callable[[], Awaitable[object]]) -> Sample:
        async def sample() -> tuple[float, float]:
            self._admin.execute(RESET)
            for _ in range(10):
                await call()
            walls = []
            cpu = time.process_time()
            for _ in range(CALLS):
                start = time.perf_counter()
                await call()
                walls.append(time.perf_counter() - start)
            return median(walls), (time.process_time() - cpu) / CALLS

        return sample


def importing(module: str) -> Sample:
    """Import in a fresh interpreter that has asyncio already, as any user of andon has."""
    code = f"""
import asyncio, time
wall, cpu = time.perf_counter(), time.process_time()
import {module}
print(time.perf_counter() - wall, time.process_time() - cpu)
"""

    async def sample() -> tuple[float, float]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=subprocess.PIPE
        )
        output, _ = await process.communicate()
        wall, cpu = map(float, output.split())
        return wall, cpu

    return sample


# The table.


class Line(NamedTuple):
    what: str
    variant: str
    micros: str = ""
    per_second: str = ""
    cpu: str = ""
    ratio: str = ""
    range: str = ""
    cpu_ratio: str = ""
    note: str = ""


HEAD = Line(
    "measurement", "variant", "µs", "per s", "CPU s/1000", "time ×", "range ×", "CPU ×", "note"
)


async def compare(what: str, samples: dict[str, Sample], rounds: int) -> list[Line]:
    names = list(samples)
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            results[name].append(await samples[name]())
        print(f"{what}: round {turn + 1} of {rounds}", file=sys.stderr)
    lines = []
    for name in names:
        pairs = list(zip(results[name], results[names[0]], strict=True))
        seconds, cpu = (median(mine[i] for mine, _ in pairs) for i in (0, 1))
        ratios, cpu_ratios = ([mine[i] / base[i] for mine, base in pairs] for i in (0, 1))
        low, _, high = quantiles(ratios, n=4)
        line = Line(
            what,
            name,
            f"{seconds * 1e6:,.0f}",
            f"{1 / seconds:,.0f}",
            f"{cpu * 1e3:.3f}",
            f"{median(ratios):.2f}",
            f"{low:.2f}-{high:.2f}",
            f"{median(cpu_ratios):.2f}",
        )
        lines.append(line)
    return lines


def print_table(lines: list[Line]) -> None:
    widths = [max(map(len, column)) for column in zip(HEAD, *lines, strict=True)]
    what = ""
    for line in [HEAD, *lines]:
        if line.what != what:
            print()
        shown = line._replace(what="") if line.what == what else line
        cells = [
            cell.ljust(width) if name in ("measurement", "variant", "note") else cell.rjust(width)
            for name, cell, width in zip(HEAD, shown, widths, strict=True)
        ]
        print("  ".join(cells).rstrip())
        what = line.what


# The measurements.


@contextlib.asynccontextmanager
async def writers(connections: Connections) -> AsyncIterator[dict[str, Writer]]:
    cached = asyncpg_in_loop(await connections.open_asyncpg(cache=100))
    uncached = asyncpg_in_loop(await connections.open_asyncpg(cache=0))
    native = psycopg_in_loop(await connections.open_psycopg_async(threshold=0))
    prepared = connections.open_psycopg(threshold=0)
    unprepared = connections.open_psycopg(threshold=None)
    texts = connections.open_psycopg(threshold=None)
    opened: dict[str, Writer] = {
        "psycopg thread, unprepared": ThreadWriter(psycopg_blocking(unprepared)),
        "psycopg thread, unprepared, %s": ThreadWriter(psycopg_blocking(texts, "%s")),
        "psycopg thread, prepared": ThreadWriter(psycopg_blocking(prepared)),
        "psycopg in loop, prepared": LoopWriter(native),
        "asyncpg in loop, prepared": LoopWriter(cached),
        "asyncpg in loop, cache 0": LoopWriter(uncached),
    }
    try:
        yield opened
    finally:
        for writer in opened.values():
            writer.close()


async def direct(url: str, rounds: int) -> list[Line]:
    async with contextlib.AsyncExitStack() as stack:
        connections = Connections(url, stack)
        make = Rounds(connections.open_psycopg(threshold=None))
        unprepared = connections.open_psycopg(threshold=None)
        prepared = connections.open_psycopg(threshold=0)
        uncached = await connections.open_asyncpg(cache=0)
        drivers = {
            "psycopg unprepared": unthreaded(psycopg_blocking(unprepared)),
            "psycopg prepared": unthreaded(psycopg_blocking(prepared)),
            "asyncpg prepared": asyncpg_in_loop(await connections.open_asyncpg(cache=100)),
            "asyncpg cache 0": asyncpg_in_loop(uncached),
            "asyncpg cache 0 in transaction": asyncpg_in_transaction(uncached),
        }
        inserts = {name: make.calls(execute, INSERT, BODY) for name, execute in drivers.items()}
        singles = {name: make.calls(execute, STEP, 0, 1, BODY) for name, execute in drivers.items()}
        lines = await compare("1 insert", inserts, rounds)
        lines += await compare("2 fenced step", singles, rounds)
        through = await stack.enter_async_context(writers(connections))
        handed = {name: make.handed(writer) for name, writer in through.items()}
        crowds = {name: make.crowd(writer) for name, writer in through.items()}
        lines += await compare("2 step by writer", handed, rounds)
        lines += await compare(f"3 {COROUTINES} x {STEPS} steps", crowds, rounds)
        return lines


async def pooled(url: str, pooler: Pooler, rounds: int) -> list[Line]:
    """Try every variant behind a pooler, then time those that work (the proxy's cost included)."""
    async with contextlib.AsyncExitStack() as stack:
        make = Rounds(Connections(url, stack).open_psycopg(threshold=None))
        connections = Connections(pooler.url, stack)
        unprepared = connections.open_psycopg(threshold=None)
        standard = connections.open_psycopg(threshold=5)
        cached = await connections.open_asyncpg(cache=100)
        uncached = await connections.open_asyncpg(cache=0)
        drivers = {
            "psycopg unprepared": unthreaded(psycopg_blocking(unprepared)),
            "psycopg default": unthreaded(psycopg_blocking(standard)),
            "asyncpg default": asyncpg_in_loop(cached),
            "asyncpg cache 0": asyncpg_in_loop(uncached),
            "asyncpg cache 0 in transaction": asyncpg_in_transaction(uncached),
        }
        await make.calls(drivers["psycopg unprepared"], STEP, 0, 1, BODY)()
        notes: dict[str, str] = {}
        failed: list[Line] = []
        for name, execute in drivers.items():
            before = pooler.round_trips
            done = 0
            try:
                while done < 20:
                    await execute(STEP, (0, 1, BODY))
                    done += 1
            except (psycopg.Error, asyncpg.PostgresError) as error:
                note = f"fails at call {done + 1}: {type(error).__name__}"
                failed.append(Line("5 step by pooler", name, note=note))
            else:
                notes[name] = f"round trips: {(pooler.round_trips - before) / 20:g}"
        works = {name: make.calls(drivers[name], STEP, 0, 1, BODY) for name in notes}
        lines = await compare("5 step by pooler", works, rounds)
        return [each._replace(note=notes[each.variant]) for each in lines] + failed


async def measure(url: str, rounds: int) -> list[Line]:
    place = urlsplit(url)
    pooler = Pooler(
        place.hostname or "127.0.0.1",
        place.port or 5432,
        user=place.username or "postgres",
        database=place.path.strip("/") or "postgres",
    )
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(SCHEMA)
        try:
            lines = await direct(url, rounds)
            modules = {module: importing(module) for module in ("psycopg", "asyncpg")}
            lines += await compare("4 import", modules, rounds)
            with pooler:
                lines += await pooled(url, pooler, rounds)
        finally:
            admin.execute("DROP SCHEMA bench_drivers CASCADE")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare psycopg and asyncpg for andon's store.")
    parser.add_argument("url", nargs="?", help="a PostgreSQL server; by default a private one")
    parser.add_argument("--rounds", type=int, default=21, help="at least 2")
    parser.add_argument("--uvloop", action="store_true", help="run the event loop on uvloop")
    options = parser.parse_args()
    factory = None
    if options.uvloop:
        import uvloop

        factory = uvloop.new_event_loop
    with contextlib.ExitStack() as stack:
        url = options.url or stack.enter_context(Cluster()).url()
        with asyncio.Runner(loop_factory=factory) as runner:
            lines = runner.run(measure(url, options.rounds))
    print_table(lines)


if __name__ == "__main__":
    main()
