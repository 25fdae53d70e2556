"""`andon init`: a first agent that runs, whose test passes, and that survives."""

import os
import subprocess
import sys

import pytest
from tests.cli.terminal import LIMIT_SECONDS, Terminal

from andon.cli import first_project


def test_the_agent_of_init_runs_and_passes_its_test_and_its_crash_test(local: Terminal) -> None:
    done = local.run("init", "hello")
    assert (
        done.stdout == "wrote hello/agent.py\nwrote hello/test_agent.py\nwrote hello/andon.toml\n"
    )
    assert "next: cd hello && andon run agent.py name=Ada" in done.stderr
    local.folder = local.folder / "hello"
    del local.environment["ANDON_STORE"]  # its own andon.toml says where
    assert local("run", "agent.py", "name=Ada") == '"Hello Ada, this is your first agent."\n'
    assert (local.folder / ".andon" / "andon.db").exists()
    environment = {k: v for k, v in local.environment.items() if not k.startswith("PYTEST")}
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=local.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert "2 passed" in tested.stdout, tested.stdout + tested.stderr


def test_the_steps_that_init_names_begin_with_the_installation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert first_project.test_command() == "python -m pytest -q"
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert first_project.test_command() == "pip install pytest && python -m pytest -q"


def test_init_overwrites_nothing_and_writes_all_or_nothing(local: Terminal) -> None:
    (local.folder / "agent.py").write_text("mine")
    before = sorted(os.listdir(local.folder))
    said = local.error("init", code=2)
    assert "found agent.py" in said
    assert "Nothing was written" in said
    assert sorted(os.listdir(local.folder)) == before
    assert (local.folder / "agent.py").read_text() == "mine"
    (local.folder / "file").write_text("")
    assert "cannot be written there" in local.error("init", "file/below", code=2)
    assert local.json("init", "there")["files"] == ["agent.py", "test_agent.py", "andon.toml"]
