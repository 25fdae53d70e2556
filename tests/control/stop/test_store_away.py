"""A stop while the store is away: said soon, and with the way that needs none."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from tests.cli.terminal import Terminal
from tests.store.parts import start

from andon.store import open_store

WAY = "andon halt needs no store: it stops everything on this host at once"


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and never says a word."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield f"postgresql://ann:secret@127.0.0.1:{server.getsockname()[1]}/agents"


def test_who_waits_for_a_silent_store_hears_of_the_other_way(local: Terminal, silent: str) -> None:
    with local.process("kill", "r", env={"ANDON_STORE": silent}) as process:
        text = process.says(WAY)
        assert process.process.poll() is None
    assert text.startswith("waiting for the store postgresql://ann@127.0.0.1:")
    assert "secret" not in text


def test_a_store_that_is_not_there_is_an_error_with_the_other_way(
    local: Terminal, tmp_path: Path
) -> None:
    nothing = local.error("kill", "r", code=1, env={"ANDON_STORE": f"sqlite:///{tmp_path}/none.db"})
    assert "there is no database" in nothing
    assert f"Nothing was stopped. In a hurry: {WAY}" in nothing


def test_a_store_whose_lock_is_held_is_waited_for_with_the_other_way(local: Terminal) -> None:
    store = open_store(local.url)
    start(store, "r")
    store.close()
    db = apsw.Connection(local.url.removeprefix("sqlite:///"))
    db.execute("BEGIN IMMEDIATE")
    with local.process("kill", "r") as process:
        process.says(WAY)
        db.execute("ROLLBACK")
        assert process.ends() == 0
    db.close()
