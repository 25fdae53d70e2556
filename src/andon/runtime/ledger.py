"""What a run that is over knows about its tool calls, as the repair of a transcript asks for it."""

from collections.abc import Callable
from typing import Any

from andon.core import value
from andon.core.effect import EffectState
from andon.core.journal import Entry
from andon.core.run import State as RunState
from andon.errors import Refused
from andon.runtime.requests import body_of, find
from andon.store.store import EffectRow
from andon.transcript.ledger import IN_DOUBT, NOT_STARTED, Call, Done, State

# A dead one may be tried again, and would make its planned calls then.
OVER = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED})
HAPPENED = "It took effect. What it answered was not kept."
UNDONE = "Undone: whatever this tool call had done was taken back."


def read(store: Any, run_id: str) -> Callable[[Call], State | None]:
    """The ledger of a run, for `transcript.repair`. Refused while the run could still act."""
    row = find(store, run_id)
    if row.state not in OVER:
        raise Refused(
            f"run {row.id} is {row.state}, expected one that is over: it may still call its tools, "
            f"and they would be called twice. Wait for it, or end it: andon cancel {row.id}"
        )
    lines = {(one.name, one.key): _known(store, row.id, one) for one in store.ledger(row.id)}

    def known(call: Call) -> State | None:
        own = f"{call.id}@"  # of an id that the provider used again
        found = [
            state
            for (name, key), state in lines.items()
            if name == call.name and (key == call.id or key.startswith(own))
        ]
        return found[0] if len(found) == 1 else None

    return known


def _known(store: Any, run_id: str, row: EffectRow) -> State:
    match row.state:
        case EffectState.PLANNED:
            return NOT_STARTED
        case EffectState.CONFIRMED:
            entry, given = _last(store, run_id, row)
            if entry.state == EffectState.CONFIRMED:
                return Done(given)
            return _told(given) or Done(HAPPENED)
        case EffectState.FAILED:
            return _told(_last(store, run_id, row)[1]) or NOT_STARTED  # a person said so
        case EffectState.COMPENSATED:
            return Done(UNDONE, error=True)
        case _:
            return IN_DOUBT


def _last(store: Any, run_id: str, row: EffectRow) -> tuple[Entry, Any]:
    [entry] = store.journal(run_id, row.seq - 1, 1)
    return entry, value.decode(body_of(store, entry))


def _told(given: Any) -> Done | None:
    """The error that the agent was told."""
    if not isinstance(given, dict) or "message" not in given:
        return None
    return Done(f"{given.get('type')}: {given['message']}", error=True)
