"""Callbacks that a run's code left on the event loop end before a stop of the run is proved."""

import asyncio
import contextvars
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.runtime.harness import Held, Lab, agent, until
from tests.runtime.processes.test_attribution import proved

import andon
from andon.runtime.attempt import branch, callbacks

Act = Callable[[], None]
# More than any of the ways below needs from one act to the next.
TURNS = 20


def by_timer(act: Act) -> None:
    act()
    asyncio.get_running_loop().call_later(0, by_timer, act)


def by_call_soon(act: Act) -> None:
    act()
    asyncio.get_running_loop().call_soon(by_call_soon, act)


def by_reader(act: Act) -> None:
    readable, writable = os.pipe()
    os.close(writable)  # at its end a pipe is readable for ever
    asyncio.get_running_loop().add_reader(readable, act)


WAYS = {"timer": by_timer, "call_soon": by_call_soon, "reader": by_reader}


async def turn() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


@pytest.mark.parametrize("way", WAYS)
async def test_callbacks_of_a_step_end_before_a_pause_is_proved(lab: Lab, way: str) -> None:
    held, acts = Held(), []

    async def step() -> None:
        WAYS[way](lambda: acts.append(way))
        await held.here()

    @agent
    async def leaves(ctx: andon.Context) -> Any:
        await ctx.step(step)
        return await ctx.event("go")

    async with lab.working(leaves, poll_seconds=0.01):
        run = await lab.client.start(leaves)
        await held.reached.wait()
        receipt = await lab.client.pause(run, within=30.0)
        held.release.set()
        await proved(lab, receipt)
        acted = len(acts)
        await turn()
        assert acted == len(acts) > 0


async def test_a_run_whose_step_left_a_timer_counts_as_executing(
    lab: Lab,
) -> None:
    timers: list[asyncio.TimerHandle] = []

    async def step() -> None:
        timers.append(asyncio.get_running_loop().call_later(3600, print))
        timers.append(asyncio.get_running_loop().call_later(3600, turn))

    @agent
    async def leaves(ctx: andon.Context) -> Any:
        await ctx.step(step)
        return await ctx.event("go")

    async with lab.working(leaves, poll_seconds=0.01) as worker:
        run = await lab.client.start(leaves)
        await until(lambda: run in worker.attempts and worker.attempts[run].waits.open)
        await proved(lab, await lab.client.pause(run, within=30.0))
        assert timers[1].cancelled()


# ── callbacks without an owner ────────────────────────────────────────────────────────────────


def without_owner(way: str, act: Act) -> None:
    """Schedule `act` in this way, with a context that names no owner."""
    loop = asyncio.get_running_loop()

    async def for_ever() -> None:
        while True:
            act()
            await asyncio.sleep(0)

    match way:
        case "context":
            loop.call_soon(by_timer, act, context=contextvars.Context())
        case "thread":
            thread = threading.Thread(target=loop.call_soon_threadsafe, args=(by_call_soon, act))
            thread.start()
            thread.join()
        case _:
            kept.append(asyncio.Task(for_ever(), loop=loop))


kept: list[Any] = []


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("way", ["context", "thread", "task"])
def test_a_callback_without_owner_belongs_to_the_only_run_and_is_reported_otherwise(
    way: str, alone: bool
) -> None:
    acts: list[str] = []

    async def main() -> None:
        loop, tasks = asyncio.get_running_loop(), branch.Tasks()
        without_owner(way, lambda: acts.append(way))
        await turn()
        assert callbacks.end(loop, tasks, own=False, alone=alone) == [], (
            "it belongs to the surrounding program"
        )
        [found] = callbacks.end(loop, tasks, own=True, alone=alone)
        assert found.startswith("task " if way == "task" else "callback by_")
        await asyncio.sleep(0)  # a task gets its cancellation
        acted = len(acts)
        await turn()
        assert (len(acts) == acted) is alone
        assert bool(callbacks.end(loop, tasks, own=True, alone=True)) is not alone

    asyncio.run(main())


def test_callbacks_of_another_run_continue() -> None:
    acts: list[str] = []

    async def main() -> None:
        loop, tasks = asyncio.get_running_loop(), branch.Tasks()
        other = branch.Tasks()
        context = contextvars.copy_context()
        context.run(branch.current.set, branch.Branch(other, ""))
        context.run(by_timer, lambda: acts.append("other"))
        assert callbacks.end(loop, tasks, own=True, alone=True) == []
        await turn()

    asyncio.run(main())
    assert len(acts) > 1


@pytest.mark.parametrize("alone", [True, False])
def test_a_timer_of_signals_is_disarmed_or_reported(alone: bool) -> None:
    async def main() -> None:
        loop, tasks = asyncio.get_running_loop(), branch.Tasks()
        found = callbacks.end(loop, tasks, own=True, alone=alone)
        assert found == ["a timer of signals"]

    signal.setitimer(signal.ITIMER_VIRTUAL, 3600)
    try:
        asyncio.run(main())
        assert (signal.getitimer(signal.ITIMER_VIRTUAL)[0] == 0) is alone
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
