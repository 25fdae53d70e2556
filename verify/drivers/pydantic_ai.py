"""Pydantic AI: an agent whose message history is saved around every node, as careful users do."""

from typing import Any

from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelRequest,
    UserPromptPart,
    repair_messages,
)
from pydantic_ai.models import Model

import andon
from andon.adapters.pydantic_ai import AndonDurability, repair, run
from verify.drivers.shop import Shop

FORMS = ("anthropic", "chat", "responses")
KEPT = ("file",)
PACKAGES = ("pydantic-ai-slim",)


async def plain(shop: Shop) -> str:
    _save_prompt(shop)
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


def _save_prompt(shop: Shop) -> None:
    """Saves the person's message before the agent handles it."""
    if shop.phase == "begin":
        first: list[Any] = [ModelRequest([UserPromptPart(shop.task)])]
        shop.save(ModelMessagesTypeAdapter.dump_json(first))


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
        if ctx.messages:
            self._shop.save(ModelMessagesTypeAdapter.dump_json(ctx.messages))


# ── with andon ────────────────────────────────────────────────────────────────────────────────


async def with_andon(shop: Shop) -> str:
    _save_prompt(shop)
    async with shop.client() as client:
        both = [AndonDurability(), _Saved(shop)]
        agent = Agent(model(shop, client), name="clerk", tools=shop.tools, capabilities=both)
        if shop.phase != "message":
            found = await run(agent, shop.task, run_id=shop.name, store=shop.store)
            return str(found.output)
        async with andon.Client(shop.store) as store:
            await store.kill(shop.name, why="something new was said")
            ledger = await store.ledger(shop.name)
        kept = repair(ModelMessagesTypeAdapter.validate_json(shop.saved() or b"[]"), ledger=ledger)
        given: Any = {
            "message_history": list(kept),
            "run_id": f"{shop.name}.2",
            "store": shop.store,
        }
        return str((await run(agent, shop.news, **given)).output)
