"""The loop without a framework, with tools that act through programs, as coding agents' shells do.

A program outlives the process that started it. Without andon nothing would end it.
"""

from verify.drivers import loop
from verify.drivers.shop import Shop

FORMS = ("anthropic",)
KEPT = ("file",)
PACKAGES = ("anthropic",)


async def plain(shop: Shop) -> str:
    shop.launches = True
    return await loop.plain(shop)


async def with_andon(shop: Shop) -> str:
    shop.launches = True
    return await loop.with_andon(shop)
