"""A halt in the store: writes the order, and proves the targets that this host can see.

A worker or supervisor of this host is proved stopped when its process is gone. Every other target
is proved by its owner.
"""

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from andon.control.stop.processes import workers_of
from andon.core.stop import OPEN, Stage, StopKind, StopScope
from andon.core.text import clean
from andon.errors import AndonError, StoreUnavailable
from andon.host import proc
from andon.runtime.worker.peers import end_remains
from andon.store import open_store
from andon.store.messages.stops import Dismiss, Order, SupervisorRow, TargetRow, WorkerGone
from andon.store.store import Store, WorkerRow

AGAIN_SECONDS = 0.01
SEEN_SECONDS = 0.1  # a person needs longer to see a pull and lift it; clocks differ by this much
Say = Callable[..., None]


def order(url: str, words: dict[str, Any], within: float, say: Say) -> tuple[Store, str]:
    """Write the order; returns the store and the id of the halt in force. Creates no database."""
    store = _patiently(lambda: open_store(url, create=False, reserved=True), within, say)
    return store, str(_patiently(lambda: _write_order(store, words), within, say))


def _patiently(ask: Callable[[], Any], seconds: float, say: Say) -> Any:
    end = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except StoreUnavailable as error:
            say(why=clean(error))
            if time.monotonic() > end:
                raise
            time.sleep(AGAIN_SECONDS)


def _write_order(store: Store, words: dict[str, Any]) -> str:
    """Write the order; returns the id of the halt in force, which may be an earlier one."""
    message = Order(
        id=words["order"],
        kind=StopKind.HALT,
        scope=StopScope.FLEET,
        by=words.get("by", ""),
        why=words.get("why", ""),
        via=words.get("via", "andon halt"),
    )
    [found] = store.write([message])
    if isinstance(found, Exception):
        raise found
    if any(
        latch.kind == StopKind.HALT and latch.scope == StopScope.FLEET for latch in store.latches()
    ):
        return str(found)
    row = store.stop(str(found))
    seen_for = time.monotonic() - words["began"] - SEEN_SECONDS
    if row is not None and row.lifted_at and store.now() - row.lifted_at < seen_for:
        return str(found)  # lifted by a person who had seen this very pull
    # The store lifted an earlier pull with this id, but this host did not: order a new halt.
    return _write_order(store, words | {"order": f"{words['order']}-{os.urandom(4).hex()}"})


def prove(store: Store, order: str, end: float, say: Say) -> None:
    """Poll until every target is proved or the time is over; `say` each change."""
    reported: dict[str, Any] = {}
    while True:
        with contextlib.suppress(AndonError):
            found = known(store, order)
            if found != reported:
                reported = found
                say(**reported)
            if reported["over"]:
                return
        if time.monotonic() >= end:
            return
        time.sleep(AGAIN_SECONDS)


def known(store: Store, order: str) -> dict[str, Any]:
    """The state of a halt, after recording the deaths that this host can see."""
    here = _record_deaths(store, order)
    rows = store.targets(order)
    verified = [row for row in rows if row.stage == Stage.VERIFIED]
    left = [row for row in rows if row.stage != Stage.VERIFIED]
    # A run stops with the process that executes it: one line per process is enough.
    processes = [row for row in left if row.run_id is None] or left
    kinds = Counter(row.target.partition(":")[0] for row in rows)
    return {
        "targets": len(rows),
        "kinds": dict(sorted(kinds.items())),
        "verified": len(verified),
        "unproved": [_sentence(row) for row in processes],
        # A worker of this host may still be exiting; this host sees its end in a moment.
        "over": not any(row.stage in OPEN or row.worker in here for row in left),
    }


def _sentence(row: TargetRow) -> str:
    what = row.target.replace(":", " ", 1)
    if row.stage == Stage.UNPROVED:
        return f"{clean(what)}: unproved: {clean(row.evidence or 'there is no evidence')}"
    return f"{clean(what)}: {row.stage}: its writes are refused; its end is not proved yet"


def _record_deaths(store: Store, order: str) -> set[str]:
    """Record workers and supervisors of this host that are certainly gone.

    Returns the workers of this host that are part of an open target and not embedded.
    """
    open_rows = [row for row in store.targets(order) if row.stage != Stage.VERIFIED]
    workers = workers_of(store, {row.worker for row in open_rows if row.worker})
    messages: list[Any] = []
    for worker in workers.values():
        if _is_gone(worker):
            state, _, words = end_remains(worker, f"process {worker.pid} is gone").partition(":")
            if state == "dead":
                messages.append(WorkerGone(worker_id=worker.id, evidence=words, ordered=True))
    owners = {row.supervisor for row in open_rows if row.supervisor}
    messages += [
        Dismiss(supervisor_id=one.id, state="dead", evidence=f"process {one.pid} is gone")
        for one in (store.supervisors() if owners else ())
        if one.id in owners and _is_gone(one)
    ]
    if messages:
        store.write(messages)
    return {one.id for one in workers.values() if _is_here(one) and not one.embedded}


def _is_here(one: WorkerRow | SupervisorRow) -> bool:
    here = (proc.boot_id(), proc.pid_namespace())
    return bool(one.boot) and (one.boot, one.namespace) == here


def _is_gone(one: WorkerRow | SupervisorRow) -> bool:
    """Whether its process is gone. A zombie counts: it executes nothing and may never be reaped."""
    return _is_here(one) and not proc.alive(one.pid, one.start_ticks)
