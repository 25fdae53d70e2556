"""Runs that resist stopping, for `andon drill`, which starts workers with this file."""

import os
import subprocess
import sys

import andon
from andon.control.doctor import hostile_agents


def hold_pipe(pipe: str) -> None:
    """Make the worker and two members hold the pipe."""
    into = hostile_agents.join(pipe)
    os.set_inheritable(into, False)
    code = (
        "import sys; from andon.control.doctor import hostile_agents as b;"
        " b.fork_members_from(*sys.argv[1:])"
    )
    command = [sys.executable, "-c", code, pipe]
    subprocess.run(command, check=True, timeout=hostile_agents.LIFE_SECONDS)  # noqa: S603


async def on_loop(pipe: str, resist: str) -> None:
    """Resist on the worker's event loop."""
    hold_pipe(pipe)
    getattr(hostile_agents, resist)()


async def cancelled(pipe: str) -> None:
    hold_pipe(pipe)
    await hostile_agents.swallow()


def in_thread(pipe: str) -> None:
    hold_pipe(pipe)
    hostile_agents.wait_in_c()


@andon.agent
async def swallows_cancellation(ctx: andon.Context, pipe: str) -> None:
    """Ignores every cancellation, inside a step."""
    await ctx.step(cancelled, pipe)


@andon.agent
async def holds_the_gil(ctx: andon.Context, pipe: str) -> None:
    """Holds the GIL, so that nothing else in its worker runs, the heartbeat included."""
    await ctx.step(on_loop, pipe, "holds_the_gil")


@andon.agent
async def blocked_in_c(ctx: andon.Context, pipe: str) -> None:
    """Waits in C, in a plain function."""
    await ctx.step(in_thread, pipe)


@andon.agent
async def main_thread_ended(ctx: andon.Context, pipe: str) -> None:
    """Ends its worker's main thread: the worker looks like a zombie, but another thread goes on."""
    await ctx.step(on_loop, pipe, "main_thread_ended")


@andon.agent
async def spawns_a_child_run(ctx: andon.Context, pipe: str) -> None:
    """Waits, suspended, for another run that resists stopping too."""
    await ctx.child(swallows_cancellation, pipe=pipe)
