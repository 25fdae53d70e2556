"""A frozen process is ended before it delays others for longer than its limit."""

import os
import signal
from pathlib import Path
from typing import Any

from tests.cli.hosts import Host, gone
from tests.cli.terminal import until

from andon.control_process import stalls
from andon.host.proc import stat

# The writer stops inside its transaction: no other process can write.
AGENTS = """
import os, pathlib, signal, andon
from andon import points


def stop_in_commit(marker):
    path = pathlib.Path(marker)
    if not path.exists():
        path.write_text(str(os.getpid()))
        points.watch = points.fault("writer:before-commit=freeze")


@andon.agent
async def freezes(ctx, marker):
    await ctx.step(stop_in_commit, marker)
    return "unfrozen"


@andon.agent
async def greet(ctx):
    return "hello"
"""

BLOCKS = """
import time, andon


async def sleeps_on_the_loop():
    time.sleep(600)


@andon.agent
async def blocks(ctx):
    await ctx.step(sleeps_on_the_loop)
"""


def test_a_worker_frozen_with_the_write_lock_is_ended_and_others_continue(
    tmp_path: Path, sqlite_url: str
) -> None:
    host = Host(tmp_path, sqlite_url, lease_seconds=600, watchdog_seconds=2)
    (tmp_path / "agents.py").write_text(AGENTS)
    with host.up(workers=2) as process:
        frozen = host.start("freezes", f"marker={tmp_path / 'marker'}")
        pid = host.pid_in("marker")
        until(lambda: (found := stat(pid)) and found.state == "T", "it is stopped")
        other = host.start("greet")
        assert host.becomes(other, "succeeded").error is None
        gone(pid)
        assert host.becomes(frozen, "succeeded").attempt == 2
        process.says("stalled: ")


def test_a_frozen_control_process_is_replaced(tmp_path: Path, store_url: str) -> None:
    """No other process carries the orders of the store to this host."""
    host = Host(tmp_path, store_url, lease_seconds=600, watchdog_seconds=2, on_stall="show")
    with host.up() as process:
        marker = tmp_path / "marker"
        run_id = host.start("stuck", f"marker={marker}")
        until(marker.exists, "it is in its step")
        pid = host.control_pid()
        before = [one["pid"] for one in host.status()["children"] if one["kind"] == "worker"]
        os.kill(pid, signal.SIGSTOP)
        gone(pid)
        process.says("control  stalled: is silent")
        assert before == [
            one["pid"] for one in host.status()["children"] if one["kind"] == "worker"
        ]
        receipt: dict[str, Any] = host.json("kill", run_id)
        assert receipt["proved"]


def test_the_stack_of_a_worker_whose_event_loop_is_blocked_is_kept(
    tmp_path: Path, sqlite_url: str
) -> None:
    """Without py-spy; by the worker itself, although its event loop is blocked."""
    host = Host(tmp_path, sqlite_url, lease_seconds=600, watchdog_seconds=2)
    host.environment["PATH"] = "/nonexistent"
    (tmp_path / "agents.py").write_text(BLOCKS)
    with host.up() as process:
        host.start("blocks")
        process.says("stalled: its event loop stands still")
        [evidence] = (tmp_path / "home" / "stacks").glob("worker-1-*.txt")
        assert "in sleeps_on_the_loop" in evidence.read_text()
        assert "in sleeps_on_the_loop" in stalls.first_lines(str(evidence))[1]
