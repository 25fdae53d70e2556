"""Supervisors for the tests; the processes they leave behind are ended."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.supervisor.harness import Supervised


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Supervised]:
    """One supervisor with a home of its own."""
    found = Supervised(tmp_path / "home", tmp_path)
    yield found
    found.close()


@pytest.fixture
def another(tmp_path: Path, supervised: Supervised) -> Iterator[Callable[[], Supervised]]:
    """More supervisors in the same home."""
    made: list[Supervised] = []

    def make() -> Supervised:
        folder = tmp_path / f"other-{len(made)}"
        folder.mkdir()
        made.append(Supervised(supervised.home, folder))
        return made[-1]

    yield make
    for each in made:
        each.close()
