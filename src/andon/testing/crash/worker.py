"""A worker of a crash test: executes runs until none is due, or until it is killed.

The forker forks it. It is a real worker on a real store; only its clock may be ahead.
"""

import asyncio
import logging
import os
import sys
from typing import Any

import msgspec

from andon.core.run import State
from andon.runtime.agent import Agent
from andon.runtime.worker.worker import Worker
from andon.settings import Settings
from andon.store import open_store
from andon.store.messages.rows import Filter
from andon.testing.clock import Clock
from andon.testing.crash.kills import Kill
from andon.testing.crash.witness import Witness

# Notifications are not lost on one machine; polling lets the worker see whether it may end.
POLL_SECONDS = 0.1


class WorkerOrder(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Instructions for one worker."""

    url: str
    folder: str  # working directory
    lines: str  # the file that records its calls
    output: str  # the file for its stdout and stderr
    kill: Kill | None = None
    ahead: float = 0.0  # seconds that its clock is ahead


def obey(order: WorkerOrder, agents: list[Agent]) -> None:
    """Act as the ordered worker; return when no run is due."""
    output = os.open(order.output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.chdir(order.folder)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    Witness(order.lines, order.kill).begin()
    with Clock(order.url, ahead=order.ahead):
        asyncio.run(_work(order.url, agents))


async def _work(url: str, agents: list[Agent]) -> None:
    store = open_store(url, create=False)
    settings = Settings(store=url, poll_seconds=POLL_SECONDS)
    idle = asyncio.Event()

    def settled(run_id: str, ending: str) -> None:
        if not due(store):
            idle.set()

    worker = Worker(store, agents, settings, on_settled=settled, embedded=False)
    async with worker:
        if not due(store):
            idle.set()
        await idle.wait()
        os._exit(0)  # skip the shutdown: code that does not end must not delay the exit


def due(store: Any) -> bool:
    """Whether a run can be started or continued now."""
    now = store.now()
    rows = store.runs(Filter(states=(State.QUEUED, State.RUNNING), limit=1000))
    waking = store.runs(Filter(states=(State.SUSPENDED,), limit=1000))
    return any(row.state == State.RUNNING or row.available_at <= now for row in rows) or any(
        row.wake_at is not None and row.wake_at <= now for row in waking
    )
