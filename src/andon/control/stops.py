"""What people ask about stops, one function per request: orders, receipts, and going on again."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from andon.control import latches
from andon.control.operations import Surroundings, find
from andon.core.run import TERMINAL, State
from andon.core.stop import POLITE, Kind, Scope
from andon.errors import BadInput, NotFound, Refused
from andon.runtime import requests
from andon.store.orders import Order, Resume, StopRow, TargetRow
from andon.store.rows import Filter, RunRow
from andon.store.store import Note, Store
from andon.supervisor.latch import new_order

# Of a list that a person has to choose from.
MOST_LISTED = 20


class Whom(msgspec.Struct, frozen=True, kw_only=True):
    """Who is to be stopped, or to go on."""

    scope: str
    name: str = ""
    value: str = ""


class Several(BadInput):
    """Nobody was named, and several runs run."""

    def __init__(self, runs: Sequence[RunRow]) -> None:
        self.runs = runs
        listed = "\n".join(f"{run.id}  {run.agent}" for run in runs)
        super().__init__(f"several runs are running; say which:\n{listed}\neverything: andon halt")


def meant(
    store: Store, run: str | None, agent: str | None, label: tuple[str, str] | None, *, fleet: bool
) -> Whom:
    """Who is meant by what was said; without a word: the only run that runs."""
    if fleet:
        return Whom(scope=Scope.FLEET)
    if agent is not None:
        _refuse_unknown_agent(store, agent)
        return Whom(scope=Scope.AGENT, name=agent)
    if label is not None:
        return Whom(scope=Scope.LABEL, name=label[0], value=label[1])
    if run is not None:
        return Whom(scope=Scope.RUN, name=_find(store, run).id)
    running = store.runs(Filter(states=(State.RUNNING,), limit=MOST_LISTED))
    if not running:
        raise NotFound("nothing is running; andon ps shows what waits")
    if len(running) > 1:
        raise Several(running)
    return Whom(scope=Scope.RUN, name=running[0].id)


def _refuse_unknown_agent(store: Store, agent: str) -> None:
    """A stop of a name that nobody has would be a quiet mistake."""
    if not store.agents(agent) and not store.runs(Filter(agent=agent, limit=1)):
        known = ", ".join(sorted({row.name for row in store.agents()})) or "none"
        raise NotFound(f"there is no agent {agent!r}; known: {known}. Everything: andon halt")


def _find(store: Store, run: str) -> RunRow:
    try:
        return find(store, run)
    except NotFound as error:
        running = store.runs(Filter(states=(State.RUNNING,), limit=MOST_LISTED))
        listed = ", ".join(f"{one.id} ({one.agent})" for one in running) or "nothing"
        raise NotFound(f"{error}. Running now: {listed}") from None


def order_for(kind: Kind, whom: Whom, *, within: float, by: str, why: str, via: str) -> Order:
    """The order, not given yet."""
    return Order(
        id=new_order(),
        kind=kind,
        scope=whom.scope,
        name=whom.name,
        value=whom.value,
        within=within if kind in POLITE else 0.0,
        by=by,
        why=why,
        via=via,
    )


def give(store: Store, order: Order) -> StopRow:
    """Give an order; answers the same one, if it is in force already."""
    return find_order(store, str(requests.write(store, order)))


def find_order(store: Store, stop_id: str) -> StopRow:
    """The receipt of that id, or the only one that begins so."""
    row = store.stop(stop_id)
    if row is not None:
        return row
    near = [one for one in store.stops(10_000) if stop_id and one.id.startswith(stop_id)]
    if len(near) == 1:
        return near[0]
    if near:
        which = ", ".join(one.id for one in near[:5])
        raise NotFound(f"receipt {stop_id!r}: several begin so: {which}")
    raise NotFound(f"there is no receipt {stop_id!r}; andon receipts lists those there are")


def earlier_doubts(store: Store, row: StopRow) -> list[TargetRow]:
    """What an earlier order could not prove about the same runs: a later one does not either."""
    found = []
    for target in store.unproved():
        run = store.run(target.run_id) if target.run_id is not None else None
        if run is None or target.stop_id == row.id or target.requested_at > row.asked_at:
            continue
        untouched = run.state != State.RUNNING and run.fence <= target.fence + 1
        if untouched and _is_about(row, run):
            found.append(target)
    return found


def _is_about(row: StopRow, run: RunRow) -> bool:
    return run.id == row.name if row.scope == Scope.RUN else latches.holds(row, run)


# ── going on ──────────────────────────────────────────────────────────────────────────────────


def resume(store: Store, run: str, *, by: str, why: str) -> RunRow:
    """Let one run go on, if nothing holds it."""
    row = find(store, run)
    if row.stop is None and row.state not in TERMINAL:
        _refuse_held(store, row)
    was = requests.resume(store, row.id)
    said = {"scope": Scope.RUN, "name": row.id, "value": "", "by": by, "why": why, "runs": 1}
    requests.write(store, Note(kind="stop.resumed", run_id=row.id, body=json.dumps(said)))
    return was


def _refuse_held(store: Store, row: RunRow) -> None:
    """A latch holds what is in its scope, and all that was started by it."""
    held = store.latches()
    latch, above = latches.on_path(held, row), row
    while held and latch is None and above.parent_id is not None:
        parent = store.run(above.parent_id)
        if parent is None:
            break
        latch, above = latches.on_path(held, parent), parent
    if latch is not None:
        raise Refused(
            f"run {row.id} cannot go on: {latches.held_by(latch)}. "
            f"First: {latches.lift_command(latch)}"
        )


def resume_scope(
    store: Store, whom: Whom, *, by: str, why: str, besides: Sequence[str] = ()
) -> int:
    """Lift the pause of a scope and let its runs go on; answers how many."""
    message = Resume(
        scope=whom.scope,
        name=whom.name,
        value=whom.value,
        by=by,
        why=why,
        besides=tuple(besides),
    )
    return int(requests.write(store, message))


def still_held(store: Store, whom: Whom) -> dict[str, Any]:
    """What a resumed scope leaves behind: runs whose stop is not proved, and other latches."""
    around = Surroundings(store)
    rows = [row for row in _members(store, whom) if row.stop is not None]
    return {
        "stopping": [row.id for row in rows],
        "latches": [
            {
                "receipt": latch.id,
                "why": latches.held_by(latch),
                "lift": latches.lift_command(latch),
            }
            for latch in around.latches
        ],
    }


def _members(store: Store, whom: Whom) -> list[RunRow]:
    which = Filter(
        states=(State.RUNNING, State.KILLED),
        agent=whom.name if whom.scope == Scope.AGENT else None,
        label=(whom.name, whom.value) if whom.scope == Scope.LABEL else None,
        limit=1000,
    )
    return store.runs(which)
