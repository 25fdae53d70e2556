"""The scenario of a driver's process: the conversation, the tools, and the moment to die at."""

import asyncio
import json
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from andon import points

MOMENTS = (
    "before intent",
    "after intent",
    "after effect",
    "after result",
    "before checkpoint",
)
TASK = "Charge Ann 10 EUR and mail her."
NEWS = "Are you still there?"
FIRST, LAST = "charge", "mail"
# No promise: this only ends a trial whose tools are not called in parallel.
SIBLING_SECONDS = 20.0
# A program whose starter is killed acts this long after its start: another process has resumed the
# run by then.
LATE_SECONDS = 1.5
PROGRAM = """
import os, sys, time
time.sleep(float(sys.argv[3]))
world = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
os.write(world, sys.argv[2].encode() + b"\\n")
os.fsync(world)
"""


class Order(msgspec.Struct, kw_only=True):
    """The instructions of one process."""

    driver: str
    andon: bool
    phase: str  # begin, resume or message
    moment: str  # the moment at which it dies; empty: it does not
    parallel: bool
    deadly: str  # the tool at which it dies; of parallel ones the last
    form: str
    name: str
    store: str
    folder: str
    url: str


class Shop:
    """One process' view of the scenario."""

    def __init__(self, order: Order) -> None:
        self.phase, self.form, self.name = order.phase, order.form, order.name
        self.store, self.url, self.folder = order.store, order.url, Path(order.folder)
        self.task, self.news = TASK, NEWS
        self.tools: list[Callable[..., Any]] = [self.charge, self.mail]
        self.keeps_each = self.launches = False
        self._andon, self._moment, self._parallel = order.andon, order.moment, order.parallel
        self._deadly = order.deadly
        self._kept = threading.Event()  # the result of the first of two parallel tools
        self._returned = False  # that tool has answered; with andon, durably
        if order.andon:
            points.watch = self._watch

    # ── tools ─────────────────────────────────────────────────────────────────────────────────

    async def charge(self, amount: int) -> str:
        """Charge the customer so many EUR."""
        if self._parallel and not self._andon:
            self._die_at("before intent")  # of either: the tool that is called first
        receipt = await self._call(FIRST)
        if not self._andon and not self.keeps_each:
            self._kept.set()
        return receipt

    async def mail(self, to: str) -> str:
        """Mail the customer."""
        if self._parallel and self._moment:
            async with asyncio.timeout(SIBLING_SECONDS):
                while not self._kept.is_set():  # noqa: ASYNC110 (a thread may set it)
                    await asyncio.sleep(0.002)
        return await self._call(LAST)

    async def _call(self, name: str) -> str:
        if name != self._deadly:
            return await self._launch(name) if self.launches else self._act(name)
        if self.launches:
            receipt = await self._launch(name)
        else:
            self._die_in_the_act()
            receipt = self._act(name)
        self._die_at("after effect")
        if not self._andon:
            self._returned = True
            asyncio.get_running_loop().call_soon(self._die_at, "after result")
        return receipt

    async def _launch(self, name: str) -> str:
        """Acts through a program, a while after its start, whatever becomes of this process."""
        receipt, deadly = _receipt(name), name == self._deadly
        late = deadly and self._moment in ("before intent", "after intent")
        words = str(self.folder / "world"), f"{name} {receipt}", str(LATE_SECONDS if late else 0)
        program = await asyncio.create_subprocess_exec(
            sys.executable, "-S", "-c", PROGRAM, *words, start_new_session=True
        )
        with (self.folder / "programs").open("a") as file:
            file.write(f"{program.pid}\n")
        if deadly:
            self._die_in_the_act()
        if status := await program.wait():
            raise ChildProcessError(f"the program of {name} ended with {status}")
        return receipt

    def _die_in_the_act(self) -> None:
        self._die_at("after intent")
        if not self._andon:
            self._die_at("before intent")  # without andon there is none

    def _act(self, name: str) -> str:
        """The effect: a line that outlives the process."""
        receipt = _receipt(name)
        descriptor = os.open(self.folder / "world", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, f"{name} {receipt}\n".encode())
        os.fsync(descriptor)
        os.close(descriptor)
        return receipt

    # ── dying ─────────────────────────────────────────────────────────────────────────────────

    def _die_at(self, moment: str) -> None:
        if moment == self._moment:
            signal.pthread_kill(threading.get_ident(), signal.SIGKILL)

    def checkpoint(self) -> None:
        """Call just before the framework saves a tool's answer."""
        if self._returned:
            self._die_at("before checkpoint")

    def keeps(self, name: str) -> None:
        """The framework has saved this tool's result."""
        if name == FIRST:
            self._kept.set()

    def _watch(self, name: str, about: Any) -> None:
        """Watches andon's points: a tool cannot see its own intent and result being written."""
        if name == "step:stored" and _plans(about, self._deadly):
            self._die_at("before intent")
        if name == "effect:confirmed":
            self.keeps(about.name)
            if about.name == self._deadly:
                self._returned = True
                self._die_at("after result")

    # ── asking and keeping ────────────────────────────────────────────────────────────────────

    def client(self) -> Any:
        """The provider's own client, for `async with`."""
        if self.form == "anthropic":
            from anthropic import AsyncAnthropic

            return AsyncAnthropic(base_url=self.url, api_key="fake", max_retries=0)
        from openai import AsyncOpenAI

        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="fake", max_retries=0)

    async def ask(self, messages: list[Any]) -> Any:
        """The provider's answer to a list of messages."""
        async with self.client() as client:
            match self.form:
                case "anthropic":
                    asked = client.messages.create(model="m", max_tokens=100, messages=messages)
                case "chat":
                    asked = client.chat.completions.create(model="m", messages=messages)
                case _:
                    asked = client.responses.create(model="m", input=messages)
            return await asked

    def save(self, messages: Any) -> None:
        """Saves a conversation as people do: in a file, atomically."""
        self.checkpoint()
        text = messages if isinstance(messages, bytes) else json.dumps(messages).encode()
        new = self.folder / "messages.new"
        with new.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.rename(self.folder / "messages.json")

    def saved(self) -> bytes | None:
        path = self.folder / "messages.json"
        return path.read_bytes() if path.exists() else None


def _receipt(name: str) -> str:
    return f"receipt-{name}-{secrets.token_hex(4)}"


def _plans(operation: Any, name: str) -> bool:
    """Whether the journal holds the intent of a call of that tool and nothing more of it."""
    records = operation.attempt.journal.replay.records()
    return any((one.kind, one.name) == ("effect", name) for one in records)
