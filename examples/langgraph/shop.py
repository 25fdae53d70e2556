"""An agent of LangChain that charges a card once, even if it is killed (docs/guides/langgraph.md).

    ANDON_FAULTS=effect:executed=kill andon run examples/langgraph/shop.py:buy what=milk --id milk
    andon run examples/langgraph/shop.py:buy what=milk --id milk
    cat book.txt

Offline: a fake model answers in place of the provider. Needs andon[langgraph] and langchain-openai.
"""

from pathlib import Path

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

import andon
from andon.adapters.langgraph import AndonMiddleware, AndonSaver, agent
from andon.testing import FakeModel, call

# A fake provider: the same answers to the same conversation, and the same refusals.
fake = FakeModel([call("charge", eur=2), "It is yours."]).__enter__()
model = ChatOpenAI(model="m", base_url=f"{fake.url}/v1", api_key="fake")

BOOK = Path("book.txt")


def find(eur: int):
    """Ask the bank."""
    return andon.happened("charged") if BOOK.exists() else andon.did_not_happen()


@andon.effect_of(probe=find)
def charge(eur: int) -> str:
    """Charge the customer."""
    with BOOK.open("a") as book:
        print(eur, file=book)
    return "charged"


shop = create_agent(model, [charge], checkpointer=AndonSaver(), middleware=[AndonMiddleware()])


@agent
def buy(ctx, what: str) -> str:
    found = shop.invoke({"messages": [("user", f"Buy {what}.")]}, **ctx.langgraph())
    return found["messages"][-1].text
