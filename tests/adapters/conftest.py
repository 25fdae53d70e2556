"""A saver on each database, and the laboratory of the runtime's tests."""

from collections.abc import Callable, Iterator

import pytest
from tests.runtime.conftest import lab, local, pytest_pyfunc_call, shared_database

from andon.adapters.langgraph import AndonSaver
from andon.store import open_store
from andon.store.store import Store

__all__ = ["lab", "local", "pytest_pyfunc_call", "shared_database"]


@pytest.fixture
def opened(store_url: str) -> Iterator[Callable[[], AndonSaver]]:
    """Opens one more saver on the same store."""
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
