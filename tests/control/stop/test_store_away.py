"""A stop while the store is away: reported soon, with the alternative that needs no store."""

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
    """A server that accepts connections and never answers."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield f"postgresql://ann:secret@127.0.0.1:{server.getsockname()[1]}/agents"


def test_waiting_for_a_silent_store_points_to_andon_halt(local: Terminal, silent: str) -> None:
    with local.process("kill", "r", env={"ANDON_STORE": silent}) as process:
        text = process.says(WAY)
        assert process.process.poll() is None
    assert text.startswith("waiting for the store postgresql://ann@127.0.0.1:")
    assert "secret" not in text


def test_a_missing_store_is_an_error_that_points_to_andon_halt(
    local: Terminal, tmp_path: Path
) -> None:
    nothing = local.error("kill", "r", code=1, env={"ANDON_STORE": f"sqlite:///{tmp_path}/none.db"})
    assert "there is no database" in nothing
    assert f"Nothing was stopped. In a hurry: {WAY}" in nothing


def test_waiting_for_a_locked_store_points_to_andon_halt(local: Terminal) -> None:
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
