"""andon beside the raw limit of the same store, measured in the same run.

    make bench                       (or: python bench/bench.py [--quick] [--json])

Compare ratios, not absolutes: disks and neighbours differ. Raw is one row of 1 KB in its own
durable commit, through the same driver, on the same disk, interleaved with the steps it is
compared with. Each number is the median of its rounds.
"""

import argparse
import asyncio
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import agents
from leaving import leaving

from andon.runtime import requests
from andon.runtime.client import Client
from andon.runtime.worker import Worker
from andon.settings import Settings
from andon.store import open_store
from andon.store.rows import Filter

Row = tuple[str, str, str, str]


def raw_sqlite(folder: Path) -> Callable[[int], float]:
    import apsw

    db = apsw.Connection(str(folder / "raw.db"))
    for pragma in ("journal_mode = WAL", "synchronous = FULL"):
        db.execute(f"PRAGMA {pragma}").fetchall()
    db.execute("CREATE TABLE raw (number INTEGER PRIMARY KEY, body TEXT)").fetchall()
    numbers = iter(range(10**9))
    return _timed(lambda: db.execute("INSERT INTO raw VALUES (?, ?)", (next(numbers), agents.KB)))


def raw_postgres(url: str) -> Callable[[int], float]:
    import psycopg

    db = psycopg.connect(url, autocommit=True, prepare_threshold=1)
    db.execute("CREATE TABLE raw (number BIGINT PRIMARY KEY, body TEXT)")
    numbers = iter(range(10**9))
    return _timed(lambda: db.execute("INSERT INTO raw VALUES (%s, %s)", (next(numbers), agents.KB)))


def _timed(commit: Callable[[], Any]) -> Callable[[int], float]:
    def measure(count: int) -> float:
        times = []
        for _ in range(count):
            began = time.perf_counter()
            commit()
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    return measure


async def one_run(url: str, raw: Callable[[int], float], rounds: int) -> list[Row]:
    """A durable step in one run, one after the other, beside the raw commit."""
    rows = []
    async with Client(url) as client:
        for name, plain in (("async function", False), ("plain function", True)):
            raws, ours = [], []
            for _ in range(rounds):
                raws.append(raw(200))
                times = await client.run(agents.sequential, 200, plain)
                ours.append(statistics.median(times))
            ratio = statistics.median(o / r for o, r in zip(ours, raws, strict=True))
            rows.append(
                (
                    f"one durable step, 1 KB, {name}",
                    f"{statistics.median(ours) * 1e6:.0f} µs",
                    f"{statistics.median(raws) * 1e6:.0f} µs",
                    f"{ratio:.2f}×",
                )
            )
    return rows


async def many_runs(url: str, raw: Callable[[int], float], rounds: int) -> Row:
    """100 concurrent runs of 50 steps in one process."""
    store, rates, raws = open_store(url), [], []
    left = 0
    done = asyncio.Event()

    def settled(_run: str, _ending: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            done.set()

    settings = Settings(concurrency=100, store=url)
    chosen: Counter[str] = Counter()
    async with Worker(store, [agents.steps], settings, only=chosen, on_settled=settled) as worker:
        for _ in range(rounds):
            raws.append(1 / raw(100))
            ids = {requests.start(store, agents.steps, (50,)) for _ in range(100)}
            left, worker.only = len(ids), Counter(ids)
            done.clear()
            began = time.perf_counter()
            worker.wake()
            await done.wait()
            rates.append(5000 / (time.perf_counter() - began))
    store.close()
    ours, one_by_one = statistics.median(rates), statistics.median(raws)
    return (
        "100 runs × 50 steps, one process",
        f"{ours:,.0f} steps/s",
        f"{one_by_one:,.0f} commits/s",
        f"{ours / one_by_one:.1f}×",
    )


def recovery(url: str, folder: Path, rounds: int) -> list[Row]:
    """From SIGKILL in the middle of an effect until the run goes on elsewhere."""
    log = folder / "log"
    log.touch()
    environ = {**os.environ, "BENCH_LOG": str(log)}
    store, workers = open_store(url), {}

    def spawn() -> None:
        process = subprocess.Popen([sys.executable, agents.__file__, url], env=environ)
        workers[process.pid] = process
        _line(log, f"ready-{process.pid} ")

    times, repeated = [], 0
    try:
        spawn()
        spawn()
        for number in range(rounds):
            requests.start(store, agents.interrupted, (number,))
            victim = int(_line(log, f"acted-{number} ").split()[2])
            killed = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            times.append(float(_line(log, f"went-on-{number} ").split()[1]) - killed)
            workers.pop(victim).wait()
            repeated += log.read_text().count(f"acted-{number} ") - 1
            spawn()
    finally:
        for process in workers.values():
            process.kill()
            process.wait()
        store.close()
    ordered = sorted(times)
    return [
        (
            f"SIGKILL → the run goes on ({rounds}×)",
            f"{statistics.median(times) * 1e3:.0f} ms",
            f"worst {ordered[-1] * 1e3:.0f} ms",
            f"{repeated} effects repeated",
        )
    ]


def _line(log: Path, start: str) -> str:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for line in log.read_text().splitlines():
            if line.startswith(start):
                return line
        time.sleep(0.001)
    raise SystemExit(f"waited 60 s for {start!r}")


async def resume(url: str, count: int) -> Row:
    """A run with many finished steps is loaded, verified, replayed, and finishes one more."""
    agents.GATE, agents.PAUSED = asyncio.Event(), asyncio.Event()
    async with Client(url) as client:
        run_id = await client.start(agents.long, count)
        task = asyncio.ensure_future(client.run(agents.long, count, id=run_id))
        await agents.PAUSED.wait()
        task.cancel()
    agents.GATE.set()
    async with Client(url) as client:
        began = time.perf_counter()
        await client.run(agents.long, count, id=run_id)
        took = time.perf_counter() - began
    return (f"resume after {count:,} finished steps", f"{took:.2f} s", "", "")


async def suspended(url: str, count: int) -> Row:
    """What runs that wait for an event cost the worker that executed them."""
    store = open_store(url)
    settings = Settings(concurrency=50, store=url)
    async with Worker(store, [agents.waiting], settings, only=None) as worker:
        await _suspend(store, worker, 100)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        await _suspend(store, worker, count)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        held = len(worker.attempts)
    store.close()
    return (f"{count:,} suspended runs", f"+{grown / 1024:.1f} MB", "", f"{held} held in memory")


async def _suspend(store: Any, worker: Worker, count: int) -> None:
    ids = {requests.start(store, agents.waiting) for _ in range(count)}
    worker.wake()
    while ids:
        await asyncio.sleep(0.02)
        asleep = store.runs(Filter(states=("suspended",), agent="waiting", limit=100_000))
        ids -= {row.id for row in asleep}


def measure(url: str, raw: Callable[[int], float], folder: Path, quick: bool) -> list[Row]:
    rounds = 3 if quick else 7
    rows = asyncio.run(one_run(url, raw, rounds))
    rows.append(asyncio.run(many_runs(url, raw, rounds)))
    rows += recovery(url, folder, 5 if quick else 20)
    rows += leaving(url, folder, 2 if quick else 5)
    rows.append(asyncio.run(resume(url, 1_000 if quick else 10_000)))
    rows.append(asyncio.run(suspended(url, 200 if quick else 1_000)))
    return rows


def show(store: str, rows: list[Row]) -> None:
    print(f"\n{store}\n")
    head: Row = ("what", "andon", "raw, same run", "ratio")
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(4)]
    for row in [head, *rows]:
        print("  " + "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    from andon.testing.postgres import Cluster

    found: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory(prefix="andon-bench-") as name, Cluster() as cluster:
        for store in ("SQLite", "PostgreSQL"):
            folder = Path(name, store)
            folder.mkdir()
            agents.LOG = folder / "log"
            if store == "SQLite":
                url, raw = f"sqlite:///{folder}/andon.db", raw_sqlite(folder)
            else:
                url = cluster.fresh_database()
                raw = raw_postgres(url)
            print(f"measuring {store} …", file=sys.stderr)
            found[store] = measure(url, raw, folder, given.quick)
            if not given.json:
                show(store, found[store])
    if given.json:
        print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
