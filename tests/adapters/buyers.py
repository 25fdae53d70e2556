"""Agents of Pydantic AI that buy something, on the providers' own classes."""

from typing import Any

from pydantic_ai import Agent
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from andon.adapters.pydantic_ai import AndonDurability
from andon.testing import call

FORMS = ("anthropic", "chat", "responses")
SCRIPT: list[Any] = [[call("charge", amount=10), call("mail", to="ann")], call("log"), "All done."]


def model_of(form: str, url: str) -> Model:
    if form == "anthropic":
        return AnthropicModel("m", provider=AnthropicProvider(base_url=url, api_key="fake"))
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="fake")
    kind = OpenAIChatModel if form == "chat" else OpenAIResponsesModel
    return kind("m", provider=provider)


def buyer(url: str, *tools: Any, form: str = "chat", options: Any = None, **given: Any) -> Any:
    """An agent with these tools. `options`: of AndonDurability."""
    capabilities = [AndonDurability(**(options or {}))]
    return Agent(model_of(form, url), name="buyer", tools=tools, capabilities=capabilities, **given)
