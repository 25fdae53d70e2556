"""What simulated agents are made of: one word of a script is one thing that an agent does."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import andon
from andon.core.lease import Fence
from andon.core.queue import Retry
from andon.errors import StepFailed
from andon.runtime.agent import Agent
from verify.simulated.outside import attempt, the_world

RETRIES = Retry(8, first_seconds=0.1, most_seconds=1.0)
# Of a step that always fails, and of an agent that does.
STEP_RETRIES = Retry(2, first_seconds=0.1, most_seconds=1.0)
AGENT_RETRIES = Retry(1, first_seconds=0.1, most_seconds=1.0)
PIECES = 4  # of a step that keeps its partial progress
# "At least once a second", with room for a commit.
KEPT_SECONDS = 1.1
# The longest outlasts every try to cancel it.
STUBBORN_SECONDS = (0.3, 3.0, 12.0)
HURRY_SECONDS = 0.06  # about as long as an effect takes
# So long that a snapshot of it is in parts, in blocks of them too.
LINES, LINE = 40, "line {} of {} " + "." * 200


async def _pass(most_seconds: float = 0.05) -> None:
    await asyncio.sleep(the_world().fleet.chance.uniform(0.0, most_seconds))


async def work(key: str, number: int) -> int:
    the_world().step(key)
    await _pass()
    return number * 2


def plain_work(key: str, number: int) -> int:
    the_world().executes(key)
    the_world().step(key)
    return number * 2


async def use(key: str, number: int, drawn: str) -> int:
    the_world().uses(key, drawn)
    return await work(key, number)


async def resist(key: str, number: int) -> int:
    """Does not let itself be cancelled: whoever says that it has stopped has to wait for it."""
    world, loop = the_world(), asyncio.get_running_loop()
    world.step(key)
    end = loop.time() + world.fleet.chance.choice(STUBBORN_SECONDS)
    while (left := end - loop.time()) > 0:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(left)
        world.executes(key)
    return number * 2


async def fail(key: str) -> None:
    the_world().record("failed", key)
    await _pass()
    raise ValueError("as always")


async def kill(key: str) -> None:
    """Whoever executes it is gone."""
    the_world().deadly(key)


async def _act(what: str, key: str, fence: Fence) -> str:
    """With room to be killed or frozen on both sides of it, and answers that are lost."""
    world = the_world()
    with world.inside(key, fence):
        await _pass()
        if world.fleet.strikes("provider error"):
            raise ConnectionError("nothing was sent")
        world.act(what, key, fence)
        await _pass()
        if world.fleet.strikes("provider error"):
            raise ConnectionError("the answer was lost")
    return key


@andon.effect_of(kind="idempotent")
async def idempotent(*, key: str, fence: Fence) -> str:
    return await _act("idempotent", key, fence)


async def find(*, key: str) -> Any:
    await _pass()
    world = the_world()
    there = world.standing.get(key)
    world.fleet.tell(world.fleet.current, f"probes {key}: {bool(there)}")
    return andon.happened(key) if there else andon.did_not_happen()


@andon.effect_of(probe=find)
async def probeable(*, key: str, fence: Fence) -> str:
    return await _act("probeable", key, fence)


async def take_back(result: Any, *, key: str, fence: Fence) -> None:
    # Started: somebody else's, which is undone so that it can be done for certain.
    with the_world().inside(key, fence, ("undoing", "started")):
        await _pass()
        the_world().undo(key, fence)
        await _pass()


@andon.effect_of(undo=take_back)
async def compensatable(*, key: str, fence: Fence) -> str:
    return await _act("compensatable", key, fence)


@andon.effect_of(undo=take_back)
def plain_compensatable(*, key: str, fence: Fence) -> str:
    """In a thread, which nobody can end."""
    the_world().act("compensatable", key, fence)
    return key


async def irreversible(*, key: str, fence: Fence) -> str:
    return await _act("irreversible", key, fence)


def plain_irreversible(*, key: str, fence: Fence) -> str:
    the_world().act("irreversible", key, fence)
    return key


_ALL = (
    idempotent,
    probeable,
    compensatable,
    plain_compensatable,
    irreversible,
    plain_irreversible,
)
KINDS = {one.__name__: one for one in _ALL}
UNDOABLE = [name for name in KINDS if "compensatable" in name]

# What a run that was started by another one does.
CHILD = ["idempotent", "step"]


def child_of(run_id: str, number: int) -> str:
    return f"{run_id}.{number}"


async def _effect(ctx: andon.Context, what: str, number: int) -> Any:
    return await ctx.effect(KINDS[what], key=f"{ctx.run_id}/{what}-{number}", retries=RETRIES)


async def _step(ctx: andon.Context, number: int, function: Any = work, tail: str = "") -> Any:
    name = f"step-{number}{tail}"
    found = await ctx.step(function, f"{ctx.run_id}/{name}", number, name=name)
    the_world().answered(f"{ctx.run_id}/{name}")
    return found


async def _events(ctx: andon.Context, number: int) -> list[Any]:
    """Two of one name, while another branch works: each letter is for one of them."""
    name = f"event-{number}"
    *found, _ = await asyncio.gather(ctx.event(name), ctx.event(name), _step(ctx, number))
    return sorted(found)


async def _race(ctx: andon.Context, number: int) -> int:
    """What comes next depends on which of two was first: on replay it must be the same one."""
    both = [asyncio.ensure_future(_step(ctx, number + more)) for more in (0, 100)]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    tail = "".join("x" if one.done() else "-" for one in both)
    await _step(ctx, number + 200, tail=tail)
    return sum(await asyncio.gather(*both))


async def _hurry(ctx: andon.Context, number: int) -> None:
    """An effect that the agent's own code waits for only so long: on replay the same again."""
    try:
        async with asyncio.timeout(HURRY_SECONDS):
            await _effect(ctx, "irreversible", number + 100)
    except TimeoutError:
        await _step(ctx, number, tail="late")
        await _effect(ctx, "irreversible", number + 100)  # now with patience
    else:
        await _step(ctx, number, tail="in-time")


async def _abandon(ctx: andon.Context, number: int) -> None:
    """One that the code never asks for again: it is known what became of it before the run ends."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(HURRY_SECONDS):
            await _effect(ctx, "irreversible", number + 100)


async def _leave_behind(ctx: andon.Context, number: int) -> int:
    """A step that nobody waits for: the run does not end before it has."""
    alone = asyncio.ensure_future(_step(ctx, number))
    found: int = await _step(ctx, number + 100)
    the_world().left.append(alone)
    return found


async def _snapshot(ctx: andon.Context, state: list[Any]) -> None:
    await ctx.snapshot(state)
    the_world().saved(ctx.run_id)


async def _keep(ctx: andon.Context, number: int, before: list[Any]) -> Any:
    """The same effect before and after a snapshot is one effect."""
    found = await _effect(ctx, "irreversible", number)
    await _snapshot(ctx, [*before, found])
    return await _effect(ctx, "irreversible", number)


async def _grow(ctx: andon.Context, before: list[Any], new: list[str]) -> list[str]:
    """A state in parts, and again: what the one before it had is not sent once more."""
    await _snapshot(ctx, [*before, new])
    await _snapshot(ctx, [*before, new])
    return new


def lines(number: int) -> list[str]:
    return [LINE.format(line, number) for line in range(LINES)]


async def _join(ctx: andon.Context, number: int) -> list[Any]:
    """A result that shares its commit with the intent after it: both are there before it acts."""
    name = f"step-{number}"
    key, then = f"{ctx.run_id}/{name}", f"{ctx.run_id}/idempotent-{number + 100}"
    the_world().acknowledges[then] = key
    async with ctx.together():
        first = await ctx.step(work, key, number, name=name)
        return [first, await _effect(ctx, "idempotent", number + 100)]


async def _pieces(ctx: andon.Context, key: str) -> list[int]:
    """A long step that goes on from what it had."""
    world = the_world()
    found: list[int] = ctx.partial or []
    world.went_on(key, found)
    for piece in range(len(found), PIECES):
        found = [*found, piece]
        ctx.checkpoint(found)
        world.keeps(key, found)
        seconds = world.fleet.chance.choice((0.1, 0.1, KEPT_SECONDS))
        await asyncio.sleep(seconds)
        if seconds == KEPT_SECONDS:
            world.look_at_kept(key, found)
    return found


async def _give_up(ctx: andon.Context, number: int) -> str:
    try:
        await ctx.step(fail, f"{ctx.run_id}/flaky-{number}", name="flaky", retries=STEP_RETRIES)
    except StepFailed:
        return "given up"
    return "succeeded"


async def _change(ctx: andon.Context, number: int) -> None:
    """Code that has changed when it is replayed. What the journal has is no answer to it."""
    world, key = the_world(), f"{ctx.run_id}/step-{number}"
    known = key in world.known
    await _step(ctx, number, tail="other" if known else "")
    if known:
        world.wrong(f"{key} answers what is another step now")
    await ctx.sleep(1.0)


async def _draw(ctx: andon.Context, number: int) -> Any:
    """A value of chance that is acted upon."""
    name = f"step-{number}"
    return await ctx.step(use, f"{ctx.run_id}/{name}", number, ctx.uuid(), name=name)


async def _pair(ctx: andon.Context, number: int) -> list[Any]:
    return list(await asyncio.gather(_step(ctx, number), _effect(ctx, "idempotent", number + 100)))


async def _fail(ctx: andon.Context, _: int) -> None:
    the_world().record("failed", f"{ctx.run_id}/agent")
    raise ValueError("as always")


_DO: dict[str, Callable[[andon.Context, int], Awaitable[Any]]] = {
    "step": _step,
    "plain": lambda ctx, number: _step(ctx, number, plain_work),
    "stubborn": lambda ctx, number: _step(ctx, number, resist),
    "sleep": lambda ctx, _: ctx.sleep(1.0),
    "event": lambda ctx, number: ctx.event(f"event-{number}"),
    "events": _events,
    "child": lambda ctx, number: ctx.child(AGENT, CHILD, id=child_of(ctx.run_id, number)),
    "pair": _pair,
    "change": _change,
    "draw": _draw,
    "race": _race,
    "hurry": _hurry,
    "abandon": _abandon,
    "behind": _leave_behind,
    "joined": _join,
    "pieces": lambda ctx, number: ctx.step(
        partial(_pieces, ctx), f"{ctx.run_id}/step-{number}", name="pieces"
    ),
    "flaky": _give_up,
    "fail": _fail,
    "poison": lambda ctx, number: ctx.step(kill, f"{ctx.run_id}/deadly-{number}", name="deadly"),
}
_OFTEN = (*KINDS, *_DO, "step", "snapshot", "kept", "long")
# A process that dies takes everybody's time, and others kill it too.
WORDS = ("poison", *[word for word in _OFTEN if word != "poison"] * 3)


async def scripted(ctx: andon.Context, script: list[str]) -> list[Any]:
    """Does what the script says, one after the other."""
    attempt.set(ctx.attempt)
    results: list[Any] = ctx.restored or []
    for number, what in enumerate(script):
        if number < len(results):
            if what == "kept":
                await _effect(ctx, "irreversible", number)
            continue
        if what == "snapshot":
            results.append(None)
            await _snapshot(ctx, results)
        elif what == "kept":
            results.append(await _keep(ctx, number, results))
        elif what == "long":
            results.append(await _grow(ctx, results, lines(number)))
        elif what in KINDS:
            results.append(await _effect(ctx, what, number))
        else:
            results.append(await _DO[what](ctx, number))
    return results


AGENT: Agent = Agent(scripted, name="scripted", retries=AGENT_RETRIES)


def happens(number: int, what: str) -> str | None:
    """The effect that a word means, if it does, without the run's id."""
    if what in ("pair", "joined"):
        return f"idempotent-{number + 100}"
    if what in ("kept", "hurry"):
        return f"irreversible-{number if what == 'kept' else number + 100}"
    return f"{what}-{number}" if what in KINDS else None


def expected(run_id: str, script: list[str]) -> list[Any]:
    """What a run answers if nothing of it was lost or done by halves."""

    def one(number: int, what: str) -> Any:
        effect = f"{run_id}/{happens(number, what)}"
        if what in KINDS or what == "kept":
            return effect
        if what == "child":
            return expected(child_of(run_id, number), CHILD)
        known: dict[str, Any] = {
            "step": number * 2,
            "plain": number * 2,
            "stubborn": number * 2,
            "draw": number * 2,
            "event": 0,
            "events": [0, 1],
            "pair": [number * 2, effect],
            "joined": [number * 2, effect],
            "race": number * 4 + 200,
            "behind": number * 2 + 200,
            "pieces": list(range(PIECES)),
            "flaky": "given up",
            "long": lines(number),
        }
        return known.get(what)

    return [one(number, what) for number, what in enumerate(script)]
