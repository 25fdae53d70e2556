"""The same agent, corrected: its worker may die at any moment.

andon crashtest examples/careful/shop.py
"""

from pathlib import Path
from typing import Any

import andon

BANK, POST, STOCK = Path("bank.txt"), Path("post.txt"), Path("stock.txt")


def append(file: Path, line: str) -> None:
    with file.open("a") as out:
        out.write(line + "\n")


def done(file: Path, key: str) -> Any:
    """Ask the outside instead of guessing."""
    there = file.exists() and any(key in line.split() for line in file.read_text().splitlines())
    return andon.happened() if there else andon.did_not_happen()


def find_reserved(order: str, *, key: str) -> Any:
    return done(STOCK, key)


def find_charged(order: str, amount: int, *, key: str) -> Any:
    return done(BANK, key)


def find_posted(order: str, *, key: str) -> Any:
    return done(POST, key)


@andon.effect_of(probe=find_reserved)
def reserve(order: str, *, key: str) -> None:
    append(STOCK, f"{key} {order}")


@andon.effect_of(probe=find_charged)
def charge(order: str, amount: int, *, key: str) -> None:
    append(BANK, f"{key} {order} {amount}")


@andon.effect_of(probe=find_posted)
def post(order: str, *, key: str) -> None:
    append(POST, f"{key} parcel with {order}")


@andon.effect_of(kind="idempotent")
def notify(order: str, *, key: str) -> None:
    """The post office knows the key, and delivers the same mail once."""
    if not isinstance(done(POST, key), andon.AndonError):
        return
    append(POST, f"{key} mail about {order}")


def archive(order: str, number: str) -> str:
    return f"{order} is number {number}"


@andon.agent
async def shop(ctx: andon.Context, order: str = "A-1") -> str:
    await ctx.effect(reserve, order, key=f"stock-{order}")
    await ctx.effect(charge, order, 30, key=f"charge-{order}")
    await ctx.effect(post, order, key=f"parcel-{order}")
    await ctx.effect(notify, order, key=f"mail-{order}")
    await ctx.step(archive, order, f"{ctx.random():.9f}")  # the same number on every replay
    return "shipped"
