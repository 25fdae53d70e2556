"""LangGraph: create_agent of LangChain, with LangGraph's own savers."""

from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from pydantic import SecretStr

import andon
from andon.adapters.langgraph import AndonMiddleware, AndonSaver
from verify.drivers.shop import FIRST, Shop

FORMS = ("anthropic", "chat", "responses")
KEPT = ("sqlite", "postgres")
PACKAGES = (
    "langgraph",
    "langchain",
    "langgraph-checkpoint-sqlite",
    "langgraph-checkpoint-postgres",
)

FAKE = SecretStr("fake")


async def plain(shop: Shop) -> str:
    shop.keeps_each = True
    async with _saver(shop) as saver:
        await saver.setup()
        graph = create_agent(model(shop), shop.tools, checkpointer=_with_checkpoints(saver, shop))
        config: Any = {"configurable": {"thread_id": shop.name}}
        found = await graph.ainvoke(given(shop), config, durability="sync")
    return said(found)


def given(shop: Shop) -> Any:
    """None resumes from the saver's checkpoint."""
    new = {"begin": shop.task, "message": shop.news}.get(shop.phase)
    return {"messages": [HumanMessage(new)]} if new else None


def said(found: dict[str, Any]) -> str:
    last = found["messages"][-1]
    return str(last.text) if isinstance(last, AIMessage) else ""


def model(shop: Shop) -> Any:
    if shop.form == "anthropic":
        from langchain_anthropic import ChatAnthropic

        return ChatAnthropic(
            model_name="m", base_url=shop.url, api_key=FAKE, max_retries=0, timeout=None, stop=None
        )
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        model="m",
        base_url=f"{shop.url}/v1",
        api_key=FAKE,
        max_retries=0,
        use_responses_api=shop.form == "responses",
    )


def _saver(shop: Shop) -> Any:
    if shop.store.startswith("sqlite"):
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        return AsyncSqliteSaver.from_conn_string(shop.store.removeprefix("sqlite:///"))
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

    return AsyncPostgresSaver.from_conn_string(shop.store)


def _with_checkpoints(saver: Any, shop: Shop) -> Any:
    """The same saver; it calls the shop before and after it saves something."""
    put, put_writes = saver.aput, saver.aput_writes

    async def aput(*args: Any, **kwargs: Any) -> Any:
        shop.checkpoint()
        return await put(*args, **kwargs)

    async def aput_writes(config: Any, writes: Any, *args: Any, **kwargs: Any) -> None:
        shop.checkpoint()
        await put_writes(config, writes, *args, **kwargs)
        if FIRST in _results(writes):
            shop.keeps(FIRST)

    saver.aput, saver.aput_writes = aput, aput_writes
    return saver


def _results(writes: Any) -> list[str]:
    values = [value for channel, value in writes if channel == "messages"]
    return [one.name or "" for value in values for one in value if isinstance(one, ToolMessage)]


# ── with andon ────────────────────────────────────────────────────────────────────────────────


async def with_andon(shop: Shop) -> str:
    with AndonSaver(shop.store) as saver:
        kept = _with_checkpoints(saver, shop)
        graph = create_agent(
            model(shop), shop.tools, checkpointer=kept, middleware=[AndonMiddleware()]
        )

        @andon.agent
        async def clerk(ctx: andon.Context, text: str) -> str:
            new: Any = {"messages": [HumanMessage(text)]}
            return said(await graph.ainvoke(new, **ctx.langgraph(shop.name)))

        async with andon.Client(shop.store) as client:
            if shop.phase == "message":
                return str(await client.run(clerk, shop.news, id=f"{shop.name}.2"))
            return str(await client.run(clerk, shop.task, id=shop.name))
