"""Forks the processes of the kill matrix, so that drivers' imports are paid for once."""

import asyncio
import importlib
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import msgspec

# In place of this folder, whose drivers have the names of the libraries they drive.
sys.path[0] = str(Path(__file__).parents[2])

import andon.runtime.client  # noqa: E402 (the project is on the path now)
import andon.store.postgres.store  # noqa: E402
import andon.store.sqlite.store  # noqa: E402
from andon.testing import FakeModel, fork_server  # noqa: E402
from verify.drivers import shop  # noqa: E402

LOADED = (andon.runtime.client, andon.store.postgres.store, andon.store.sqlite.store)


def become(raw: bytes) -> None:
    order = msgspec.json.decode(raw, type=shop.Order)
    errors = Path(order.folder, f"{order.phase}.err")
    os.dup2(os.open(errors, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), 2)
    live(order)


def live(order: shop.Order) -> None:
    os.environ["ANDON_HOME"] = f"{order.folder}/home"
    os.environ["ANDON_STORE"] = order.store
    driver = _driver(order.driver)
    one = driver.with_andon if order.andon else driver.plain
    said = asyncio.run(one(shop.Shop(order)))
    Path(order.folder, "answer").write_text(said)


def rehearse(name: str) -> None:
    """Libraries import most of themselves on first use: that happens once here, too."""
    for form in _driver(name).FORMS:
        # One server for each form: a library may keep an address's client, and its event loop.
        with FakeModel(["hello"]) as model, tempfile.TemporaryDirectory() as folder:
            order = shop.Order(
                driver=name,
                andon=False,
                phase="begin",
                moment="",
                parallel=False,
                deadly="",
                form=form,
                name="rehearsal",
                store=f"sqlite:///{folder}/{form}.db",
                folder=folder,
                url=model.url,
            )
            live(order)
    # The server's own threads wait on connections that a library keeps; forks do not need them.
    left = [one.name for one in threading.enumerate() if "process_request" not in one.name]
    left.remove(threading.main_thread().name)
    if left:
        sys.exit(f"{name}: its threads {left} would be missing in the processes that are forked")


def _driver(name: str) -> Any:
    return importlib.import_module(f"verify.drivers.{name}")


if __name__ == "__main__":
    for each in sys.argv[1:]:
        rehearse(each)
    fork_server.serve(become)
