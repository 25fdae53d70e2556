"""Requests about runs, one function each, as plain calls on a store.

The async Client and the command line both call these; neither adds a rule of its own.
"""

import json
import uuid
from collections.abc import Sequence
from datetime import datetime
from math import inf
from typing import Any

import msgspec

from andon.core import execution
from andon.core.effect import OWED
from andon.core.journal import Entry, EntryKind
from andon.core.run import TERMINAL, Event, State, advance
from andon.core.stop import WITHIN_SECONDS, StopKind, StopScope, verdict
from andon.core.values import value
from andon.errors import BadInput, Conflict, IllegalTransition, NotFound, Refused
from andon.runtime.operations import steer_messages
from andon.runtime.requests import scope_latches
from andon.runtime.requests.lookup import find as find  # noqa: PLC0414 (it is one of these)
from andon.runtime.requests.lookup import write as write  # noqa: PLC0414 (it is one of these)
from andon.runtime.requests.start import new_run, reader_of, resolve
from andon.store.messages.rows import AskRow, AttemptRow, Filter, RunRow
from andon.store.messages.stops import Order, StopRow, TargetRow
from andon.store.store import Deliver, MoveRun, NewRun, NoteEvent, Recall, Start, Store


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The current state of a run."""

    id: str
    agent: str
    version: str
    state: str
    attempt: int
    fence: str
    created_at: float
    changed_at: float
    labels: dict[str, str]
    priority: int
    parent_id: str | None = None
    worker: str | None = None
    step: str | None = None
    waits: list[dict[str, Any]] = []
    result: Any = None
    error: dict[str, Any] | None = None

    @property
    def finished(self) -> bool:
        return self.state in TERMINAL


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """A stop order and how far its stop is proved."""

    order: StopRow
    targets: list[TargetRow]
    verdict: str  # stopping, proved or unproved

    @property
    def proved(self) -> bool:
        return self.verdict == "proved"


def prepare(
    store: Store,
    agent: Any,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    id: str | None = None,  # noqa: A002 (the word users know)
    at: float | datetime | None = None,
    now: float | None = None,
    **options: Any,
) -> NewRun:
    """Check a run and make it ready to start; `now` is the store's time, if known.

    `options`: priority, queue and labels.
    """
    return new_run(
        resolve(store, agent),
        args,
        kwargs or {},
        run_id=id,
        at=at.timestamp() if isinstance(at, datetime) else at,
        now=store.now() if now is None else now,
        reads=reader_of(agent),
        **options,
    )


def start(
    store: Store,
    agent: Any,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    connection: Any = None,
    **options: Any,
) -> str:
    """Start a run and return its id; if the id exists with the same input, return that run's."""
    run = prepare(store, agent, args, kwargs, **options)
    if connection is None:
        write(store, Start(run=run))
        return run.id
    start_on = getattr(store, "start_on", None)
    if start_on is None:
        raise BadInput(
            "starting inside your own transaction needs PostgreSQL; with SQLite use "
            "ctx.transaction, or start the run after your commit"
        )
    start_on(connection, run)
    return run.id


def get(store: Store, run_id: str) -> Run:
    return described(store, find(store, run_id))


def described(store: Store, row: RunRow) -> Run:
    result = None
    if row.state == State.SUCCEEDED:
        end = store.last_entry(row.id)
        assert end is not None
        result = value.decode(body_of(store, end))
    return Run(
        id=row.id,
        agent=row.agent,
        version=row.version,
        state=row.state,
        attempt=row.attempt,
        fence=f"{row.epoch}.{row.fence}",
        created_at=row.created_at,
        changed_at=row.changed_at,
        labels=json.loads(row.labels),
        priority=row.priority,
        parent_id=row.parent_id,
        worker=row.worker,
        step=row.step,
        waits=json.loads(row.waits) if row.waits else [],
        result=result,
        error=json.loads(row.error) if row.error else None,
    )


def body_of(store: Store, entry: Entry) -> str:
    if entry.blob is not None:
        return store.blob(entry.blob)
    return entry.body if entry.body is not None else "null"


def refuse_unknown(states: Sequence[str], shown: Sequence[str] = ()) -> None:
    """Reject unknown states; `shown` lists those that people see but no store keeps."""
    known = (*State, *shown)
    unknown = set(states) - set(known)
    if unknown:
        raise BadInput(f"state {', '.join(sorted(unknown))}: expected one of {', '.join(known)}")


def list_runs(store: Store, which: Filter) -> list[RunRow]:
    refuse_unknown(which.states)
    return store.runs(which)


def send(
    store: Store,
    run_id: str,
    name: str,
    payload: Any = None,
    *,
    id: str | None = None,  # noqa: A002
) -> bool:
    """Send an event to a run; False if one with this id was sent before."""
    body = value.encode(payload, f"event {name!r}").decode()
    row = find(store, run_id)
    message = Deliver(
        run_id=row.id, kind="event", name=name, body=body, message_id=id or uuid.uuid4().hex
    )
    return bool(write(store, message))


def steer(
    store: Store,
    run_id: str,
    text: str | None,
    *,
    revise: str | None = None,
    retract: str | None = None,
    by: str = "",
) -> steer_messages.Steer:
    """Give a run an instruction, or revise or retract an earlier one."""
    row = find(store, run_id)
    sent = store.sent(row.id, steer_messages.EVENT)
    before = [steer_messages.Steer(**value.decode(body)) for body in sent]
    new = steer_messages.new(before, text, revise=revise, retract=retract, by=by)
    send(store, row.id, steer_messages.EVENT, msgspec.to_builtins(new), id=new.id)
    return new


def answer(
    store: Store,
    run_id: str,
    decision: str,
    given: Any = None,
    *,
    ask: str | None = None,
    by: str = "",
) -> str:
    """Answer an open ask of a run and return the ask's id."""
    row = find(store, run_id)
    chosen = _open_ask(store, row, ask)
    decision = decision.replace("-", "_")
    choices = json.loads(chosen.choices)
    if decision not in choices:
        raise BadInput(
            f"answer {decision!r}: this ask takes {', '.join(choices)}. It asks: {chosen.question}"
        )
    _refuse_wrong_value(decision, given)
    body = value.encode({"decision": decision, "value": given, "by": by}, "the answer").decode()
    message_id = f"answer:{chosen.id}:{uuid.uuid4().hex}"
    message = Deliver(
        run_id=row.id, kind="answer", name=chosen.id, body=body, message_id=message_id
    )
    write(store, message)
    return chosen.id


def _refuse_wrong_value(decision: str, given: Any) -> None:
    if decision in ("edit", "respond") and given is None:
        raise BadInput(f"answer {decision!r} needs a value: what it is changed to, or the response")
    if decision in ("approve", "reject") and given is not None:
        raise BadInput(f"answer {decision!r} takes no value; to change it answer 'edit'")


def _open_ask(store: Store, row: RunRow, ask: str | None) -> AskRow:
    asks = store.asks(row.id)
    if ask is not None:
        asks = [one for one in asks if one.id == ask]
    if len(asks) == 1:
        return asks[0]
    if not asks:
        raise NotFound(f"run {row.id} is {row.state} and has no open ask; andon show {row.id}")
    listed = "; ".join(f"{one.id}: {one.question}" for one in asks)
    raise BadInput(f"run {row.id} has {len(asks)} open asks; say which with --ask: {listed}")


def resume(store: Store, run_id: str, *, by: str = "", why: str = "") -> RunRow:
    """Let a paused, killed or stranded run continue, and its stopped children with it."""
    row = find(store, run_id)
    if row.stop is None:
        _refuse_held(store, row)
        advance(State(row.state), Event.RESUME, run_id=row.id)
    family = [row, *_stopped_below(store, row.id)]
    for one in family:
        if one.stop is not None:
            order = json.loads(one.stop)["order"]
            raise Conflict(
                f"run {one.id} is being stopped, and that is not proved yet: andon show {order}"
            )
    outcomes = store.write(
        [
            MoveRun(
                run_id=one.id,
                seen=one.state,
                state=advance(State(one.state), Event.RESUME, run_id=one.id),
            )
            for one in reversed(family)  # children first: a waiting parent finds them moving
        ]
    )
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    body = {"scope": StopScope.RUN, "name": row.id, "value": "", "by": by, "why": why, "runs": 1}
    write(store, NoteEvent(kind="stop.resumed", run_id=row.id, body=json.dumps(body)))
    return row


def _refuse_held(store: Store, row: RunRow) -> None:
    over = row.state in TERMINAL
    latch = None if over else scope_latches.over(store.latches(), row, store.run)
    if latch is not None:
        raise Refused(
            f"run {row.id} cannot continue: {scope_latches.held_by(latch)}. "
            f"First: {scope_latches.lift_command(latch)}"
        )


def _stopped_below(store: Store, run_id: str) -> list[RunRow]:
    """Return the descendants that an order has stopped or is stopping, parents first."""
    below = (store.run(one) for one in store.descendants(run_id) if one != run_id)
    rows = (row for row in below if row is not None)
    return [row for row in rows if row.state in _STOPPED or row.stop is not None]


_STOPPED = (State.PAUSED, State.KILLED)


def order(
    store: Store,
    kind: StopKind,
    run_id: str,
    *,
    by: str = "",
    why: str = "",
    within: float = WITHIN_SECONDS,
) -> str:
    """Pause, cancel or kill a run and its children; returns the receipt's id."""
    if isinstance(within, bool) or not isinstance(within, int | float) or not 0 <= within < inf:
        raise BadInput(f"{kind}: within={within!r}: expected seconds, 0 or more")
    row = find(store, run_id)
    receipt_id = f"rcp_{uuid.uuid4().hex[:12]}"
    message = Order(
        id=receipt_id, kind=kind, scope=StopScope.RUN, name=row.id, within=within, by=by, why=why
    )
    return str(write(store, message))


def receipt(store: Store, receipt_id: str) -> Receipt:
    """Return the proof of a stop, target by target."""
    found = store.stop(receipt_id)
    if found is None:
        raise NotFound(f"there is no receipt {receipt_id!r}; andon receipts lists them")
    targets = store.targets(receipt_id)
    return Receipt(order=found, targets=targets, verdict=verdict(one.stage for one in targets))


def compensate(store: Store, run_id: str, *, by: str = "", why: str = "") -> RunRow:
    """Have a run's effects undone by the next worker that serves its agent."""
    row = find(store, run_id)
    if not store.obligations(row.id) and not _succeeded_owing(store, row):
        raise NotFound(
            f"run {row.id} has nothing that could be undone: no confirmed effect of it has an undo"
        )
    if row.undoing is not None and row.state not in (State.STRANDED, State.PAUSED):
        raise Conflict(f"run {row.id} is being undone already; andon show {row.id}")
    undoing = json.dumps({"why": why or "somebody asked for it", "by": by})
    note = NoteEvent(kind="run.undoing", run_id=row.id, body=undoing)
    message: Recall | MoveRun = Recall(run_id=row.id, undoing=undoing, note=note)
    if row.state != State.RUNNING:
        state = advance(State(row.state), Event.COMPENSATE, run_id=row.id)
        message = MoveRun(
            run_id=row.id, seen=row.state, state=state, undoing=undoing, forgets=False, note=note
        )
    write(store, message)
    return row


def _succeeded_owing(store: Store, row: RunRow) -> bool:
    owed = (one for one in store.ledger(row.id) if one.undo is not None and one.state in OWED)
    return row.state == State.SUCCEEDED and any(owed)


def migrate(store: Store, run_id: str, version: str, *, by: str = "") -> RunRow:
    """Continue a run with another version, if that version's code matches its journal.

    A worker that serves the version checks this without executing anything.
    """
    row = find(store, run_id)
    if version == row.version:
        raise BadInput(f"run {row.id} is on version {version!r} already")
    if version not in {one.version for one in store.agents(row.agent)}:
        raise NotFound(
            f"agent {row.agent!r} has no version {version!r}; andon versions {row.agent} lists them"
        )
    if row.state not in _MIGRATABLE:
        raise IllegalTransition(row.id, row.state, "be migrated")
    known = {"from": row.version, "state": row.state, "by": by}
    if row.state == State.PAUSED:
        known["error"] = row.error or ""  # names who paused it
    trial = json.dumps({**known, "at": row.available_at if row.state == State.QUEUED else 0.0})
    body = json.dumps({"from": row.version, "to": version, "by": by})
    note = NoteEvent(kind="run.migrating", run_id=row.id, body=body)
    message = MoveRun(
        run_id=row.id,
        seen=row.state,
        state=State.QUEUED,
        version=version,
        trial=trial,
        forgets=False,
        note=note,
    )
    write(store, message)
    return row


_MIGRATABLE = (State.QUEUED, State.SUSPENDED, State.PAUSED, State.STRANDED)


def journal(store: Store, run_id: str) -> list[Entry]:
    """Return the whole journal of a run."""
    row = find(store, run_id)
    found: list[Entry] = []
    while page := store.journal(row.id, found[-1].seq if found else -1):
        found += page
    return found


def is_over(row: RunRow) -> bool:
    """Whether waiting for the run is over: it is finished, or only a person can move it."""
    if row.state == State.KILLED:
        return row.stop is None  # a stop in progress may still end in another state
    return row.state in TERMINAL or row.state == State.STRANDED


_OVER = (*TERMINAL, State.KILLED, State.STRANDED)


def over(store: Store, run_ids: Sequence[str]) -> list[RunRow]:
    """Return those of the runs for which waiting is over."""
    return [row for row in store.among(run_ids, _OVER) if is_over(row)]


def steps_of(entries: Sequence[Entry], attempts: Sequence[AttemptRow]) -> list[dict[str, Any]]:
    """Return a run's steps and how often each executed, from its journal and attempts."""
    found: dict[tuple[str, str | None, str], list[Entry]] = {}
    fences: dict[str, int] = {}  # place → fence of the last operation written there
    for entry in entries:
        fences[entry.place] = entry.fence
        if entry.kind == EntryKind.STEP:
            place = "" if entry.key is not None else entry.place
            found.setdefault((entry.name, entry.key, place), []).append(entry)
    endings = [(one.fence, one.ending) for one in attempts]
    return [_step(step, fences, endings) for step in found.values()]


def _step(
    step: Sequence[Entry], fences: dict[str, int], endings: Sequence[tuple[int, str | None]]
) -> dict[str, Any]:
    first, last = step[0], step[-1]
    before = fences.get(execution.place_before(first.place), 0)
    least, most = execution.counts(step, before, endings)
    over = last.state in ("done", "failed", "cancelled")
    return {
        "name": first.name,
        "key": first.key,
        "state": last.state,
        "attempts": least,
        "attempts_at_most": most,
        "started_at": first.since,
        "finished_at": last.at if over else None,
    }
