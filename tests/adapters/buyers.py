"""Agents of Pydantic AI that buy something, built on the providers' own client classes."""

from pathlib import Path
from typing import Any

import msgspec
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai import Agent, RunContext
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

import andon
from andon import points
from andon.adapters.pydantic_ai import AndonDurability, run_sync
from andon.testing import call, fork_server

FORMS = ("anthropic", "chat", "responses")
SCRIPT: list[Any] = [[call("charge", amount=10), call("mail", to="ann")], call("log"), "All done."]


def model_of(form: str, url: str) -> Model:
    """Its connections close with each answer: the event loop of a test ends before its client."""
    options: Any = {"api_key": "fake", "default_headers": {"Connection": "close"}}
    if form == "anthropic":
        return AnthropicModel(
            "m",
            provider=AnthropicProvider(anthropic_client=AsyncAnthropic(base_url=url, **options)),
        )
    client = AsyncOpenAI(base_url=f"{url}/v1", **options)
    kind = OpenAIChatModel if form == "chat" else OpenAIResponsesModel
    return kind("m", provider=OpenAIProvider(openai_client=client))


def buyer(url: str, *tools: Any, form: str = "chat", options: Any = None, **given: Any) -> Any:
    """An agent with these tools. `options`: of AndonDurability."""
    capabilities = [AndonDurability(**(options or {}))]
    return Agent(model_of(form, url), name="buyer", tools=tools, capabilities=capabilities, **given)


# ── as a process that dies ────────────────────────────────────────────────────────────────────


class Order(msgspec.Struct):
    """The work of a process: continue the run until `faults` ends it."""

    url: str  # of the model
    store: str
    folder: str
    form: str
    faults: str = ""


def obey(raw: bytes) -> None:
    order = msgspec.json.decode(raw, type=Order)
    points.watch = points.fault(order.faults)
    book = Path(order.folder, "book")

    def note(ctx: RunContext[None], what: str) -> str:
        with book.open("a") as file:
            print(ctx.tool_call_id, what, file=file, flush=True)
        return f"{what}: done"

    def find(key: str, **_: Any) -> Any:
        lines = book.read_text().splitlines() if book.exists() else []
        found = [line.split(maxsplit=1)[1] for line in lines if line.startswith(f"{key} ")]
        return andon.happened(f"{found[0]}: done") if found else andon.did_not_happen()

    @andon.effect_of(probe=find)
    async def charge(ctx: RunContext[None], amount: int) -> str:
        return note(ctx, f"charged {amount}")

    @andon.effect_of(probe=find)
    def mail(ctx: RunContext[None], to: str) -> str:
        return note(ctx, f"mailed {to}")

    one = buyer(order.url, charge, mail, form=order.form)
    found = run_sync(one, "buy", run_id="order-1", store=order.store)
    Path(order.folder, "answer").write_bytes(found.all_messages_json())


if __name__ == "__main__":
    fork_server.serve(obey)
