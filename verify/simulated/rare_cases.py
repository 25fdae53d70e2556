"""Words of scripts for rare cases: one key twice, shields, the user's tables."""

import asyncio
from functools import partial
from typing import Any

import andon
from andon.core.lease import Fence
from andon.errors import StepFailed
from verify.simulated.agents import (
    RETRIES,
    STEP_RETRIES,
    effect,
    pass_time,
    snapshot,
    step,
    work,
)
from verify.simulated.world import attempt, the_world

SLOW = 1.2  # of the most that a thread takes, twice: to begin, and to end
DWELL_SECONDS = 0.6
SHIELD_SECONDS = (3.0, 0.1)
LARGE = 70_000  # such a result is no part of its entry


async def twins(ctx: andon.Context, number: int) -> list[Any]:
    """Two branches with one key at once: the second gets the result of the first."""
    name = f"step-{number}"
    call = partial(ctx.step, work, f"{ctx.run_id}/{name}", number, name=name, key=name)
    acts = [effect(ctx, "irreversible", number + 100) for _ in range(2)]
    return list(await asyncio.gather(*acts, call(), call()))


async def slow(ctx: andon.Context, number: int) -> Any:
    """A thread that exceeds its limit goes on, and may yet act."""
    seconds = the_world().fleet.thread_seconds * SLOW
    return await effect(ctx, slow_kind(number), number + 100, seconds)


def slow_kind(number: int) -> str:
    return "plain_compensatable" if number % 2 else "plain_probeable"


@andon.effect_of(kind="pure")
async def nameless(who: str, *, key: str, fence: Fence) -> str:
    the_world().named(who, key)
    await pass_time()
    return who


async def unkeyed(ctx: andon.Context, number: int) -> list[str]:
    """Two effects whose keys andon chooses."""
    who = f"{ctx.run_id}/unkeyed-{number}"
    return [await ctx.effect(nameless, f"{who}.{one}") for one in range(2)]


@andon.effect_of(kind="idempotent")
async def refused(*, key: str, fence: Fence) -> None:
    await pass_time()
    raise andon.did_not_happen("as always")


async def hopeless(ctx: andon.Context, number: int) -> str:
    """An effect that never happens is tried as often as it may be."""
    key = f"{ctx.run_id}/refused-{number}"
    try:
        await ctx.effect(refused, key=key, name="hopeless", retries=STEP_RETRIES)
    except StepFailed:
        return "given up"
    return "succeeded"


async def fail_once(key: str, number: int) -> int:
    the_world().fails_once(key)
    return await work(key, number)


async def once(ctx: andon.Context, number: int) -> Any:
    """A step that fails the agent: when the agent is tried again, so is the step."""
    return await step(ctx, number, fail_once)


async def dwell(key: str, number: int) -> int:
    the_world().step(key)
    await pass_time(DWELL_SECONDS)
    return number * 2


async def shielded(ctx: andon.Context, number: int) -> int:
    """A block that a polite stop waits for, as long as the block's limit allows."""
    world, seconds = the_world(), SHIELD_SECONDS[number % 2]
    found = 0
    with world.shield(ctx.run_id, seconds):
        async with ctx.shield("block", at_most=seconds):
            for more in range(0, 600, 100):
                found += await step(ctx, number + more, dwell)
                await pass_time(DWELL_SECONDS)  # the agent's own code
    return found


async def tidy(ctx: andon.Context, number: int) -> Any:
    """A clean-up runs once, the last one registered first."""
    for one in range(2):
        name = f"{number}.{one}"
        the_world().untidy(ctx.run_id, name)
        ctx.cleanup(the_world().tidied, ctx.run_id, attempt.get(), name)
    return await step(ctx, number)


def book(connection: Any, key: str, number: int) -> int:
    """To a table of the user's, which the same commit writes."""
    world = the_world()
    connection.execute("INSERT INTO booked (key) VALUES (?)", (key,))
    if world.fleet.strikes("provider error"):
        raise ConnectionError("it is taken back")
    return number * 2


async def booked(ctx: andon.Context, number: int) -> list[Any]:
    name = f"booked-{number}"
    key = f"{ctx.run_id}/{name}"
    booking = ctx.transaction(book, key, number, name=name, retries=RETRIES)
    return list(await asyncio.gather(step(ctx, number), booking, step(ctx, number + 100)))


async def write_much(key: str, number: int) -> str:
    await work(key, number)
    return large(number)


def large(number: int) -> str:
    return f"{number}." * (LARGE // 2)


async def forget(ctx: andon.Context, number: int) -> None:
    """Code that does not read its own snapshot: nothing from before it may begin again."""
    await step(ctx, number)
    await snapshot(ctx, [])
    await ctx.sleep(1.0)
