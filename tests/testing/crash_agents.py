"""Agents for the crash tests: some without any defect, and some with exactly one."""

import asyncio
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import andon
from andon.testing import point

WORLD = Path("world.txt")


def note(line: str) -> None:
    with WORLD.open("a") as world:
        world.write(line + "\n")


def find(*args: Any, key: str) -> Any:
    there = WORLD.exists() and key in WORLD.read_text().split()
    return andon.happened(key) if there else andon.did_not_happen()


@andon.effect_of(probe=find)
async def pay(amount: int, *, key: str) -> str:
    await asyncio.sleep(0)  # the request is on the way to the provider
    note(key)
    await asyncio.sleep(0)  # and its answer on the way back
    return key


@andon.effect_of(probe=find)
def send(text: str, *, key: str) -> str:
    note(key)
    time.sleep(0.06)
    return key


def think(about: str) -> str:
    point("thinking")
    return about.upper()


@andon.agent
async def leaf(ctx: andon.Context, name: str) -> str:
    found: str = await ctx.step(think, name)
    return found


@andon.agent
async def tour(ctx: andon.Context, name: str) -> list[Any]:
    """Reaches every kind of moment at which the crash test kills."""
    found: list[Any] = [await ctx.step(think, name)]
    found.append(await ctx.effect(pay, 3, key=f"pay-{name}"))
    found.append(await ctx.effect(send, name, key=f"send-{name}"))
    return found


@andon.agent
async def waiter(ctx: andon.Context) -> list[Any]:
    """Waits for everything that an agent may wait for."""
    await ctx.sleep(3 * 86_400)
    answer = await ctx.ask("Go on?", 1)
    return [answer.decision, await ctx.event("go"), await ctx.child(leaf, "child")]


def ask_model(talk: list[dict[str, Any]]) -> dict[str, Any]:
    """Sends the request as OpenAI's client would."""
    body = json.dumps({"model": "m", "messages": talk}).encode()
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urlopen(Request(url, body, {"authorization": "Bearer fake"})) as answer:
        message: dict[str, Any] = json.load(answer)["choices"][0]["message"]
    return message


@andon.agent
async def talker(ctx: andon.Context) -> str:
    """A typical agent: the model asks for tools, and each call is an effect of its own."""
    talk: list[dict[str, Any]] = [{"role": "user", "content": "pay"}]
    while True:
        message = await ctx.step(ask_model, talk)
        talk = [*talk, message]
        if not message.get("tool_calls"):
            return str(message["content"])
        for call in message["tool_calls"]:
            amount = json.loads(call["function"]["arguments"])["amount"]
            done = await ctx.effect(pay, amount, key=call["id"])
            talk = [*talk, {"role": "tool", "tool_call_id": call["id"], "content": done}]


def lie(*args: Any, key: str) -> Any:
    return andon.did_not_happen()


@andon.effect_of(probe=lie)
def trust(order: str, *, key: str) -> str:
    return order


@andon.effect_of(kind="idempotent")
def forget(order: str) -> str:
    return order


@andon.agent
async def liar(ctx: andon.Context) -> None:
    await ctx.effect(trust, "a", key="t")
    await ctx.effect(forget, "a", key="f")


def dream(*args: Any, key: str) -> Any:
    return andon.happened("paid")


@andon.agent
async def dreamer(ctx: andon.Context) -> None:
    await ctx.effect(pay, 3, key="p", probe=dream)


@andon.agent
async def quitter(ctx: andon.Context) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def roll() -> int:
    """Its result depends on how often it was called before."""
    note("rolled")
    return len(WORLD.read_text().splitlines())


@andon.agent
async def gambler(ctx: andon.Context) -> int:
    found: int = await ctx.step(roll)
    return found


def waits(_: int) -> None:
    """After a crash it waits for an event that nobody sets."""
    if WORLD.exists():
        threading.Event().wait()
    note("begun")


@andon.agent
async def stuck(ctx: andon.Context) -> None:
    await ctx.step(waits, 1)


@andon.agent
async def broken(ctx: andon.Context) -> str:
    """Executes an effect, and then fails for lack of a file."""
    await ctx.effect(pay, 1, key="k")
    found: str = await ctx.step(Path("prompt.txt").read_text, name="read")
    return found


def cannot_tell(*args: Any) -> Any:
    return andon.unknown()


def breaks(*args: Any) -> Any:
    raise TimeoutError


def says_true(*args: Any) -> Any:
    return True


@andon.agent
async def helpless(ctx: andon.Context) -> None:
    """Its probes do not answer the question."""
    await ctx.effect(note, "a", name="a", probe=cannot_tell)
    await ctx.effect(note, "b", name="b", probe=breaks)
    await ctx.effect(note, "c", name="c", probe=says_true)
    await ctx.effect(note, "d", name="d")


@andon.agent
async def hasty(ctx: andon.Context) -> str:
    """Its step shares a commit with the effect behind it."""
    async with ctx.together():
        found: str = await ctx.step(think, "x")
        await ctx.effect(pay, 1, key="k")
    return found


def enter(connection: Any, line: str) -> str:
    connection.execute("CREATE TABLE IF NOT EXISTS book (line TEXT)")
    connection.execute(f"INSERT INTO book VALUES ('{line}')")
    return line


@andon.agent
async def bookkeeper(ctx: andon.Context, steady: bool = True) -> str:
    """Writes into its own table, by a key that is stable only if `steady`."""
    key = "k" if steady else str(time.monotonic_ns())
    found: str = await ctx.transaction(enter, "a", key=key)
    return found


@andon.agent
async def inspector(ctx: andon.Context, check: str = "all", depth: int = 1) -> str:
    """One of its arguments has the name of an option."""
    return f"{check} {depth}"


@andon.agent
async def lonely(ctx: andon.Context) -> None:
    await ctx.event("never")


@andon.agent
async def plain(ctx: andon.Context, name: str = "x") -> str:
    found: str = await ctx.step(think, name)
    await ctx.effect(pay, 1, key=name)
    return found
