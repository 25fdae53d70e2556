"""Resuming after a stop: continues a run or a scope, and lists what stays stopped."""

from collections.abc import Sequence
from typing import Any

from andon.control.runs.runs import Surroundings
from andon.control.stop.target import Whom, find
from andon.core.run import State
from andon.core.stop import StopKind, StopScope
from andon.runtime.requests import requests, scope_latches
from andon.store.messages.rows import Filter, RunRow
from andon.store.messages.stops import Resume, StopRow
from andon.store.store import Store


def resume(store: Store, run: str, *, by: str, why: str) -> RunRow:
    """Resume one run, unless a latch holds it."""
    return requests.resume(store, find(store, run).id, by=by, why=why)


def resume_scope(
    store: Store, whom: Whom, *, by: str, why: str, besides: Sequence[str] = ()
) -> int:
    """Lift the pause of a scope and resume its runs; returns how many."""
    message = Resume(
        scope=whom.scope,
        name=whom.name,
        value=whom.value,
        by=by,
        why=why,
        besides=tuple(besides),
    )
    return int(requests.write(store, message))


def pauses_of(store: Store, whom: Whom) -> list[StopRow]:
    """The latches that a resume of the scope lifts."""
    same = (whom.scope, whom.name, whom.value)
    return [
        latch
        for latch in store.latches()
        if latch.kind == StopKind.PAUSE and (latch.scope, latch.name, latch.value) == same
    ]


def still_held(store: Store, whom: Whom) -> dict[str, Any]:
    """List runs whose stop is not proved, and latches, that a resume leaves in force."""
    around = Surroundings(store)
    rows = [row for row in _members(store, whom) if row.stop is not None]
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


def _members(store: Store, whom: Whom) -> list[RunRow]:
    which = Filter(
        states=(State.RUNNING, State.KILLED),
        agent=whom.name if whom.scope == StopScope.AGENT else None,
        label=(whom.name, whom.value) if whom.scope == StopScope.LABEL else None,
        limit=1000,
    )
    return store.runs(which)
