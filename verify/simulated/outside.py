"""The world outside: what agents do to it, counted by itself, and the person who is asked.

It trusts nothing that the runtime says. Each act is looked at when it happens: whoever acts must
still be the owner as far as it may know, and nobody acts after its stop was proved.
"""

import asyncio
import contextvars
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import andon
from andon.core.lease import Fence
from andon.core.queue import Retry
from andon.errors import AndonError
from andon.runtime import requests
from andon.runtime.agent import Agent

if TYPE_CHECKING:
    from verify.simulated.fleet import Fleet
    from verify.simulated.process import Process

RETRIES = Retry(8, first_seconds=0.1, most_seconds=1.0)
attempt: contextvars.ContextVar[int] = contextvars.ContextVar("attempt", default=0)
_worlds: list["World"] = []  # the last one is in force


class World:
    """What really happened."""

    def __init__(self, fleet: "Fleet") -> None:
        self.fleet = fleet
        self.lines: list[tuple[str, str, int]] = []  # (what, key, attempt), as laws.py takes them
        self.standing: dict[str, int] = {}  # how often an effect happened and was not undone
        self.known: dict[str, int] = {}  # steps whose results an attempt was given, and which one
        self.flying: dict[str, list[Process]] = {}  # who is inside the call of an effect
        self.violations: list[str] = []

    @contextmanager
    def in_force(self) -> Iterator[None]:
        _worlds.append(self)
        try:
            yield
        finally:
            _worlds.pop()

    def record(self, what: str, key: str) -> None:
        self.fleet.current.refuse_dead()
        self.lines.append((what, key, attempt.get()))
        self.fleet.tell(self.fleet.current, f"{what} {key} (attempt {attempt.get()})")

    def wrong(self, text: str) -> None:
        self.fleet.tell(None, f"VIOLATION: {text}")
        self.violations.append(text)

    def step(self, key: str) -> None:
        self.record("step", key)
        # One that was frozen before it began may yet begin: what it writes is refused.
        if attempt.get() > self.known.get(key, attempt.get()):
            self.wrong(f"{key} executes again although its result was given to the agent")

    def answered(self, key: str) -> None:
        self.known.setdefault(key, attempt.get())

    @contextmanager
    def inside(self, key: str, fence: Fence) -> Iterator[None]:
        """The call of an effect: from here on it may happen at any moment."""
        self.fleet.current.refuse_dead()
        self._look_at_owner(self.fleet.current, key, fence)
        with self.underway(key):
            yield

    @contextmanager
    def underway(self, key: str) -> Iterator[None]:
        process = self.fleet.current
        self.flying.setdefault(key, []).append(process)
        try:
            yield
        finally:
            self.flying[key].remove(process)

    def act(self, what: str, key: str, fence: Fence) -> None:
        self._look_at_stops(key, fence)
        if what == "idempotent" and self.standing.get(key):
            return  # the provider knows the key
        self.record(what, key)
        self.standing[key] = self.standing.get(key, 0) + 1
        if self.standing[key] > 1:
            self.wrong(f"{key} happened twice")

    def undo(self, key: str) -> None:
        self.record("undone", key)
        self.standing[key] = 0

    def _look_at_owner(self, process: "Process", key: str, fence: Fence) -> None:
        """Nobody begins an effect after the end of its lease: it must not trust it that long."""
        fleet, run_id = self.fleet, key.partition("/")[0]
        rows = fleet.store.rows(
            "SELECT w.id, w.state, w.lease_until FROM andon_attempts a"
            " JOIN andon_workers w ON w.id = a.worker WHERE a.run_id = ? AND a.fence = ?",
            run_id,
            fence.counter,
        )
        if not rows:
            self.wrong(f"{key} begins under fence {fence}, which nobody was ever given")
            return
        [(worker_id, state, until)] = rows
        over = state == "silent" or until <= fleet.clock.store_now()
        if over and not fleet.jumped_lately():
            self.wrong(f"{worker_id} begins {key} after its lease has ended")

    def _look_at_stops(self, key: str, fence: Fence) -> None:
        run_id = key.partition("/")[0]
        if self.fleet.store.rows(
            "SELECT 1 FROM andon_targets WHERE run_id = ? AND fence = ? AND stage = 'verified'",
            run_id,
            fence.counter,
        ):
            self.wrong(f"{key} happens after its stop was proved")

    def may_happen(self, key: str) -> bool:
        """Whether somebody is still inside the call, or has a thread that is about to be."""
        inside = any(process.alive for process in self.flying.get(key, ()))
        return inside or any(one.threads for one in self.fleet.processes)


def _world() -> World:
    return _worlds[-1]


async def _pass(most_seconds: float = 0.05) -> None:
    await asyncio.sleep(_world().fleet.chance.uniform(0.0, most_seconds))


# ── what agents are made of ───────────────────────────────────────────────────────────────────


async def work(key: str, number: int) -> int:
    _world().step(key)
    await _pass()
    return number * 2


def plain_work(key: str, number: int) -> int:
    _world().step(key)
    return number * 2


async def _act(what: str, key: str, fence: Fence) -> str:
    """With room to be killed or frozen on both sides of it, and answers that are lost."""
    world = _world()
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
    there = _world().standing.get(key)
    _world().fleet.tell(_world().fleet.current, f"probes {key}: {bool(there)}")
    return andon.happened(key) if there else andon.did_not_happen()


@andon.effect_of(probe=find)
async def probeable(*, key: str, fence: Fence) -> str:
    return await _act("probeable", key, fence)


async def take_back(result: Any, *, key: str) -> None:
    with _world().underway(key):
        await _pass()
        _world().undo(key)
        await _pass()


@andon.effect_of(undo=take_back)
async def compensatable(*, key: str, fence: Fence) -> str:
    return await _act("compensatable", key, fence)


async def irreversible(*, key: str, fence: Fence) -> str:
    return await _act("irreversible", key, fence)


def plain_irreversible(*, key: str, fence: Fence) -> str:
    """In a thread, which nobody can end."""
    _world().act("irreversible", key, fence)
    return key


_ALL = (idempotent, probeable, compensatable, irreversible, plain_irreversible)
KINDS = {one.__name__: one for one in _ALL}


# What a run that was started by another one does.
CHILD = ["idempotent", "step"]


def child_of(run_id: str, number: int) -> str:
    return f"{run_id}.{number}"


async def _do(ctx: andon.Context, number: int, what: str) -> Any:
    if what in KINDS:
        key = f"{ctx.run_id}/{what}-{number}"
        return await ctx.effect(KINDS[what], key=key, retries=RETRIES)
    match what:
        case "step" | "plain":
            key, function = f"{ctx.run_id}/step-{number}", work if what == "step" else plain_work
            found = await ctx.step(function, key, number, name=f"step-{number}")
            _world().answered(key)
            return found
        case "sleep":
            return await ctx.sleep(1.0)
        case "event":
            return await ctx.event(f"event-{number}")
        case "child":
            return await ctx.child(AGENT, CHILD, id=child_of(ctx.run_id, number))
        case "pair":
            both = _do(ctx, number, "step"), _do(ctx, number + 100, "idempotent")
            return list(await asyncio.gather(*both))
        case _:
            raise AssertionError(what)


async def scripted(ctx: andon.Context, script: list[str]) -> list[Any]:
    """Does what the script says, one after the other."""
    attempt.set(ctx.attempt)
    results: list[Any] = ctx.restored or []
    for number, what in enumerate(script):
        if number < len(results):
            continue
        if what == "snapshot":
            results.append(None)
            await ctx.snapshot(results)
        else:
            results.append(await _do(ctx, number, what))
    return results


AGENT = Agent(scripted, name="scripted")


def expected(run_id: str, script: list[str]) -> list[Any]:
    """What a run answers if nothing of it was lost or done by halves."""

    def one(number: int, what: str) -> Any:
        if what in KINDS:
            return f"{run_id}/{what}-{number}"
        if what == "pair":
            return [one(number, "step"), one(number + 100, "idempotent")]
        if what == "child":
            return expected(child_of(run_id, number), CHILD)
        return {"step": number * 2, "plain": number * 2, "event": number}.get(what)

    return [one(number, what) for number, what in enumerate(script)]


# ── the person ────────────────────────────────────────────────────────────────────────────────


class Person:
    """Answers asks. A careful one: not before nobody can be acting any more."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.seen: dict[tuple[str, str], float] = {}

    def look(self) -> None:
        fleet = self.world.fleet
        for ask in fleet.store.asks():
            since = self.seen.setdefault((ask.run_id, ask.id), fleet.clock.now)
            if fleet.clock.now - since < fleet.lease_seconds * 1.5:
                continue
            key = ask.id.partition("/")[2].rpartition("#")[0]
            if ask.about == "undo":
                decision, given = "try_again", None
            elif self.world.may_happen(key):
                continue
            elif self.world.standing.get(key):
                decision, given = "happened", key
            else:
                decision, given = "did_not_happen", None
            fleet.tell(None, f"a person says about {key}: {decision}")
            try:
                requests.answer(fleet.store, ask.run_id, decision, given, ask=ask.id, by="ann")
            except AndonError as error:
                fleet.tell(None, f"the answer is refused: {error}")
