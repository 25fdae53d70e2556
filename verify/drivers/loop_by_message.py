"""The same loop, saved more carefully: after every message that is added."""

from verify.drivers import loop
from verify.drivers.shop import Shop

FORMS, KEPT, PACKAGES = loop.FORMS, loop.KEPT, loop.PACKAGES


async def plain(shop: Shop) -> str:
    return await loop.loop(shop, each_message=True)
