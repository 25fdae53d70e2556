"""Runs that do not want to stop, for `andon drill`: a worker is started with this file."""

import os
import subprocess
import sys

import andon
from andon.control.doctor import hostile_agents


def surround(pipe: str) -> None:
    """The worker holds the pipe, and so do two members."""
    into = hostile_agents.join(pipe)
    os.set_inheritable(into, False)
    code = "import sys; from andon.control import bad_agents as b; b.muster_from(*sys.argv[1:])"
    command = [sys.executable, "-c", code, pipe]
    subprocess.run(command, check=True, timeout=hostile_agents.LIFE_SECONDS)  # noqa: S603


@andon.agent
async def swallows_cancellation(ctx: andon.Context, pipe: str) -> None:
    """Takes every cancellation for a hiccup, also inside a step."""

    async def swallow() -> None:
        surround(pipe)
        await hostile_agents.swallow()

    await ctx.step(swallow)


@andon.agent
async def holds_the_gil(ctx: andon.Context, pipe: str) -> None:
    """Keeps the interpreter from everybody, its own heartbeat included."""

    async def hold() -> None:
        surround(pipe)
        hostile_agents.holds_the_gil()

    await ctx.step(hold)


@andon.agent
async def blocked_in_c(ctx: andon.Context, pipe: str) -> None:
    """A plain function in a thread, which waits in C."""

    def wait() -> None:
        surround(pipe)
        hostile_agents.wait_in_c()

    await ctx.step(wait)


@andon.agent
async def main_thread_ended(ctx: andon.Context, pipe: str) -> None:
    """Its worker loses its main thread, and looks like a zombie while another thread goes on."""

    async def leave() -> None:
        surround(pipe)
        hostile_agents.main_thread_ended()

    await ctx.step(leave)


@andon.agent
async def spawns_a_child_run(ctx: andon.Context, pipe: str) -> None:
    """Waits, suspended, for another run, which does not want to stop either."""
    await ctx.child(swallows_cancellation, pipe=pipe)
