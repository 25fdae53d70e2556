"""Stops while a graph is at work: the report matches what happened, and nothing acts after it."""

import asyncio
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from tests.adapters.scripted import Gate, Scripted, Streaming, agent_of, calls
from tests.runtime.harness import Lab, until
from typing_extensions import TypedDict

import andon
from andon.adapters.langgraph import AndonMiddleware, AndonSaver

HELLO: Any = {"messages": [("user", "hello")]}
CHARGE = calls(("charge", {"amount": 5}))
both_ways = pytest.mark.parametrize("plain", [True, False], ids=["invoke", "ainvoke"])


@pytest.fixture
def saver(local: Lab) -> Iterator[AndonSaver]:
    with AndonSaver(local.url) as found:
        yield found


class Tool:
    """A tool that is held while it acts."""

    def __init__(self, *, awaits: bool) -> None:
        self.gate, self.acted = Gate(), 0

        def charge(amount: int) -> str:
            """Charge the card."""
            self.gate.pass_plain()
            self.acted += 1
            return "charged"

        async def charge_awaited(amount: int) -> str:
            """Charge the card."""
            await self.gate.pass_awaited()
            self.acted += 1
            return "charged"

        charge_awaited.__name__ = "charge"
        self.function = charge_awaited if awaits else charge


def buyer(saver: AndonSaver, model: Any, tool: Tool | None, *, plain: bool, **options: Any) -> Any:
    tools = [] if tool is None else [tool.function]
    graph = create_agent(
        model, tools, checkpointer=saver, middleware=[AndonMiddleware(), *options.pop("more", ())]
    )
    return agent_of(graph, lambda: (yield HELLO)["messages"][-1].text, plain=plain)


TOOLS = [(True, False), (False, False), (False, True)]  # (sync agent, async tool)


@pytest.mark.parametrize(("plain", "awaits"), TOOLS, ids=["sync", "thread", "async"])
async def test_a_drain_lets_a_tool_end_and_the_next_worker_continues(
    local: Lab, saver: AndonSaver, plain: bool, awaits: bool
) -> None:
    tool, model = Tool(awaits=awaits), Scripted(script=[CHARGE, "done"])
    agent = buyer(saver, model, tool, plain=plain)
    async with local.working(agent) as worker:
        run = await local.client.start(agent)
        await until(tool.gate.reached.is_set)
        leaving = asyncio.ensure_future(worker.__aexit__())
        await until(lambda: worker.draining)
        tool.gate.release.set()
        await leaving
        assert (await local.client.get(run)).state == "queued"
        assert local.effects(run) == {"charge": "confirmed"}
        assert len(model.asked) == 1  # nothing began after it
        config: Any = {"configurable": {"thread_id": run}}
        left = saver.get_tuple(config)
        assert left is not None
        assert not [write for write in left.pending_writes or () if write[1] == "__error__"]
    async with local.working(agent):
        assert await local.result(run) == "done"
    assert tool.acted == 1


@pytest.mark.parametrize(("plain", "awaits"), TOOLS, ids=["sync", "thread", "async"])
async def test_a_tool_that_does_not_end_in_time_is_in_doubt(
    local: Lab, saver: AndonSaver, plain: bool, awaits: bool
) -> None:
    """An abandoned thread continues, and no report claims that it does not."""
    tool = Tool(awaits=awaits)
    agent = buyer(saver, Scripted(script=[CHARGE, "done"]), tool, plain=plain)
    async with local.working(agent, grace_seconds=0.6) as worker:
        run = await local.client.start(agent)
        await until(tool.gate.reached.is_set)
        await worker.__aexit__()
        [row] = local.store.ledger(run)
        assert (row.state, row.quiet) == ("in_doubt", awaits)
        tool.gate.release.set()


@pytest.mark.parametrize(("plain", "awaits"), TOOLS, ids=["sync", "thread", "async"])
async def test_a_cancel_lets_a_tool_end_and_reports_what_it_did(
    local: Lab, saver: AndonSaver, plain: bool, awaits: bool
) -> None:
    tool, model = Tool(awaits=awaits), Scripted(script=[CHARGE, "done"])
    agent = buyer(saver, model, tool, plain=plain)
    async with local.working(agent):
        run = await local.client.start(agent)
        await until(tool.gate.reached.is_set)
        receipt = await local.client.cancel(run)
        assert not (await local.client.receipt(receipt)).proved
        tool.gate.release.set()
        await local.reach_after_end(run, "cancelled")
    assert tool.acted == 1
    assert local.effects(run) == {"charge": "confirmed"}
    assert len(model.asked) == 1


@both_ways
@pytest.mark.parametrize("order", ["drain", "cancel"])
async def test_a_stop_during_a_stream_keeps_the_partial_text(
    local: Lab, saver: AndonSaver, plain: bool, order: str
) -> None:
    """The next attempt can read it, and asks the model again."""
    gate = Gate()
    seen: list[Any] = []

    class Look(AgentMiddleware):
        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            seen.append(andon.current().partial)
            return handler(request)

        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            seen.append(andon.current().partial)
            return await handler(request)

    at_word = gate.pass_plain if plain else gate.pass_awaited
    model = Streaming(streaming=True, script=["one two three"], at_word=at_word)
    agent = buyer(saver, model, None, plain=plain, more=[Look()])
    async with local.working(agent, grace_seconds=1.5) as worker:
        run = await local.client.start(agent)
        await until(gate.reached.is_set)
        if order == "cancel":
            await local.client.cancel(run)
            if plain:  # a thread cannot be ended, and is not reported as ended
                await asyncio.sleep(0)
                gate.release.set()
            await local.reach_after_end(run, "cancelled")
            return
        await worker.__aexit__()
        assert (await local.client.get(run)).state == "queued"
        gate.release.set()
    async with local.working(agent):
        assert (await local.result(run)).strip() == "one two three"
    assert seen == [None, "one "]


@both_ways
async def test_a_graph_without_operations_stops_before_its_next_node(
    local: Lab, saver: AndonSaver, plain: bool
) -> None:
    """By LangGraph's own control: the run is returned, and continues there."""
    gate = Gate()
    done: list[str] = []

    class State(TypedDict):
        messages: Annotated[list[Any], add_messages]

    def first(state: State) -> Any:
        done.append("first")
        gate.pass_plain()
        return {"messages": [("ai", "first")]}

    def second(state: State) -> Any:
        done.append("second")
        return {"messages": [("ai", "second")]}

    builder = StateGraph(State)
    builder.add_node("first", first)
    builder.add_node("second", second)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    builder.add_edge("second", END)
    graph = builder.compile(checkpointer=saver)
    agent = agent_of(graph, lambda: (yield HELLO)["messages"][-1].text, plain=plain)
    async with local.working(agent) as worker:
        run = await local.client.start(agent)
        await until(gate.reached.is_set)
        await local.client.pause(run)
        await until(lambda: worker.attempts[run].exit.stopping)
        gate.release.set()
        await local.reach_after_end(run, "paused")
        assert "second" not in done
        await local.client.resume(run)
        assert await local.result(run) == "second"
    # Async code is cancelled between two operations, wherever it is; a thread ends its node.
    assert done == [*(["first"] if plain else ["first", "first"]), "second"]


async def test_a_stop_is_not_saved_as_an_error_of_its_node(local: Lab, saver: AndonSaver) -> None:
    tool = Tool(awaits=False)
    script = [calls(("charge", {"amount": 5}), ("charge", {"amount": 6})), "done"]
    graph: Any = create_agent(
        Scripted(script=script),
        [tool.function],
        checkpointer=saver,
        middleware=[AndonMiddleware()],
    )

    def code(ctx: Any) -> str:
        given = ctx.langgraph("t")
        given["config"]["max_concurrency"] = 1  # the second call begins when the first has ended
        return str(graph.invoke(HELLO, **given)["messages"][-1].text)

    agent = andon.agent(name="agent")(code)
    async with local.working(agent) as worker:
        run = await local.client.start(agent)
        await until(tool.gate.reached.is_set)
        await local.client.pause(run)
        await until(lambda: worker.attempts[run].exit.stopping)
        tool.gate.release.set()
        await local.reach_after_end(run, "paused")
        left = saver.get_tuple({"configurable": {"thread_id": "t"}})
        assert left is not None
        assert "__error__" not in {channel for _, channel, _ in left.pending_writes or ()}
        await local.client.resume(run)
        assert await local.result(run) == "done"
    assert tool.acted == 2


async def test_a_stop_is_no_error_that_a_graph_could_handle(local: Lab, saver: AndonSaver) -> None:
    """Neither a ToolNode that handles every error nor a retry turns it into a message."""
    tool = Tool(awaits=True)
    other = AndonMiddleware()
    seen: list[Any] = []

    class State(TypedDict):
        messages: Annotated[list[Any], add_messages]

    async def ask(state: State) -> Any:
        seen.append([one.text for one in state["messages"]])
        return {"messages": [CHARGE]}

    builder = StateGraph(State)
    builder.add_node("ask", ask)
    node = ToolNode([tool.function], handle_tool_errors=True, awrap_tool_call=other.awrap_tool_call)
    builder.add_node("tools", node)
    builder.add_edge(START, "ask")
    builder.add_edge("ask", "tools")
    builder.add_edge("tools", END)
    graph = builder.compile(checkpointer=saver)
    agent = agent_of(graph, lambda: (yield HELLO)["messages"][-1].text, plain=False)
    async with local.working(agent):
        run = await local.client.start(agent)
        await until(tool.gate.reached.is_set)
        await local.client.kill(run)
        await local.reach_after_end(run, "killed")
        tool.gate.release.set()
    config: Any = {"configurable": {"thread_id": run}}
    assert [one.text for one in graph.get_state(config).values["messages"]] == ["hello", ""]
    assert graph.get_state(config).next == ("tools",)
