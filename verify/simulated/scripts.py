"""The words of scripts, and the answer of a run of them."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import andon
from andon.errors import StepFailed
from andon.runtime.agent import Agent
from verify.simulated import agents, rare_cases, waits
from verify.simulated.agents import AGENT_RETRIES, KINDS, PIECES, effect, lines, snapshot, step
from verify.simulated.world import attempt

UNDOABLE = [name for name in KINDS if "compensatable" in name]
# The script of a child run.
CHILDREN = {"child": ["idempotent", "step"], "heir": ["fail"]}


def child_of(run_id: str, number: int) -> str:
    return f"{run_id}.{number}"


async def _child(ctx: andon.Context, number: int) -> Any:
    return await ctx.child(AGENT, CHILDREN["child"], id=child_of(ctx.run_id, number))


async def _heir(ctx: andon.Context, number: int) -> Any:
    """A child that fails: its error is no result."""
    try:
        return await ctx.child(AGENT, CHILDREN["heir"], id=child_of(ctx.run_id, number))
    except StepFailed:
        return "failed"


_DO: dict[str, Callable[[andon.Context, int], Awaitable[Any]]] = {
    "step": step,
    "plain": lambda ctx, number: step(ctx, number, agents.plain_work),
    "stubborn": lambda ctx, number: step(ctx, number, agents.resist),
    "large": lambda ctx, number: step(ctx, number, rare_cases.write_much),
    "sleep": waits.nap,
    "naps": waits.naps,
    "event": lambda ctx, number: ctx.event(f"event-{number}"),
    "events": agents.events,
    "impatient": waits.impatient,
    "ask": waits.ask,
    "child": _child,
    "heir": _heir,
    "pair": agents.pair,
    "twins": rare_cases.twins,
    "change": agents.change,
    "draw": agents.draw,
    "race": agents.race,
    "hurry": agents.hurry,
    "slow": rare_cases.slow,
    "unkeyed": rare_cases.unkeyed,
    "abandon": agents.abandon,
    "behind": agents.leave_behind,
    "joined": agents.join,
    "booked": rare_cases.booked,
    "shielded": rare_cases.shielded,
    "tidy": rare_cases.tidy,
    "pieces": lambda ctx, number: ctx.step(
        partial(agents.in_pieces, ctx), f"{ctx.run_id}/step-{number}", name="pieces"
    ),
    "flaky": agents.give_up,
    "hopeless": rare_cases.hopeless,
    "once": rare_cases.once,
    "forgetful": rare_cases.forget,
    "fail": agents.fail_run,
    "poison": lambda ctx, number: ctx.step(
        agents.kill, f"{ctx.run_id}/deadly-{number}", name="deadly"
    ),
}
_OFTEN = (*KINDS, *_DO, "step", "snapshot", "kept", "long")
# A process that dies takes everybody's time, and others kill it too.
WORDS = ("poison", *[word for word in _OFTEN if word != "poison"] * 3)
# Code that does not fit its journal any more; a person gives its run up.
UNFIT = ("change", "forgetful")


async def scripted(ctx: andon.Context, script: list[str]) -> list[Any]:
    """Does everything the script says, one word after the other."""
    attempt.set(ctx.attempt)
    results: list[Any] = [] if "forgetful" in script else ctx.restored or []
    for number, what in enumerate(script):
        if number < len(results):
            if what == "kept":
                await effect(ctx, "irreversible", number)
            continue
        if what == "snapshot":
            results.append(None)
            await snapshot(ctx, results)
        elif what == "kept":
            results.append(await agents.keep(ctx, number, results))
        elif what == "long":
            results.append(await agents.grow(ctx, results, lines(number)))
        elif what in KINDS:
            results.append(await effect(ctx, what, number))
        else:
            try:
                results.append(await _DO[what](ctx, number))
            except agents.Shorter:
                return []
    return results


AGENT: Agent = Agent(scripted, name="scripted", retries=AGENT_RETRIES)


def happens(number: int, what: str) -> str | None:
    """The effect that a word stands for, if any, without the run's id."""
    if what == "pair" or (what == "joined" and not number % 2):
        return f"idempotent-{number + 100}"
    if what in ("kept", "hurry", "twins"):
        return f"irreversible-{number if what == 'kept' else number + 100}"
    if what == "slow":
        return f"{rare_cases.slow_kind(number)}-{number + 100}"
    return f"{what}-{number}" if what in KINDS else None


def expected(run_id: str, script: list[str]) -> list[Any]:
    """The answer of a run in which nothing was lost or half done."""

    def one(number: int, what: str) -> Any:
        effect, twice = f"{run_id}/{happens(number, what)}", number * 2
        if what in KINDS or what in ("kept", "slow"):
            return effect
        if what == "child":
            return expected(child_of(run_id, number), CHILDREN["child"])
        known: dict[str, Any] = {
            **dict.fromkeys(("step", "plain", "stubborn", "draw", "naps", "once", "tidy"), twice),
            "large": rare_cases.large(number),
            "event": 0,
            "events": [0, 1],
            "impatient": 0,
            "heir": "failed",
            "pair": [twice, effect],
            "twins": [effect, effect, twice, twice],
            "joined": [twice, twice + 200 if number % 2 else effect],
            "race": number * 4 + 200,
            "behind": twice + 200,
            "shielded": number * 12 + 3000,
            "booked": [twice, twice, twice + 200],
            "unkeyed": [f"{run_id}/unkeyed-{number}.{one}" for one in range(2)],
            "pieces": list(range(PIECES)),
            "flaky": "given up",
            "hopeless": "given up",
            "long": lines(number),
        }
        return known.get(what)

    return [one(number, what) for number, what in enumerate(script)]
