"""The agents of the chaos tests. Each tells the world which attempt of it is acting."""

import asyncio
import os
from collections.abc import Awaitable
from typing import Any

from tests.chaos import world

import andon
from andon.core.queue import Retry
from andon.points import POINTS

STEPS = int(os.environ.get("CHAOS_STEPS", "20"))
EFFECTS = int(os.environ.get("CHAOS_EFFECTS", "5"))
SOON = Retry(3, first_seconds=0.005)


async def step(ctx: andon.Context, number: int, function: Any = world.step) -> Any:
    """A step with a unique name, so that lines of the world and of the journal can be matched."""
    name = f"step-{number}"
    return await ctx.step(function, f"{ctx.run_id}/{name}", number, name=name)


async def effect(ctx: andon.Context, function: Any, number: int = 0, **options: Any) -> Any:
    key = f"{ctx.run_id}/{function.__name__}-{number}"
    return await ctx.effect(function, ctx.run_id, key=key, **options)


@andon.agent
async def chaos(ctx: andon.Context) -> list[int]:
    """Many steps and effects of every kind."""
    world.attempt.set(ctx.attempt)
    world.record("begun", ctx.run_id)
    results = []
    every = max(1, STEPS // EFFECTS)
    for number in range(STEPS):
        function = world.plain_step if number % 4 == 3 else world.step
        results.append(await step(ctx, number, function))
        if number % every == 0 and number // every < EFFECTS:
            await ctx.effect(world.pure, ctx.run_id)
            for kind in world.KINDS:
                await effect(ctx, kind, number)
    await ctx.transaction(world.enter_tally, ctx.run_id)
    world.record("ended", f"{ctx.run_id}@{os.getpid()}")
    return results


@andon.agent
async def brief(ctx: andon.Context) -> Any:
    """One step that is in hand for a while, and nothing after it."""
    world.attempt.set(ctx.attempt)
    world.record("begun", ctx.run_id)
    found = await step(ctx, 0, world.slow_step)
    world.record("ended", f"{ctx.run_id}@{os.getpid()}")
    return found


@andon.agent
async def tour(ctx: andon.Context) -> list[Any]:
    """A short run that passes every point of andon.points."""
    world.attempt.set(ctx.attempt)
    results = [await step(ctx, 0), await step(ctx, 1, world.plain_step)]
    results += await asyncio.gather(step(ctx, 2), step(ctx, 3))
    await ctx.effect(world.pure, ctx.run_id)
    for function in (*world.KINDS, world.plain_irreversible):
        await effect(ctx, function)
    await effect(ctx, world.shaky_probeable, retries=SOON)
    await effect(ctx, world.shaky_compensatable, retries=SOON)
    await ctx.sleep(0.01)
    results.append(await ctx.event("go"))
    results.append((await ctx.ask("Go on?", 7)).value)
    results.append(await ctx.child(leaf, 5))
    results.append(await step(ctx, 4))
    return results


# The points that a run passes when it is not stopped, drained or undone.
TOURS = {"writer", "claim", "attempt", "step", "effect", "wait"}
TOURED = tuple(name for name in POINTS if name.split(":")[0] in TOURS)
TOUR = [0, 2, 4, 6, "went", 7, 10, 8]


@andon.agent
async def leaf(ctx: andon.Context, number: int) -> Any:
    """A child with one step."""
    world.attempt.set(ctx.attempt)
    return await step(ctx, number)


@andon.agent
async def sequence(ctx: andon.Context) -> list[Any]:
    """Numbered steps in sequence: each begins when the one before is durable."""
    world.attempt.set(ctx.attempt)

    async def write() -> Any:
        ctx.checkpoint([1, 2, 3])
        return await world.step(f"{ctx.run_id}/step-4", 4)

    results: list[Any] = []

    async def take(work: Awaitable[Any]) -> None:
        """Record that the agent has received a result; it must be durable even if the process dies
        now.
        """
        results.append(await work)
        world.record("given", f"{ctx.run_id}/number-{len(results) - 1}")

    await take(step(ctx, 0))
    await take(effect(ctx, world.idempotent, 1))
    await take(step(ctx, 2, world.plain_step))
    await take(effect(ctx, world.probeable, 3))
    await take(ctx.step(write, name="step-4"))
    await take(effect(ctx, world.compensatable, 5))
    await take(step(ctx, 6, world.large_step))
    results[-1] = len(results[-1])
    await take(effect(ctx, world.irreversible, 7))
    await take(step(ctx, 8))
    await ctx.transaction(world.enter_tally, ctx.run_id)
    await take(step(ctx, 9))
    return [one.rpartition("/")[2] if isinstance(one, str) else one for one in results]


SEQUENCE = [0, "idempotent-1", 4, "probeable-3", 8, "compensatable-5", 70_000]
SEQUENCE += ["irreversible-7", 16, 18]


@andon.agent
async def held(ctx: andon.Context) -> list[Any]:
    """A run that stays in its second step until the test lets it continue."""
    world.attempt.set(ctx.attempt)
    return [await step(ctx, 0), await step(ctx, 1, world.held_step), await step(ctx, 2)]


@andon.agent
async def acting(ctx: andon.Context, kind: str) -> list[Any]:
    """A step, one effect of the given kind, a step."""
    world.attempt.set(ctx.attempt)
    first = await step(ctx, 0)
    await effect(ctx, getattr(world, kind))
    return [first, await step(ctx, 1)]


@andon.agent
async def steady(ctx: andon.Context, steps: int) -> list[Any]:
    world.attempt.set(ctx.attempt)
    return [await step(ctx, number) for number in range(steps)]


@andon.agent
async def poison(ctx: andon.Context) -> Any:
    """Kills its worker each time, after one good step."""
    world.attempt.set(ctx.attempt)
    await step(ctx, 0)
    return await ctx.step(world.deadly_step, f"{ctx.run_id}/deadly", 1, name="deadly")


@andon.agent
async def climber(ctx: andon.Context, steps: int) -> list[Any]:
    """Kills its worker at every step, but only once at each."""
    world.attempt.set(ctx.attempt)
    return [await step(ctx, number, world.deadly_once) for number in range(steps)]


@andon.agent(retries=Retry(1, first_seconds=0.01))
async def fragile(ctx: andon.Context) -> list[Any]:
    """Loses its worker three times, then fails once; it has one retry."""
    world.attempt.set(ctx.attempt)
    found = [await step(ctx, number, world.deadly_once) for number in range(3)]
    if not world.count("failed", ctx.run_id):
        world.record("failed", ctx.run_id)
        raise ValueError("once")
    return found


@andon.agent
async def long(ctx: andon.Context, steps: int) -> int:
    """Very many steps, then a wait."""
    world.attempt.set(ctx.attempt)
    total = 0
    for start in range(0, steps, 500):
        calls = [ctx.step(_double, number) for number in range(start, min(start + 500, steps))]
        total += sum(await asyncio.gather(*calls))
    await ctx.event("go")
    return total


async def _double(number: int) -> int:
    return number * 2


@andon.agent
async def saga(ctx: andon.Context) -> None:
    """Books three things and fails."""
    world.attempt.set(ctx.attempt)
    for number in range(3):
        await effect(ctx, world.bookable, number)
        await step(ctx, number)
    raise ValueError("no further")


async def _write_on(ctx: andon.Context, words: int) -> list[int]:
    """A long step that saves its partial progress, like one that streams an answer."""
    written: list[int] = ctx.partial or []
    while len(written) < words:
        world.record("word", f"{ctx.run_id}/{len(written)}")
        written = [*written, len(written)]
        ctx.checkpoint(written)
        await world.wait_for_flag("go") if len(written) == 3 else await asyncio.sleep(0.001)
    return written


@andon.agent
async def batch(ctx: andon.Context, items: int) -> int:
    """One step, of which each execution gets one item further, and then does not end."""

    async def work() -> int:
        done = ctx.partial or 0
        if done < items:
            ctx.checkpoint(done + 1)
            await asyncio.Event().wait()
        return int(done)

    return int(await ctx.step(work))


@andon.agent
async def stuck(ctx: andon.Context) -> None:
    """One step, which reaches the same item each time."""

    async def stick() -> None:
        ctx.checkpoint("the same")
        await asyncio.Event().wait()

    await ctx.step(stick)


@andon.agent
async def author(ctx: andon.Context, words: int) -> list[int]:
    world.attempt.set(ctx.attempt)

    async def write() -> list[int]:
        return await _write_on(ctx, words)

    found: list[int] = await ctx.step(write)
    return found


@andon.agent
async def waiting(ctx: andon.Context) -> Any:
    return await ctx.event("go")


ALL = (
    chaos,
    brief,
    tour,
    leaf,
    sequence,
    held,
    acting,
    steady,
    poison,
    climber,
    fragile,
    long,
    saga,
    author,
    batch,
    stuck,
    waiting,
)
