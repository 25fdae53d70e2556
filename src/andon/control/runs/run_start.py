"""Starts a run, perhaps before the worker that was launched together with it has registered."""

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from andon.control.runs.run_input import read
from andon.errors import NotFound, StoreError
from andon.runtime.requests import requests
from andon.runtime.requests.start import resolve
from andon.store import sqlite_path
from andon.store.messages.rows import RunRow
from andon.store.store import Store

REGISTRATION_SECONDS = 3.0


def start(
    store: Store,
    agent: str,
    given: dict[str, Any],
    *,
    on_wait: Callable[[], None],
    warn: Callable[[str], None],
    **options: Any,
) -> RunRow:
    """Start a run; waits briefly for a worker to register an agent that is not known yet."""
    _waited_for(lambda: bool(store.agents(agent)), on_wait)
    try:
        row = resolve(store, agent)
        given = read(given, json.loads(row.types), warn)
        run_id = requests.start(store, row, kwargs=given, **options)
    except NotFound as error:
        known = sorted({row.name for row in store.agents()})
        if known and "known:" not in str(error):
            raise NotFound(f"{error} known: {', '.join(known)}") from None
        raise
    return requests.find(store, run_id)


def await_store(url: str, agent: str, on_wait: Callable[[], None]) -> None:
    """Wait for the database file. `andon start` creates none: no run starts without a worker."""
    path = sqlite_path(url)
    if path is None:
        return
    if not path.exists():
        _refuse_impossible(path)
    if not _waited_for(path.exists, on_wait):
        raise NotFound(
            f"there is no agent {agent!r}: no worker has begun with the store {path} yet. "
            "Start one: andon work FILE, or set ANDON_STORE."
        )


def _waited_for(registered: Callable[[], bool], on_wait: Callable[[], None]) -> bool:
    """Give a worker that is starting the time to register; returns whether it did."""
    if registered():
        return True
    on_wait()
    until = time.monotonic() + REGISTRATION_SECONDS
    while not (found := registered()) and time.monotonic() < until:
        time.sleep(0.05)
    return found


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
