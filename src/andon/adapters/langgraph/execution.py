"""Executes a graph as a run of its own, for programs that have a graph and no andon agent yet."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

from langchain_core.load import dumps

import andon
from andon.errors import BadInput
from andon.runtime.agent import Agent

if TYPE_CHECKING:
    from collections.abc import Callable


async def run(
    graph: Any,
    given: Any,
    *,
    run_id: str | None = None,
    thread_id: str | None = None,
    store: str | None = None,
    **options: Any,
) -> Any:
    """Execute `graph.ainvoke(given, …)` as a run; an existing `run_id` continues that run.

    The graph uses the conversation `thread_id`, or one of its own. Inside a run the call is part of
    that run. Without `store`, the store of ANDON_STORE or andon.toml is used.
    """
    ctx = andon.current()
    if ctx is not None:
        return await graph.ainvoke(given, **ctx.langgraph(thread_id), **options)
    last: list[Any] = []

    async def execute(ctx: Any, given_: Any) -> Any:
        last[:] = [await graph.ainvoke(given, **ctx.langgraph(thread_id), **options)]
        return _place(await graph.aget_state(_of(thread_id or ctx.run_id)))

    return await _run(graph, given, execute, last, run_id, store)


def run_sync(
    graph: Any,
    given: Any,
    *,
    run_id: str | None = None,
    thread_id: str | None = None,
    store: str | None = None,
    **options: Any,
) -> Any:
    """Execute `graph.invoke(given, …)` as a run, in a thread: `run` for plain programs."""
    ctx = andon.current()
    if ctx is not None:
        return graph.invoke(given, **ctx.langgraph(thread_id), **options)
    last: list[Any] = []

    def execute(ctx: Any, given_: Any) -> Any:
        last[:] = [graph.invoke(given, **ctx.langgraph(thread_id), **options)]
        return _place(graph.get_state(_of(thread_id or ctx.run_id)))

    return asyncio.run(_run(graph, given, execute, last, run_id, store))


async def _run(
    graph: Any,
    given: Any,
    execute: Callable[..., Any],
    last: list[Any],
    run_id: str | None,
    store: str | None,
) -> Any:
    name = re.sub(r"[^\w.\-]", "-", getattr(graph, "name", None) or "graph")[:100]
    async with andon.Client(store) as client:
        found = await client.run(Agent(execute, name=name), _plain(given), id=run_id)
    return last[0] if last else await _recorded(graph, found)


def _plain(given: Any) -> Any:
    """Return the input as JSON for the run, so that an id reused with other input is refused."""
    try:
        return json.loads(dumps(given), object_hook=_lasting)
    except (TypeError, ValueError) as error:
        raise BadInput(f"the graph's input: expected what LangChain stores: {error}") from None


def _lasting(found: dict[str, Any]) -> dict[str, Any]:
    """Drop the repr of an object, which may contain its address in memory."""
    if found.get("type") == "not_implemented":
        found.pop("repr", None)
    return found


def _of(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id}}


def _place(found: Any) -> dict[str, Any]:
    """Return the thread's checkpoint, from which this state can be read again at any time."""
    return dict(found.config["configurable"])


async def _recorded(graph: Any, place: dict[str, Any]) -> Any:
    """Return the result of a run that had finished before this call."""
    values = (await graph.aget_state({"configurable": place})).values
    shown = graph.output_channels
    if isinstance(shown, str):
        return values[shown]
    return {name: values[name] for name in shown if name in values}
