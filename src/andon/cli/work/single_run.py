"""`andon run`: executes one run in this process, until the run or the process ends."""

import json
from typing import Any

from andon.cli import output
from andon.cli.views import wait_view
from andon.cli.work import serve
from andon.cli.work.host_latch import refuse_if_halted
from andon.control.runs.run_input import read
from andon.core.text import clean
from andon.runtime.agent import Agent
from andon.runtime.requests import requests
from andon.runtime.requests.start import bind
from andon.settings import Settings
from andon.store.messages.rows import RunRow
from andon.store.store import Store


def checked(agent: Agent, given: dict[str, Any]) -> dict[str, Any]:
    """Check the run's arguments before a store is opened, so that a refused run leaves no file."""
    refuse_if_halted()
    given = read(given, json.loads(agent.row.types), output.note)
    bind(agent.row, (), given)
    return given


def run(
    store: Store,
    agent: Agent,
    given: dict[str, Any],
    run_id: str | None,
    settings: Settings,
    *,
    verbose: int,
) -> int:
    """Start or continue a run and return the exit code."""
    started = requests.start(store, agent, (), given, id=run_id)
    if run_id is None:
        output.note(f"run {clean(started)}")
    row = requests.find(store, started)

    def answer(row: RunRow, told: bool) -> int:
        if told and not requests.is_over(row):
            output.note(
                "saved unfinished; to continue it, give the same command with: "
                f"--id {clean(started)}"
            )
            return serve.SAVED
        return wait_view.report(store, row.id, row, None)

    if requests.is_over(row):
        return answer(row, False)
    return serve.run_one(store, agent, started, settings, answer, verbose=verbose)
