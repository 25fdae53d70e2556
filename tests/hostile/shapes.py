"""Agents whose steps start processes of every shape. A worker is started with this file."""

import _thread
import asyncio
import ctypes
import shlex
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
    """As any step that waits for the processes it has started."""
    _start(shape, witness)
    while not _acts(witness):
        await asyncio.sleep(0.01)
    _up(witness)
    await asyncio.sleep(actors.LIFE_SECONDS)


async def become(shape: str, witness: str) -> None:
    """The worker itself has the shape, and a thread or a child of it acts."""
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


async def leave(shape: str, witness: str) -> None:
    """A step leaves code in its worker, outside the tasks that are tracked there."""
    match shape:
        case "left-timer":
            _tick(witness)
        case "left-task":
            kept.append(asyncio.Task(_acting(witness), loop=asyncio.get_running_loop()))
        case "left-task-of-a-thread":
            loop = asyncio.get_running_loop()
            tell = asyncio.run_coroutine_threadsafe
            threading.Thread(target=tell, args=(_acting(witness), loop)).start()
        case "left-thread":
            _thread.start_new_thread(actors.act, (witness,))
        case _:
            _start_natively(witness)
    while not _acts(witness):
        await asyncio.sleep(0.01)
    _up(witness)
    await asyncio.sleep(actors.LIFE_SECONDS)


def leave_apart(witness: str) -> None:
    """A thread in the process of a step, which has ended then."""
    threading.Thread(target=actors.act, args=(witness,), daemon=True).start()
    while not _acts(witness):
        time.sleep(0.01)


async def go_on(witness: str) -> None:
    _up(witness)
    await asyncio.sleep(actors.LIFE_SECONDS)


kept: list[object] = []  # the loop itself forgets its tasks


def _tick(witness: str) -> None:
    actors.once(witness)
    asyncio.get_running_loop().call_later(actors.PAUSE_SECONDS, _tick, witness)


async def _acting(witness: str) -> None:
    while True:
        actors.once(witness)
        await asyncio.sleep(actors.PAUSE_SECONDS)


def _start_natively(witness: str) -> None:
    """Bypasses Python's ways to start a process; orphaned at once."""
    line = shlex.join([sys.executable, "-S", actors.__file__, "double-fork", witness])
    ctypes.CDLL(None).system(f"env -i setsid {line} &".encode())


def leave_natively(witness: str) -> None:
    """A child that native code has started, while its run waits for a person."""
    words = [sys.executable, "-S", actors.__file__, "detached", witness]
    line = (ctypes.c_char_p * (len(words) + 1))(*(word.encode() for word in words), None)
    none = (ctypes.c_char_p * 1)(None)
    pid = ctypes.c_int()
    ctypes.CDLL(None).posix_spawn(ctypes.byref(pid), line[0], None, None, line, none)
    while not _acts(witness):
        time.sleep(0.01)


# A worker that ends these by itself may go on.
LEFT = ("left-timer", "left-task", "left-task-of-a-thread", "left-thread", "left-apart")
NATIVE = "native"
WAITS = "native-of-one-that-waits"


@andon.agent
async def hostile(ctx: andon.Context, shape: str, witness: str) -> None:
    if shape in WORKERS:
        await ctx.step(become, shape, witness)
    elif shape == "left-apart":
        await ctx.step(leave_apart, witness, process=True)
        await ctx.step(go_on, witness)
    elif shape == WAITS:
        await ctx.step(leave_natively, witness)
        await ctx.ask("Go on?", {"witness": witness})
    elif shape in (*LEFT, NATIVE):
        await ctx.step(leave, shape, witness)
    else:
        await ctx.step(start, shape, witness)
