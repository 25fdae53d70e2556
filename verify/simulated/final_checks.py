"""Checks when a story is over: the laws of the chaos tests, and the answer of each run."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tests.chaos import laws

from andon.core.run import TERMINAL, State
from andon.errors import AndonError
from andon.runtime.requests import requests
from verify.simulated.agents import AGENT_RETRIES, STEP_RETRIES
from verify.simulated.scripts import CHILDREN, child_of, expected, happens

if TYPE_CHECKING:
    from verify.simulated.fleet import Fleet


def broken(fleet: "Fleet") -> Iterator[str]:
    children = {
        child_of(run_id, number): CHILDREN[what]
        for run_id, script in fleet.scripts.items()
        for number, what in enumerate(script)
        if what in CHILDREN and fleet.store.run(child_of(run_id, number)) is not None
    }
    for run_id, script in {**fleet.scripts, **children}.items():
        row = fleet.store.run(run_id)
        if row is None:
            yield f"{run_id} was started and is not there"
            continue
        if run_id in fleet.damaged:
            if row.state not in (*TERMINAL - {State.SUCCEEDED}, State.STRANDED):
                yield f"{run_id} is {row.state}, and its journal is damaged"
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
        yield from _waits(fleet, run_id)
        yield from _tidied(fleet, run_id)
        if row.state not in TERMINAL:
            yield f"{run_id} is {row.state} for ever"
        elif row.state == State.SUCCEEDED:
            yield from _result(fleet, run_id, script)
        elif row.state != State.DEAD or State.DEAD in _endings(fleet, run_id):
            yield from _undone(fleet, run_id, script)
            yield from _died(fleet, run_id, script)


def _result(fleet: "Fleet", run_id: str, script: list[str]) -> Iterator[str]:
    found = _answer(fleet, run_id)
    if found != expected(run_id, script):
        yield f"{run_id} answers {found}, expected {expected(run_id, script)}"
    for number, what in enumerate(script):
        effect = happens(number, what)
        times = fleet.world.standing.get(f"{run_id}/{effect}", 0)
        if effect is not None and times != 1:
            yield f"{run_id} has succeeded, and {effect} happened {times} times"
    journal = requests.journal(fleet.store, run_id)
    written = {one.name for one in journal if one.kind == "step" and one.state == "done"}
    final = len(fleet.store.attempts(run_id))
    for what, key, attempt in fleet.world.lines:
        name = key.removeprefix(f"{run_id}/")
        if (what, attempt) == ("step", final) and name != key and name not in written:
            yield f"{run_id} has succeeded while {name} was executing"
    for word in ("flaky", "hopeless"):
        failed = [one.state for one in journal if one.name == word]
        tries = script.count(word) * STEP_RETRIES.retries
        if failed.count("retrying") != tries:
            yield f"{run_id} was to try {word} {tries} times again, its journal has {failed}"
    yield from _bookings(fleet, run_id, script)


def _answer(fleet: "Fleet", run_id: str) -> Any:
    last = fleet.store.last_entry(run_id)
    try:
        return None if last is None else json.loads(requests.body_of(fleet.store, last))
    except AndonError as error:
        return str(error)


def _bookings(fleet: "Fleet", run_id: str, script: list[str]) -> Iterator[str]:
    """The rows that a transaction wrote to the user's own table are there once."""
    rows = fleet.store.rows("SELECT key FROM booked WHERE key LIKE ?", f"{run_id}/%")
    wanted = [f"{run_id}/booked-{n}" for n, what in enumerate(script) if what == "booked"]
    if sorted(key for (key,) in rows) != sorted(wanted):
        yield f"{run_id} has succeeded, and its transactions wrote {rows}"


def _waits(fleet: "Fleet", run_id: str) -> Iterator[str]:
    """What a run waits for, and until when, is written once."""
    begun: Counter[str] = Counter()
    for one in requests.journal(fleet.store, run_id):
        if one.state == "waiting":
            begun[one.place] += 1
            if begun[one.place] > 1:
                yield f"{run_id} waits for {one.name} anew at {one.place}"
        elif one.state in ("cancelled", "reopened"):
            begun.clear()


def _tidied(fleet: "Fleet", run_id: str) -> Iterator[str]:
    """Every attempt but the last, which may still be cleaning up, unless its process is gone."""
    ends = fleet.poisoned or any(fleet.frequency[fault] for fault in ("crash", "drain"))
    if not ends and not fleet.orders:
        for one in fleet.store.attempts(run_id)[:-1]:
            left = fleet.world.mess.get((run_id, one.number))
            if left and one.ending in ("suspended", "failed"):
                yield f"{run_id} has not tidied {left} up in attempt {one.number}"


def _died(fleet: "Fleet", run_id: str, script: list[str]) -> Iterator[str]:
    """A step that fails once is tried again with its agent."""
    failing = script.count("once") + script.count("fail") + script.count("poison")
    certain = not fleet.frequency["provider error"] and not fleet.orders
    # A snapshot beside a branch that was left behind is refused, and its run fails by itself.
    calm = not {*CHILDREN, "behind"} & set(script)
    one = script.count("once") == failing == 1
    if one and certain and calm and State.DEAD in _endings(fleet, run_id):
        yield f"{run_id} is dead, and only one step of it failed, once"


def _undone(fleet: "Fleet", run_id: str, script: list[str]) -> Iterator[str]:
    """A run that does not succeed leaves nothing to undo; the last effect is undone first."""
    endings = _endings(fleet, run_id)
    if endings.count("failed") > AGENT_RETRIES.retries:
        yield f"{run_id} was to fail once more at most, its attempts are {endings}"
    done = [happens(number, what) or "" for number, what in enumerate(script)]
    keys = [f"{run_id}/{one}" for one in done if "compensatable" in one]
    for key in keys:
        if fleet.world.standing.get(key):
            yield f"{run_id} has not succeeded, and {key} was not undone"
    doubts = any(one.state == "in_doubt" for one in requests.journal(fleet.store, run_id))
    # Per owner: one that was frozen acts late, and effects still possible are undone after certain
    # ones.
    for fence in sorted({fence for key, fence in fleet.world.undos if key in keys}):
        undone = [key for key, owner in fleet.world.undos if owner == fence and key in keys]
        last = list(reversed(dict.fromkeys(reversed(undone))))
        if not doubts and last != sorted(last, key=keys.index, reverse=True):
            yield f"{run_id} was undone in the order {last}"


def _endings(fleet: "Fleet", run_id: str) -> list[str | None]:
    return [one.ending for one in fleet.store.attempts(run_id)]
