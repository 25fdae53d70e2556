"""The outside world of the chaos tests: what really happened, whatever the runtime reports.

One append-only file with a line for every act: `what key attempt`. Lines are written with single
appends, so that a killed process leaves whole ones. Only the checker and the person who is asked
about effects in doubt read it.
"""

import asyncio
import contextlib
import contextvars
import fcntl
import os
import signal
import threading
from pathlib import Path
from typing import Any

import andon

# Which attempt of its run is acting; set by the agents, because a step does not know it.
attempt: contextvars.ContextVar[int] = contextvars.ContextVar("attempt", default=0)
# Held by a thread that stops its own process, so that no thread is inside a transaction then.
between: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()


def folder() -> Path:
    return Path(os.environ["CHAOS_WORLD"])


def record(what: str, key: str) -> None:
    descriptor = os.open(folder() / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{what} {key} {attempt.get()}\n".encode())
    finally:
        os.close(descriptor)


def lines(where: Path | None = None) -> list[str]:
    path = (where or folder()) / "log"
    return path.read_text().splitlines() if path.exists() else []


def count(what: str, key: str, where: Path | None = None) -> int:
    return sum(line.startswith(f"{what} {key} ") for line in lines(where))


def stands(what: str, key: str, where: Path | None = None) -> bool:
    """Whether it was done and not undone since."""
    acts = [f"{what} {key}", f"undone {key}"]
    done = [line for line in lines(where) if line.rpartition(" ")[0] in acts]
    return bool(done) and done[-1].startswith(f"{what} ")


def flag_is_set(flag: str) -> bool:
    """Whether the test has set this flag: a test holds a run where it wants it by a flag."""
    return (folder() / flag).exists()


async def wait_for_flag(flag: str) -> None:
    while not flag_is_set(flag):
        await asyncio.sleep(0.005)


# ── steps ─────────────────────────────────────────────────────────────────────────────────────────


async def step(key: str, number: int) -> int:
    record("step", key)
    await asyncio.sleep(float(os.environ.get("CHAOS_STEP_SECONDS", "0")))
    return number * 2


async def slow_step(key: str, number: int) -> int:
    record("step", key)
    await asyncio.sleep(0.3)
    return number * 2


def plain_step(key: str, number: int) -> int:
    record("step", key)
    return number * 2


async def large_step(key: str, number: int) -> str:
    """Its result is too large for an entry."""
    record("step", key)
    return "x" * 70_000


async def held_step(key: str, number: int) -> int:
    record("step", key)
    await wait_for_flag("go")
    return number * 2


async def deadly_step(key: str, number: int) -> int:
    """Kills its own process every time."""
    record("step", key)
    os.kill(os.getpid(), signal.SIGKILL)
    return number


async def deadly_once(key: str, number: int) -> int:
    """Kills its own process the first time."""
    record("step", key)
    if count("step", key) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number * 2


# ── effects ───────────────────────────────────────────────────────────────────────────────────────


async def _act(what: str, key: str) -> None:
    """An effect's act on the world, with room to be killed on both sides of it."""
    if flag_is_set(f"freeze-{what}"):
        with between:
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    record(what, key)
    await asyncio.sleep(0.002)


@andon.effect_of(kind="pure")
async def pure(run: str) -> str:
    return run


@andon.effect_of(kind="idempotent")
async def idempotent(run: str, *, key: str) -> str:
    """A provider that knows keys: its look and its act are atomic among concurrent calls."""
    with (folder() / "provider").open("a") as door:
        fcntl.flock(door, fcntl.LOCK_EX)
        if not count("idempotent", key):
            record("idempotent", key)
    await asyncio.sleep(0.002)
    return key


async def find(run: str, *, key: str) -> Any:
    record("probed", key)
    return andon.happened(key) if count("probeable", key) else andon.did_not_happen()


async def lie(run: str, *, key: str) -> Any:
    record("probed", key)
    return andon.did_not_happen()


@andon.effect_of(probe=lie if os.environ.get("CHAOS_LIES") else find)
async def probeable(run: str, *, key: str) -> str:
    await _act("probeable", key)
    return key


@andon.effect_of(probe=find)
async def shaky_probeable(run: str, *, key: str) -> str:
    """Fails once before it acts, and once after it has acted."""
    fails = count("failed", key)
    if fails == 0:
        record("failed", key)
        raise ConnectionError("nothing was sent")
    await _act("probeable", key)
    if fails == 1:
        record("failed", key)
        raise ConnectionError("the answer was lost")
    return key


async def take_back(result: Any, run: str, *, key: str) -> None:
    record("undone", key)


@andon.effect_of(undo=take_back)
async def compensatable(run: str, *, key: str) -> str:
    await _act("compensatable", key)
    return key


@andon.effect_of(undo=take_back)
async def shaky_compensatable(run: str, *, key: str) -> str:
    await _act("compensatable", key)
    if count("failed", key) == 0:
        record("failed", key)
        raise ConnectionError("the answer was lost")
    return key


@andon.effect_of(undo=take_back)
async def bookable(run: str, *, key: str) -> str:
    """A booking that is undone when its run goes no further."""
    await _act("booked", key)
    return key


async def irreversible(run: str, *, key: str) -> str:
    await _act("irreversible", key)
    return key


def plain_irreversible(run: str, *, key: str) -> str:
    record("irreversible", key)
    return key


KINDS = (idempotent, probeable, compensatable, irreversible)


def enter_tally(connection: Any, run: str) -> str:
    """For ctx.transaction: a row in a table of the user's own, in andon's database."""
    connection.execute(f"INSERT INTO tally (run) VALUES ('{run}')")
    return run
