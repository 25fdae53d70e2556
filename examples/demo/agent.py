"""A small agent for the demo: it refunds five orders and writes to each customer.

The outside world is a folder of plain text files, so that anybody can count what happened to it.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

import andon

WORLD = Path(os.environ.get("DEMO_WORLD", "world"))


def note(file: str, line: str) -> None:
    with (WORLD / file).open("a") as out:
        out.write(line + "\n")


def seen(file: str, line: str) -> bool:
    path = WORLD / file
    return path.exists() and line in path.read_text().splitlines()


async def plan(order: int) -> dict[str, Any]:
    """Stands for a call to a model."""
    note("steps.txt", f"plan {order}")
    await asyncio.sleep(0.05)
    return {"order": order, "amount": 10 * order}


async def was_sent(text: str, *, key: str) -> Any:
    """Ask the outside whether the mail went out, instead of guessing."""
    return andon.happened("sent") if seen("mails.txt", key) else andon.did_not_happen()


@andon.effect_of(probe=was_sent)
async def send_mail(text: str, *, key: str) -> str:
    note("mails.txt", key)  # the mail is out …
    # … and the answer is still on its way: to the third one for long enough to be killed meanwhile.
    await asyncio.sleep(30 if key == "order-3" else 0.1)
    return "sent"


@andon.agent
async def refunds(ctx: andon.Context, orders: list[int]) -> str:
    for order in orders:
        decision = await ctx.step(plan, order)
        await ctx.effect(send_mail, f"refunded {decision['amount']}", key=f"order-{order}")
    return f"{len(orders)} orders refunded"
