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

from verify.drivers.shop import Shop

FORMS = ("chat", "responses")
KEPT = ("sqlite",)
PACKAGES = ("openai-agents",)

set_tracing_disabled(True)


async def plain(shop: Shop) -> str:
    kept = _Kept(shop)
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


class _Kept(SQLiteSession):
    """The same; the shop hears of it before it keeps something."""

    def __init__(self, shop: Shop) -> None:
        super().__init__(shop.name, shop.store.removeprefix("sqlite:///"))
        self._shop = shop

    async def add_items(self, items: list[Any]) -> None:
        self._shop.checkpoint()
        await super().add_items(items)
