"""A place in a database whose connections are all taken: what lasts waits for one."""

from __future__ import annotations

import logging
import random
import time

from andon.errors import StoreFull

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TypeVar

    T = TypeVar("T")

log = logging.getLogger("andon")

FIRST_SECONDS, MOST_SECONDS = 0.2, 3.0


def pauses() -> Iterator[float]:
    """Longer and longer, and never the same for two processes that were refused together."""
    seconds = FIRST_SECONDS
    while True:
        yield seconds * random.uniform(0.5, 1.0)  # noqa: S311 (nobody is to be kept from guessing)
        seconds = min(2 * seconds, MOST_SECONDS)


async def held(store: Any, worker_id: str, told: Callable[[], bool]) -> str | None:
    """Take the lock of a worker's life, as soon as there is a place; `told`: it is to go."""
    import asyncio

    for pause in pauses():
        try:
            lock: str | None = store.hold(worker_id)
        except StoreFull as error:
            if told():
                raise
            log.warning("%s Waiting until there is room.", error)
            store.yield_place()
        else:
            return lock
        await asyncio.sleep(pause)
    raise AssertionError("unreachable")


def waited_for(ask: Callable[[], T], say: Callable[[str], None]) -> T:
    """The answer, as soon as there is a place; nothing is kept while it waits."""
    told = False
    for pause in pauses():
        try:
            return ask()
        except StoreFull as error:
            if not told:
                say(f"{error} Waiting until there is room.")
                told = True
        time.sleep(pause)
    raise AssertionError("unreachable")
