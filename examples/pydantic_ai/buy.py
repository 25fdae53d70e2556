"""An agent of Pydantic AI that is killed in the middle of a payment, and pays once.

python examples/pydantic_ai/buy.py --crash; python examples/pydantic_ai/buy.py

It needs `pip install 'andon[pydantic-ai]' openai`, and no network: the model is a fake one.
"""

import os
import sys
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, RunContext

import andon
from andon.adapters.pydantic_ai import AndonDurability, run_sync
from andon.testing import FakeModel, call

BOOK = Path("book.txt")


def find(eur: int, *, key: str) -> Any:
    """Ask the bank."""
    paid = BOOK.exists() and key in BOOK.read_text()
    return andon.happened("paid") if paid else andon.did_not_happen()


@andon.effect_of(probe=find)
def pay(ctx: RunContext[None], eur: int) -> str:
    """Pay the invoice."""
    with BOOK.open("a") as book:
        print(ctx.tool_call_id, eur, file=book)
    if "--crash" in sys.argv:
        os.kill(os.getpid(), 9)
    return "paid"


with FakeModel([call("pay", eur=10), "The invoice is paid."]) as model:
    os.environ |= model.environ
    agent = Agent("openai-chat:m", name="buyer", tools=[pay], capabilities=[AndonDurability()])
    print(run_sync(agent, "Pay 10 EUR.", run_id="invoice-7").output)
print(len(BOOK.read_text().splitlines()), "payment")
