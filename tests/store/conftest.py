"""What only the tests of the stores share."""

from collections.abc import Callable, Iterator

import pytest

from andon.store import open_store, postgres_bell
from andon.store.store import Store


@pytest.fixture
def opened(store_url: str) -> Iterator[Callable[[], Store]]:
    """Opens the same store once more."""
    stores: list[Store] = []

    def open_one() -> Store:
        stores.append(open_store(store_url))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


@pytest.fixture
def store(opened: Callable[[], Store]) -> Store:
    return opened()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of the tests was started a moment ago; that is not always the point."""
    monkeypatch.setattr(postgres_bell, "RESTART_SECONDS", 0.0)
