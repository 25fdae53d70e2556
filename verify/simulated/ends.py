"""What must hold when a story is over: the laws of the chaos tests, and what each run answered."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.chaos import laws

from andon.core.run import TERMINAL, State
from andon.runtime import requests
from verify.simulated.outside import CHILD, KINDS, child_of, expected

if TYPE_CHECKING:
    from verify.simulated.fleet import Fleet


def broken(fleet: "Fleet") -> Iterator[str]:
    children = {
        child_of(run_id, number): CHILD
        for run_id, script in fleet.scripts.items()
        for number, what in enumerate(script)
        if what == "child" and fleet.store.run(child_of(run_id, number)) is not None
    }
    for run_id, script in {**fleet.scripts, **children}.items():
        row = fleet.store.run(run_id)
        if row is None:
            yield f"{run_id} was started and is not there"
            continue
        lines = [line for line in fleet.world.lines if line[1].startswith(f"{run_id}/")]
        yield from laws.check(
            laws.Evidence(
                run=row,
                entries=requests.journal(fleet.store, run_id),
                ledger=fleet.store.ledger(run_id),
                attempts=fleet.store.attempts(run_id),
                asks=fleet.store.asks(run_id),
                lines=lines,
            )
        )
        if row.state not in TERMINAL:
            yield f"{run_id} is {row.state} for ever"
        elif row.state == State.SUCCEEDED:
            yield from _result(fleet, run_id, script)


def _result(fleet: "Fleet", run_id: str, script: list[str]) -> Iterator[str]:
    last = fleet.store.last_entry(run_id)
    found = None if last is None else json.loads(requests.body_of(fleet.store, last))
    if found != expected(run_id, script):
        yield f"{run_id} answers {found}, expected {expected(run_id, script)}"
    for number, what in enumerate(script):
        name = (
            f"{run_id}/idempotent-{number + 100}" if what == "pair" else f"{run_id}/{what}-{number}"
        )
        if (what in KINDS or what == "pair") and fleet.world.standing.get(name) != 1:
            times = fleet.world.standing.get(name, 0)
            yield f"{run_id} has succeeded, and {name} happened {times} times"
