"""Terminals on both databases, and on SQLite alone for tests that no database affects."""

from pathlib import Path

import pytest
from tests.cli.terminal import Terminal


@pytest.fixture
def andon(tmp_path: Path, store_url: str) -> Terminal:
    return Terminal(tmp_path, store_url)


@pytest.fixture
def local(tmp_path: Path, sqlite_url: str) -> Terminal:
    return Terminal(tmp_path, sqlite_url)
