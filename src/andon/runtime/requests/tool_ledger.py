"""The outcomes of tool calls of a run that no longer acts, for the repair of a transcript.

To continue the conversation of an unfinished run, take the run over first. Otherwise the next
worker would execute a call that the model has been told was not executed.
"""

from collections.abc import Callable
from typing import Any

from andon.core.effect import EffectState
from andon.core.journal import Entry
from andon.core.run import TERMINAL
from andon.core.run import State as RunState
from andon.core.stop import StopKind
from andon.core.values import value
from andon.errors import NotFound, Refused
from andon.runtime.requests import requests
from andon.runtime.requests.requests import body_of, find
from andon.store.store import EffectRow, Store
from andon.transcript.ledger import IN_DOUBT, NOT_STARTED, Call, Done, State

# A killed run acts again only if a person resumes that very run; dead runs are redriven in bulk.
OVER = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.KILLED})
HAPPENED = "It took effect. Its answer was not kept."
UNDONE = "Undone: whatever this tool call had done was taken back."


def take_over(store: Store, run_id: str, heir: str) -> None:
    """Kill a run whose conversation another run continues, so that it acts no more.

    It is killed, not cancelled: its effects stand in the conversation and are not undone.
    """
    try:
        row, new = find(store, run_id), find(store, heir)
    except NotFound:
        return  # deleted since, or its store is not the conversation's
    if row.state not in TERMINAL | {RunState.KILLED} and row.root_id != new.root_id:
        why = "its conversation continues in that run"
        requests.order(store, StopKind.KILL, row.id, by=f"run {heir}", why=why)


def read(store: Store, run_id: str) -> Callable[[Call], State | None]:
    """Return a run's ledger for `transcript.repair`; refused while the run could still act."""
    row = find(store, run_id)
    if row.state not in OVER:
        raise Refused(
            f"run {row.id} is {row.state}, expected one that is over: it may still call its tools, "
            f"and they would be called twice. Wait for it, or end it: andon kill {row.id}"
        )
    return known_calls(store, row.id)


def known_calls(store: Store, run_id: str) -> Callable[[Call], State | None]:
    """Like `read`, for callers that have made certain that the run acts no more."""
    lines = {(one.name, one.key): _known(store, run_id, one) for one in store.ledger(run_id)}

    def known(call: Call) -> State | None:
        own = f"{call.id}@"  # the provider used this id again
        found = [
            state
            for (name, key), state in lines.items()
            if name == call.name and (key == call.id or key.startswith(own))
        ]
        return found[0] if len(found) == 1 else None

    return known


def _known(store: Store, run_id: str, row: EffectRow) -> State:
    match row.state:
        case EffectState.PLANNED:
            return NOT_STARTED
        case EffectState.CONFIRMED:
            entry, given = _last(store, run_id, row)
            if entry.state == EffectState.CONFIRMED:
                return Done(given)
            return _told(given) or Done(HAPPENED)
        case EffectState.FAILED:
            return _told(_last(store, run_id, row)[1]) or NOT_STARTED  # a person decided so
        case EffectState.COMPENSATED:
            return Done(UNDONE, error=True)
        case _:
            return IN_DOUBT


def _last(store: Store, run_id: str, row: EffectRow) -> tuple[Entry, Any]:
    [entry] = store.journal(run_id, row.seq - 1, 1)
    return entry, value.decode(body_of(store, entry))


def _told(given: Any) -> Done | None:
    """The error that the agent received, if there was one."""
    if not isinstance(given, dict) or "message" not in given:
        return None
    return Done(f"{given.get('type')}: {given['message']}", error=True)
