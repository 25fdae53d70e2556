"""`andon reauthorize`: lifts the latches of a kill or halt, for a named person and a reason.

The command first shows the latches, the runs that stay stopped, and what may start. The person
confirms exactly these latches: one that is pulled meanwhile stays. Nothing is started here.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from andon.control.facts import facts
from andon.control.runs.runs import every_run
from andon.control.stop.target import StopTarget, members
from andon.core.effect import OPEN as EFFECT_OPEN
from andon.core.latch import Pulled
from andon.core.run import State
from andon.core.stop import OPEN, POLITE, Stage, StopKind, StopScope
from andon.errors import Conflict, NotFound
from andon.host import home as homes
from andon.host.latch import Latch
from andon.runtime.requests import scope_latches
from andon.runtime.requests.requests import write
from andon.store.messages.rows import RunRow
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

    target: StopTarget
    orders: list[StopRow]  # the hard latches of that scope, newest first
    above: list[StopRow]  # other hard latches, which stay
    local: Pulled | None  # this host's latch, if it is pulled and the scope is the fleet
    home: str
    away: str = ""  # why the store was not read


def look(store: Store | None, target: StopTarget, *, away: str = "") -> ShownLatches:
    """The latches on that scope now; NotFound if there are none."""
    home = homes.find()
    pulled = Latch(home).read() if target.scope == StopScope.FLEET else None
    hard = [one for one in (store.latches() if store else ()) if StopKind(one.kind) not in POLITE]
    wanted = (target.scope, target.name, target.value)
    same = [one for one in hard if (one.scope, one.name, one.value) == wanted]
    seen = ShownLatches(
        target=target,
        orders=same,
        above=[one for one in hard if one not in same],
        local=pulled if pulled is not None and pulled.pulled else None,
        home=home,
        away=away,
    )
    if not seen.orders and seen.local is None:
        raise NotFound(_nothing(seen))
    return seen


def _nothing(seen: ShownLatches) -> str:
    if seen.away:
        return f"the latch of this host ({seen.home}) is not pulled. {seen.away}"
    others = "; ".join(
        f"{scope_latches.held_by(one)}: {scope_latches.lift_command(one)}" for one in seen.above
    )
    held = f"What is held: {others}" if others else "andon receipts lists what was stopped"
    what = (
        "everything"
        if seen.target.scope == StopScope.FLEET
        else f"{seen.target.scope} {seen.target.name}"
    )
    return f"no kill or halt holds {what}. {held}"


def plan(store: Store | None, seen: ShownLatches) -> dict[str, Any]:
    """The latches that would be lifted, the runs that stay stopped, and what may start."""
    rows = [] if store is None else list(every_run(store, members(seen.target, _STAY)))
    by_agent = Counter(row.agent for row in rows)
    return {
        "whom": _called(seen.target),
        "lifts": [
            {
                "receipt": one.id,
                "order": one.kind,
                **facts(one, "epoch by why via"),
                "at": one.asked_at,
            }
            for one in seen.orders
        ],
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


def _called(target: StopTarget) -> str:
    if target.scope == StopScope.FLEET:
        return "everything"
    value = f"={target.value}" if target.scope == StopScope.LABEL else ""
    return f"{target.scope} {target.name}{value}"


def _host(seen: ShownLatches) -> dict[str, Any]:
    assert seen.local is not None
    pulled = facts(seen.local, "unreadable epoch by why via at order")
    return {"home": seen.home, **pulled}


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
    return found | {"resumable": _resumable(store, seen.target)}


def _resumable(store: Store | None, target: StopTarget) -> dict[str, int]:
    """How many runs of each agent `andon resume` would continue now."""
    if store is None:
        return {}
    rows = every_run(store, members(target, _RESUMABLE))
    return dict(Counter(row.agent for row in rows if row.stop is None).most_common())


def _lift_store(store: Store, seen: ShownLatches, by: str, why: str, epoch: int) -> int:
    target = seen.target
    message = Reauthorize(
        epoch=epoch, scope=target.scope, by=by, why=why, name=target.name, value=target.value
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
