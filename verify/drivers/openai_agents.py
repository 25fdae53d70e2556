"""OpenAI Agents: its Runner, with its SQLiteSession."""

from typing import Any

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)

from andon.adapters.openai_agents import AndonSession
from andon.adapters.openai_agents import Runner as DurableRunner
from verify.drivers.shop import Shop

FORMS = ("chat", "responses")
KEPT = ("sqlite",)
PACKAGES = ("openai-agents",)

set_tracing_disabled(True)


async def plain(shop: Shop) -> str:
    kept = _CheckpointSession(shop)
    new = shop.news if shop.phase == "message" else shop.task
    try:
        async with shop.client() as client:
            found = await Runner.run(agent(shop, client), new, session=kept)
    finally:
        kept.close()
    return str(found.final_output)


def agent(shop: Shop, client: Any) -> Agent[Any]:
    kind = OpenAIResponsesModel if shop.form == "responses" else OpenAIChatCompletionsModel
    tools: list[Any] = [function_tool(one) for one in shop.tools]
    return Agent(name="clerk", tools=tools, model=kind("m", client))


class _CheckpointSession(SQLiteSession):
    """The same session; it calls the shop before it saves something."""

    def __init__(self, shop: Shop) -> None:
        super().__init__(shop.name, shop.store.removeprefix("sqlite:///"))
        self._shop = shop

    async def add_items(self, items: list[Any]) -> None:
        self._shop.checkpoint()
        await super().add_items(items)


# ── with andon ────────────────────────────────────────────────────────────────────────────────


async def with_andon(shop: Shop) -> str:
    message = shop.phase == "message"
    new, run = (shop.news, f"{shop.name}.2") if message else (shop.task, shop.name)
    talk = AndonSession(shop.name, shop.store)
    add = talk.kept.add

    async def add_after_checkpoint(*args: Any, **kwargs: Any) -> None:
        shop.checkpoint()
        await add(*args, **kwargs)

    talk.kept.add = add_after_checkpoint  # type: ignore[method-assign]
    try:
        async with shop.client() as client:
            found = await DurableRunner.run(agent(shop, client), new, session=talk, run_id=run)
    finally:
        talk.close()
    return str(found.final_output)
