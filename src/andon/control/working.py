"""`andon work`: a worker in the foreground, until it is told to go."""

import asyncio
import logging
import os
import signal
import sys
from typing import Any

from andon.control.output import as_json, clean, note, say, without_password
from andon.control.version import VERSION
from andon.runtime.agent import Agent
from andon.runtime.worker import Worker
from andon.settings import Settings
from andon.store.store import Store

LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


class Inert(logging.Formatter):
    """Names and messages of agents appear in log lines too."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(clean(line) for line in super().format(record).split("\n"))


def prepare_logging(verbose: int) -> None:
    # For everything, not only for andon: what libraries of the agent warn about belongs here too.
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(Inert("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[stream])
    logging.getLogger("andon").setLevel(LEVELS[min(verbose, len(LEVELS) - 1)])


def work(
    store: Store,
    agents: list[Agent],
    settings: Settings,
    options: dict[str, Any],
    *,
    verbose: int,
    json: bool,
) -> int:
    """Serve the agents; 0 once everything was finished or given back."""
    prepare_logging(verbose)
    worker = asyncio.run(_work(store, agents, settings, options, verbose=verbose, json=json))
    if worker.in_threads:
        # A plain function goes on in its thread, and Python would wait for it for ever. Its run
        # was given back; it must not look as if its process had ended before it has.
        note(f"{len(worker.in_threads)} plain functions did not end in time; ending the process")
        _exit_now(0)
    return 0


async def _work(
    store: Store,
    agents: list[Agent],
    settings: Settings,
    options: dict[str, Any],
    *,
    verbose: int,
    json: bool,
) -> Worker:
    until = asyncio.Event()
    loop = asyncio.get_running_loop()

    def settled(run_id: str, ending: str) -> None:
        if verbose:
            note(f"run {clean(run_id)}: {ending}")

    worker = Worker(store, agents, settings, on_settled=settled, **options)

    def told(number: int) -> None:
        name = signal.Signals(number).name
        if until.is_set():
            note(f"{name} again: ending at once. What was in hand goes on elsewhere.")
            _exit_now(128 + number)
        until.set()
        if worker.active:
            note(
                f"{name}: {len(worker.active)} runs in hand. Their steps may end within "
                f"{settings.grace_seconds:g} s, then they go back. Once more: end at once."
            )

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told, number)
    await worker.run(until, lambda: _announce(worker, json=json))
    note("stopped; unfinished runs are back in the queue: andon ps")
    return worker


def _announce(worker: Worker, *, json: bool) -> None:
    url = without_password(worker.store.url)
    agents = [{"name": name, "version": version} for name, version in worker.agents]
    if json:
        say(as_json(_facts(worker, url, agents)))
    carried = ", ".join(f"{name} {version}" for name, version in worker.agents)
    note(
        f"andon {VERSION} worker {worker.worker_id} is ready: store {clean(url)}, "
        f"agents {carried}, concurrency {worker.settings.concurrency}"
    )


def _facts(worker: Worker, url: str, agents: list[dict[str, str]]) -> dict[str, Any]:
    return {
        "worker": worker.worker_id,
        "store": url,
        "agents": agents,
        "concurrency": worker.settings.concurrency,
    }


def _exit_now(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
