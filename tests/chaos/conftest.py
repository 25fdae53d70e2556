"""Sites for the chaos tests: a store, a world, and real processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos.fleet import Forker, Site

from andon.store import open_store


@pytest.fixture(scope="session")
def forker() -> Iterator[Forker]:
    found = Forker()
    yield found
    found.close()


@pytest.fixture
def site(forker: Forker, store_url: str, tmp_path: Path) -> Iterator[Site]:
    """The same test on both databases."""
    yield from open_site(forker, store_url, tmp_path)


@pytest.fixture
def postgres_site(forker: Forker, postgres_url: str, tmp_path: Path) -> Iterator[Site]:
    yield from open_site(forker, postgres_url, tmp_path)


@pytest.fixture
def sqlite_site(forker: Forker, sqlite_url: str, tmp_path: Path) -> Iterator[Site]:
    yield from open_site(forker, sqlite_url, tmp_path)


def open_site(forker: Forker, url: str, tmp_path: Path) -> Iterator[Site]:
    store = open_store(url)
    found = Site(forker, store, url, tmp_path / "world")
    try:
        yield found
    finally:
        found.end()
        store.close()
