"""Executes `andon drain`: chooses workers, reaches them by store or signal, reports the outcome."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from andon.cli import output, progress
from andon.cli.views.deploy_view import drained
from andon.control import drain as drains
from andon.control import workers
from andon.control.changes import Patience
from andon.core.text import clean, plural, sentence
from andon.errors import AndonError, StoreError
from andon.host.user import named
from andon.settings import Settings
from andon.store import open_store
from andon.store.store import Store, WorkerRow

DONE, LATE = 0, 3


class DrainOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one `andon drain`. Without names and without `this` it means every worker."""

    names: tuple[str, ...]
    this: bool
    timeout: float
    waits: bool
    by: str | None


def drain(
    settings: Settings,
    order: DrainOptions,
    patience: Patience,
    advise: Callable[[str], None],
    *,
    json: bool,
) -> int:
    """Drain the workers; return 0 once all have ended, 3 if they did not end in time."""
    store, error = drains.reachable(lambda: open_store(settings.store, create=False, reserved=True))
    if error is not None:
        return _signal_processes(settings.store, order, error, advise, json=json)
    try:
        return _through(store, order, patience, advise, json=json)
    finally:
        store.close()


def _through(
    store: Store,
    order: DrainOptions,
    patience: Patience,
    advise: Callable[[str], None],
    *,
    json: bool,
) -> int:
    try:
        chosen = _meant(store, order)
    except StoreError as error:
        return _signal_processes(store.url, order, error, advise, json=json)
    if not chosen:
        if json:
            output.document({"ended": True, "workers": []})
        advise("no worker is running" + (" here" if order.this else ""))
        return DONE
    try:
        drains.ask(store, chosen, named(order.by))
    except StoreError as error:
        ticks = {worker.pid: worker.start_ticks for worker in chosen}
        return _signal(list(ticks), order, error, advise, ticks=ticks, json=json)
    ids = [worker.id for worker in chosen]
    if not order.waits:
        watch = drains.Watch(store, ids, lambda worker: advise(drained(worker)))
        return _answer(watch, order, json=json)
    with progress.line(json=json) as line:
        say = line.above(advise)
        watch = drains.Watch(
            store,
            ids,
            lambda worker: say(drained(worker)),
            lambda ended, of: line.show("workers ended", ended, of),
        )
        try:
            drains.wait(store, watch, order.timeout, patience)
        except KeyboardInterrupt:
            line.clear()
            advise("stopped waiting; the workers continue to drain: andon workers")
            raise
    return _answer(watch, order, json=json)


def _meant(store: Store, order: DrainOptions) -> list[WorkerRow]:
    if order.names:
        return workers.find(store, order.names)
    return workers.here(store) if order.this else workers.live(store)


def _answer(watch: drains.Watch, order: DrainOptions, *, json: bool) -> int:
    if not order.waits:
        watch.look()
    ended = all(line["ended"] for line in watch.lines)
    if json:
        output.document({"ended": ended, "workers": watch.lines})
    elif not order.waits:
        output.say(f"asked: {', '.join(clean(line['worker']) for line in watch.lines)}")
        output.note("next: andon deploys watch")
    elif ended:
        output.say(f"{output.state('done').split()[0]} {_count(watch.lines)} ended")
    else:
        late = [line for line in watch.lines if not line["ended"]]
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
    url: str, order: DrainOptions, error: AndonError, advise: Callable[[str], None], *, json: bool
) -> int:
    """Signal the workers of this container, the only ones that can be reached without the store."""
    if not order.this or not isinstance(error, StoreError):
        raise error
    return _signal(drains.processes(url), order, error, advise, ticks=None, json=json)


def _signal(
    pids: list[int],
    order: DrainOptions,
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
    with drains.signalled(pids, ticks) as told:
        late = drains.await_ends(told, order.timeout)
        count = len(told)
    if json:
        output.document({"ended": not late, "signalled": count, "late": late})
    elif late and order.waits:
        output.note(f"not ended within {order.timeout:g} s: pid {', '.join(map(str, late))}")
    else:
        output.say(f"SIGTERM to {count} process{'' if count == 1 else 'es'}")
    return LATE if late and order.waits else DONE
