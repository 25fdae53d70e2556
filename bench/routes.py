"""Measures each route of a commit: the same work with the route and without it, in turns.

    python bench/routes.py [--rounds N] [--only turn,halves]

Wall time of durable steps of 1 KB in one process, on SQLite's own disk and on a PostgreSQL on this
machine. The routes are in docs/decisions/0022; the one without it takes the next in that table.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import andon
from andon.settings import Settings
from andon.store.writer import writer as writing
from andon.store.writer.writer import Writer
from andon.testing.postgres import Cluster

BODY = "x" * 1000


@andon.agent
async def steps(ctx: andon.Context, count: int) -> None:
    for _ in range(count):
        await ctx.step(lambda: BODY, name="step")


async def submitted(self: Writer, message: Any) -> Any:
    return await self.submit(message)


def never(self: Writer, items: Any) -> bool:
    return False


def without_writes_at_once() -> Any:
    return mock.patch.object(Writer, "write", submitted)


def without_turns() -> Any:
    return mock.patch.multiple(Writer, _commit_turn=never, _send_turn=never)


def without_halves() -> Any:
    return mock.patch.object(writing, "HALVED", 10**9)


BOTH = ("sqlite", "postgres")
# route: the databases that have it, how many runs, steps of each, and how to do without it
ROUTES: dict[str, tuple[tuple[str, ...], int, int, Callable[[], Any]]] = {
    "at once, 1 run": (BOTH, 1, 2000, without_writes_at_once),
    "turn, 20 runs": (BOTH, 20, 150, without_turns),
    "turn, 100 runs": (BOTH, 100, 50, without_turns),
    "halves, 100 runs": (("postgres",), 100, 50, without_halves),
}


async def seconds(url: str, runs: int, count: int) -> float:
    settings = Settings(store=url, concurrency=runs)
    async with andon.Client(url, settings=settings) as client:
        await asyncio.gather(*(client.run(steps, 1) for _ in range(runs)))  # warm
        began = time.perf_counter()
        await asyncio.gather(*(client.run(steps, count) for _ in range(runs)))
        return time.perf_counter() - began


@contextmanager
def store(kind: str, cluster: Cluster) -> Iterator[str]:
    if kind == "postgres":
        yield cluster.fresh_database()
        return
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        yield f"sqlite:///{folder}/andon.db"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    with Cluster() as cluster:
        cluster.start()
        for name, (kinds, runs, count, patch) in ROUTES.items():
            for kind in kinds if given.only in name else ():
                found: dict[bool, list[float]] = {True: [], False: []}
                for number in range(2 * given.rounds):
                    with store(kind, cluster) as url:
                        if number % 2:
                            with patch():
                                took = asyncio.run(seconds(url, runs, count))
                        else:
                            took = asyncio.run(seconds(url, runs, count))
                    found[number % 2 == 0].append(took / (runs * count) * 1e6)
                have, lack = (statistics.median(found[one]) for one in (True, False))
                print(
                    f"{name:<18} {kind:<9} with {have:7.1f} µs/step  without {lack:7.1f}"
                    f"  ({(lack / have - 1) * 100:+.1f} % without)",
                    flush=True,
                )


if __name__ == "__main__":
    main()
