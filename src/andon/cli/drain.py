"""Executes `andon drain`: chooses workers, reaches them by store or signal, reports the outcome."""

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec

from andon.cli import output, progress
from andon.cli.app import DONE, LATE, advise, patience, print_answer, wants_json
from andon.cli.views.deploy_view import drained
from andon.control import drain as drains
from andon.control import workers
from andon.control.changes import poll
from andon.core.text import clean, plural, sentence
from andon.errors import StoreError
from andon.host.user import named
from andon.settings import Settings
from andon.store import open_store
from andon.store.store import Store, WorkerRow


class DrainOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one `andon drain`. Without names and without `this` it means every worker."""

    names: tuple[str, ...]
    this: bool
    timeout: float
    waits: bool
    by: str | None


def drain(settings: Settings, options: DrainOptions) -> int:
    """Drain the workers; return 0 once all have ended, 3 if they did not end in time."""
    chosen: list[WorkerRow] = []
    with contextlib.ExitStack() as stack:
        try:
            store = open_store(settings.store, create=False, reserved=True)
            stack.callback(store.close)
            chosen = workers.chosen(store, options.names, this=options.this)
            if chosen:
                drains.ask(store, chosen, named(options.by))
        except StoreError as error:
            if not options.this:  # a signal reaches only the workers of this container
                raise
            why = sentence(clean(error))
            advise(f"{why} Sending SIGTERM to the workers of this container instead.")
            return _signal(settings.store, chosen, options)
        if not chosen:
            print_answer({"ended": True, "workers": []}, "")
            advise("no worker is running" + (" here" if options.this else ""))
            return DONE
        lines = _follow(store, chosen, options, settings)
    return _report(chosen, lines, options)


def _follow(
    store: Store, chosen: Sequence[WorkerRow], options: DrainOptions, settings: Settings
) -> list[dict[str, Any]]:
    """Watch the workers until they have ended or the time is over; return their states."""
    with progress.line(json=wants_json()) as line:
        say = line.above(advise)
        watch = drains.Watch(
            store,
            [worker.id for worker in chosen],
            lambda worker: say(drained(worker)),
            lambda ended, of: line.show("workers ended", ended, of),
        )
        try:
            poll(store, watch.look, patience(settings), options.timeout)
        except KeyboardInterrupt:
            line.clear()
            advise("stopped waiting; the workers continue to drain: andon workers")
            raise
    return watch.lines


def _report(
    chosen: Sequence[WorkerRow], lines: Sequence[dict[str, Any]], options: DrainOptions
) -> int:
    late = [line for line in lines if not line["ended"]]
    found = {"ended": not late, "workers": lines}
    if not options.waits:
        print_answer(found, f"asked: {', '.join(clean(worker.id) for worker in chosen)}")
        advise("next: andon deploys watch")
    elif late:
        print_answer(found, "")
        advise(
            f"{plural(len(late), 'worker')} did not end within {options.timeout:g} s: "
            + ", ".join(clean(line["worker"]) for line in late)
            + ". They continue to drain: andon workers"
        )
    else:
        done = output.symbol("done")
        print_answer(found, f"{done} {plural(len(lines), 'worker')} ended")
    return LATE if late and options.waits else DONE


def _signal(url: str, chosen: Sequence[WorkerRow], options: DrainOptions) -> int:
    """Send SIGTERM to the workers that were found before the store failed, or to all here."""
    ticks = {worker.pid: worker.start_ticks for worker in chosen}
    with drains.signalled(ticks or drains.processes(url), ticks or None) as signalled:
        late = drains.await_ends(signalled, options.timeout)
        count = len(signalled)
    found = {"ended": not late, "signalled": count, "late": late}
    if late and options.waits:
        print_answer(found, "")
        advise(f"not ended within {options.timeout:g} s: pid {', '.join(map(str, late))}")
        return LATE
    print_answer(found, f"SIGTERM to {count} process{'' if count == 1 else 'es'}")
    return DONE
