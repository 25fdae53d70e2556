"""Dead runs: why they died, and the two decisions a person can make about them.

A redriven run continues from its journal: the step that failed is tried again, with a fresh count
of retries. A dropped run has failed for good.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from andon.control.facts import facts
from andon.control.runs.runs import PAGE, every_run, find
from andon.core.effect import EffectState
from andon.core.journal import Entry, EntryKind, Mark, chain
from andon.core.run import Event, State, advance
from andon.errors import Refused
from andon.runtime.requests import requests
from andon.store.messages.rows import Filter, RunRow
from andon.store.store import MoveRun, NoteEvent, Store


def listing(store: Store, *, agent: str | None, limit: int) -> list[dict[str, Any]]:
    """Dead runs, newest first."""
    now = store.now()
    rows = store.runs(Filter(states=(State.DEAD,), agent=agent, limit=limit))
    return [
        {
            **facts(row, "id agent version"),
            "attempts": row.attempt,
            **facts(row, "failures interruptions"),
            "error": json.loads(row.error) if row.error else None,
            "died_at": row.changed_at,
            "age_seconds": round(max(now - row.changed_at, 0.0), 3),
            "obligations": len(store.obligations(row.id)),
        }
        for row in rows
    ]


Decision = Callable[..., RunRow]  # redrive or drop


def decide(
    store: Store, decision: Decision, runs: Sequence[str], *, agent: str | None, by: str
) -> tuple[list[str], list[dict[str, str]]]:
    """Decide about these runs, or about every dead one; returns the ids, and the refusals.

    The refusal of a single run is raised; among several it does not stop the others.
    """
    if len(runs) == 1:
        return [decision(store, runs[0], by=by).id], []
    done, refused = [], []
    for run_id in runs or _every(store, agent):
        try:
            done.append(decision(store, run_id, by=by).id)
        except Refused as refusal:
            refused.append({"run": run_id, "why": str(refusal)})
    return done, refused


def _every(store: Store, agent: str | None) -> list[str]:
    dead = Filter(states=(State.DEAD,), agent=agent, limit=PAGE)
    return [row.id for row in every_run(store, dead)]


def redrive(store: Store, run_id: str, *, by: str) -> RunRow:
    """Put a dead run back into the queue with its failures forgotten."""
    row = find(store, run_id)
    state = advance(State(row.state), Event.REDRIVE, run_id=row.id)
    _refuse_compensated(store, row)
    end = store.last_entry(row.id)
    error = {} if end is None else json.loads(requests.body_of(store, end))
    places = error.pop("places", None)
    body = json.dumps({**error, "by": by})
    # An empty `places` means that the failed step is unknown: "-" retries only the steps that were
    # cancelled because of it.
    drafts = [
        Entry(seq=0, kind=EntryKind.RETRY, state=Mark.REOPENED, place=place, body=body)
        for place in ([] if places is None else places or ["-"])
    ]
    note = _note("run.redriven", row, by)
    entries = _chained(store, row, drafts)
    move = MoveRun(
        run_id=row.id, seen=row.state, state=state, entries=entries, fresh=True, note=note
    )
    requests.write(store, move)
    return row


def drop(store: Store, run_id: str, *, by: str) -> RunRow:
    """Mark a dead run as failed for good."""
    row = find(store, run_id)
    state = advance(State(row.state), Event.DROP, run_id=row.id)
    owed = store.obligations(row.id)
    if owed:
        names = ", ".join(sorted({one.name for one in owed}))
        raise Refused(
            f"run {row.id}: {len(owed)} of its effects would never be undone: {names}. "
            f"Undo them first: andon compensate {row.id}"
        )
    end = Entry(seq=0, kind=EntryKind.END, state=state, name=row.agent, body=row.error)
    note = _note("run.dropped", row, by)
    entries = _chained(store, row, [end])
    move = MoveRun(
        run_id=row.id, seen=row.state, state=state, entries=entries, forgets=False, note=note
    )
    requests.write(store, move)
    return row


def _refuse_compensated(store: Store, row: RunRow) -> None:
    undone = {one.name for one in store.ledger(row.id) if one.state == EffectState.COMPENSATED}
    undone |= {one.name for one in requests.journal(store, row.id) if one.kind == "compensate"}
    if undone:
        raise Refused(
            f"run {row.id}: its effects were undone ({', '.join(sorted(undone))}), and its journal "
            f"says that they were done. Start a new one: andon start {row.agent}"
        )


def _chained(store: Store, row: RunRow, drafts: Sequence[Entry]) -> tuple[Entry, ...]:
    """The drafts numbered and hashed as the next entries of the run's journal."""
    now, head = store.now(), row.head_hash
    for number, entry in enumerate(drafts, row.head_seq + 1):
        entry.seq, entry.fence, entry.since, entry.at = number, row.fence, now, now
        entry.hash = head = chain(head, entry)
    return tuple(drafts)


def _note(kind: str, row: RunRow, by: str) -> NoteEvent:
    error = json.loads(row.error) if row.error else None
    return NoteEvent(kind=kind, run_id=row.id, body=json.dumps({"by": by, "error": error}))
