"""A terminal for the tests: real `andon` processes on a real store."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import andon

# Of the product under test: it may be a copy with a planted bug.
SOURCE = Path(andon.__file__).parents[1]
# Generous: a broken promise is an error, not a hang, and a slow machine is neither.
LIMIT_SECONDS = 60.0

AGENTS = """
import asyncio, os, pathlib, time
import andon


def plan(order):
    return {"order": order, "amount": order * 60}


@andon.effect_of(kind="idempotent")
async def pay(plan, *, key):
    return {"paid": plan["amount"]}


@andon.agent
async def greet(ctx, name="world"):
    ctx.log(f"greeting {name}")
    return await ctx.step(lambda: f"hello {name}", name="say")


@andon.agent
async def long(ctx):
    for count in range(2):
        await ctx.snapshot([f"part {n} " * 40 for n in range(20 + count)])


@andon.agent
async def echo(ctx, **given):
    return given


@andon.agent
async def refunds(ctx, orders: list[int]):
    for order in orders:
        found = await ctx.step(plan, order)
        if found["amount"] > 100:
            answer = await ctx.ask("Refund this much?", found)
            if not answer.approved:
                return "refused"
            found = answer.value
        await ctx.effect(pay, found, key=str(order))
    return "done"


@andon.agent(version="2.1")
async def listener(ctx):
    return await ctx.event("go")


@andon.agent
async def fails(ctx, why="no reason"):
    raise ValueError(why)


@andon.agent
async def parent(ctx):
    return await ctx.child(greet, name="child")


def hang(marker):
    pathlib.Path(marker).touch()
    time.sleep(600)


async def linger(marker):
    pathlib.Path(marker).touch()
    await asyncio.sleep(600)


@andon.agent
async def stuck(ctx, marker, plain=False):
    await ctx.step(plan, 1)
    await ctx.step(hang if plain else linger, marker)
"""


def until(condition: Callable[[], Any], what: str) -> Any:
    """Waits for a condition, and no longer than the limit."""
    end = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"in vain: {what}")


class Process:
    """A running `andon`, whose stderr is read as it comes."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def says(self, words: str) -> str:
        """Waits for those words."""

        def found() -> bool:
            return words in self.text or self.process.poll() is not None

        until(found, f"{words!r} in {self.text}")
        assert words in self.text, self.text
        return self.text

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ends(self) -> int:
        code = self.process.wait(LIMIT_SECONDS)
        self._reader.join(LIMIT_SECONDS)
        return code


class Terminal:
    """A shell in a folder of its own, with ANDON_STORE set."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ANDON_")}
        self.environment = environment | {
            "PYTHONPATH": str(SOURCE),
            "ANDON_STORE": url,
            "ANDON_BY": "tester",
            "ANDON_HOME": str(folder / "home"),
        }
        (folder / "agents.py").write_text(AGENTS)

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "andon", *arguments]

    def run(
        self, *arguments: str, code: int = 0, **given: Any
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a command to its end; its exit code must be `code`."""
        environment = self.environment | given.pop("env", {})
        done = subprocess.run(
            self._command(*arguments),
            cwd=self.folder,
            env=environment,
            capture_output=True,
            encoding="utf-8",
            timeout=LIMIT_SECONDS,
            check=False,
            **given,
        )
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def __call__(self, *arguments: str, code: int = 0, **given: Any) -> str:
        return self.run(*arguments, code=code, **given).stdout

    def error(self, *arguments: str, code: int, **given: Any) -> str:
        """The message of a command that must fail without output."""
        done = self.run(*arguments, code=code, **given)
        assert done.stdout == ""
        assert "Traceback" not in done.stderr
        return done.stderr

    def json(self, *arguments: str, code: int = 0, **given: Any) -> Any:
        return json.loads(self(*arguments, "--json", code=code, **given))

    def start(self, *arguments: str) -> str:
        return self("start", *arguments).strip()

    def state(self, run_id: str) -> str:
        return str(self.json("show", run_id)["state"])

    @contextlib.contextmanager
    def process(self, *arguments: str, **given: Any) -> Iterator[Process]:
        """A command that keeps running."""
        process = subprocess.Popen(
            self._command(*arguments),
            cwd=self.folder,
            env=self.environment | given.pop("env", {}),
            stdout=given.pop("stdout", subprocess.DEVNULL),
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        with process:
            found = Process(process)
            try:
                yield found
            finally:
                if process.poll() is None:
                    process.kill()
                found.ends()

    @contextlib.contextmanager
    def worker(self, *arguments: str) -> Iterator[Process]:
        """A worker that is ready; by default for all the agents above."""
        with self.process("work", *(arguments or ("agents.py",))) as process:
            process.says("is ready")
            yield process
