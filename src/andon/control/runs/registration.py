"""Waits for a worker that was launched together with `andon start` to register."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from andon.errors import NotFound, StoreError
from andon.store import sqlite_path

REGISTRATION_SECONDS = 3.0


def await_store(url: str, agent: str, on_wait: Callable[[], None]) -> None:
    """Wait for the database file. `andon start` creates none: no run starts without a worker."""
    path = sqlite_path(url)
    if path is None or path.exists():
        return
    _refuse_impossible(path)
    on_wait()
    until = time.monotonic() + REGISTRATION_SECONDS
    while not path.exists():
        if time.monotonic() > until:
            raise NotFound(
                f"there is no agent {agent!r}: no worker has begun with the store {path} yet. "
                "Start one: andon work FILE, or set ANDON_STORE."
            )
        time.sleep(0.05)


def _refuse_impossible(path: Path) -> None:
    """Refuse a folder that cannot hold a database, by writing to it.

    Permission bits would mislead: they ignore read-only disks and the rights of root.
    """
    folder = path.absolute().parent
    while not folder.exists():
        folder = folder.parent
    try:
        with tempfile.TemporaryDirectory(dir=folder):
            pass
    except OSError as error:
        raise StoreError(
            f"{path}: no database can be made there: {error.strerror}. Use another folder: "
            "--store or ANDON_STORE."
        ) from error
