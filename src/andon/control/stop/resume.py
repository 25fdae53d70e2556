"""Resuming after a stop: continues a run or a scope, and lists what stays stopped."""

from collections.abc import Sequence
from typing import Any

from andon.control.runs.shown_state import Surroundings
from andon.control.stop.target import StopTarget, find, members
from andon.core.run import State
from andon.core.stop import StopKind
from andon.runtime.requests import requests, scope_latches
from andon.store.messages.rows import RunRow
from andon.store.messages.stops import Resume, StopRow
from andon.store.store import Store


def resume(store: Store, run: str, *, by: str, why: str) -> RunRow:
    """Resume one run, unless a latch holds it."""
    return requests.resume(store, find(store, run).id, by=by, why=why)


def resume_scope(
    store: Store, target: StopTarget, *, by: str, why: str, besides: Sequence[str] = ()
) -> int:
    """Lift the pause of a scope and resume its runs; returns how many."""
    message = Resume(
        scope=target.scope,
        name=target.name,
        value=target.value,
        by=by,
        why=why,
        besides=tuple(besides),
    )
    return int(requests.write(store, message))


def pauses_of(store: Store, target: StopTarget) -> list[StopRow]:
    """The latches that a resume of the scope lifts."""
    same = (target.scope, target.name, target.value)
    return [
        latch
        for latch in store.latches()
        if latch.kind == StopKind.PAUSE and (latch.scope, latch.name, latch.value) == same
    ]


def still_held(store: Store, target: StopTarget) -> dict[str, Any]:
    """List runs whose stop is not proved, and latches, that a resume leaves in force."""
    around = Surroundings(store)
    stopping = members(target, (State.RUNNING, State.KILLED))
    rows = [row for row in store.runs(stopping) if row.stop is not None]
    return {
        "stopping": [row.id for row in rows],
        "latches": [
            {
                "receipt": latch.id,
                "why": scope_latches.held_by(latch),
                "lift": scope_latches.lift_command(latch),
            }
            for latch in around.latches
        ],
    }
