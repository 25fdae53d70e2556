"""A saver on each database, and the laboratory of the runtime's tests."""

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from tests.runtime.conftest import lab, local, pytest_pyfunc_call, shared_database

from andon.adapters.langgraph import AndonSaver
from andon.store import open_store
from andon.store.store import Store

__all__ = ["lab", "local", "pytest_pyfunc_call", "shared_database"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of many kills of one kind, `make test` runs each n-th; `make chaos` runs all of them."""
    seen: Counter[str] = Counter()
    for item in items:
        sampled = item.get_closest_marker("sampled")
        if sampled is not None:
            kind = item.nodeid.partition("[")[0]
            if seen[kind] % sampled.args[0]:
                item.add_marker("chaos")
            seen[kind] += 1


@pytest.fixture
def opened(store_url: str) -> Iterator[Callable[[], AndonSaver]]:
    """A function that opens one more saver on the same store."""
    savers: list[AndonSaver] = []

    def open_one() -> AndonSaver:
        savers.append(AndonSaver(store_url))
        return savers[-1]

    yield open_one
    for saver in savers:
        saver.close()


@pytest.fixture
def saver(opened: Callable[[], AndonSaver]) -> AndonSaver:
    return opened()


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    store = open_store(store_url)
    yield store
    store.close()
