"""The loop without a framework, on the clients of Anthropic and OpenAI."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import andon
from andon import transcript
from andon.transcript import IN_DOUBT, NOT_STARTED, Call, Done
from verify.drivers.shop import Shop

FORMS = ("anthropic", "chat", "responses")
KEPT = ("file",)
PACKAGES = ("anthropic", "openai")


# ── without andon: the conversation is saved after each turn, with the results of its tools ──


async def plain(shop: Shop) -> str:
    return await loop(shop, each_message=False)


async def loop(shop: Shop, *, each_message: bool) -> str:
    messages = begun(shop)
    shop.save(messages)
    while True:
        answer = await shop.ask(messages)
        messages += transcript.turn(answer)
        if each_message:
            shop.save(messages)
        calls = transcript.calls(answer)
        if not calls:
            return transcript.text(answer)
        messages += transcript.results(answer, await _all(shop, calls))
        shop.save(messages)


async def _all(shop: Shop, calls: list[Any]) -> list[Any]:
    tools = {tool.__name__: tool for tool in shop.tools}
    given = await asyncio.gather(*(tools[call.name](**call.arguments) for call in calls))
    return [(call, Done(result)) for call, result in zip(calls, given, strict=True)]


def begun(shop: Shop) -> list[Any]:
    """The messages in the file, and the person's new one."""
    saved = shop.saved()
    messages: list[Any] = json.loads(saved) if saved else []
    new = {"begin": shop.task, "message": shop.news}.get(shop.phase)
    return [*messages, {"role": "user", "content": new}] if new else messages


# ── with andon ────────────────────────────────────────────────────────────────────────────────


async def with_andon(shop: Shop) -> str:
    tools = {tool.__name__: tool for tool in shop.tools}

    @andon.agent
    async def clerk(ctx: andon.Context, messages: list[Any], doubts: list[str]) -> str:
        messages = await _closed(ctx, shop, messages, doubts)
        while True:
            await ctx.step(shop.save, messages)
            answer = await ctx.model(shop.ask, messages)
            messages += transcript.turn(answer)
            await ctx.step(shop.save, messages)
            results = await ctx.tools(answer, tools)
            if not results:
                return transcript.text(answer)
            messages += results

    async with andon.Client(shop.store) as client:
        task = [{"role": "user", "content": shop.task}]
        if shop.phase != "message":
            return str(await client.run(clerk, task, [], id=shop.name))
        await client.kill(shop.name, why="something new was said")
        given = _gone_on(shop, await client.ledger(shop.name))
        return str(await client.run(clerk, *given, id=f"{shop.name}.2"))


def _gone_on(shop: Shop, ledger: Callable[[Call], Any]) -> tuple[list[Any], list[str]]:
    """The conversation so far, with all results that exist, and the calls that are in doubt."""
    doubts: list[str] = []

    def known(call: Call) -> Any:
        state = ledger(call)
        if state is IN_DOUBT:
            doubts.append(call.id)
        return state if isinstance(state, Done) else NOT_STARTED

    found = transcript.repair(begun(shop), format=shop.form, ledger=known)
    return list(found.messages), doubts


async def _closed(
    ctx: andon.Context, shop: Shop, messages: list[Any], doubts: list[str]
) -> list[Any]:
    """Calls without a result are made now; a person is asked first if one may have happened."""
    tools = {tool.__name__: tool for tool in shop.tools}
    done: dict[str, Done] = {}
    for call in transcript.repair(messages, format=shop.form, ledger=lambda _: NOT_STARTED).to_run:
        said = None
        if call.id in doubts:
            said = await ctx.ask(f"Did {call.name} happen?", call.arguments, key=call.name)
        if said is not None and not said.approved:
            done[call.id] = Done(said.value)
        else:
            function = tools[call.name]
            done[call.id] = Done(await ctx.tool(call.id, call.name, call.arguments, function))
    return list(transcript.repair(messages, format=shop.form, ledger=done).messages)
