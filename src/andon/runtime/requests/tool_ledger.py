"""What a run that acts no more knows about its tool calls, as the repair of a transcript asks.

Whoever goes on with the conversation of a run that is not over has to take it over first: what the
model is told was not executed would be executed all the same by the next worker.
"""

from collections.abc import Callable
from typing import Any

from andon.core.effect import EffectState
from andon.core.journal import Entry
from andon.core.run import TERMINAL
from andon.core.run import State as RunState
from andon.core.values import value
from andon.errors import NotFound, Refused
from andon.runtime.requests import requests
from andon.runtime.requests.requests import body_of, find
from andon.store.store import EffectRow
from andon.transcript.ledger import IN_DOUBT, NOT_STARTED, Call, Done, State

# A killed one acts again only if a person resumes that very run; dead ones are redriven in bulk.
OVER = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.KILLED})
HAPPENED = "It took effect. What it answered was not kept."
UNDONE = "Undone: whatever this tool call had done was taken back."


def take_over(store: Any, run_id: str, heir: str) -> None:
    """Let nobody act for a run any more whose conversation another run goes on with.

    Killed, not cancelled: what it has done stands in the conversation, and is not undone.
    """
    try:
        row, new = find(store, run_id), find(store, heir)
    except NotFound:
        return  # it was deleted since, or the conversation is in another store than its runs
    if row.state not in TERMINAL | {RunState.KILLED} and row.root_id != new.root_id:
        requests.kill(store, row.id, by=f"run {heir}", why="its conversation continues in that run")


def read(store: Any, run_id: str) -> Callable[[Call], State | None]:
    """The ledger of a run, for `transcript.repair`. Refused while the run could still act."""
    row = find(store, run_id)
    if row.state not in OVER:
        raise Refused(
            f"run {row.id} is {row.state}, expected one that is over: it may still call its tools, "
            f"and they would be called twice. Wait for it, or end it: andon kill {row.id}"
        )
    return known_calls(store, row.id)


def known_calls(store: Any, run_id: str) -> Callable[[Call], State | None]:
    """The same of any run, for whoever has made certain that it acts no more."""
    lines = {(one.name, one.key): _known(store, run_id, one) for one in store.ledger(run_id)}

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
