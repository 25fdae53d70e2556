"""The operations of simulated agents: one word of a script is one thing that an agent does."""

import asyncio
import contextlib
from typing import Any

import andon
from andon.core.lease import Fence
from andon.core.queue import Retry
from andon.errors import StepFailed
from verify.simulated.world import the_world

RETRIES = Retry(8, first_seconds=0.1, most_seconds=1.0)
# Of a step that always fails, and of an agent that does.
STEP_RETRIES = Retry(2, first_seconds=0.1, most_seconds=1.0)
AGENT_RETRIES = Retry(1, first_seconds=0.1, most_seconds=1.0)
PIECES = 4  # of a step that saves its partial progress
# "At least once a second", with room for a commit.
KEPT_SECONDS = 1.1
# The longest outlasts every try to cancel it.
STUBBORN_SECONDS = (0.3, 3.0, 12.0)
# Until a program that an effect started acts; the longest outlasts a lease.
PROGRAM_SECONDS = (0.02, 0.3, 1.5, 6.0)
HURRY_SECONDS = 0.06  # about as long as an effect takes
# Long enough that its snapshot is stored in parts, in blocks of them too.
LINES, LINE = 40, "line {} of {} " + "." * 200
SHORT_LINES = 1100  # stored in blocks of blocks


class Shorter(Exception):
    """The code has changed: the agent ends here."""


async def pass_time(most_seconds: float = 0.05) -> None:
    await asyncio.sleep(the_world().fleet.chance.uniform(0.0, most_seconds))


async def work(key: str, number: int) -> int:
    the_world().step(key)
    await pass_time()
    return number * 2


def plain_work(key: str, number: int) -> int:
    the_world().executes(key)
    the_world().step(key)
    return number * 2


async def use(key: str, number: int, drawn: str) -> int:
    the_world().uses(key, drawn)
    return await work(key, number)


async def resist(key: str, number: int) -> int:
    """Resists cancellation: an attempt is over only after it has ended."""
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
    await pass_time()
    raise ValueError("as always")


async def kill(key: str) -> None:
    """Kills the executing worker."""
    the_world().deadly(key)


async def act(what: str, key: str, fence: Fence) -> str:
    """With room for a kill or a freeze on both sides, and answers that are lost."""
    world = the_world()
    with world.inside(key, fence):
        await pass_time()
        if world.fleet.strikes("provider error"):
            raise world.fleet.chance.choice(
                (ConnectionError("nothing was sent"), andon.did_not_happen("it was refused"))
            )
        world.act(what, key, fence)
        await pass_time()
        if world.fleet.strikes("provider error"):
            raise ConnectionError("the answer was lost")
    return key


@andon.effect_of(kind="idempotent")
async def idempotent(*, key: str, fence: Fence) -> str:
    return await act("idempotent", key, fence)


async def find(*, key: str) -> Any:
    await pass_time()
    world = the_world()
    if world.fleet.strikes("provider error"):
        return andon.unknown()
    there = world.standing.get(key)
    world.fleet.tell(world.fleet.current, f"probes {key}: {bool(there)}")
    return andon.happened(key) if there else andon.did_not_happen()


@andon.effect_of(probe=find)
async def probeable(*, key: str, fence: Fence) -> str:
    return await act("probeable", key, fence)


async def take_back(result: Any, *, key: str, fence: Fence) -> None:
    # Started by another attempt: it is undone so that it can be done for certain.
    world = the_world()
    with world.inside(key, fence, ("undoing", "started")):
        world.look_at_given(key, result)
        await pass_time()
        if world.refuses(key) or world.fleet.strikes("provider error"):
            raise ConnectionError("nothing was undone")
        world.undo(key, fence)
        await pass_time()
        if world.fleet.strikes("provider error"):
            raise ConnectionError("the answer was lost")


@andon.effect_of(undo=take_back)
async def compensatable(*, key: str, fence: Fence) -> str:
    return await act("compensatable", key, fence)


def plain_take_back(result: Any, *, key: str, fence: Fence) -> None:
    the_world().look_at_given(key, result)
    the_world().undo(key, fence)


@andon.effect_of(undo=plain_take_back)
def plain_compensatable(*, key: str, fence: Fence) -> str:
    """In a thread, which nothing can end."""
    the_world().act("compensatable", key, fence)
    return key


@andon.effect_of(probe=find)
def plain_probeable(*, key: str, fence: Fence) -> str:
    the_world().act("probeable", key, fence)
    return key


async def act_apart(what: str, key: str, fence: Fence) -> str:
    """Acts through a program that does not end with its caller."""
    world = the_world()
    with world.inside(key, fence):
        await pass_time()
        seconds = world.fleet.chance.choice(PROGRAM_SECONDS)
        child = world.fleet.children.start(what, key, fence, seconds)
        world.fleet.pass_point("a program is started")
        if world.fleet.strikes("provider error"):
            raise ConnectionError("nobody waits for the program")
        if await child.over:
            raise ConnectionError("the program was ended")
    return key


@andon.effect_of(probe=find)
async def launched_probeable(*, key: str, fence: Fence) -> str:
    return await act_apart("probeable", key, fence)


@andon.effect_of(undo=take_back)
async def launched_compensatable(*, key: str, fence: Fence) -> str:
    return await act_apart("compensatable", key, fence)


async def launched_irreversible(*, key: str, fence: Fence) -> str:
    return await act_apart("irreversible", key, fence)


async def irreversible(*, key: str, fence: Fence) -> str:
    return await act("irreversible", key, fence)


def plain_irreversible(*, key: str, fence: Fence) -> str:
    the_world().act("irreversible", key, fence)
    return key


_ALL = (
    idempotent,
    probeable,
    plain_probeable,
    compensatable,
    plain_compensatable,
    irreversible,
    plain_irreversible,
    launched_probeable,
    launched_compensatable,
    launched_irreversible,
)
KINDS = {one.__name__: one for one in _ALL}


async def effect(ctx: andon.Context, what: str, number: int, seconds: float | None = None) -> Any:
    key = f"{ctx.run_id}/{what}-{number}"
    return await ctx.effect(KINDS[what], key=key, retries=RETRIES, timeout=seconds)


async def step(ctx: andon.Context, number: int, function: Any = work, tail: str = "") -> Any:
    name = f"step-{number}{tail}"
    found = await ctx.step(function, f"{ctx.run_id}/{name}", number, name=name)
    the_world().answered(f"{ctx.run_id}/{name}")
    return found


async def events(ctx: andon.Context, number: int) -> list[Any]:
    """Two of one name, while another branch works: each message is for one of them."""
    name = f"event-{number}"
    *found, _ = await asyncio.gather(ctx.event(name), ctx.event(name), step(ctx, number))
    return sorted(found)


async def race(ctx: andon.Context, number: int) -> int:
    """The next operation depends on which of two was first: on replay it must be the same one."""
    both = [asyncio.ensure_future(step(ctx, number + more)) for more in (0, 100)]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    tail = "".join("x" if one.done() else "-" for one in both)
    await step(ctx, number + 200, tail=tail)
    return sum(await asyncio.gather(*both))


async def hurry(ctx: andon.Context, number: int) -> None:
    """The agent's own code limits its wait for an effect: on replay the limit is the same again."""
    try:
        async with asyncio.timeout(HURRY_SECONDS):
            await effect(ctx, "irreversible", number + 100)
    except TimeoutError:
        await step(ctx, number, tail="late")
        await effect(ctx, "irreversible", number + 100)  # now with patience
    else:
        await step(ctx, number, tail="in-time")


async def abandon(ctx: andon.Context, number: int) -> None:
    """The code never asks for it again: its outcome is known before the run ends."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(HURRY_SECONDS):
            await effect(ctx, "irreversible", number + 100)


async def leave_behind(ctx: andon.Context, number: int) -> int:
    """A step that nothing waits for: the run does not end before it."""
    alone = asyncio.ensure_future(step(ctx, number))
    found: int = await step(ctx, number + 100)
    the_world().left.append(alone)
    return found


async def snapshot(ctx: andon.Context, state: list[Any]) -> None:
    await ctx.snapshot(state)
    the_world().saved(ctx.run_id)


async def keep(ctx: andon.Context, number: int, before: list[Any]) -> Any:
    """The same effect before and after a snapshot is one effect."""
    found = await effect(ctx, "irreversible", number)
    await snapshot(ctx, [*before, found])
    return await effect(ctx, "irreversible", number)


async def grow(ctx: andon.Context, before: list[Any], new: list[str]) -> list[str]:
    """A state in parts, twice: parts that the first snapshot sent are not sent again."""
    await snapshot(ctx, [*before, new])
    await snapshot(ctx, [*before, new])
    return new


def lines(number: int) -> list[str]:
    if number % 2:
        return [str(line) for line in range(SHORT_LINES)]
    return [LINE.format(line, number) for line in range(LINES)]


async def join(ctx: andon.Context, number: int) -> list[Any]:
    """A result that shares its commit with the next entry: both are durable before it acts."""
    name, then = f"step-{number}", f"step-{number + 100}"
    key = f"{ctx.run_id}/{name}"
    if not number % 2:
        then = f"idempotent-{number + 100}"
    the_world().acknowledges[f"{ctx.run_id}/{then}"] = key
    async with ctx.together():
        first = await ctx.step(work, key, number, name=name)
        if number % 2:
            again = f"{ctx.run_id}/{then}"
            return [first, await ctx.step(work, again, number + 100, name=then)]
        return [first, await effect(ctx, "idempotent", number + 100)]


async def in_pieces(ctx: andon.Context, key: str) -> list[int]:
    """A long step that resumes from its partial progress."""
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


async def give_up(ctx: andon.Context, number: int) -> str:
    try:
        await ctx.step(fail, f"{ctx.run_id}/flaky-{number}", name="flaky", retries=STEP_RETRIES)
    except StepFailed:
        return "given up"
    return "succeeded"


async def change(ctx: andon.Context, number: int) -> None:
    """Code that has changed when it is replayed. The journal holds no answer to it."""
    world, name = the_world(), f"step-{number}"
    key = f"{ctx.run_id}/{name}"
    known = key in world.known
    if known and number % 3 == 0:  # its name
        await step(ctx, number, tail="other")
    elif known and number % 3 == 1:  # its arguments
        await ctx.step(work, key, number + 1, name=name)
    elif known:
        raise Shorter
    else:
        await step(ctx, number)
    if known:
        world.wrong(f"{key} answers what is another step now")
    await ctx.sleep(1.0)


async def draw(ctx: andon.Context, number: int) -> Any:
    """A random value that is acted upon."""
    name = f"step-{number}"
    return await ctx.step(use, f"{ctx.run_id}/{name}", number, ctx.uuid(), name=name)


async def pair(ctx: andon.Context, number: int) -> list[Any]:
    return list(await asyncio.gather(step(ctx, number), effect(ctx, "idempotent", number + 100)))


async def fail_run(ctx: andon.Context, _: int) -> None:
    the_world().record("failed", f"{ctx.run_id}/agent")
    raise ValueError("as always")
