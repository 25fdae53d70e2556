"""Agents whose steps start processes of every shape. A worker is started with this file."""

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.hostile import actors

import andon


def _acts(witness: str) -> bool:
    path = Path(witness)
    return path.exists() and path.stat().st_size > 0


def _up(witness: str) -> None:
    Path(f"{witness}.up").touch()


def _start(shape: str, witness: str) -> None:
    subprocess.Popen([sys.executable, "-S", actors.__file__, shape, witness])


async def start(shape: str, witness: str) -> None:
    """As any step that waits for what it has started."""
    _start(shape, witness)
    while not _acts(witness):
        await asyncio.sleep(0.01)
    _up(witness)
    await asyncio.sleep(actors.LIFE_SECONDS)


async def become(shape: str, witness: str) -> None:
    """The worker itself is the shape, and a thread or a child of it acts."""
    if shape != "worker-vfork":
        threading.Thread(target=actors.act, args=(witness,), daemon=True).start()
        while not _acts(witness):
            await asyncio.sleep(0.01)
    match shape:
        case "worker-zombie-leader":
            _up(witness)
            actors.leave_main_thread()
        case "worker-vfork":
            actors.vfork(witness)
        case _:
            actors.traced_by_daemon(witness)
            _up(witness)
            time.sleep(actors.LIFE_SECONDS)  # noqa: ASYNC251 (no cancellation reaches it)


WORKERS = ("worker-zombie-leader", "worker-vfork", "worker-traced")


@andon.agent
async def hostile(ctx: andon.Context, shape: str, witness: str) -> None:
    if shape in WORKERS:
        await ctx.step(become, shape, witness)
    else:
        await ctx.step(start, shape, witness)
