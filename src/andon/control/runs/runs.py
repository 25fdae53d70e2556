"""Queries about runs, and starting them: one function per request, takes a store, returns values.

Callers (the command line now, others later) only translate. The rules live in runtime and core.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from andon.control.runs import command_run, registration
from andon.control.runs import run_waits as waits
from andon.control.runs.run_errors import failures_of
from andon.control.runs.run_input import read
from andon.control.stop.target import UNFINISHED
from andon.control.stop.target import find as find  # noqa: PLC0414 (part of this module's API)
from andon.core import effect
from andon.core.effect import OPEN, OWED, EffectState
from andon.core.journal import Entry, EntryKind, Mark
from andon.core.run import TERMINAL, State
from andon.core.step_progress import progress_text
from andon.core.stop import StopKind
from andon.core.text import age, failure
from andon.core.values import value
from andon.errors import NotFound
from andon.runtime.requests import requests, scope_latches
from andon.runtime.requests.start import resolve
from andon.runtime.worker.peers import is_gone, this_process
from andon.store.messages.rows import AskRow, AttemptRow, Filter, RunRow
from andon.store.messages.stops import StopRow
from andon.store.read_api import ALLOWANCE_SECONDS
from andon.store.store import Store, WorkerRow

# Ended runs stay in the default listing for this long.
RECENT_SECONDS = 3600.0
PAGE = 500

# States that are shown, but never stored.
STOPPING = "stopping"  # ordered to stop, not proved yet
STALLED = "stalled"  # its worker makes no progress


_STOPPED = (State.PAUSED, State.KILLED, State.STRANDED)


# ── starting ──────────────────────────────────────────────────────────────────────────────────


def start(
    store: Store,
    agent: str,
    given: dict[str, Any],
    *,
    on_wait: Callable[[], None],
    warn: Callable[[str], None],
    **options: Any,
) -> RunRow:
    """Start a run; waits briefly for a worker to register an agent that is not known yet."""
    if not _is_known(store, agent):
        on_wait()
        until = time.monotonic() + registration.REGISTRATION_SECONDS
        while not _is_known(store, agent) and time.monotonic() < until:
            time.sleep(0.05)
    try:
        row = resolve(store, agent)
        given = read(given, json.loads(row.types), warn)
        run_id = requests.start(store, row, kwargs=given, **options)
    except NotFound as error:
        known = sorted({row.name for row in store.agents()})
        if known and "known:" not in str(error):
            raise NotFound(f"{error} known: {', '.join(known)}") from None
        raise
    return requests.find(store, run_id)


def _is_known(store: Store, agent: str) -> bool:
    return bool(store.agents(agent))


# ── looking ───────────────────────────────────────────────────────────────────────────────────


class Surroundings:
    """A snapshot that shown states of runs depend on: time, live workers, latches, progress."""

    def __init__(self, store: Store) -> None:
        self.store, self.now, self.here = store, store.now(), this_process()
        self.workers = store.workers()
        self.live = {worker.id: worker for worker in self.workers if self.is_live(worker)}
        serving = [worker for worker in self.live.values() if worker.draining_at is None]
        lately = [one for one in store.fleet(self.now - ALLOWANCE_SECONDS) if self._has_left(one)]
        self._carried = _Carried(serving)
        self._carried_lately = _Carried(lately)
        self.latches, self.progress = store.latches(), store.progress()

    def carries(self, agent: str) -> bool:
        """Whether a live worker serves any version of the agent."""
        return agent in {name for name, _ in self._carried.versions}

    def is_version_carried(self, agent: str, version: str) -> bool:
        return (agent, version) in self._carried.versions

    def is_carried(self, row: RunRow) -> bool:
        return self._carried.takes(row)

    def is_forsaken(self, row: RunRow) -> bool:
        """Whether the run is ready, but no live worker has it or would take it."""
        ready = row.state in (State.QUEUED, State.RUNNING) and row.worker not in self.live
        return ready and not self.is_carried(row)

    def is_stranded(self, row: RunRow) -> bool:
        """Whether the run has been forsaken for longer than a restart of workers takes."""
        since = row.available_at if row.state == State.QUEUED else row.changed_at
        lasts = self.now - since >= ALLOWANCE_SECONDS and not self._carried_lately.takes(row)
        return lasts and self.is_forsaken(row)

    def state_of(self, row: RunRow) -> str:
        """The state that is shown.

        A run that no worker will take shows as stranded, not as queued. A run never shows as killed
        or cancelled before that is proved.
        """
        if row.stop is not None and row.state not in TERMINAL:
            return STOPPING
        latch = self.latch_on(row)
        if latch is not None:
            return scope_latches.SHOWN[StopKind(latch.kind)]
        if self.is_stranded(row):
            return State.STRANDED
        return STALLED if self.stall_of(row) else row.state

    def latch_on(self, row: RunRow) -> StopRow | None:
        """The latch that keeps a waiting run from continuing, if any."""
        waits = row.state in (State.QUEUED, State.SUSPENDED)
        return scope_latches.on_path(self.latches, row) if waits else None

    def stall_of(self, row: RunRow) -> dict[str, Any]:
        """Why the run's worker makes no progress; empty if it does."""
        worker = self.live.get(row.worker or "")
        if row.state != State.RUNNING or worker is None or worker.stalled is None:
            return {}
        found = json.loads(worker.stalled)
        runs = found.get("runs")
        return found if runs is None or row.id in runs else {}

    def who_lacks(self, row: RunRow) -> str:
        """A sentence that names the worker that a forsaken run needs."""
        if row.version == command_run.VERSION:
            return (
                f"no running worker executes this command; how to continue it: andon show {row.id}"
            )
        what = f"{row.agent} (version {row.version})"
        if (row.agent, row.version) in self._carried.versions:
            return f"no running worker serves {what} from queue {row.queue}"
        return f"no running worker serves {what}"

    def _has_left(self, worker: WorkerRow) -> bool:
        at = worker.ended_at if worker.draining_at is None else worker.draining_at
        return at is not None and at > self.now - ALLOWANCE_SECONDS

    def is_live(self, worker: WorkerRow) -> bool:
        """Whether a worker is live: its lease holds, and its process is not known to be gone."""
        in_time = worker.state == "live" and worker.lease_until >= self.now
        return in_time and not is_gone(self.here, worker)


class _Carried:
    """The versions and queues that a set of workers takes runs of."""

    def __init__(self, workers: Sequence[WorkerRow]) -> None:
        self.versions: set[tuple[str, str]] = set()
        self._taken: set[tuple[str, str, str | None]] = set()
        for worker in workers:
            for name, version in json.loads(worker.agents):
                self.versions.add((name, version))
                for queue in json.loads(worker.queues) if worker.queues else [None]:
                    self._taken |= {(name, version, queue), (name, "", queue)}

    def takes(self, row: RunRow) -> bool:
        # A worker with any version of the agent may undo the run.
        version = row.version if row.undoing is None else ""
        return any((row.agent, version, queue) in self._taken for queue in (row.queue, None))


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
    fitting = (row for row in _every(around.store, pages) if around.state_of(row) in which.states)
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
        "id": row.id,
        "agent": row.agent,
        "version": row.version,
        "state": around.state_of(row),
        "attempt": row.attempt,
        "created_at": row.created_at,
        "changed_at": row.changed_at,
        "age_seconds": round(max(around.now - row.created_at, 0.0), 3),
        "labels": json.loads(row.labels),
        "priority": row.priority,
        "parent_id": row.parent_id,
        "worker": row.worker,
        "doing": doing(row, asks, around),
        "progress": around.progress.get(row.id, []),
        "asks": [as_ask(ask) for ask in asks],
        **_stops(row, around),
    }


def _stops(row: RunRow, around: Surroundings) -> dict[str, Any]:
    """The order or latch that stops the run, its stall, and how surely it could be killed."""
    latch = around.latch_on(row)
    if row.state in _STOPPED:
        latch = scope_latches.over(around.latches, row, around.store.run)
    return {
        "stop": json.loads(row.stop) if row.stop else None,
        "held_by": latch.id if latch else None,
        "lifted_with": scope_latches.lift_command(latch) if latch else None,
        "stalled": around.stall_of(row) or None,
        "containment": json.loads(row.containment) if row.containment else None,
    }


def doing(row: RunRow, asks: Sequence[AskRow], around: Surroundings) -> str:
    """Describe in a few words what a run does, waits for, or ended with."""
    if row.attempt == 0 and (around.latch_on(row) is not None or row.state in _STOPPED):
        return f"has not begun; {_doing(row, asks, around)}"
    return _doing(row, asks, around)


def _doing(row: RunRow, asks: Sequence[AskRow], around: Surroundings) -> str:
    match row.state:
        case _ if row.stop is not None and row.state not in TERMINAL:
            return _stopping(row, around)
        case State.QUEUED:
            return _queued(row, around)
        case State.RUNNING:
            return _running(row, around)
        case State.SUSPENDED:
            return _suspended(row, asks, around)
        case State.SUCCEEDED:
            return ""
        case _:
            return _error(row)


def _stopping(row: RunRow, around: Surroundings) -> str:
    mark = json.loads(row.stop or "{}")
    why = f": {mark['why']}" if mark["why"] else ""
    told = f"{mark['kind']} by {mark['by'] or 'an unnamed person'}{why} ({mark['order']})"
    if row.state == State.RUNNING:
        return f"{told}; {in_hand(around.store.last_entry(row.id), row.version)}"
    return f"{told}; fenced; its end is not proved yet"


def _running(row: RunRow, around: Surroundings) -> str:
    batch = progress_text(around.progress.get(row.id, []))
    found = (batch or in_hand(around.store.last_entry(row.id), row.version)) + _orphaned(
        row, around
    )
    stall = around.stall_of(row)
    return f"{found}; its worker is stalled: {stall.get('why')}" if stall else found


def _suspended(row: RunRow, asks: Sequence[AskRow], around: Surroundings) -> str:
    waited = waits.words(json.loads(row.waits) if row.waits else [], around.now)
    waited = f"asks: {asks[0].question}" if asks else waited
    latch = around.latch_on(row)
    return waited if latch is None else f"{scope_latches.held_by(latch)}; {waited}"


def _queued(row: RunRow, around: Surroundings) -> str:
    latch = around.latch_on(row)
    if latch is not None:
        return scope_latches.held_by(latch)
    forsaken = "" if around.is_carried(row) else around.who_lacks(row)
    left = row.available_at - around.now
    if left <= 0:
        return forsaken
    again = f"; failed {row.failures} times, {_error(row)}" if row.failures else ""
    return "; ".join(filter(None, (f"starts in {age(left)}{again}", forsaken)))


def in_hand(last: Entry | None, version: str = "") -> str:
    """The step or effect that a run has in hand, by the last entry of its journal."""
    if version == command_run.VERSION:
        return command_run.called(last)
    if last is None or last.kind == EntryKind.START:
        return "at its first step"
    if last.state in (Mark.BEGUN, Mark.WAITING) or last.state in OPEN:
        return f"{last.kind} {last.name}"
    if last.kind in (EntryKind.RETRY, EntryKind.END):  # END: a redriven run's earlier end
        return "tries again"
    return f"after {last.kind} {last.name}".rstrip()


def _orphaned(row: RunRow, around: Surroundings) -> str:
    """A remark if the run's worker is gone: no other worker may be left to record its death."""
    if row.worker in around.live:
        return ""
    if around.is_carried(row):
        return "; its worker is gone"
    return f"; its worker is gone, and {around.who_lacks(row)}"


def _error(row: RunRow) -> str:
    if not row.error:
        return ""
    return failure(json.loads(row.error))


def as_ask(ask: AskRow) -> dict[str, Any]:
    return {
        "id": ask.id,
        "about": ask.about,
        "question": ask.question,
        "value": json.loads(ask.value) if ask.value is not None else None,
        "choices": json.loads(ask.choices),
        "asked_at": ask.asked_at,
        "expires_at": ask.expires_at,
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
        "id": row.id,
        "agent": row.agent,
        "version": row.version,
        "state": around.state_of(row),
        "doing": doing(row, still_open, around),
        "progress": around.progress.get(row.id, []),
        "attempt": row.attempt,
        "fence": run.fence,
        "created_at": row.created_at,
        "changed_at": row.changed_at,
        "available_at": row.available_at,
        "wake_at": row.wake_at,
        "labels": run.labels,
        "priority": row.priority,
        "queue": row.queue,
        "parent_id": row.parent_id,
        "root_id": row.root_id,
        "worker": row.worker,
        **_stops(row, around),
        "failures": row.failures,
        "interruptions": row.interruptions,
        "input": value.decode(requests.body_of(store, entries[0])) if entries else None,
        "result": run.result,
        "error": run.error,
        "waits": run.waits,
        "steps": requests.steps_of(entries, attempts),
        "errors": failures_of(entries),
        "logged": is_kept(row) or bool(store.logs(row.id, 0)),
        "effects": _effects(store, row.id),
        "asks": [as_ask(ask) for ask in asks],
        "attempts": _attempts(attempts),
        "children": [
            {"id": child.id, "agent": child.agent, "state": around.state_of(child)}
            for child in _every(store, Filter(parent_id=row.id, limit=PAGE))
        ],
        "journal": {"entries": len(entries), "head_hash": row.head_hash},
    }


def _effects(store: Store, run_id: str) -> list[dict[str, Any]]:
    return [
        {
            "name": effect.name,
            "key": effect.key,
            "kind": effect.kind,
            "state": effect.state,
            "fence": effect.fence,
        }
        for effect in store.ledger(run_id)
    ]


def undo_plan(store: Store, row: RunRow) -> dict[str, Any]:
    """The effects that compensating a run would undo, in that order, and those it would not."""
    effects = store.ledger(row.id)
    owed = [one for one in reversed(effects) if one.undo is not None and one.state in OWED]
    stays = [one for one in effects if one.undo is None and one.state == EffectState.CONFIRMED]
    return {
        "undo": [{"name": one.name, "key": one.key, "undo": one.undo} for one in owed],
        "stays": [
            {"name": one.name, "key": one.key, "kind": one.kind}
            for one in stays
            if one.kind != effect.EffectKind.PURE
        ],
        "in_doubt": [{"name": e.name, "key": e.key} for e in effects if e.state in OPEN],
    }


def _attempts(attempts: Sequence[AttemptRow]) -> list[dict[str, Any]]:
    return [
        {
            "number": attempt.number,
            "fence": attempt.fence,
            "worker": attempt.worker,
            "claimed_at": attempt.claimed_at,
            "ended_at": attempt.ended_at,
            "ending": attempt.ending,
        }
        for attempt in attempts
    ]


def _every(store: Store, which: Filter) -> Iterator[RunRow]:
    """Yield all runs that match, page by page."""
    while page := store.runs(which):
        yield from page
        which = which.but(before=(page[-1].created_at, page[-1].id))


def every_run(store: Store, states: tuple[str, ...] = ()) -> Iterator[RunRow]:
    return _every(store, Filter(states=states, limit=PAGE))


def lines(store: Store, run_id: str, after: int = 0) -> list[dict[str, Any]]:
    """The lines that the agent wrote with ctx.log, after the line with id `after`."""
    found: list[dict[str, Any]] = []
    while page := store.logs(run_id, after):
        found += [{"id": n, "at": at, "level": level, "text": text} for n, at, level, text in page]
        after = page[-1][0]
    return found
