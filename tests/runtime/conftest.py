"""Tests of this folder may be coroutines, and may use a laboratory as a fixture."""

import asyncio
import contextlib
import inspect
from collections.abc import Iterator

import psycopg
import pytest
from tests import databases
from tests.runtime.harness import Lab

from andon.testing.postgres import Cluster

# The limit of every wait in a test: a broken promise is an error, not a hang.
LIMIT_SECONDS = 60


@pytest.fixture(scope="session")
def shared_database(cluster: Cluster) -> str:
    """One database for all tests of this folder: to create one takes longer than most of them."""
    return cluster.fresh_database()


@pytest.fixture(params=["sqlite", "postgres"])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A laboratory on each of the two databases."""
    if request.param == "sqlite":
        url = request.getfixturevalue("sqlite_url")
    else:
        url = request.getfixturevalue("shared_database")
    found = Lab(url)
    yield found
    found.store.close()
    if request.param == "postgres":
        empty(url)


def empty(url: str) -> None:
    """Delete all rows of the tests, except the meta table and the schema version."""
    with psycopg.connect(url) as db:
        databases.empty(db, kept=("andon.meta", "andon.schema"))


@pytest.fixture
def local(sqlite_url: str) -> Iterator[Lab]:
    """A laboratory for promises that do not depend on the database."""
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
            await pyfuncitem.obj(**given)

    asyncio.run(carry_out())
    return True
