"""The traceback of an agent's error: on the worker's stderr, in `show` and in `logs`."""

from pathlib import Path

import pytest
from tests.cli.terminal import Terminal

BUG = """
import andon


def work(password):
    raise RuntimeError("my bug")


@andon.agent
async def bug(ctx):
    await ctx.step(work, "hunter2", retries=andon.Retry(1, first_seconds=0.01))


@andon.agent
async def leaves(ctx):
    raise SystemExit(3)


def leave():
    raise SystemExit(4)


@andon.agent
async def leaves_in_a_step(ctx):
    await ctx.step(leave)


@andon.agent
async def quiet(ctx):
    return 1
"""
SOURCE_LINE = 'raise RuntimeError("my bug")'
CALL_LINE = 'await ctx.step(work, "hunter2", retries=andon.Retry(1, first_seconds=0.01))'


@pytest.fixture
def buggy(andon: Terminal) -> Terminal:
    (andon.folder / "bug.py").write_text(BUG)
    return andon


def test_a_new_user_sees_where_the_agent_failed(buggy: Terminal) -> None:
    failed = buggy.run("run", "bug.py:bug", "--id", "b", code=1)
    where = f'File "{buggy.folder / "bug.py"}", line 6, in work'
    assert failed.stderr.count(where) == 2, "once for each attempt of the step"
    assert SOURCE_LINE in failed.stderr
    assert CALL_LINE in failed.stderr
    shown = buggy.run("show", "b")
    assert where in shown.stdout
    assert CALL_LINE in shown.stdout
    assert "next: andon logs b" in shown.stderr
    told = buggy("logs", "b")
    assert told.count(where) == 2
    assert "error    step 'work' failed, and is tried again in " in told
    found = buggy.json("show", "b")
    assert [one["kind"] for one in found["errors"]] == ["step", "step", "agent"]
    assert all(where in one["traceback"] for one in found["errors"])
    assert where in found["error"]["traceback"]
    assert "verified" in buggy("verify")


@pytest.mark.parametrize(
    ("agent", "line"),
    [("leaves", "raise SystemExit(3)"), ("leaves_in_a_step", "raise SystemExit(4)")],
)
def test_a_call_of_sys_exit_is_shown_where_it_is(buggy: Terminal, agent: str, line: str) -> None:
    buggy.run("run", f"bug.py:{agent}", "--id", "l", code=1)
    found = buggy.json("show", "l")["errors"][0]
    assert "called sys.exit(" in found["message"]
    assert line in found["traceback"]


def test_advice_is_given_only_if_there_is_more_to_see(buggy: Terminal) -> None:
    buggy("run", "bug.py:quiet", "--id", "q")
    assert "next:" not in buggy.run("show", "q").stderr


def test_a_setting_turns_tracebacks_off(buggy: Terminal) -> None:
    Path(buggy.folder, "andon.toml").write_text('tracebacks = "off"\n')
    failed = buggy.run("run", "bug.py:bug", "--id", "b", code=1)
    said = failed.stderr + buggy("show", "b") + buggy("logs", "b") + buggy("show", "b", "--json")
    assert SOURCE_LINE not in said
    assert "step 'work' failed: RuntimeError: my bug" in said
