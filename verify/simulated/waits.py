"""Words of scripts that wait: for times, events and people."""

import asyncio
from typing import Any

import andon
from andon.errors import Unresolved
from verify.simulated.agents import step
from verify.simulated.world import the_world

NAP_SECONDS, LONG_SECONDS = 1.0, 30.0
IMPATIENT_SECONDS = 0.3
TRIES = 3
EXPIRES_SECONDS = 2.0  # about as often as the person looks


async def nap(ctx: andon.Context, number: int) -> None:
    await _sleep(ctx, f"nap-{number}", NAP_SECONDS)


async def naps(ctx: andon.Context, number: int) -> int:
    """Two at once: the shorter one wakes the run."""

    async def short() -> int:
        await _sleep(ctx, f"short-{number}", NAP_SECONDS + 1)
        the_world().in_time(f"{ctx.run_id}/short-{number}", LONG_SECONDS)
        found: int = await step(ctx, number)
        return found

    found, _ = await asyncio.gather(short(), _sleep(ctx, f"long-{number}", LONG_SECONDS))
    return found


async def _sleep(ctx: andon.Context, name: str, seconds: float) -> None:
    key = f"{ctx.run_id}/{name}"
    the_world().lies_down(key)
    await ctx.sleep(seconds)
    the_world().slept(key, seconds)


async def impatient(ctx: andon.Context, number: int) -> Any:
    """Waits with a limit, and again: a message that came in that moment is not lost."""
    name = f"event-{number}"
    for tries in range(TRIES):
        the_world().fleet.send_late(ctx.run_id, number, IMPATIENT_SECONDS)
        try:
            async with asyncio.timeout(IMPATIENT_SECONDS):
                return await ctx.event(name)
        except TimeoutError:
            await step(ctx, number, tail=f"late-{tries}")
    return await ctx.event(name)


async def ask(ctx: andon.Context, number: int) -> None:
    """The code gets the person's answer; and on replay the same, or again nothing."""
    question = f"{ctx.run_id}/question-{number}"
    the_world().lies_down(question)
    try:
        said = await ctx.ask(question, number, expires=EXPIRES_SECONDS if number % 2 else None)
    except Unresolved:
        the_world().slept(question, EXPIRES_SECONDS)
        await step(ctx, number, tail="unanswered")
    else:
        the_world().got_answer(question, said.decision, said.value)
        await step(ctx, number, tail=said.decision)
