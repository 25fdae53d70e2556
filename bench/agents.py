"""The agents that bench.py measures, and the worker process it kills."""

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import andon
from andon.runtime.worker import Worker
from andon.settings import Settings
from andon.store import open_store

KB = "x" * 1000
LOG = Path(os.environ.get("BENCH_LOG", "/nonexistent"))


def note(what: str) -> None:
    """One line in the world's log: what happened, and when (one clock for all processes)."""
    with LOG.open("a") as log:
        log.write(f"{what} {time.monotonic()} {os.getpid()}\n")


async def body(number: int) -> str:
    return KB


def plain_body(number: int) -> str:
    return KB


@andon.agent
async def sequential(ctx: andon.Context, steps: int, plain: bool = False) -> list[float]:
    """Times each durable step."""
    function, times = plain_body if plain else body, []
    for number in range(steps):
        began = time.perf_counter()
        await ctx.step(function, number)
        times.append(time.perf_counter() - began)
    return times


@andon.agent
async def steps(ctx: andon.Context, count: int) -> None:
    for number in range(count):
        await ctx.step(body, number)


@andon.agent
async def waiting(ctx: andon.Context) -> None:
    await ctx.step(body, 0)
    await ctx.event("never")


GATE, PAUSED = asyncio.Event(), asyncio.Event()


@andon.agent
async def long(ctx: andon.Context, count: int) -> None:
    """Many steps, then a gate that is shut the first time."""
    for number in range(count):
        await ctx.step(body, number)
    PAUSED.set()
    await GATE.wait()
    await ctx.step(body, count)


def found(round_: int, *, key: str) -> Any:
    acted = f"acted-{round_} " in LOG.read_text()
    return andon.happened() if acted else andon.did_not_happen()


@andon.effect_of(probe=found)
async def act(round_: int, *, key: str) -> None:
    note(f"acted-{round_}")
    await asyncio.sleep(30)  # killed here: it has acted, and nobody has confirmed it


async def go_on(round_: int) -> None:
    note(f"went-on-{round_}")


@andon.agent
async def interrupted(ctx: andon.Context, round_: int) -> None:
    await ctx.effect(act, round_, key=f"round-{round_}")
    await ctx.step(go_on, round_)


@andon.agent
async def novel(ctx: andon.Context, words: int) -> dict[str, int]:
    """One long step that keeps what it has."""
    begun = None

    async def write() -> int:
        nonlocal begun
        begun = written = ctx.partial or 0
        while written < words:
            await asyncio.sleep(0.1)
            written += 1
            ctx.checkpoint(written)
        return written

    return {"words": await ctx.step(write), "from": begun or 0}


async def work(url: str) -> None:
    async with Worker(open_store(url), [interrupted], Settings(store=url)):
        note("ready-" + str(os.getpid()))
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
