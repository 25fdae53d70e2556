"""`andon reauthorize`: lifts the latches of a kill or halt, for a named person and a reason.

The command first shows the latches, the runs that stay stopped, and what may start. The person
confirms exactly these latches: one that is pulled meanwhile stays. Nothing is started here.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from andon.control.runs.runs import every_run
from andon.control.stop.target import Whom
from andon.core.effect import OPEN as EFFECT_OPEN
from andon.core.latch import Pulled
from andon.core.run import State
from andon.core.stop import OPEN, POLITE, Stage, StopKind, StopScope
from andon.errors import Conflict, NotFound
from andon.host import home as homes
from andon.host.latch import Latch
from andon.runtime.requests import scope_latches
from andon.runtime.requests.requests import write
from andon.store.messages.rows import Filter, RunRow
from andon.store.messages.stops import Reauthorize, StopRow
from andon.store.store import Store

# At most this many runs have their ledgers searched for effects in doubt.
MOST_LEDGERS = 500
# A run with this many interruptions may itself be the cause of its workers' deaths.
SUSPECT_INTERRUPTIONS = 3
# Runs that stay stopped until a person resumes them, including those that wait in the queue.
_STAY = (State.KILLED, State.QUEUED, State.SUSPENDED, State.PAUSED)
_RESUMABLE = (State.KILLED, State.PAUSED)


class ShownLatches(msgspec.Struct, frozen=True, kw_only=True):
    """The latches that were shown to the person who reauthorizes."""

    whom: Whom
    orders: list[StopRow]  # the hard latches of that scope, newest first
    above: list[StopRow]  # other hard latches, which stay
    local: Pulled | None  # this host's latch, if it is pulled and the scope is the fleet
    home: str
    away: str = ""  # why the store was not read


def look(store: Store | None, whom: Whom, *, away: str = "") -> ShownLatches:
    """The latches on that scope now; NotFound if there are none."""
    home = homes.find()
    pulled = Latch(home).read() if whom.scope == StopScope.FLEET else None
    hard = [one for one in (store.latches() if store else ()) if StopKind(one.kind) not in POLITE]
    same = [one for one in hard if (one.scope, one.name, one.value) == _key(whom)]
    seen = ShownLatches(
        whom=whom,
        orders=same,
        above=[one for one in hard if one not in same],
        local=pulled if pulled is not None and pulled.pulled else None,
        home=home,
        away=away,
    )
    if not seen.orders and seen.local is None:
        raise NotFound(_nothing(seen))
    return seen


def _key(whom: Whom) -> tuple[str, str, str]:
    return whom.scope, whom.name, whom.value


def _nothing(seen: ShownLatches) -> str:
    if seen.away:
        return f"the latch of this host ({seen.home}) is not pulled. {seen.away}"
    others = "; ".join(
        f"{scope_latches.held_by(one)}: {scope_latches.lift_command(one)}" for one in seen.above
    )
    held = f"What is held: {others}" if others else "andon receipts lists what was stopped"
    what = (
        "everything"
        if seen.whom.scope == StopScope.FLEET
        else f"{seen.whom.scope} {seen.whom.name}"
    )
    return f"no kill or halt holds {what}. {held}"


def plan(store: Store | None, seen: ShownLatches) -> dict[str, Any]:
    """The latches that would be lifted, the runs that stay stopped, and what may start."""
    rows = [] if store is None else list(_runs(store, seen.whom, _STAY))
    by_agent = Counter(row.agent for row in rows)
    return {
        "whom": _called(seen.whom),
        "lifts": [_order(one) for one in seen.orders],
        "epoch": seen.orders[0].epoch if seen.orders else None,
        "host": None if seen.local is None else _host(seen),
        "stays": dict(by_agent.most_common()),
        "in_doubt": _in_doubt(store, rows[:MOST_LEDGERS]),
        "suspects": [row.id for row in rows if row.interruptions >= SUSPECT_INTERRUPTIONS],
        "unproved": _unproved(store, seen.orders),
        "still_held": [scope_latches.held_by(one) for one in seen.above],
        "starts": "new runs; stopped runs do not resume by themselves",
        "away": seen.away,
    }


def _called(whom: Whom) -> str:
    if whom.scope == StopScope.FLEET:
        return "everything"
    value = f"={whom.value}" if whom.scope == StopScope.LABEL else ""
    return f"{whom.scope} {whom.name}{value}"


def _order(one: StopRow) -> dict[str, Any]:
    return {
        "receipt": one.id,
        "order": one.kind,
        "epoch": one.epoch,
        "by": one.by,
        "why": one.why,
        "via": one.via,
        "at": one.asked_at,
    }


def _host(seen: ShownLatches) -> dict[str, Any]:
    assert seen.local is not None
    found = seen.local
    facts = {name: getattr(found, name) for name in ("epoch", "by", "why", "via", "at", "order")}
    return {"home": seen.home, "unreadable": found.unreadable, **facts}


def _runs(store: Store, whom: Whom, states: tuple[str, ...]) -> Iterator[RunRow]:
    if whom.scope == StopScope.FLEET:
        yield from every_run(store, states)
        return
    which = Filter(
        states=states,
        agent=whom.name if whom.scope == StopScope.AGENT else None,
        label=(whom.name, whom.value) if whom.scope == StopScope.LABEL else None,
        limit=1000,
    )
    while page := store.runs(which):
        yield from page
        which = which.but(before=(page[-1].created_at, page[-1].id))


def _in_doubt(store: Store | None, rows: Sequence[RunRow]) -> list[dict[str, Any]]:
    if store is None:
        return []
    return [
        {"run": row.id, "name": effect.name, "key": effect.key}
        for row in rows
        for effect in store.ledger(row.id)
        if effect.state in EFFECT_OPEN
    ]


def _unproved(store: Store | None, orders: Sequence[StopRow]) -> list[dict[str, Any]]:
    """The targets of these stops that are not known to have ended."""
    if store is None:
        return []
    return [
        {"receipt": one.id, "target": row.target, "stage": row.stage}
        for one in orders
        for row in store.targets(one.id)
        if row.stage in OPEN or row.stage == Stage.UNPROVED
    ]


# ── lifting ───────────────────────────────────────────────────────────────────────────────────


def lift(
    store: Store | None, seen: ShownLatches, *, by: str, why: str, epoch: int | None = None
) -> dict[str, Any]:
    """Lift the latches that were seen, and no later one; the store's latch before this host's."""
    held = 0
    if store is not None and seen.orders:
        held = _lift_store(store, seen, by, why, seen.orders[0].epoch if epoch is None else epoch)
    lifted = [one.id for one in seen.orders]
    local = _lift_host(seen, by, why, epoch if store is None else None, lifted)
    found = {"lifted": lifted, "host": local, "held": held, "by": by, "why": why}
    return found | {"resumable": _resumable(store, seen.whom)}


def _resumable(store: Store | None, whom: Whom) -> dict[str, int]:
    """How many runs of each agent `andon resume` would continue now."""
    if store is None:
        return {}
    rows = _runs(store, whom, _RESUMABLE)
    return dict(Counter(row.agent for row in rows if row.stop is None).most_common())


def _lift_store(store: Store, seen: ShownLatches, by: str, why: str, epoch: int) -> int:
    whom = seen.whom
    message = Reauthorize(
        epoch=epoch, scope=whom.scope, by=by, why=why, name=whom.name, value=whom.value
    )
    return int(write(store, message))


def _lift_host(
    seen: ShownLatches, by: str, why: str, epoch: int | None, lifted: Sequence[str]
) -> str | None:
    if seen.local is None:
        return None
    found = Latch(seen.home).clear(seen.local.epoch if epoch is None else epoch, by=by, why=why)
    if found.pulled:  # not pulled: the supervisor, which follows the store, may have cleared it
        also = f" The store's latch ({', '.join(lifted)}) is lifted." if lifted else ""
        raise Conflict(
            f"the latch of this host ({seen.home}) stays pulled: "
            f"{found.refused or 'it was pulled again meanwhile'}.{also} Try again: "
            "andon reauthorize"
        )
    return seen.home
