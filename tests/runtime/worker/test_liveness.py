"""A worker's progress report is made by its activity: a blocked worker cannot fake it."""

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.harness import Held, Lab, agent, until

import andon
from andon.runtime.worker import liveness as progress

SPIN = """
import asyncio, faulthandler, os, sys
from andon.runtime.worker import liveness as progress
progress.dump_stacks_on_request()
def spins_for_ever():
    print("ready", flush=True)
    while True:
        pass
spins_for_ever()
"""


async def test_heartbeats_report_the_tick_the_operations_and_the_steps_in_hand(lab: Lab) -> None:
    held = Held()

    async def slow() -> None:
        await held.here()

    @agent
    async def one(ctx: andon.Context) -> None:
        await ctx.step(slow)

    def said() -> dict[str, Any]:
        [row] = lab.store.workers()
        return dict(json.loads(row.progress or "{}"))

    async with lab.working(one, lease_seconds=0.6) as worker:
        run = await lab.client.start(one)
        await held.reached.wait()
        first = await until(lambda: said() if said().get("runs") else None)
        assert first["runs"][run][0] == "slow"
        assert first["steps"] == 0
        await until(lambda: said()["tick"] > first["tick"])
        held.release.set()
        await lab.end(run)
        await until(lambda: said()["steps"] == 1)
        assert said()["runs"] == {}
        assert worker.operations == 1


async def test_a_blocked_event_loop_shows_as_growing_lag(local: Lab) -> None:
    blocked, go = threading.Event(), threading.Event()

    @agent
    async def blocks(ctx: andon.Context) -> None:
        blocked.set()
        go.wait(30)

    async with local.working(blocks, lease_seconds=0.3) as worker:

        def watch() -> tuple[int, list[float]]:
            blocked.wait(30)
            tick = worker.progress.tick
            lags: list[float] = []
            while len(set(lags)) < 3:  # each heartbeat reports how long it has been blocked
                [row] = local.store.workers()
                lags.append(json.loads(row.progress or '{"lag": 0}')["lag"])
            go.set()
            return worker.progress.tick - tick, lags

        watching = asyncio.ensure_future(asyncio.to_thread(watch))
        await asyncio.sleep(0)
        run = await local.client.start(blocks)
        ticks, lags = await watching
        await local.end(run)
    assert ticks == 0
    assert lags == sorted(lags)


async def test_a_worker_pings_its_supervisor_over_a_pipe_that_it_does_not_pass_on(
    local: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    monkeypatch.setenv("ANDON_PING_FD", str(write))
    monkeypatch.setenv("ANDON_SUPERVISOR", "sup")
    monkeypatch.setenv("ANDON_CONTAINMENT", '{"kill": "A"}')

    @agent
    async def one(ctx: andon.Context) -> None: ...

    async with local.working(one):
        assert "ANDON_PING_FD" not in os.environ
        assert fcntl.fcntl(write, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        assert fcntl.fcntl(write, fcntl.F_GETFL) & os.O_NONBLOCK
        with os.fdopen(read, "rb") as pipe:
            said = [json.loads(await asyncio.to_thread(pipe.readline)) for _ in range(3)]
        [row] = local.store.workers()
        assert (row.supervisor, row.containment) == ("sup", '{"kill": "A"}')
        await until(lambda: "andon-ping" not in {one.name for one in threading.enumerate()})
    os.close(write)
    assert said[0].keys() == {"tick", "steps", "runs"}
    assert said[0]["tick"] < said[2]["tick"]


def test_a_ping_fits_into_a_pipe_as_a_whole() -> None:
    runs = {f"{number:0500}": ("step", 1.0) for number in range(20)}
    found = progress.line({"tick": 1, "steps": 2, "runs": runs})
    assert json.loads(found) == {"tick": 1, "steps": 2, "runs": {}}


def test_the_stacks_of_a_spinning_process_can_be_dumped(tmp_path: Path) -> None:
    stacks = tmp_path / "stacks"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "ANDON_STACKS": str(stacks)}
    command = [sys.executable, "-c", SPIN]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(signal.SIGRTMIN + 4)
            while "spins_for_ever" not in stacks.read_text():
                assert process.poll() is None
        finally:
            process.kill()
