"""Finds the target of an order by its name, and gives the order to the store.

The module imports little, because every stop waits for its imports.
"""

from __future__ import annotations

from andon.core.run import TERMINAL, State
from andon.core.stop import POLITE, StopKind, StopScope
from andon.core.values.struct import Struct
from andon.errors import BadInput, NotFound
from andon.host.ids import new_order
from andon.runtime.requests import lookup
from andon.store.messages.rows import Filter
from andon.store.messages.stops import Order

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from andon.store.messages.rows import RunRow
    from andon.store.messages.stops import StopRow
    from andon.store.store import Store

# The length of a list that a person has to choose from.
MOST_LISTED = 20
UNFINISHED = tuple(state for state in State if state not in TERMINAL)


class StopTarget(Struct):
    """The run or the scope that is to be stopped or resumed."""

    scope: str
    name: str = ""
    value: str = ""


def members(target: StopTarget, states: Sequence[str], limit: int = 1000) -> Filter:
    """The runs of a scope: of one agent, with one label, or all."""
    return Filter(
        states=tuple(states),
        agent=target.name if target.scope == StopScope.AGENT else None,
        label=(target.name, target.value) if target.scope == StopScope.LABEL else None,
        limit=limit,
    )


class Several(BadInput):
    """The command named no target, and several runs are running."""

    def __init__(self, runs: Sequence[RunRow]) -> None:
        self.runs = runs
        listed = "\n".join(f"{run.id}  {run.agent}" for run in runs)
        super().__init__(f"several runs are running; say which:\n{listed}\neverything: andon halt")


def pair(text: str, what: str) -> tuple[str, str]:
    """Parse name=value."""
    name, equals, given = text.partition("=")
    if not equals or not name:
        raise BadInput(f"{what} {text!r}: expected name=value")
    return name, given


def find_target(
    store: Store, run: str | None, agent: str | None, label: tuple[str, str] | None, *, fleet: bool
) -> StopTarget:
    """The target that the options name; without options, the only running run."""
    if agent is not None:
        _refuse_unknown_agent(store, agent)
    if fleet or agent is not None or label is not None:
        return several_runs(agent, label)
    if run is not None:
        return StopTarget(scope=StopScope.RUN, name=_find(store, run).id)
    running = store.runs(Filter(states=(State.RUNNING,), limit=MOST_LISTED))
    if not running:
        raise NotFound("nothing is running; andon ps shows what waits")
    if len(running) > 1:
        raise Several(running)
    return StopTarget(scope=StopScope.RUN, name=running[0].id)


def several_runs(agent: str | None, label: tuple[str, str] | None) -> StopTarget:
    """All runs of one agent, with one label, or of the whole fleet."""
    if agent is not None:
        return StopTarget(scope=StopScope.AGENT, name=agent)
    if label is not None:
        return StopTarget(scope=StopScope.LABEL, name=label[0], value=label[1])
    return StopTarget(scope=StopScope.FLEET)


def _refuse_unknown_agent(store: Store, agent: str) -> None:
    """Refuse an unknown agent: a stop that matches nothing would look like a success."""
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


def find(store: Store, run_id: str) -> RunRow:
    """Find a run by its id, a prefix of it, @last, or its agent's name."""
    if run_id == "@last":
        newest = store.runs(Filter(roots=True, limit=1))
        if not newest:
            raise NotFound("there is no run yet; start one: andon start AGENT key=value")
        return newest[0]
    unfinished = of_agent(store, run_id)
    if not unfinished or store.run(run_id) is not None:
        return lookup.find(store, run_id)
    found = store.runs(Filter(prefix=run_id, roots=True, limit=5))
    begin = [one for one in found if one.agent != run_id]
    if len(unfinished) == 1 and not begin:
        return unfinished[0]
    which = ", ".join(one.id for one in (*unfinished, *begin))
    raise NotFound(f"{run_id!r}: ambiguous name; matches: {which}")


def of_agent(store: Store, name: str) -> list[RunRow]:
    """Up to five unfinished runs of the agent of that name."""
    return store.runs(Filter(agent=name, states=UNFINISHED, limit=5)) if name else []


def build_order(
    kind: StopKind,
    target: StopTarget,
    *,
    within: float,
    by: str,
    why: str,
    via: str,
    spare: bool | None = None,
) -> Order:
    """Build the order; `give` writes it."""
    return Order(
        id=new_order(),
        kind=kind,
        scope=target.scope,
        name=target.name,
        value=target.value,
        within=within if kind in POLITE else 0.0,
        by=by,
        why=why,
        via=via,
        spare=spare,
    )


def give(store: Store, order: Order) -> StopRow:
    """Give an order; returns the existing one if the same order is in force already."""
    return find_order(store, str(lookup.write(store, order)))


def find_order(store: Store, stop_id: str) -> StopRow:
    """The receipt with that id, or the only one whose id starts with it."""
    row = store.stop(stop_id)
    if row is not None:
        return row
    near = [one for one in store.stops(10_000) if stop_id and one.id.startswith(stop_id)]
    if len(near) == 1:
        return near[0]
    if near:
        which = ", ".join(one.id for one in near[:5])
        raise NotFound(f"receipt {stop_id!r}: ambiguous id; matches: {which}")
    raise NotFound(f"there is no receipt {stop_id!r}; andon receipts lists them")
