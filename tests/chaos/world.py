"""The outside world of the chaos tests, and an agent with every kind of effect that acts on it.

The world is one append-only file: a line for everything that really happened. It is written with
single appends, so that a killed process leaves whole lines, and it is read by the checker only;
the runtime's own word counts for nothing.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

import andon

WORLD = Path(os.environ.get("CHAOS_WORLD", "/nonexistent"))
STEPS = int(os.environ.get("CHAOS_STEPS", "20"))
EFFECTS = int(os.environ.get("CHAOS_EFFECTS", "5"))


def record(line: str) -> None:
    descriptor = os.open(WORLD / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def happened_before(line: str) -> bool:
    path = WORLD / "log"
    return path.exists() and f"{line}\n" in path.read_text()


async def step(run: str, number: int) -> int:
    record(f"step {run} {number} {os.getpid()}")
    return number * 2


def plain_step(run: str, number: int) -> int:
    record(f"step {run} {number} {os.getpid()}")
    return number * 2


@andon.effect_of(kind="pure")
async def pure(run: str, number: int) -> str:
    return f"{run}/{number}"


@andon.effect_of(kind="idempotent")
async def idempotent(run: str, *, key: str) -> str:
    """A provider that knows keys: creating the file decides, once, who was first."""
    try:
        os.close(os.open(WORLD / key.replace("/", "_"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return key
    record(f"idempotent {key}")
    return key


async def find(run: str, *, key: str) -> Any:
    return andon.happened(key) if happened_before(f"probeable {key}") else andon.did_not_happen()


@andon.effect_of(probe=find)
async def probeable(run: str, *, key: str) -> str:
    record(f"probeable {key}")
    await asyncio.sleep(0.002)
    return key


async def take_back(result: Any, run: str, *, key: str) -> None:
    record(f"undone {key}")


@andon.effect_of(undo=take_back)
async def compensatable(run: str, *, key: str) -> str:
    record(f"compensatable {key}")
    await asyncio.sleep(0.002)
    return key


async def irreversible(run: str, *, key: str) -> str:
    record(f"irreversible {key}")
    await asyncio.sleep(0.002)
    return key


KINDS = (idempotent, probeable, compensatable, irreversible)


@andon.agent
async def chaos(ctx: andon.Context) -> list[int]:
    run, results = ctx.run_id, []
    for number in range(STEPS):
        function = plain_step if number % 4 == 3 else step
        results.append(await ctx.step(function, run, number))
        if number % max(1, STEPS // EFFECTS) == 0 and number // max(1, STEPS // EFFECTS) < EFFECTS:
            await ctx.effect(pure, run, number)
            for effect in KINDS:
                await ctx.effect(effect, run, key=f"{run}/{effect.__name__}/{number}")
    return results
