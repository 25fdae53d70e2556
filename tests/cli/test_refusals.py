"""Exit codes and errors: stable, in words, and as JSON for programs."""

import json
import re
import sqlite3
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.cli.terminal import SOURCE, Terminal

from andon.cli.app import cli
from andon.cli.version import VERSION

ROOT = SOURCE.parent
READING = [
    ("ps",),
    ("show", "x"),
    ("logs", "x"),
    ("wait", "x"),
    ("answer", "x", "approve"),
    ("send", "x", "go"),
    ("steer", "x", "faster"),
    ("verify",),
]


@pytest.mark.parametrize("command", READING, ids=lambda command: command[0])
def test_a_command_that_reads_creates_no_store(local: Terminal, command: tuple[str, ...]) -> None:
    assert "there is no database" in local.error(*command, code=1)
    assert sorted(path.name for path in local.folder.iterdir()) == ["agents.py"]


def test_a_command_that_reads_leaves_a_foreign_database_alone(local: Terminal) -> None:
    path = Path(local.url.removeprefix("sqlite:///"))
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE theirs (x)")
    db.close()
    before = path.read_bytes()
    assert "no tables of andon" in local.error("ps", code=1)
    assert path.read_bytes() == before
    assert sorted(one.name for one in local.folder.iterdir()) == ["agents.py", "andon.db"]


@pytest.mark.parametrize("command", [("ps",), ("start", "greet"), ("work", "agents.py")])
def test_a_file_that_is_not_a_database_is_refused(
    local: Terminal, command: tuple[str, ...]
) -> None:
    path = Path(local.url.removeprefix("sqlite:///"))
    path.write_bytes(b"this is no database" * 1000)
    assert "is not an SQLite database" in local.error(*command, code=1)
    assert path.read_bytes() == b"this is no database" * 1000


@pytest.mark.parametrize("command", [("ps",), ("start", "greet"), ("work", "agents.py")])
def test_a_folder_is_refused_as_a_database(local: Terminal, command: tuple[str, ...]) -> None:
    assert "found a folder" in local.error(*command, "--store", f"sqlite:///{local.folder}", code=2)


@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (("ps", "--store", "mysql://x"), 2, "BadInput"),
        (("ps", "--nonsense"), 2, "Usage"),
        (("frobnicate",), 2, "Usage"),
        (("show",), 2, "Usage"),
        (("ps", "--limit", "0"), 2, "Usage"),
        (("wait", "x", "--timeout", "-1"), 2, "Usage"),
        (("work",), 2, "Usage"),
        (("work", "nowhere.py"), 2, "BadInput"),
        (("ps",), 1, "StoreError"),
        (("start", "nobody"), 4, "NotFound"),
    ],
)
def test_an_error_is_text_for_people_and_json_for_programs(
    local: Terminal, arguments: tuple[str, ...], code: int, kind: str
) -> None:
    assert "andon: " in local.error(*arguments, code=code)
    for words in ((*arguments, "--json"), ("--json", *arguments)):
        error = json.loads(local.error(*words, code=code))["error"]
        assert error["type"] == kind
        assert error["message"]


def test_a_mistyped_command_gets_a_suggestion(local: Terminal) -> None:
    assert "did you mean 'andon start' or 'andon steer'?" in local.error("strat", code=2)
    assert "andon --help" in local.error("frobnicate", code=2)


def test_settings_come_from_argument_environment_and_file_in_that_order(local: Terminal) -> None:
    inside = local.folder / "inside"
    inside.mkdir()
    (inside / "andon.toml").write_text('store = "sqlite:///from-file.db"\n')
    terminal = Terminal(inside, local.url)
    assert "andon.db" in terminal.error("ps", code=1)
    del terminal.environment["ANDON_STORE"]
    assert "from-file.db" in terminal.error("ps", code=1)
    assert "given.db" in terminal.error("--store", "sqlite:///given.db", "ps", code=1)
    assert "given.db" in terminal.error("ps", "--store", "sqlite:///given.db", code=1)
    (inside / "andon.toml").write_text("stroe = 1\n")
    assert "did you mean 'store'?" in terminal.error("ps", code=2)
    (inside / "andon.toml").unlink()
    assert ".andon/andon.db" in terminal.error("ps", code=1)


def test_the_version_is_that_of_the_project(local: Terminal) -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == VERSION
    assert local("version") == f"andon {VERSION}\n" == local("--version")
    assert local.json("version") == {"version": VERSION}


def test_help_names_every_command(local: Terminal) -> None:
    text = local("--help")
    for name in cli.every_command():
        assert re.search(rf"^  {name} ", text, re.MULTILINE), name
        assert ("--json" in local(name, "-h")) == (name != "exec"), name


def test_every_command_and_exit_code_is_documented() -> None:
    text = (ROOT / "docs/reference/cli.md").read_text("utf-8")
    headings = re.findall(r"^## `andon (\w+)", text, re.MULTILINE)
    assert headings == list(cli.every_command())
    for name, command in cli.every_command().items():
        section = text.split(f"## `andon {name}")[1].split("\n## ")[0]
        for parameter in command.params:
            elsewhere = {"--store", "--json", *getattr(parameter, "old", ())}
            if getattr(parameter, "hidden", False):  # shown under another name
                continue
            for option in parameter.opts:
                if option.startswith("--") and option not in elsewhere:
                    assert f"`{option}" in section, f"{name} {option}"
    for code in (0, 1, 2, 3, 4, 75, 130):
        assert f"| {code} |" in text


def loaded_by(terminal: Terminal, *arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "andon", *arguments],
        env=terminal.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}


def test_simple_commands_import_nothing_slow(local: Terminal) -> None:
    with local.worker():
        local.start("greet", "--id", "g")
    assert not loaded_by(local, "version") & {"click", "msgspec", "apsw", "importlib.metadata"}
    for command in (("ps",), ("show", "g")):
        slow = {"asyncio", "psycopg", "logging", "tomllib", "andon.runtime.worker.worker"}
        assert not loaded_by(local, *command) & slow
