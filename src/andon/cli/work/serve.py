"""`andon work` and `andon run`: a worker in the foreground, until it is stopped or done."""

import asyncio
import contextlib
import gc
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from andon.cli.app import wants_json
from andon.cli.output import as_json, note, say
from andon.cli.version import VERSION
from andon.cli.views.wait_view import Advice
from andon.cli.work.host_latch import refuse_if_halted, registered
from andon.cli.work.signals import SignalHandler, exit_now
from andon.control.log import prepare_logging
from andon.core.drain import Phase
from andon.core.run import TERMINAL, State
from andon.core.text import clean, plural
from andon.errors import StoreError
from andon.host.home import without_password
from andon.runtime.agent import Agent
from andon.runtime.requests import requests
from andon.runtime.worker.clock import own_time
from andon.runtime.worker.triggers import reachable, refuse_if_stopped
from andon.runtime.worker.worker import CLOSE_SECONDS, Worker
from andon.settings import Settings
from andon.store.messages.rows import RunRow
from andon.store.messages.stops import StopNotice
from andon.store.store import Store

SAVED = 75  # EX_TEMPFAIL: unfinished work was saved; the same command continues it
OVER = "its run is over"
# New objects before the youngest generation is collected: about twenty short runs' worth.
YOUNG_OBJECTS = 5000


def work(
    store: Store,
    agents: list[Agent],
    settings: Settings,
    options: dict[str, Any],
    *,
    verbose: int,
) -> int:
    """Serve the agents; return 0 once every run has finished or was given back."""
    prepare_logging(verbose)
    refuse_if_stopped(settings.stop_file)
    refuse_if_halted()

    def settled(run_id: str, ending: str) -> None:
        if verbose:
            note(f"run {clean(run_id)}: {ending}")

    worker = Worker(store, agents, settings, on_settled=settled, embedded=False, **options)
    return _serve(
        worker,
        lambda: _announce(worker),
        lambda: int(worker.drain.unreturned > 0 or worker.orders.halted is not None),
    )


def run_one(
    store: Store,
    agent: Agent,
    run_id: str,
    settings: Settings,
    answer: Callable[[RunRow, bool], int],
    *,
    verbose: int,
) -> int:
    """Execute one run in this process and return the exit code.

    `answer` gets the run's row and whether the process was asked to stop before the run was over;
    it returns the exit code.
    """
    prepare_logging(verbose)
    refuse_if_stopped(settings.stop_file)
    refuse_if_halted()

    def settled(settled_id: str, ending: str) -> None:
        if settled_id == run_id and (ending in TERMINAL or ending == State.STRANDED):
            worker.tell(OVER)

    worker = Worker(
        store, [agent], settings, only=Counter([run_id]), on_settled=settled, embedded=False
    )

    def end() -> int:
        row = store.run(run_id)
        assert row is not None
        return answer(row, worker.drain.why != OVER)

    gone = threading.Event()
    watch = threading.Thread(target=_watch, args=(worker, run_id, gone), daemon=True)
    try:
        return _serve(worker, watch.start, end)
    finally:
        gone.set()


def _watch(worker: Worker, run_id: str, gone: threading.Event) -> None:
    """Stop when the run ends, perhaps in another worker, and print what it asks a person."""
    advice = Advice(worker.store, note)
    while not gone.wait(worker.settings.poll_seconds) and not worker.draining:
        with contextlib.suppress(StoreError):
            row = worker.store.run(run_id)
            if requests.is_over(row):
                worker.tell(OVER)
            else:
                advice.look(row)


def _serve(worker: Worker, on_ready: Callable[[], None], end: Callable[[], int]) -> int:
    """Work until asked to stop, then call `end` for the exit code."""
    orders = SignalHandler(worker, lambda: _in_hand(worker))
    worker.on_halted = lambda told: note(_halted(told))

    def finish() -> int:
        if worker.only is not None:
            orders.stand_down()
        orders.code = end()
        return orders.code

    async def serve() -> None:
        worker.loop = asyncio.get_running_loop()
        with reachable(worker, note):
            await worker.run(on_ready)
        if worker.drain.why != OVER and worker.orders.halted is None:
            note(_story(worker))
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if worker.in_threads or worker.active or not await _all_end(others):
            # A plain function continues in its thread, or some code swallows its cancellation;
            # Python would wait for both for ever. Unfinished runs have been given back already.
            note("some functions did not end in time; exiting")
            exit_now(finish())

    _collect_less()
    # Before the loop runs: otherwise asyncio would handle Ctrl-C itself.
    with registered(worker.store.url), orders.installed():
        asyncio.run(serve())
    return finish()


def _collect_less() -> None:
    """Exclude imported objects from garbage collection, and collect less often than every run."""
    gc.freeze()
    young, *older = gc.get_threshold()
    if 0 < young < YOUNG_OBJECTS:  # respect programs that turned it off or raised it
        gc.set_threshold(YOUNG_OBJECTS, *older)


async def _all_end(tasks: "set[asyncio.Task[Any]]") -> bool:
    for task in tasks:
        task.cancel()
    # Includes the threads of asyncio.to_thread: asyncio.run would wait for them.
    threads = asyncio.ensure_future(asyncio.get_running_loop().shutdown_default_executor())
    await asyncio.wait({*tasks, threads}, timeout=CLOSE_SECONDS / 2)
    return all(task.done() for task in {*tasks, threads})


def _halted(told: StopNotice) -> str:
    why = f": {clean(told.why)}" if told.why else ""
    return (
        f"everything is halted by {clean(told.by) or 'an unnamed person'}{why} ({told.stop_id}): "
        "this worker ends. To allow starts again: andon reauthorize"
    )


def _in_hand(worker: Worker) -> str:
    plan = worker.drain.plan
    return (
        f"finishing {plural(len(worker.active), 'run')}, for up to "
        f"{plan.ends[Phase.BOUNDARY]:.3g} s; unfinished runs are requeued."
    )


def _story(worker: Worker) -> str:
    drain = worker.drain
    text = f"drained in {own_time() - drain.begun_at:.2f} s ({clean(drain.why)})"
    return f"{text}: {drained(drain.endings, drain.unreturned)}"


def drained(ended: Mapping[str, int], unreturned: int) -> str:
    """Describe the outcome of the runs in hand when the worker was asked to stop."""
    saved, cut = ended.get("returned", 0) + ended.get("untouched", 0), ended.get("cut", 0)
    stopped = sum(ended.get(word, 0) for word in (State.PAUSED, State.KILLED, State.CANCELLED))
    away = ended.get("fenced", 0) + ended.get("unavailable", 0)
    finished = sum(ended.values()) - saved - cut - stopped - away
    counts = {
        "finished or waiting": finished,
        "saved": saved,
        "cut short": cut,
        "stopped by an order": stopped,
        "NOT requeued": max(unreturned, away),
    }
    if not any(counts.values()):
        return "nothing was running"
    text = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    if counts["NOT requeued"]:
        return f"{text}: they continue elsewhere when this process ends"
    back = "; unfinished runs are back in the queue: andon ps" if saved + cut else ""
    return f"{text}, nothing lost{back}"


def _announce(worker: Worker) -> None:
    url = without_password(worker.store.url)
    agents = [{"name": name, "version": version} for name, version in worker.agents]
    if wants_json():
        found = {"worker": worker.worker_id, "store": url, "agents": agents}
        say(as_json(found | {"concurrency": worker.settings.concurrency}))
    carried = ", ".join(f"{name} {version}" for name, version in worker.agents)
    note(
        f"andon {VERSION} worker {worker.worker_id} is ready: store {clean(url)}, "
        f"agents {carried}, concurrency {worker.settings.concurrency}"
    )
