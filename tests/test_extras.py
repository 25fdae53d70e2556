"""Without an extra, every feature that needs it names the extra to install."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import andon

SOURCE = Path(andon.__file__).parents[1]
AGENT = "import andon\n\n@andon.agent\nasync def hello(ctx):\n    return 1\n"
URL = "postgresql://nobody@localhost/nothing"
# Not importable, as on a plain install.
WITHOUT = "import sys; sys.modules.update(dict.fromkeys({missing!r})); "


def run_without(
    missing: tuple[str, ...], code: str, folder: Path, *arguments: str
) -> "subprocess.CompletedProcess[str]":
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ANDON_")}
    environment |= {"PYTHONPATH": str(SOURCE), "ANDON_HOME": str(folder / "home")}
    return subprocess.run(
        [sys.executable, "-c", WITHOUT.format(missing=missing) + code, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "command",
    [
        *("ps", "show x", "logs x", "wait x", "verify", "start hello", "work a.py", "up a.py"),
        *("run a.py:hello", "crashtest a.py:hello", "queues", "doctor"),
        *("kill x", "pause x", "cancel x", "drain w1", "resume x", "receipts"),
    ],
)
def test_a_postgresql_url_without_the_driver_names_the_extra(tmp_path: Path, command: str) -> None:
    (tmp_path / "a.py").write_text(AGENT)
    code = "from andon.__main__ import main; main()"
    done = run_without(("psycopg",), code, tmp_path, "--store", URL, *command.split())
    said = done.stdout + done.stderr
    assert "pip install 'andon[postgres]'" in said
    assert "defect" not in said
    assert "Traceback" not in said
    assert done.returncode != 0


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [
        ("andon.adapters.langgraph", ("langgraph",), "langgraph"),
        ("andon.adapters.langgraph", ("langchain", "langchain.agents.middleware"), "langgraph"),
        ("andon.adapters.langgraph.saver", ("langgraph",), "langgraph"),
        ("andon.adapters.openai_agents", ("agents",), "openai-agents"),
        ("andon.adapters.pydantic_ai", ("pydantic_ai",), "pydantic-ai"),
        ("andon.adapters.pydantic_ai", ("pydantic",), "pydantic-ai"),
    ],
)
def test_an_adapter_without_its_framework_names_the_extra(
    tmp_path: Path, module: str, missing: tuple[str, ...], extra: str
) -> None:
    said = run_without(missing, f"import {module}", tmp_path).stderr.strip()
    last = said.split("\n")[-1]
    assert last.startswith("andon.errors.AndonError: andon.adapters.")
    assert f"pip install 'andon[{extra}]'" in last
    assert "another exception" not in said
    assert "direct cause" not in said
    (tmp_path / "a.py").write_text(f"import {module}\n" + AGENT)
    code = "from andon.__main__ import main; main()"
    done = run_without(missing, code, tmp_path, "work", "a.py")
    said = done.stderr.strip()
    assert said.startswith("andon: a.py could not be imported: line 1: andon.adapters.")
    assert said.endswith(f"Run: pip install 'andon[{extra}]'")
    assert "\n" not in said


def test_andon_testing_works_on_a_plain_install(tmp_path: Path) -> None:
    frameworks = ("psycopg", "langgraph", "langchain", "agents", "pydantic", "pydantic_ai")
    clients = ("openai", "anthropic", "httpx", "uvicorn", "starlette", "anyio")
    code = "import andon.testing as t; [getattr(t, name) for name in t.__all__]; "
    code += "t.FakeModel(['hello']).close() if hasattr(t.FakeModel, 'close') else None"
    done = run_without(frameworks + clients, code, tmp_path)
    assert done.stderr == ""


@pytest.mark.parametrize(
    "code",
    [
        f"from andon.testing.crash.scratch import _execute; _execute({URL!r}, 'SELECT 1')",
        f"import andon; andon.Client.sync({URL!r}).__enter__()",
    ],
)
def test_a_program_without_the_driver_gets_an_error_that_names_the_extra(
    tmp_path: Path, code: str
) -> None:
    last = run_without(("psycopg",), code, tmp_path).stderr.strip().split("\n")[-1]
    assert last.startswith("andon.errors.StoreError: ")
    assert "pip install 'andon[postgres]'" in last
