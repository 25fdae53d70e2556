"""`andon halt`: workers without a supervisor, programs that embed andon, and the store."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.terminal import Terminal, until

from andon.control.halt import store_halt
from andon.host import home as homes
from andon.host.latch import Latch
from andon.store import open_store
from andon.store.messages.stops import Reauthorize

BUSY = """
import pathlib, re
import andon


def count(marker):
    pathlib.Path(marker).touch()
    re.match(r"(a+)+$", "a" * 60 + "b")  # never lets go of the interpreter


@andon.agent
async def busy(ctx, marker):
    await ctx.step(count, marker)


def pull():
    import andon
    return andon.halt(why="I am wrong", by="the agent", wait=5)["receipt"]


@andon.agent
async def uneasy(ctx):
    return await ctx.step(pull)
"""

PROGRAM = """
import asyncio, pathlib, sys
import andon

marker = pathlib.Path(sys.argv[1])


async def linger():
    marker.touch()
    await asyncio.sleep(0 if marker.with_name("quick").exists() else 600)
    return "done"


@andon.agent
async def slow(ctx):
    return await ctx.step(linger)


async def main():
    async with andon.Client() as client:
        try:
            await client.run(slow, id="one")
        except andon.Refused as refused:
            print("refused:", refused, flush=True)
        marker.with_name("quick").touch()
        for line in sys.stdin:
            try:
                print("answer:", await client.run(slow, id="two"), flush=True)
            except andon.Refused as refused:
                print("refused:", refused, flush=True)


asyncio.run(main())
"""


def latch(terminal: Terminal) -> Latch:
    return Latch(terminal.environment["ANDON_HOME"])


def lift(terminal: Terminal) -> None:
    own = latch(terminal)
    assert not own.clear(own.read().epoch, "ana", "looked at it").pulled


def stuck(terminal: Terminal, tmp_path: Path, agent: str = "stuck") -> str:
    """A run whose step hangs."""
    marker = tmp_path / "marker"
    run = terminal.start(agent, f"marker={marker}")
    until(marker.exists, "the step")
    return run


def test_a_worker_ends_at_once_and_its_run_is_killed_in_the_store(
    andon: Terminal, tmp_path: Path
) -> None:
    with andon.worker() as worker:
        run = stuck(andon, tmp_path)
        found = andon.json("halt", "--why", "odd")
        assert worker.ends() in {1, -9}
    assert found["proved"]
    assert [one["proved"] for one in found["workers"]] == [True]
    assert (found["store"]["state"], found["store"]["order"]) == ("answered", found["receipt"])
    assert found["store"]["targets"] == found["store"]["verified"] >= 1
    assert andon.state(run) == "killed"


def test_a_reason_with_any_characters_reaches_the_store(andon: Terminal, tmp_path: Path) -> None:
    with andon.worker():
        stuck(andon, tmp_path)
        said = andon("halt", "--why", "\udcff\x1b[2J")
    assert "\x1b" not in said
    assert "1 run and 1 worker: 2 of 2 proved" in said
    [row] = andon.json("receipts")
    assert (row["order"], row["why"]) == ("halt", "\\udcff\x1b[2J")


def test_a_worker_that_holds_the_gil_is_ended_from_outside(local: Terminal, tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(BUSY)
    with local.worker("busy.py") as worker:
        stuck(local, tmp_path, "busy")
        found = local.json("halt")
        assert worker.ends() == -9
    assert found["proved"]
    assert found["workers"][0]["how"] == "killed by this command"


def test_touching_stop_ends_workers_and_they_say_why(local: Terminal) -> None:
    with local.worker() as worker:
        (tmp := Path(local.environment["ANDON_HOME"]) / "STOP").touch()
        assert worker.ends() == 1
        assert "halted through STOP: ending at once" in worker.text
    tmp.unlink()
    assert "andon reauthorize" in local.error("work", "agents.py", code=1)


def test_a_worker_that_cannot_read_the_latch_ends(local: Terminal) -> None:
    with local.worker() as worker:
        (Path(local.environment["ANDON_HOME"]) / "latch").unlink()
        assert worker.ends() == 1
        assert "latch is missing" in worker.text


def test_nothing_starts_until_the_halt_is_lifted(local: Terminal) -> None:
    latch(local).pull("ana", "odd")
    for command in (("work", "agents.py"), ("run", "agents.py:greet", "--id", "x")):
        said = local.error(*command, code=1)
        assert "halted by ana: odd. To allow starts again: andon reauthorize" in said
    lift(local)
    local("run", "agents.py:greet", "--id", "x")
    assert local.state("x") == "succeeded"


def test_a_home_that_cannot_be_used_is_reported(local: Terminal, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = local.error("work", "agents.py", code=1, env={"ANDON_HOME": str(tmp_path / "file")})
    assert "so nothing starts" in said
    assert "set ANDON_HOME" in said


def test_a_worker_is_registered_in_the_home_while_it_lives(local: Terminal) -> None:
    home = local.environment["ANDON_HOME"]
    with local.worker() as worker:
        [entry] = homes.live(home)
        assert (entry.kind, entry.pid, entry.store) == ("worker", worker.process.pid, local.url)
        worker.process.terminate()
        assert worker.ends() == 0
    assert homes.entries(home) == []


def test_a_halt_creates_no_database(local: Terminal, tmp_path: Path) -> None:
    assert local.json("halt")["store"]["state"] == "none"
    assert not list(tmp_path.glob("*.db*"))


def test_a_halt_from_another_folder_reaches_the_store_in_use_here(
    local: Terminal, tmp_path: Path
) -> None:
    elsewhere = {"ANDON_STORE": f"sqlite:///{tmp_path}/none.db"}
    with local.worker():
        run = stuck(local, tmp_path)
        found = local.json("halt", env=elsewhere)
    assert (found["proved"], found["store"]["state"]) == (True, "answered")
    assert local.json("show", run)["state"] == "killed"
    assert not (tmp_path / "none.db").exists()


def test_a_halt_is_not_fully_proved_when_another_store_exists(
    local: Terminal, tmp_path: Path
) -> None:
    other = {"ANDON_STORE": f"sqlite:///{tmp_path}/other.db"}
    local("run", "agents.py:greet", env=other)
    with local.worker():
        found = local.json("halt", code=3, env=other)
    assert [one["proved"] for one in found["workers"]] == [True]
    assert [local.url in sentence for sentence in found["unknown"]] == [True]


def test_an_invalid_setting_does_not_keep_the_order_from_its_store(local: Terminal) -> None:
    local("run", "agents.py:greet")
    found = local.json("halt", env={"ANDON_CONCURRENCY": "many"})
    assert found["store"]["state"] == "answered"


def test_a_halt_that_was_lifted_in_the_store_alone_is_ordered_there_again(local: Terminal) -> None:
    local("run", "agents.py:greet")
    first = local.json("halt")
    store = open_store(local.url)
    try:
        [held] = store.latches()
        lifting = Reauthorize(epoch=held.epoch, scope="fleet", by="ana", why="looked at it")
        store.write([lifting])
        assert store.latches() == []
        second = local.json("halt")
        assert second["receipt"] == first["receipt"]
        assert [one.id for one in store.latches()] == [second["store"]["order"]]
    finally:
        store.close()


def test_a_halt_that_was_lifted_in_transit_is_not_ordered_again(
    local: Terminal,
) -> None:
    local("run", "agents.py:greet")
    first = local.json("halt")
    words = {"order": first["receipt"], "began": time.monotonic() - 3600}
    store = open_store(local.url)
    try:
        [held] = store.latches()
        store.write([Reauthorize(epoch=held.epoch, scope="fleet", by="ana", why="looked at it")])
        assert store_halt._write_order(store, words) == first["receipt"]
        assert store.latches() == []
        # If two come at the same time, as far as clocks can tell, the halt counts.
        store_halt._write_order(
            store, words | {"began": time.monotonic() - store_halt.SEEN_SECONDS / 2}
        )
        assert len(store.latches()) == 1
    finally:
        store.close()


def test_an_agent_can_halt_everything_from_inside_a_run(local: Terminal, tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(BUSY)
    with local.worker("busy.py") as worker:
        local.start("uneasy")
        worker.ends()
    found = latch(local).read()
    assert (found.pulled, found.by, found.why) == (True, "the agent", "I am wrong")
    store = open_store(local.url)
    try:
        until(lambda: [one.id for one in store.latches()] == [found.order], "the order")
    finally:
        store.close()


def test_a_program_continues_without_its_worker(local: Terminal, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    marker = tmp_path / "marker"
    with subprocess.Popen(
        [sys.executable, "program.py", str(marker)], cwd=tmp_path, env=local.environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as program:  # fmt: skip
        assert program.stdin is not None
        assert program.stdout is not None
        until(marker.exists, "the step")
        latch(local).pull("ana", "odd")
        expected = (
            "refused: halted by ana: odd: run one was stopped with it. "
            "To allow starts again: andon reauthorize\n"
        )
        assert program.stdout.readline() == expected
        print("again", file=program.stdin, flush=True)
        assert "To allow starts again: andon reauthorize" in program.stdout.readline()
        lift(local)
        print("again", file=program.stdin, flush=True)
        assert program.stdout.readline() == "answer: done\n"
        program.stdin.close()
        assert program.wait(60) == 0


@pytest.mark.parametrize("moment", ["started", "written down", "ready"])
def test_a_worker_that_starts_during_a_halt_ends(local: Terminal, moment: str) -> None:
    """The halt finds its entry in the home, or the worker sees the latch itself."""
    local("run", "agents.py:greet")
    with local.process("work", "agents.py") as worker:
        if moment == "written down":
            until(lambda: homes.live(local.environment["ANDON_HOME"]), "its entry")
        elif moment == "ready":
            worker.says("is ready")
        local.run("halt", code=0)
        assert worker.ends() in {1, -9}


def test_a_halt_on_one_host_is_proved_on_the_other(andon: Terminal, tmp_path: Path) -> None:
    """Two homes on one store, which is all that connects them."""
    other = {"ANDON_HOME": str(tmp_path / "other")}
    with (
        andon.process("up", "agents.py") as here,
        andon.process("up", "agents.py", env=other) as there,
    ):
        here.says("is ready")
        there.says("is ready")
        found = andon.json("halt")
        assert found["proved"]
        here.says("HALTED")
        there.says("HALTED")
    assert len(found["supervisors"]) == 1
    assert Latch(other["ANDON_HOME"]).read().order == found["receipt"]
    # The worker here may be gone, and known to be, before the order is written.
    assert found["store"]["targets"] == found["store"]["verified"] >= 3


def test_halts_race_reauthorizations_and_the_newer_pull_wins(local: Terminal) -> None:
    """A person lifts whatever is there, again and again.

    A halt that was acknowledged is never lifted by a person who had not seen it.
    """
    home = local.environment["ANDON_HOME"]
    Latch(home).init()
    code = (
        "import sys; from andon.host.latch import Latch\n"
        "own = Latch(sys.argv[1])\n"
        "while True:\n"
        "    found = own.read()\n"
        "    if found.pulled: own.clear(found.epoch, 'lifter', 'racing')\n"
    )
    lifter = subprocess.Popen([sys.executable, "-c", code, home], env=local.environment)
    try:
        for _ in range(5):
            found = local.json("halt")
            lines = [json.loads(one) for one in (Path(home) / "latch").read_text().splitlines()]
            epoch = found["latch"]["epoch"]
            own = next(n for n, line in enumerate(lines) if line.get("pulled") == epoch)
            lifting = [n for n, line in enumerate(lines) if line.get("cleared", -1) >= epoch]
            assert all(n > own for n in lifting)
    finally:
        lifter.kill()
        lifter.wait()
    assert os.path.lexists(os.path.join(home, "id"))
