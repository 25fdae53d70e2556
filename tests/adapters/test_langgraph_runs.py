"""Graphs inside runs: each invocation continues from its own checkpoints; no question is lost."""

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator
from operator import add
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware.types import ModelResponse
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel
from tests.adapters.scripted import Scripted, agent_of, calls
from tests.runtime.harness import Lab

import andon
from andon.adapters.langgraph import AndonMiddleware, AndonSaver, task_key, wire
from andon.errors import BadInput

HELLO: Any = {"messages": [("user", "hello")]}
both_ways = pytest.mark.parametrize("plain", [True, False], ids=["invoke", "ainvoke"])


@pytest.fixture
def saver(lab: Lab) -> Iterator[AndonSaver]:
    with AndonSaver(lab.url) as found:
        yield found


@pytest.fixture
def local_saver(local: Lab) -> Iterator[AndonSaver]:
    """A saver on the database of `local`."""
    with AndonSaver(local.url) as found:
        yield found


USED: Any = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}


def asked(shape: Any) -> Any:
    return SimpleNamespace(response_format=shape)


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def texts(found: Any) -> list[str]:
    return [one.text for one in found["messages"]]


def charger(charged: list[int]) -> Callable[..., str]:
    def charge(amount: int) -> str:
        """Charge the card."""
        charged.append(amount)
        return f"charged {amount}"

    return charge


async def ended(lab: Lab, code: Any) -> Any:
    async with lab.working(code):
        return await lab.result(await lab.client.start(code))


@both_ways
async def test_every_invocation_returns_on_replay_what_it_returned_first(
    lab: Lab, saver: AndonSaver, plain: bool
) -> None:
    model = Scripted(script=["one", "two", "three"])
    graph = create_agent(model, [], checkpointer=saver, middleware=[AndonMiddleware()])

    def code() -> Any:
        first = yield HELLO
        yield "go"
        second = yield HELLO
        yield "on"
        third = yield HELLO
        return [texts(first), texts(second), texts(third)]

    agent = agent_of(graph, code, plain=plain)
    async with lab.working(agent):
        run = await lab.client.start(agent)
        for event in ("go", "on"):
            await lab.waits_for(run, event)
            await lab.reach(run, "suspended")
            await lab.client.send(run, event)
        first, second, third = await lab.result(run)
    assert first == ["hello", "one"]
    assert second == [*first, "hello", "two"]
    assert third == [*second, "hello", "three"]
    assert len(model.asked) == 3


class SaidState(TypedDict):
    said: Annotated[list[str], add]


def asking_graph(saver: AndonSaver) -> Any:
    """Two questions in one node, then one in another."""

    def first(state: SaidState) -> Any:
        return {"said": [f"{interrupt('one?')} {interrupt('two?')}"]}

    def second(state: SaidState) -> Any:
        return {"said": [interrupt("three?")]}

    graph = StateGraph(SaidState)
    graph.add_node("first", first)
    graph.add_node("second", second)
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    graph.add_edge("second", END)
    return graph.compile(checkpointer=saver)


@both_ways
async def test_an_answer_is_given_to_the_question_it_was_for(
    lab: Lab, saver: AndonSaver, plain: bool
) -> None:
    """Each answer executes the code again, which resumes its graph with the earlier answers."""
    heard: list[list[str]] = []

    def code() -> Any:
        found = yield {"said": ["hello"]}
        asked = []
        for name in ("a", "b", "c"):
            asked.append(found["__interrupt__"][0].value)
            word = yield name
            found = yield Command(resume=word)
        heard.append(asked)
        return found["said"]

    agent = agent_of(asking_graph(saver), code, plain=plain)
    async with lab.working(agent):
        run = await lab.client.start(agent)
        for name in ("a", "b", "c"):
            await lab.waits_for(run, name)
            await lab.reach(run, "suspended")
            await lab.client.send(run, name, name.upper())
        assert await lab.result(run) == ["hello", "A B", "C"]
    assert heard[-1] == ["one?", "two?", "three?"]


@both_ways
async def test_an_invocation_that_goes_further_on_replay_strands_the_run(
    local: Lab, local_saver: AndonSaver, plain: bool
) -> None:
    """The run's code has gone on from its first result; nothing may be built on another one."""
    asks = [True]

    def node(state: SaidState) -> Any:
        return {"said": [interrupt("one?") if asks else "not asked"]}

    builder = StateGraph(SaidState)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    graph = builder.compile(checkpointer=local_saver)

    def code() -> Any:
        yield {"said": []}
        found = yield Command(resume="A")
        yield "go"
        return found["said"]

    agent = agent_of(graph, code, plain=plain)
    async with local.working(agent):
        run = await local.client.start(agent)
        await local.waits_for(run, "go")
        await local.reach(run, "suspended")
        asks.clear()
        saved = len(list(local_saver.list({"configurable": {"thread_id": run}})))
        await local.client.send(run, "go")
        stranded = await local.end(run)
    assert stranded.state == "stranded"
    assert "beyond the point from which the run's code continued" in str(stranded.error)
    assert len(list(local_saver.list({"configurable": {"thread_id": run}}))) == saved


@both_ways
@pytest.mark.parametrize("decision", ["approve", "reject"])
async def test_a_tool_that_waits_for_a_person_suspends_its_run(
    lab: Lab, saver: AndonSaver, plain: bool, decision: str
) -> None:
    """The run's code handles no interrupt; it is executed again once the person has answered."""
    charged: list[int] = []
    model = Scripted(script=[calls(("charge", {"amount": 5})), "done"])
    middleware = [AndonMiddleware(approve=["charge"])]
    graph = create_agent(model, [charger(charged)], checkpointer=saver, middleware=middleware)

    def code() -> Any:
        found = yield HELLO
        return texts(found)

    agent = agent_of(graph, code, plain=plain)
    async with lab.working(agent):
        run = await lab.client.start(agent)
        ask = await lab.asked(run)
        assert ask.question == "May the tool 'charge' be called?"
        assert charged == []
        await lab.client.answer(run, decision, by="ann")
        found = await lab.result(run)
    assert found[-1] == "done"
    assert charged == ([5] if decision == "approve" else [])
    if decision == "reject":
        assert found[2] == "the tool 'charge' was not called: it was rejected by ann"
    assert len(model.asked) == 2


@both_ways
async def test_a_program_may_answer_with_langgraphs_own_command(
    lab: Lab, saver: AndonSaver, plain: bool
) -> None:
    charged: list[int] = []
    script = [calls(("charge", {"amount": 5})), calls(("charge", {"amount": 6}), ids=("x",)), "ok"]
    middleware = [AndonMiddleware(approve=["charge"])]
    graph = create_agent(
        Scripted(script=script), [charger(charged)], checkpointer=saver, middleware=middleware
    )

    def code() -> Any:
        found = yield HELLO
        asked = [found["__interrupt__"][0].value["args"]]
        yield "first"
        found = yield Command(resume=True)
        asked.append(found["__interrupt__"][0].value["args"])
        yield "second"
        edited = {"decision": "edit", "value": {"amount": 1}}
        found = yield Command(resume=edited)
        return [asked, texts(found)]

    agent = agent_of(graph, code, plain=plain)
    async with lab.working(agent):
        run = await lab.client.start(agent)
        for event in ("first", "second"):
            await lab.waits_for(run, event)
            await lab.reach(run, "suspended")
            assert len(lab.store.asks(run)) == 1
            await lab.client.send(run, event)
        asked, found = await lab.result(run)
    assert asked == [{"amount": 5}, {"amount": 6}]
    assert charged == [5, 1]
    assert found[-1] == "ok"
    assert lab.store.asks(run) == []


@both_ways
async def test_the_first_answer_to_a_question_holds(
    local: Lab, local_saver: AndonSaver, plain: bool
) -> None:
    charged: list[int] = []
    graph = create_agent(
        Scripted(script=[calls(("charge", {"amount": 5})), "done"]),
        [charger(charged)],
        checkpointer=local_saver,
        middleware=[AndonMiddleware(approve=["charge"])],
    )

    def code() -> Any:
        yield HELLO
        yield "go"
        found = yield Command(resume=True)
        return texts(found)

    agent = agent_of(graph, code, plain=plain)
    async with local.working(agent):
        run = await local.client.start(agent)
        await local.waits_for(run, "go")
        await local.reach(run, "suspended")
        await local.client.answer(run, "reject")
        await local.client.send(run, "go")
        found = await local.result(run)
    assert charged == []
    assert "rejected" in found[2]


@both_ways
async def test_tools_of_one_answer_are_called_concurrently(
    local: Lab, local_saver: AndonSaver, plain: bool
) -> None:
    both = threading.Barrier(2, timeout=20)
    met: list[str] = []

    def meet(name: str) -> str:
        """Wait for the other call."""
        both.wait()
        met.append(name)
        return name

    script = [calls(("meet", {"name": "a"}), ("meet", {"name": "b"})), "done"]
    graph = create_agent(
        Scripted(script=script), [meet], checkpointer=local_saver, middleware=[AndonMiddleware()]
    )
    await ended(local, agent_of(graph, lambda: texts((yield HELLO)), plain=plain))
    assert sorted(met) == ["a", "b"]


class Sum(BaseModel):
    sum: int


def test_a_journaled_value_is_restored_unchanged() -> None:
    said = ToolMessage("x", tool_call_id="1", name="note", artifact={"n": [1]}, status="error")
    told = Command(update={"messages": [said], "n": 1}, goto=[Send("a", {"m": said}), "b"])
    for given in (said, told, [said, told]):
        assert wire.restored(through_json(wire.stored(given))) == given
    answer = AIMessage("hi", id="7", usage_metadata=USED, response_metadata={"model": "m"})
    for shape in (Sum, ToolStrategy(Sum), ProviderStrategy(Sum)):
        response = ModelResponse(result=[answer], structured_response=Sum(sum=7))
        kept = through_json(wire.stored_answer(response))
        assert wire.response(kept, asked(shape)) == response


@both_ways
async def test_a_tool_may_interrupt_its_graph_with_a_question(
    local: Lab, local_saver: AndonSaver, plain: bool
) -> None:
    """The interrupt of its graph is not recorded as an outcome of the tool."""

    def choose(of: str) -> str:
        """Let a person choose."""
        return f"chose {interrupt(of)}"

    graph = create_agent(
        Scripted(script=[calls(("choose", {"of": "ab"})), "done"]),
        [choose],
        checkpointer=local_saver,
        middleware=[AndonMiddleware()],
    )

    def code() -> Any:
        found = yield HELLO
        assert found["__interrupt__"][0].value == "ab"
        found = yield Command(resume="b")
        return texts(found)

    found = await ended(local, agent_of(graph, code, plain=plain))
    assert found[2:] == ["chose b", "done"]


@both_ways
async def test_a_custom_graph_uses_the_run_in_its_nodes(
    lab: Lab, saver: AndonSaver, plain: bool
) -> None:
    """A subgraph, an effect in a node and a ToolNode: none of them is executed again."""
    done: list[str] = []
    middleware = AndonMiddleware(effects={"charge": "idempotent"})
    tools = ToolNode(
        [charger([])],
        wrap_tool_call=middleware.wrap_tool_call,
        awrap_tool_call=middleware.awrap_tool_call,
    )

    def work(what: str) -> str:
        done.append(what)
        return what

    class State(TypedDict):
        messages: Annotated[list[Any], add]

    def node(state: State) -> Any:
        andon.current().effect(work, "plain", key="x")
        return {"messages": [calls(("charge", {"amount": 5}))]}

    async def awaited(state: State) -> Any:
        await andon.current().effect(work, "awaited", key="x")
        key = task_key()
        assert key.endswith("/1")
        await andon.current().step(work, "step", key=key)
        return {"messages": [calls(("charge", {"amount": 5}))]}

    inner = StateGraph(State)
    inner.add_node("node", node if plain else awaited)
    inner.add_edge(START, "node")
    inner.add_edge("node", END)
    outer = StateGraph(State)
    outer.add_node("inner", inner.compile())
    outer.add_node("tools", tools)
    outer.add_edge(START, "inner")
    outer.add_edge("inner", "tools")
    outer.add_edge("tools", END)
    graph = outer.compile(checkpointer=saver)

    def code() -> Any:
        found = yield {"messages": [HumanMessage("hello")]}
        yield "go"
        return found["messages"][-1].text

    agent = agent_of(graph, code, plain=plain)
    async with lab.working(agent):
        run = await lab.client.start(agent)
        assert await lab.replayed(run) == "charged 5"
    assert done == (["plain"] if plain else ["awaited", "step"])
    assert lab.effects(run) == {"work": "confirmed", "charge": "confirmed"}


@both_ways
async def test_call_ids_that_a_provider_reuses_are_different_calls(
    local: Lab, local_saver: AndonSaver, plain: bool
) -> None:
    charged: list[int] = []
    call = [calls(("charge", {"amount": n}), ids=("call_0",)) for n in (1, 2)]
    middleware = [AndonMiddleware(approve=["charge"])]  # so that each is called in a new attempt
    graph = create_agent(
        Scripted(script=[*call, "done"]),
        [charger(charged)],
        checkpointer=local_saver,
        middleware=middleware,
    )
    agent = agent_of(graph, lambda: texts((yield HELLO)), plain=plain)
    async with local.working(agent):
        run = await local.client.start(agent)
        for _ in (1, 2):
            await local.asked(run)
            await local.client.answer(run, "approve")
        found = await local.result(run)
    assert charged == [1, 2]
    assert found[-1] == "done"


# ── refusals ──────────────────────────────────────────────────────────────────────────────────


def test_outside_of_a_run_the_middleware_refuses() -> None:
    graph = create_agent(Scripted(script=["one"]), [], middleware=[AndonMiddleware()])
    with pytest.raises(BadInput, match="expected a run of andon, found none"):
        graph.invoke(HELLO)
    with pytest.raises(BadInput, match="expected a run of andon, found none"):
        asyncio.run(graph.ainvoke(HELLO))


REFUSED = {
    "another saver": "checkpointer=AndonSaver",
    "without the config": r"called with \*\*ctx.langgraph\(\)",
    "exit": "expected 'sync' inside a run",
    "sync in async": "await graph.ainvoke",
}


@pytest.mark.parametrize("how", REFUSED)
async def test_an_invocation_that_would_not_be_journaled_is_refused(
    local: Lab, local_saver: AndonSaver, how: str
) -> None:
    model = Scripted(script=["one"])
    saver = InMemorySaver() if how == "another saver" else local_saver
    graph: Any = create_agent(model, [], checkpointer=saver, middleware=[AndonMiddleware()])

    async def code(ctx: andon.Context) -> None:
        given = ctx.langgraph()
        if how == "without the config":
            await graph.ainvoke(HELLO, {"configurable": {"thread_id": "t"}})
        elif how == "exit":
            await graph.ainvoke(HELLO, **{**given, "durability": "exit"})
        elif how == "sync in async":
            graph.invoke(HELLO, **given)
        else:
            await graph.ainvoke(HELLO, **given)

    agent = andon.agent(name="agent")(code)
    async with local.working(agent):
        run = await local.end(await local.client.start(agent))
    assert run.state == "failed"
    assert run.error is not None
    assert run.error["type"] == "BadInput"
    assert re.search(REFUSED[how], run.error["message"])
    assert model.asked == []


def test_the_example_is_the_program_of_the_guide() -> None:
    """The tests of the pages execute and kill that program."""
    root = Path(__file__).parents[2]
    guide = (root / "docs/guides/langgraph.md").read_text()
    program = guide.partition("# shop.py\n")[2].partition("```")[0]
    assert len(program) > 500
    assert (root / "examples/langgraph/shop.py").read_text().endswith(program)
