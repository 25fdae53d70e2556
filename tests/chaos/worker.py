"""A worker process of the chaos tests: `python worker.py '{"url": …}'`, or forked by forker.py.

One order contains every difference from a real worker.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from andon import points
from andon.core.run import TERMINAL
from andon.runtime.attempt import waits
from andon.runtime.worker.worker import Worker
from andon.settings import Settings
from andon.store import open_store


class Order(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The order for a worker process."""

    url: str
    world: str
    faults: str = ""
    settings: dict[str, Any] = {}
    linger_seconds: float = 0.0  # sleeps of the tests are short, and shall suspend all the same
    restart_seconds: float = 15.0  # of a PostgreSQL server that has just started
    most_pages: int = 0  # of the SQLite file, until the flag "space" is set
    checkpoint_pages: int = 0  # of SQLite's WAL, before they are moved into the file
    count_to: str = ""  # a file for the name of every point that is passed
    begin_at: float = 0.0  # the monotonic time at which several begin together
    environ: dict[str, str] = {}
    errors: str = ""


def obey(order: Order) -> None:
    """Become the worker that was ordered."""
    os.environ.update(order.environ, CHAOS_WORLD=order.world)
    if order.errors:
        descriptor = os.open(order.errors, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(descriptor, 2)
        os.close(descriptor)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {os.getpid()} %(message)s")
    points.watch = points.fault(order.faults)
    if order.count_to:
        points.watch = _Counting(order.count_to)
    waits.LINGER_SECONDS = order.linger_seconds
    while time.monotonic() < order.begin_at:
        pass
    asyncio.run(_work(order))


async def _work(order: Order) -> None:
    from tests.chaos import agents, world

    if order.url.startswith("postgresql"):
        from andon.store.postgres import notifier, session

        notifier.RESTART_SECONDS = order.restart_seconds
        session.TRANSACTION_SECONDS = 3  # type: ignore[attr-defined]
    if order.checkpoint_pages:
        from andon.store.sqlite import store as sqlite

        sqlite.CHECKPOINT_PAGES = order.checkpoint_pages
    store = open_store(order.url)
    if order.url.startswith("sqlite"):
        _stop_between_transactions(store)
    if order.most_pages:
        _fill_up(store, order)
    settings = Settings(store=order.url, **order.settings)
    own = f"@{os.getpid()}"

    def settled(run: str, ending: str) -> None:
        world.record("settled", f"{run}{own}")
        if ending in TERMINAL:
            world.record("over", f"{run}{own}")

    worker = Worker(store, list(agents.ALL), settings, on_settled=settled)

    def on_sigterm() -> None:
        world.record("told", own)
        worker.tell("SIGTERM")

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, on_sigterm)
    await worker.run()
    store.close()


def _stop_between_transactions(store: Any) -> None:
    """Let a frozen process hold no write lock: no other could write until it continues."""
    from tests.chaos import world

    world.between = store._writing
    stops = points.watch
    if not isinstance(stops, points.SignalAtPoint) or stops.action != signal.SIGSTOP:
        return

    def watch(name: str, about: object) -> None:
        if name == stops.name:
            with store._writing:
                stops(name, about)

    points.watch = watch


class _Counting:
    """Counts how often each point is passed."""

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def __call__(self, name: str, about: object) -> None:
        os.write(self.descriptor, f"{name}\n".encode())


def _fill_up(store: Any, order: Order) -> None:
    """Let the database be full until the test frees some space."""
    store._writer.execute(f"PRAGMA max_page_count = {order.most_pages}").fetchall()

    def free() -> None:
        while not Path(order.world, "space").exists():
            time.sleep(0.01)
        with store._writing:
            store._writer.execute("PRAGMA max_page_count = 1000000000").fetchall()

    threading.Thread(target=free, daemon=True).start()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        obey(msgspec.json.decode(sys.argv[1], type=Order))
