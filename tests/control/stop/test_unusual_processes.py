"""Processes that a run starts in unusual ways: andon itself, an undo, a pool made at import."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.hosts import gone
from tests.cli.terminal import until
from tests.control.stop.test_processes import STARTS, Ground, grounded

from andon.host.proc import alive

MORE = '''
import concurrent.futures, multiprocessing, sys

async def ask_andon():
    line = [sys.executable, "-m", "andon", "ps", "--json"]
    process = await asyncio.create_subprocess_exec(*line, stdout=-1, stderr=-1)
    _, said = await process.communicate()
    return said.decode()


@andon.agent
async def asks_andon(ctx):
    return await ctx.step(ask_andon)


async def give_back(result, name, *, key):
    process = await asyncio.create_subprocess_exec("sh", "-c", "echo undone >> acts")
    await process.wait()


@andon.effect_of(undo=give_back)
def book(name):
    return name


@andon.agent
async def books(ctx, name):
    await ctx.effect(book, name)
    await ctx.event("go")


def act_in_a_pool(name):
    pathlib.Path(f"up.{name}.{os.getpid()}").touch()
    while not os.path.exists("go"):
        time.sleep(0.01)
    with open("acts", "a") as acts:
        print(name, file=acts)


@andon.effect_of(probe=find)
async def pay_by_pool(name):
    await asyncio.get_running_loop().run_in_executor(POOL, act_in_a_pool, name)


@andon.agent
async def pays_by_pool(ctx, name):
    return await ctx.effect(pay_by_pool, name)


USES_ANDON = """
import asyncio, os, pathlib, andon, sys

@andon.agent
async def waits_inside(ctx):
    pathlib.Path(f"up.{sys.argv[1]}.{os.getpid()}").touch()
    while not os.path.exists("go"):
        await asyncio.sleep(0.01)
    with open("acts", "a") as acts:
        print(sys.argv[1], file=acts)

asyncio.run(waits_inside.run())
"""


@andon.effect_of(probe=find)
async def pay_by_andon(name):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", USES_ANDON, name, start_new_session=True
    )
    await process.wait()


@andon.agent
async def pays_by_andon(ctx, name):
    return await ctx.effect(pay_by_andon, name)


if "METHOD" != "none" and multiprocessing.parent_process() is None:  # forks know what is above
    POOL = concurrent.futures.ProcessPoolExecutor(
        1, mp_context=multiprocessing.get_context("METHOD")
    )
    POOL.submit(int).result()
'''


@pytest.fixture
def ground(tmp_path: Path, sqlite_url: str) -> Iterator[Ground]:
    yield from grounded(tmp_path, sqlite_url)


def extend(ground: Ground, method: str = "none") -> None:
    """Adds the agents of this file to the workers of the folder."""
    text = STARTS + MORE.replace("METHOD", method)
    (ground.folder / "agents.py").write_text(text)


def test_a_run_may_use_the_command_line_of_andon(ground: Ground) -> None:
    extend(ground)
    with ground.worker():
        run = ground.start("asks_andon")
        ground("wait", run)
    assert ground.json("show", run)["result"] == ""


def test_an_undo_may_start_a_program(ground: Ground) -> None:
    extend(ground)
    with ground.worker():
        run = ground.start("books", "name=x")
        until(lambda: ground.state(run) == "suspended", "it has booked")
        ground("cancel", run)
        until(lambda: ground.state(run) == "cancelled", "it was undone")
    assert ground.acts() == ["undone"]


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_an_effect_in_a_pool_that_was_made_at_import_acts_once(ground: Ground, method: str) -> None:
    extend(ground, method)
    with ground.worker() as one:
        run = ground.start("pays_by_pool", "name=x")
        [first] = ground.started("x")
        with ground.worker() as two:
            one.signal(signal.SIGKILL)
            assert ground.started("x", 2)[0] == first
            assert not alive(first), "the successor asks the probe only after its end"
            ground.go()
            ground("wait", run)
            two.signal(signal.SIGTERM)  # it ends its pool
            assert two.ends() == 0
    assert (ground.acts(), ground.state(run)) == (["x"], "succeeded")


def test_an_effect_program_that_uses_andon_does_not_report_its_worker_dead(
    ground: Ground,
) -> None:
    extend(ground)
    with ground.worker() as one:
        run = ground.start("pays_by_andon", "name=x")
        [first] = ground.started("x")
        one.signal(signal.SIGKILL)
        gone(one.process.pid)
        with ground.worker():
            assert ground.started("x", 2)[0] == first
            assert not alive(first)
            ground.go()
            ground("wait", run)
    assert (ground.acts(), ground.state(run)) == (["x"], "succeeded")
