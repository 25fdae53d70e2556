"""Processes that a run started outside its worker are stopped with it, and act once."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.hosts import Host, gone
from tests.cli.terminal import until

from andon.host.proc import alive

# Each program writes down its pid, waits for the gate, and acts.
STARTS = '''
import asyncio, os, pathlib, subprocess, threading, time
import andon

PROGRAM = """
echo $$ > up.part.$$; mv up.part.$$ up.$1.$$
while [ ! -e go ]; do sleep 0.01; done
echo $1 >> acts
"""
LINE = ["sh", "-c", PROGRAM, "program"]
ALONE = {"start_new_session": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


async def start(name):
    subprocess.Popen([*LINE, name], **ALONE)


async def start_and_wait(name):
    process = await asyncio.create_subprocess_exec(*LINE, name, **ALONE)
    await process.wait()


def start_and_hang(name):
    subprocess.Popen([*LINE, name], **ALONE)
    time.sleep(600)


def find(name):
    acted = pathlib.Path("acts")
    return acted.read_text() if acted.exists() else andon.did_not_happen()


@andon.effect_of(probe=find)
async def pay(name):
    await start_and_wait(name)
    return "paid"


@andon.agent
async def waits(ctx, name):
    await ctx.step(start_and_wait, name)


@andon.agent
async def hangs(ctx, name):
    await ctx.step(start_and_hang, name)


@andon.agent
async def pays(ctx, name):
    return await ctx.effect(pay, name)


@andon.agent
async def leaves(ctx, name):
    await ctx.step(start, name)


@andon.agent
async def suspends(ctx, name):
    await ctx.step(start, name)
    await ctx.event("go")


@andon.agent
async def sleeps(ctx, name):
    await ctx.step(start, name)
    await ctx.sleep(3600)


@andon.agent
async def threads(ctx, name):
    async def step():
        act = lambda: (pathlib.Path(f"up.{name}.{os.getpid()}").touch(), time.sleep(600))
        threading.Thread(target=act, daemon=True).start()
        await asyncio.sleep(0)
    await ctx.step(step, name="step")
    await ctx.event("go")


@andon.agent
async def counts(ctx, name):
    count = 0
    while not await ctx.step(lambda: os.path.exists("enough"), name="look"):
        pathlib.Path(f"up.{name}.{os.getpid()}").touch()
        await ctx.step(asyncio.sleep, 0.02, name="rest")
        count += 1
    return count
'''


class Ground(Host):
    """A folder in which programs report that they run, and that they act."""

    def started(self, name: str, most: int = 1) -> list[int]:
        """The processes that reported under that name, in the order of their start."""

        def found() -> list[Path]:
            paths = [*self.folder.glob(f"up.{name}.*")]
            return sorted(paths, key=lambda path: path.stat().st_mtime_ns)

        until(lambda: len(found()) >= most, f"{most} of {name}")
        return [int(path.suffix[1:]) for path in found()]

    def acts(self) -> list[str]:
        path = self.folder / "acts"
        return path.read_text().split() if path.exists() else []

    def go(self) -> None:
        (self.folder / "go").touch()


@pytest.fixture
def ground(tmp_path: Path, store_url: str) -> Iterator[Ground]:
    yield from grounded(tmp_path, store_url)


def grounded(tmp_path: Path, url: str) -> Iterator[Ground]:
    """A folder whose processes end with the test."""
    found = Ground(tmp_path, url)
    (tmp_path / "agents.py").write_text(STARTS)
    yield found
    for path in tmp_path.glob("up.*"):
        if path.suffix[1:].isdigit() and alive(int(path.suffix[1:])):
            os.kill(int(path.suffix[1:]), signal.SIGKILL)


# ── an effect that acts through a process ─────────────────────────────────────────────────────


def test_an_effect_through_a_process_acts_once_when_its_worker_is_killed(
    ground: Ground,
) -> None:
    with ground.worker() as one:
        run = ground.start("pays", "name=x")
        [orphan] = ground.started("x")
        with ground.worker():
            one.signal(signal.SIGKILL)
            assert ground.started("x", 2)[0] == orphan
            assert not alive(orphan), "the successor asks the probe only after its end"
            ground.go()
            ground("wait", run)
    assert (ground.acts(), ground.state(run)) == (["x"], "succeeded")


def test_an_effect_through_a_process_acts_once_when_a_drain_cuts_it(
    ground: Ground,
) -> None:
    ground.environment["ANDON_GRACE_SECONDS"] = "2"
    with ground.worker() as one:
        run = ground.start("pays", "name=x")
        [first] = ground.started("x")
        one.signal(signal.SIGTERM)
        one.ends()
        assert not alive(first)
        with ground.worker():
            ground.started("x", 2)
            ground.go()
            ground("wait", run)
    assert (ground.acts(), ground.state(run)) == (["x"], "succeeded")


# ── kill ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("owner", ["work", "up"])
def test_a_kill_ends_the_processes_of_the_run_before_it_is_proved(
    ground: Ground, owner: str
) -> None:
    with ground.process(owner, "agents.py") as process:
        process.says("is ready")
        run = ground.start("waits", "name=x")
        [pid] = ground.started("x")
        page = ground("kill", run)
        assert not alive(pid)
    assert "STOPPED, proved" in page
    assert f"{pid} sh -c" in page, "the receipt lists it by pid and command"
    assert ground.state(run) == "killed"


def test_a_kill_of_one_run_ends_its_worker_and_the_other_run_moves(
    ground: Ground,
) -> None:
    with ground.worker() as one:
        run, other = ground.start("waits", "name=x"), ground.start("counts", "name=y")
        [pid], [here] = ground.started("x"), ground.started("y")
        with ground.worker():
            done = ground.run("kill", run)
            assert one.ends() == -signal.SIGKILL
            assert not alive(pid)
            assert ground.started("y", 2)[0] == here
            (ground.folder / "enough").touch()
            ground("wait", other)
    assert "STOPPED, proved" in done.stdout
    found = ground.json("show", other)
    assert (found["state"], found["interruptions"]) == ("succeeded", 0)
    assert found["attempts"][0]["ending"] == "returned"


def test_a_spared_worker_continues_its_other_run_and_nothing_is_proved(
    ground: Ground,
) -> None:
    with ground.worker() as one:
        run, other = ground.start("waits", "name=x"), ground.start("counts", "name=y")
        [pid] = ground.started("x")
        ground.started("y")
        page = ground("kill", run, "--spare-worker", code=3)
        assert one.process.poll() is None
        assert not alive(pid)
        (ground.folder / "enough").touch()
        ground("wait", other)
    assert "NOT PROVED" in page
    assert "STOPPED" not in page
    found = ground.json("show", other)
    assert (found["state"], len(found["attempts"])) == ("succeeded", 1)


def test_a_worker_is_either_spared_or_ended(ground: Ground) -> None:
    ground.error("kill", "any", "--spare-worker", "--end-worker", code=2)


# ── pause and cancel ──────────────────────────────────────────────────────────────────────────


def test_a_cancel_ends_the_processes_of_the_run_and_lists_them(ground: Ground) -> None:
    with ground.worker() as one:
        run = ground.start("waits", "name=x")
        [pid] = ground.started("x")
        page = ground("cancel", run)
        assert not alive(pid)
        assert one.process.poll() is None
    assert "STOPPED, proved" in page
    assert f"{pid} sh -c" in page
    assert ground.state(run) == "cancelled"


@pytest.mark.parametrize("kind", ["pause", "cancel"])
def test_a_polite_order_that_overruns_ends_the_worker_and_its_processes(
    ground: Ground, kind: str
) -> None:
    with ground.worker() as one:
        run = ground.start("hangs", "name=x")
        [pid] = ground.started("x")
        page = ground(kind, run, "--within", "0.2s")
        assert not alive(pid)
        assert one.ends() == -signal.SIGKILL
    assert "STOPPED, proved" in page
    assert f"{pid} sh -c" in page


def test_a_pause_is_unproved_while_a_thread_of_the_run_continues(
    ground: Ground,
) -> None:
    with ground.worker() as one:
        run = ground.start("threads", "name=x")
        [pid] = ground.started("x")
        assert pid == one.process.pid
        page = ground("pause", run, "--within", "0.5s")
        assert "STOPPED, proved" in page
        assert not alive(pid), "proved is said only after its end"
        assert one.ends() == -signal.SIGKILL


# ── no worker executes the run ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("waiting", ["suspends", "sleeps"])
@pytest.mark.parametrize("kind", ["kill", "pause", "cancel"])
def test_a_stop_of_a_suspended_run_ends_the_process_it_left(
    ground: Ground, kind: str, waiting: str
) -> None:
    with ground.worker():
        run = ground.start(waiting, "name=x")
        [pid] = ground.started("x")
        until(lambda: ground.state(run) == "suspended", "it waits")
        assert alive(pid)
        page = ground(kind, run)
        assert not alive(pid)
    assert "STOPPED, proved" in page
    assert f"{pid} sh -c" in page
    became = {"kill": "killed", "pause": "paused", "cancel": "cancelled"}[kind]
    assert ground.state(run) == became


def test_a_kill_ends_the_processes_that_a_finished_run_left(ground: Ground) -> None:
    with ground.worker():
        run = ground.start("leaves", "name=x")
        ground("wait", run)
        [pid] = ground.started("x")
        assert alive(pid)
        page = ground("kill", run)
        assert not alive(pid)
    assert f"{pid} sh -c" in page
    assert "STOPPED, proved" in page
    assert ground.state(run) == "succeeded"


def test_the_next_worker_ends_processes_that_a_dead_one_left(
    ground: Ground,
) -> None:
    with ground.worker() as one:
        run = ground.start("suspends", "name=x")
        [pid] = ground.started("x")
        until(lambda: ground.state(run) == "suspended", "it waits")
        with ground.worker():
            one.signal(signal.SIGKILL)
            gone(pid)
