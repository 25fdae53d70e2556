"""A first version of a shop agent. Everything works until its worker dies.

andon crashtest examples/careless/shop.py
"""

import random
import uuid
from pathlib import Path

import andon

BANK, POST, STOCK = Path("bank.txt"), Path("post.txt"), Path("stock.txt")


def append(file: Path, line: str) -> None:
    with file.open("a") as out:
        out.write(line + "\n")


def reserve(order: str) -> str:
    append(STOCK, order)  # changes the world, and is only a step
    return "reserved"


def charge(order: str, amount: int, *, key: str) -> str:
    append(BANK, f"{order} {amount}")
    return "charged"


def post(order: str) -> str:
    append(POST, f"parcel with {order}")
    return "posted"


@andon.effect_of(kind="idempotent")
def notify(order: str) -> str:  # declared idempotent, but never sees the key
    append(POST, f"mail about {order}")
    return "notified"


def archive(order: str, number: str) -> str:
    return f"{order} is number {number}"


@andon.agent
async def shop(ctx: andon.Context, order: str = "A-1") -> str:
    await ctx.step(reserve, order)
    await ctx.effect(charge, order, 30, key=str(uuid.uuid4()))  # another key on every replay
    await ctx.effect(post, order)  # declares nothing
    await ctx.effect(notify, order, key=order)
    await ctx.step(archive, order, f"{random.random():.9f}")  # a random number outside a step
    return "shipped"
