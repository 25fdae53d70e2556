"""Orders as people give them: who is meant, and the order in the store.

Imports little: whoever gives one waits for it.
"""

from __future__ import annotations

from andon.core.run import TERMINAL, State
from andon.core.stop import POLITE, Kind, Scope
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

# Of a list that a person has to choose from.
MOST_LISTED = 20
UNFINISHED = tuple(state for state in State if state not in TERMINAL)


class Whom(Struct):
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


def pair(text: str, what: str) -> tuple[str, str]:
    """What people type as name=value."""
    name, equals, given = text.partition("=")
    if not equals or not name:
        raise BadInput(f"{what} {text!r}: expected name=value")
    return name, given


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


def find(store: Store, run_id: str) -> RunRow:
    """The run that is meant: by its id, the beginning of it, @last, or its agent's name."""
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
    """A few unfinished runs of the agent of that name."""
    return store.runs(Filter(agent=name, states=UNFINISHED, limit=5)) if name else []


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
    return find_order(store, str(lookup.write(store, order)))


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
        raise NotFound(f"receipt {stop_id!r}: ambiguous id; matches: {which}")
    raise NotFound(f"there is no receipt {stop_id!r}; andon receipts lists them")
