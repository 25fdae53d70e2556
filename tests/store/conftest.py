"""Fixtures shared by the tests of the stores."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest
from tests.store.parts import Listen

from andon.store import open_store
from andon.store.postgres import notifier
from andon.store.store import Store


@pytest.fixture
def opened(store_url: str) -> Iterator[Callable[[], Store]]:
    """A function that opens the same store once more."""
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
def long_running_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the server did not start a moment ago; only some tests are about that."""
    monkeypatch.setattr(notifier, "RESTART_SECONDS", 0.0)


@pytest.fixture(params=["in a thread", "on a loop"])
def listen(request: pytest.FixtureRequest) -> Iterator[Listen]:
    """Both ways to listen for notifications."""
    if request.param == "in a thread":
        yield lambda store, callback: store.listen(callback)
        return
    loop = asyncio.new_event_loop()
    turning = threading.Thread(target=loop.run_forever)
    turning.start()

    async def begin(store: Store, callback: Callable[[], None]) -> Callable[[], None]:
        return store.listen_on(loop, callback)

    yield lambda store, callback: asyncio.run_coroutine_threadsafe(
        begin(store, callback), loop
    ).result()
    loop.call_soon_threadsafe(loop.stop)
    turning.join()
    loop.close()
