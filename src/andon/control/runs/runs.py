"""Queries about runs: one function per request, takes a store, returns values.

Callers (the command line now, others later) only translate. The rules live in runtime and core.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from andon.control.facts import facts
from andon.control.runs.activity import STOPPED, doing
from andon.control.runs.run_errors import failures_of
from andon.control.runs.shown_state import STALLED, STOPPING, Surroundings
from andon.control.stop.target import UNFINISHED
from andon.control.stop.target import find as find  # noqa: PLC0414 (part of this module's API)
from andon.core.effect import OPEN, OWED, EffectKind, EffectState
from andon.core.run import TERMINAL, State
from andon.core.values import value
from andon.runtime.requests import requests, scope_latches
from andon.store.messages.rows import AskRow, Filter, RunRow
from andon.store.store import Store

# Ended runs stay in the default listing for this long.
RECENT_SECONDS = 3600.0
PAGE = 500
ALL = Filter(limit=PAGE)


def listing(
    store: Store,
    *,
    states: Sequence[str] = (),
    agent: str | None = None,
    label: tuple[str, str] | None = None,
    limit: int = 100,
    before: str | None = None,
    everything: bool = False,
    roots: bool | None = None,
) -> list[dict[str, Any]]:
    """Runs, newest first: by default the unfinished ones and those that ended recently."""
    around = Surroundings(store)
    cursor = None
    if before is not None:
        last = find(store, before)
        cursor = (last.created_at, last.id)
    which = Filter(
        states=tuple(states), agent=agent, label=label, limit=limit, before=cursor, roots=roots
    )
    if states:
        requests.refuse_unknown(states, (STOPPING, STALLED))
        rows = _as_shown(which, around)
    elif everything:
        rows = requests.list_runs(store, which)
    else:
        rows = _current(store, which, around.now)
    return [_line(row, around) for row in rows]


_STORED_AS: dict[str, set[str]] = {
    State.STRANDED: {State.QUEUED, State.RUNNING},
    State.PAUSED: {State.QUEUED, State.SUSPENDED},
    State.KILLED: {State.QUEUED, State.SUSPENDED},
    STOPPING: {State.RUNNING, State.KILLED},
    STALLED: {State.RUNNING},
}


def _as_shown(which: Filter, around: Surroundings) -> list[RunRow]:
    """Runs filtered by shown state, which can differ from the stored one."""
    stored = set(which.states) & set(State)
    for state in which.states:
        stored |= _STORED_AS.get(state, set())
    pages = which.but(states=tuple(sorted(stored)), limit=max(which.limit, PAGE))
    fitting = (
        row for row in every_run(around.store, pages) if around.state_of(row) in which.states
    )
    return list(islice(fitting, which.limit))


def _current(store: Store, which: Filter, now: float) -> list[RunRow]:
    unfinished = store.runs(which.but(states=UNFINISHED))
    over = store.runs(which.but(states=tuple(TERMINAL), limit=max(which.limit, PAGE)))
    recent = [row for row in over if row.changed_at >= now - RECENT_SECONDS]
    newest = sorted([*unfinished, *recent], key=lambda row: (row.created_at, row.id), reverse=True)
    return newest[: which.limit]


def _line(row: RunRow, around: Surroundings) -> dict[str, Any]:
    asks = [] if row.state in TERMINAL else around.store.asks(row.id)
    return {
        **facts(row, "id agent version"),
        "state": around.state_of(row),
        **facts(row, "attempt created_at changed_at"),
        "age_seconds": round(max(around.now - row.created_at, 0.0), 3),
        "labels": json.loads(row.labels),
        **facts(row, "priority parent_id worker"),
        "doing": doing(row, asks, around),
        "progress": around.progress.get(row.id, []),
        "asks": [as_ask(ask) for ask in asks],
        **_stops(row, around),
    }


def _stops(row: RunRow, around: Surroundings) -> dict[str, Any]:
    """The order or latch that stops the run, its stall, and how surely it could be killed."""
    latch = around.latch_on(row)
    if row.state in STOPPED:
        latch = scope_latches.over(around.latches, row, around.store.run)
    return {
        "stop": json.loads(row.stop) if row.stop else None,
        "held_by": latch.id if latch else None,
        "lifted_with": scope_latches.lift_command(latch) if latch else None,
        "stalled": around.stall_of(row) or None,
        "containment": json.loads(row.containment) if row.containment else None,
    }


def as_ask(ask: AskRow) -> dict[str, Any]:
    return {
        **facts(ask, "id about question"),
        "value": json.loads(ask.value) if ask.value is not None else None,
        "choices": json.loads(ask.choices),
        **facts(ask, "asked_at expires_at"),
        "answer": json.loads(ask.answer) if ask.answer is not None else None,
        "answered_at": ask.answered_at,
    }


def show(store: Store, run_id: str) -> dict[str, Any]:
    """Everything about one run."""
    from andon.control.runs.command_output import is_kept

    row = find(store, run_id)
    around = Surroundings(store)
    entries = requests.journal(store, row.id)
    attempts = store.attempts(row.id)
    asks = store.asks(row.id, open_only=False)
    still_open = [ask for ask in asks if ask.answered_at is None and row.state not in TERMINAL]
    run = requests.described(store, row)
    return {
        **facts(row, "id agent version"),
        "state": around.state_of(row),
        "doing": doing(row, still_open, around),
        "progress": around.progress.get(row.id, []),
        "attempt": row.attempt,
        "fence": run.fence,
        **facts(row, "created_at changed_at available_at wake_at"),
        "labels": run.labels,
        **facts(row, "priority queue parent_id root_id worker"),
        **_stops(row, around),
        **facts(row, "failures interruptions"),
        "input": value.decode(requests.body_of(store, entries[0])) if entries else None,
        **facts(run, "result error waits"),
        "steps": requests.steps_of(entries, attempts),
        "errors": failures_of(entries),
        "logged": is_kept(row) or bool(store.logs(row.id, 0)),
        "effects": [facts(one, "name key kind state fence") for one in store.ledger(row.id)],
        "asks": [as_ask(ask) for ask in asks],
        "attempts": [
            facts(one, "number fence worker claimed_at ended_at ending") for one in attempts
        ],
        "children": [
            {"id": child.id, "agent": child.agent, "state": around.state_of(child)}
            for child in every_run(store, Filter(parent_id=row.id, limit=PAGE))
        ],
        "journal": {"entries": len(entries), "head_hash": row.head_hash},
    }


def undo_plan(store: Store, row: RunRow) -> dict[str, Any]:
    """The effects that compensating a run would undo, in that order, and those it would not."""
    effects = store.ledger(row.id)
    owed = [one for one in reversed(effects) if one.undo is not None and one.state in OWED]
    stays = [one for one in effects if one.undo is None and one.state == EffectState.CONFIRMED]
    return {
        "undo": [facts(one, "name key undo") for one in owed],
        "stays": [facts(one, "name key kind") for one in stays if one.kind != EffectKind.PURE],
        "in_doubt": [facts(one, "name key") for one in effects if one.state in OPEN],
    }


def every_run(store: Store, which: Filter = ALL) -> Iterator[RunRow]:
    """Yield all runs that match, page by page."""
    while page := store.runs(which):
        yield from page
        which = which.but(before=(page[-1].created_at, page[-1].id))


def lines(store: Store, run_id: str, after: int = 0) -> list[dict[str, Any]]:
    """The lines that the agent wrote with ctx.log, after the line with id `after`."""
    found: list[dict[str, Any]] = []
    while page := store.logs(run_id, after):
        found += [{"id": n, "at": at, "level": level, "text": text} for n, at, level, text in page]
        after = page[-1][0]
    return found
