"""After an order: the processes left, the runs that had not begun, and the advice."""

import sys
from pathlib import Path

import pytest
from tests.cli.hosts import Host
from tests.cli.terminal import Terminal, until

STUBBORN = """
import pathlib, time
import andon

def hold(ctx):
    pathlib.Path("begun-" + ctx.run_id).touch()
    time.sleep(600)

@andon.agent
async def stubborn(ctx):
    await ctx.step(lambda: hold(ctx), name="hold")
"""
NONE_LEFT = "no worker is left. To start one: andon work FILE, or andon up FILE"


@pytest.fixture
def site(andon: Terminal) -> Terminal:
    (andon.folder / "stubborn.py").write_text(STUBBORN)
    return andon


def begins(site: Terminal, run: str) -> None:
    site.start("stubborn", "--id", run)
    until((site.folder / f"begun-{run}").exists, f"{run} begins")


def test_an_order_that_ends_the_last_worker_says_how_to_start_one(site: Terminal) -> None:
    with site.worker("stubborn.py"):
        begins(site, "r")
        assert NONE_LEFT in site.run("pause", "r", "--within", "0.1").stderr


def test_a_resume_says_when_no_worker_is_running(site: Terminal) -> None:
    none = "no worker is running. To start one: andon work FILE, or andon up FILE"
    with site.worker("stubborn.py"):
        begins(site, "r")
        site("halt")
        assert none in site.run("reauthorize", "--why", "seen", "--yes").stderr
        assert none in site.run("resume", "r").stderr
        site("pause", "r")
        assert none in site.run("resume", "--all").stderr
    with site.worker("agents.py"):
        site("pause", "r")
        assert "no worker is running" not in site.run("resume", "r").stderr


def test_an_order_gives_no_such_advice_while_another_worker_runs(site: Terminal) -> None:
    with site.worker("stubborn.py"):
        begins(site, "r")
        with site.worker("agents.py"):
            assert NONE_LEFT not in site.run("pause", "r", "--within", "0.1").stderr


def test_a_run_that_never_began_is_reported_so_after_a_halt(site: Terminal) -> None:
    with site.worker("stubborn.py"):
        begins(site, "begun")
        site.start("stubborn", "--id", "never", "--at", "+1h")
        site("halt")
    doing = {row["id"]: row["doing"] for row in site.json("ps")}
    assert doing["never"].startswith("has not begun; everything is stopped by a halt by tester")
    assert "has not begun" not in doing["begun"]
    site("reauthorize", "--why", "seen", "--yes")
    doing = {row["id"]: row["doing"] for row in site.json("ps")}
    assert doing["never"].startswith("has not begun; stopped; to continue it: andon resume")


def test_an_order_for_a_scope_in_which_nothing_executes_proves_nothing(site: Terminal) -> None:
    with site.worker("stubborn.py"):
        for whom in (("--agent", "stubborn"), ("--label", "k=v"), ("--all",)):
            for order in ("pause", "cancel", "kill"):
                told = site(order, *whom)
                assert "nothing of it was executing" in told
                assert "STOPPED" not in told
                found = site.json(order, *whom)
                assert (found["verdict"], found["proved"]) == ("nothing", False)
    assert "proved" not in site("receipts").lower()


def test_a_command_run_is_shown_as_a_command(tmp_path: Path, sqlite_url: str) -> None:
    host = Host(tmp_path, sqlite_url)
    words = ["-c", "import time; time.sleep(600)"]
    with host.command("--id", "r", "--", sys.executable, *words):
        host.becomes("r", "running")
        [row] = host.json("ps")
        assert row["doing"].startswith(sys.executable)
        assert "time.sleep(600)" in row["doing"]
        assert "at its first step" not in host("show", "r")
        host("kill", "r")
