"""Pydantic AI: an agent whose message history is saved around every node, as careful people do."""

from typing import Any

from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessagesTypeAdapter, repair_messages
from pydantic_ai.models import Model

from verify.drivers.shop import Shop

FORMS = ("anthropic", "chat", "responses")
KEPT = ("file",)
PACKAGES = ("pydantic-ai-slim",)


async def plain(shop: Shop) -> str:
    saved = shop.saved()
    kept = ModelMessagesTypeAdapter.validate_json(saved) if saved else []
    async with shop.client() as client:
        capabilities = [_Saved(shop)]
        agent = Agent(
            model(shop, client), name="clerk", tools=shop.tools, capabilities=capabilities
        )
        match shop.phase:
            case "begin":
                found = await agent.run(shop.task)
            case "resume":
                found = await agent.run(message_history=kept)
            case _:
                found = await agent.run(shop.news, message_history=repair_messages(kept))
    return str(found.output)


def model(shop: Shop, client: Any) -> Model:
    if shop.form == "anthropic":
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        return AnthropicModel("m", provider=AnthropicProvider(anthropic_client=client))
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    kind = OpenAIResponsesModel if shop.form == "responses" else OpenAIChatModel
    return kind("m", provider=OpenAIProvider(openai_client=client))


class _Saved(AbstractCapability[Any]):
    def __init__(self, shop: Shop) -> None:
        self._shop = shop

    async def wrap_node_run(self, ctx: Any, *, node: Any, handler: Any) -> Any:
        self._save(ctx)
        found = await handler(node)
        self._save(ctx)
        return found

    def _save(self, ctx: Any) -> None:
        self._shop.save(ModelMessagesTypeAdapter.dump_json(ctx.messages))
