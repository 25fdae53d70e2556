"""`andon run`: one run, in this process, to its end or to the end of this process."""

from typing import Any

from andon.control import output, waiting, working
from andon.control.latched import refuse_if_halted
from andon.errors import BadInput
from andon.runtime import requests
from andon.runtime.agent import Agent
from andon.settings import Settings
from andon.store.rows import RunRow
from andon.store.store import Store


def run(
    store: Store,
    agents: list[Agent],
    given: dict[str, Any],
    run_id: str | None,
    settings: Settings,
    *,
    verbose: int,
    json: bool,
) -> int:
    """Start or go on with a run and answer the exit code."""
    if len(agents) != 1:
        names = ", ".join(sorted(agent.name for agent in agents))
        raise BadInput(f"expected one agent, found {len(agents)}: {names}. Say which: FILE:NAME")
    refuse_if_halted()
    started = requests.start(store, agents[0], (), given, id=run_id)
    if run_id is None:
        output.note(f"run {output.clean(started)}")
    row = requests.find(store, started)

    def answer(row: RunRow, told: bool) -> int:
        if told and not requests.is_over(row):
            output.note(f"saved unfinished; it goes on with: --id {output.clean(started)}")
            return working.SAVED
        return waiting.report(store, row.id, row, None, json=json)

    if requests.is_over(row):
        return answer(row, False)
    return working.run_one(store, agents[0], started, settings, answer, verbose=verbose)
