"""The files of a first project, as `andon init` writes them."""

import importlib.util
from pathlib import Path

from andon.errors import BadInput

AGENT = '''"""A first agent. Run it: andon run agent.py name=Ada"""

from pathlib import Path

import andon

OUTBOX = Path("outbox.txt")


async def compose(name: str) -> str:
    """A step. Once it has finished it is never executed again. Call your model here."""
    return f"Hello {name}, this is your first agent."


def find_sent(text: str, *, key: str) -> object:
    """The probe of `send`: after a crash in the middle it is asked whether it happened."""
    sent = OUTBOX.exists() and any(line.startswith(f"{key} ") for line in OUTBOX.open())
    return andon.happened() if sent else andon.did_not_happen()


@andon.effect_of(probe=find_sent)
def send(text: str, *, key: str) -> None:
    """An effect: it changes the world outside. It happens once, wherever its worker dies."""
    with OUTBOX.open("a") as out:
        out.write(f"{key} {text}\\n")


@andon.agent
async def greeter(ctx: andon.Context, name: str = "world") -> str:
    text = await ctx.step(compose, name)
    await ctx.effect(send, text, key="greeting")
    return text
'''
TEST = '''"""Tests of the first agent: python -m pytest"""

from agent import greeter

import andon


def test_it_greets_and_sends_once(andon_store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where it writes its outbox
    with andon.Client.sync() as client:
        assert client.run(greeter, name="Ada") == "Hello Ada, this is your first agent."
    assert len((tmp_path / "outbox.txt").read_text().splitlines()) == 1


def test_it_survives_a_kill_at_every_moment(crashtest):
    crashtest(greeter, name="Ada")
'''
SETTINGS = """\
# Settings of andon in this folder; all of them: docs/reference/settings.md of andon
# ANDON_STORE and other ANDON_* variables come before this file.

# Where runs are kept: a file, or "postgresql://user@host/database".
store = "sqlite:///.andon/andon.db"
# How many runs one worker executes at once.
concurrency = 10
# How long a worker may take to finish its current steps after the signal to stop.
grace_seconds = "25s"
"""
FILES = {"agent.py": AGENT, "test_agent.py": TEST, "andon.toml": SETTINGS}


def test_command() -> str:
    """Return the command that runs the tests; it installs pytest first if that is missing."""
    install = "" if importlib.util.find_spec("pytest") else "pip install pytest && "
    return f"{install}python -m pytest -q"


def write(folder: Path) -> list[Path]:
    """Write all files into a folder, creating it if needed, or write none of them."""
    there = [name for name in FILES if (folder / name).exists()]
    if there:
        raise BadInput(
            f"{folder}: expected a folder without {', '.join(FILES)}; found {', '.join(there)}. "
            "Nothing was written. Name another folder: andon init FOLDER"
        )
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in FILES.items():
            with (folder / name).open("x", encoding="utf-8") as out:
                written.append(folder / name)
                out.write(text)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise BadInput(f"{folder}: the files cannot be written there: {error}") from None
    return written
