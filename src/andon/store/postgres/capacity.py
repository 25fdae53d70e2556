"""Waiting for a free connection when a PostgreSQL server has none left."""

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
    """Yield growing, random pauses, so that processes refused together do not retry together."""
    seconds = FIRST_SECONDS
    while True:
        yield seconds * random.uniform(0.5, 1.0)  # noqa: S311 (jitter, not a secret)
        seconds = min(2 * seconds, MOST_SECONDS)


async def held(store: Any, worker_id: str, leaving: Callable[[], bool]) -> str | None:
    """Take a worker's liveness lock once a connection is free; give up if it is `leaving`."""
    import asyncio

    for pause in pauses():
        try:
            lock: str | None = store.hold(worker_id)
        except StoreFull as error:
            if leaving():
                raise
            log.warning("%s Waiting until there is room.", error)
            store.yield_place()
        else:
            return lock
        await asyncio.sleep(pause)
    raise AssertionError("unreachable")


def waited_for(ask: Callable[[], T], say: Callable[[str], None]) -> T:
    """Return the answer of `ask` once a connection is free; it holds nothing while it waits."""
    announced = False
    for pause in pauses():
        try:
            return ask()
        except StoreFull as error:
            if not announced:
                say(f"{error} Waiting until there is room.")
                announced = True
        time.sleep(pause)
    raise AssertionError("unreachable")
