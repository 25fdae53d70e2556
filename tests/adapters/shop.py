"""An agent of LangChain in a run of andon: a program that tests fork and kill."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parents[2]))

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI
from langgraph.types import Command
from pydantic import SecretStr

import andon
import andon.runtime.context
import andon.runtime.effects.effect
import andon.runtime.operations.tool_calls
import andon.runtime.worker.worker
import andon.store.postgres.store
import andon.store.sqlite.store
from andon import points
from andon.adapters.langgraph import AndonMiddleware, AndonSaver
from andon.runtime.agent import Agent
from andon.testing import fork_server

YES: Any = Command(resume=True)
LOADED = (andon.runtime, andon.store)


class Order(msgspec.Struct, kw_only=True):
    """The order for a child: the run, and where it dies (a point of the operation of this name)."""

    url: str
    run: str
    folder: str
    model: str
    thread: str = "t"
    way: str = "invoke"
    form: str = "chat"
    said: str = "buy it"
    approve: tuple[str, ...] = ()
    dies: tuple[str, str] | None = None


def chat_model(form: str, url: str, **options: Any) -> Any:
    options = {"max_retries": 0, "api_key": SecretStr("fake"), **options}
    if form == "anthropic":
        return ChatAnthropic(model_name="m", base_url=url, **options)
    responses = form == "responses"
    return ChatOpenAI(model="m", base_url=f"{url}/v1", use_responses_api=responses, **options)


class World:
    """The world: one file for each act that certainly happened."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "world"

    def add(self, what: str) -> str:
        with self.file.open("a") as file:
            file.write(f"{what}\n")
            os.fsync(file.fileno())
        return what

    @property
    def all(self) -> list[str]:
        return self.file.read_text().split("\n")[:-1] if self.file.exists() else []

    def tools(self) -> list[Any]:
        def charge(amount: int) -> str:
            """Charge the card."""
            return self.add(f"charged {amount}")

        async def mail(to: str) -> str:
            """Send a mail."""
            return self.add(f"mailed {to}")

        return [charge, mail]

    def effects(self) -> dict[str, Any]:
        def found(what: str) -> Any:
            return andon.happened(what) if what in self.all else andon.did_not_happen()

        return {
            "charge": {"probe": lambda amount: found(f"charged {amount}")},
            "mail": {"probe": lambda to: found(f"mailed {to}")},
        }


def buyer(graph: Any, way: str, thread: str) -> Agent:
    """The run's code: it calls its graph, and approves every request."""

    def given(said: str) -> Any:
        return {"messages": [("user", said)]}

    def text(found: Any) -> str:
        return str(found["messages"][-1].text)

    def plain(ctx: Any, said: str) -> str:
        if way == "invoke":
            found = graph.invoke(given(said), **ctx.langgraph(thread))
            while "__interrupt__" in found:
                found = graph.invoke(YES, **ctx.langgraph(thread))
            return text(found)
        [*_, last] = graph.stream(given(said), stream_mode="values", **ctx.langgraph(thread))
        return text(last)

    async def awaited(ctx: Any, said: str) -> str:
        if way == "ainvoke":
            found = await graph.ainvoke(given(said), **ctx.langgraph(thread))
            while "__interrupt__" in found:
                found = await graph.ainvoke(YES, **ctx.langgraph(thread))
            return text(found)
        stream = graph.astream(given(said), stream_mode="values", **ctx.langgraph(thread))
        [*_, last] = [found async for found in stream]
        return text(last)

    return Agent(awaited if way.startswith("a") else plain, name="buyer")


async def run(order: Order) -> str:
    world = World(Path(order.folder))
    with AndonSaver(order.url) as saver:
        model = chat_model(order.form, order.model)
        middleware = [AndonMiddleware(effects=world.effects(), approve=order.approve)]
        tools = world.tools() if order.way.startswith("a") else world.tools()[:1]
        graph = create_agent(model, tools, checkpointer=saver, middleware=middleware)
        async with andon.Client(order.url) as client:
            agent = buyer(graph, order.way, order.thread)
            return str(await client.run(agent, order.said, id=order.run))


def become(line: bytes) -> None:
    order = msgspec.json.decode(line, type=Order)
    if order.dies is not None:
        name, operation = order.dies

        def watch(passed: str, about: Any) -> None:
            if passed == name and operation in ("", getattr(about, "name", "")):
                os.kill(os.getpid(), signal.SIGKILL)

        points.watch = watch
    answer = asyncio.run(run(order))
    (Path(order.folder) / "answer").write_text(answer)


if __name__ == "__main__":
    fork_server.serve(become)
