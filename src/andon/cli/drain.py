"""Carrying `andon drain` out: who is meant, by which way they are told, and what is said."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from andon.cli import output, progress
from andon.control import drain as draining
from andon.control import workers as fleet
from andon.control.changes import Patience
from andon.core.text import clean, plural, sentence
from andon.errors import AndonError, StoreError
from andon.host.user import named
from andon.settings import Settings
from andon.store import open_store
from andon.store.store import Store, WorkerRow

DONE, LATE = 0, 3


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for. Neither names nor `this`: everybody."""

    names: tuple[str, ...]
    this: bool
    timeout: float
    waits: bool
    by: str | None


def drain(
    settings: Settings,
    order: Order,
    patience: Patience,
    advise: Callable[[str], None],
    *,
    json: bool,
) -> int:
    """0 once all have ended, 3 if not in time."""
    store, error = draining.reachable(
        lambda: open_store(settings.store, create=False, reserved=True)
    )
    if error is not None:
        return _signal_processes(settings.store, order, error, advise, json=json)
    try:
        return _through(store, order, patience, advise, json=json)
    finally:
        store.close()


def _through(
    store: Store, order: Order, patience: Patience, advise: Callable[[str], None], *, json: bool
) -> int:
    try:
        workers = _meant(store, order)
    except StoreError as error:
        return _signal_processes(store.url, order, error, advise, json=json)
    if not workers:
        if json:
            output.document({"ended": True, "workers": []})
        advise("no worker is running" + (" here" if order.this else ""))
        return DONE
    try:
        draining.ask(store, workers, named(order.by))
    except StoreError as error:
        ticks = {worker.pid: worker.start_ticks for worker in workers}
        return _signal(list(ticks), order, error, advise, ticks=ticks, json=json)
    ids = [worker.id for worker in workers]
    if not order.waits:
        return _answer(draining.Waiting(store, ids, advise), order, json=json)
    with progress.line(json=json) as line:
        waiting = draining.Waiting(store, ids, line.above(advise), line)
        try:
            draining.wait(store, waiting, order.timeout, patience)
        except KeyboardInterrupt:
            line.clear()
            advise("stopped waiting; the workers continue to drain: andon workers")
            raise
    return _answer(waiting, order, json=json)


def _meant(store: Store, order: Order) -> list[WorkerRow]:
    if order.names:
        return fleet.find(store, order.names)
    return fleet.here(store) if order.this else fleet.live(store)


def _answer(waiting: draining.Waiting, order: Order, *, json: bool) -> int:
    if not order.waits:
        waiting.look()
    ended = all(line["ended"] for line in waiting.lines)
    if json:
        output.document({"ended": ended, "workers": waiting.lines})
    elif not order.waits:
        output.say(f"asked: {', '.join(clean(line['worker']) for line in waiting.lines)}")
        output.note("next: andon deploys watch")
    elif ended:
        output.say(f"{output.state('done').split()[0]} {_count(waiting.lines)} ended")
    else:
        late = [line for line in waiting.lines if not line["ended"]]
        output.note(
            f"{_count(late)} did not end within {order.timeout:g} s: "
            + ", ".join(clean(line["worker"]) for line in late)
            + ". They continue to drain: andon workers"
        )
    return DONE if ended or not order.waits else LATE


def _count(lines: Sequence[Any]) -> str:
    return plural(len(lines), "worker")


# ── without the store ─────────────────────────────────────────────────────────────────────────


def _signal_processes(
    url: str, order: Order, error: AndonError, advise: Callable[[str], None], *, json: bool
) -> int:
    """Workers elsewhere cannot be reached without it; those of this container can."""
    if not order.this or not isinstance(error, StoreError):
        raise error
    return _signal(draining.processes(url), order, error, advise, ticks=None, json=json)


def _signal(
    pids: list[int],
    order: Order,
    error: AndonError,
    advise: Callable[[str], None],
    *,
    ticks: dict[int, int] | None,
    json: bool,
) -> int:
    if not order.this:
        raise error
    why = sentence(clean(error))
    advise(f"{why} Telling the workers of this container by SIGTERM instead.")
    with draining.signalled(pids, ticks) as told:
        late = draining.await_ends(told, order.timeout)
        count = len(told)
    if json:
        output.document({"ended": not late, "signalled": count, "late": late})
    elif late and order.waits:
        output.note(f"not ended within {order.timeout:g} s: pid {', '.join(map(str, late))}")
    else:
        output.say(f"SIGTERM to {count} process{'' if count == 1 else 'es'}")
    return LATE if late and order.waits else DONE
