"""Tests of this folder may be coroutines, and may ask for a laboratory."""

import asyncio
import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from tests.runtime.harness import Lab

# No test waits for anything longer than this; a promise that is not kept is an error, not a hang.
LIMIT_SECONDS = 60


@pytest.fixture
def lab(store_url: str) -> Iterator[Lab]:
    """A laboratory on each of the two databases."""
    found = Lab(store_url)
    yield found
    found.store.close()


@pytest.fixture
def local(sqlite_url: str) -> Iterator[Lab]:
    """A laboratory for promises in which the database has no part."""
    found = Lab(sqlite_url)
    yield found
    found.store.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.function):
        return None
    wanted = inspect.signature(pyfuncitem.function).parameters
    given = {name: found for name, found in pyfuncitem.funcargs.items() if name in wanted}

    async def carry_out() -> None:
        async with asyncio.timeout(LIMIT_SECONDS), contextlib.AsyncExitStack() as labs:
            for one in given.values():
                if isinstance(one, Lab):
                    await labs.enter_async_context(one)
            await _call(pyfuncitem, given)

    asyncio.run(carry_out())
    return True


async def _call(item: pytest.Function, given: dict[str, Any]) -> None:
    await item.obj(**given)
