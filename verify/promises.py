"""The promises of a store about every message, checked in its rows and not by its queries.

Two databases that agree can both be wrong. So each write is judged by the rows before it and after
it. None of the product's queries or decisions is used: the meaning of an order, the owner of a run
and the proof of a stop are all defined here a second time, independently.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from andon.store.messages.stops import (
    Attend,
    Ended,
    Escalate,
    Order,
    Reauthorize,
    Resume,
    TargetReport,
    WorkerGone,
)
from andon.store.sql.reads import fields
from andon.store.store import (
    Append,
    Beat,
    Checkpoint,
    Claim,
    Deliver,
    Depart,
    MoveRun,
    Settle,
    Start,
)
from verify import queue_promises, supervisor_promises

Row = dict[str, Any]
Done = tuple[Any, Any]  # a message that was not refused, and its outcome
OVER = ("succeeded", "failed", "cancelled", "dead")
HARD = ("kill", "halt")


class Seen:
    """All rows of a store at one moment."""

    def __init__(self, rows: dict[str, list[Row]], now: float) -> None:
        self.rows, self.now = rows, now
        self.epoch = rows["meta"][0]["epoch"]
        self.runs = {row["id"]: row for row in rows["runs"]}
        self.workers = {row["id"]: row for row in rows["workers"]}
        self.stops = {row["id"]: row for row in rows["stops"]}
        self.targets = {(row["stop_id"], row["target"]): row for row in rows["targets"]}
        self.attempts = {(row["run_id"], row["fence"]): row for row in rows["attempts"]}
        self.inbox = {(row["run_id"], row["message_id"]): row for row in rows["inbox"]}
        self.entries = {(row["run_id"], row["seq"]): row for row in rows["journal"]}
        self.effects = {(row["run_id"], row["name"], row["key"]): row for row in rows["effects"]}
        self.kept = {(row["run_id"], row["op"]): row["body"] for row in rows["checkpoints"]}
        asks = [row for row in rows["asks"] if row["answered_at"] is None]
        self.asks = {(row["run_id"], row["id"]) for row in asks}  # open ones
        # By the orders that were given, not by what the store has made of them.
        holds = [row for row in rows["stops"] if row["scope"] != "run" and row["kind"] != "cancel"]
        self.latches = [row for row in holds if not row["lifted_at"]]

    def owns(self, m: Append | Settle | Checkpoint) -> bool:
        run = self.runs[m.run_id]
        fences = (run["fence"], run["epoch"]) == (m.fence.counter, m.fence.epoch)
        return fences and run["epoch"] == self.epoch and run["state"] == "running"

    def above(self, run_id: str | None) -> Iterator[Row]:
        """The run, and all runs above it."""
        while run_id is not None:
            yield self.runs[run_id]
            run_id = self.runs[run_id]["parent_id"]

    def within(self, run_id: str, of: Any) -> bool:
        """Whether a run, or one above it, is in the scope of an order or a latch."""
        return any(_is_in(row, _scope(of)) for row in self.above(run_id))


def _scope(of: Any) -> tuple[str, str, str]:
    if isinstance(of, dict):
        return of["scope"], of["name"], of["value"]
    return of.scope, of.name, of.value


def _is_in(run: Row, scope: tuple[str, str, str]) -> bool:
    match scope:
        case "run", name, _:
            return bool(run["id"] == name)
        case "agent", name, _:
            return bool(run["agent"] == name)
        case "label", name, value:
            return bool(json.loads(run["labels"]).get(name) == value)
        case _:
            return True


def broken(
    before: Seen, after: Seen, messages: Sequence[Any], outcomes: Sequence[Any]
) -> Iterator[str]:
    given = zip(messages, outcomes, strict=True)
    done = [(m, outcome) for m, outcome in given if not isinstance(outcome, Exception)]
    if not done and before.rows != after.rows:
        yield "a refused message has left a trace"
    for m, outcome in done:
        if judge := _JUDGES.get(type(m)):
            yield from judge(before, after, m, outcome)
    yield from _journals(after)
    yield from _owners(before, after, done)
    yield from _ends(before, after)
    yield from _stops(after)
    yield from _proofs(before, after, done)
    yield from _latches(before, after, done)
    yield from queue_promises.fruits(before, after, done)
    yield from queue_promises.windows(before, after)
    yield from queue_promises.cancelled(before, after)
    yield from supervisor_promises.ends(before, after, done)


def done_twice(
    before: Seen, after: Seen, messages: Sequence[Any], first: Sequence[Any], second: Sequence[Any]
) -> Iterator[str]:
    """A sender in doubt about a message sends it again: that must change nothing."""
    for m, one, other in zip(messages, first, second, strict=True):
        # Not a checkpoint, whose run may have ended in the same commit: no caller waits for it.
        awaited = isinstance(m, Append | Settle | Beat | Ended | Deliver)
        if awaited and isinstance(other, Exception) and not isinstance(one, Exception):
            yield f"{type(m).__name__} was done, and is refused when it comes again: {other!r}"
        if isinstance(m, Claim) and {run.id for run in other.runs} != {run.id for run in one.runs}:
            yield f"{m.worker_id} claims again, and does not get the runs it got before"
    for name, rows in before.rows.items():
        if name not in ("events", "logs") and rows != after.rows[name]:
            yield f"a repeated message changes {name}: {rows} becomes {after.rows[name]}"


def concerned(
    before: Seen, after: Seen, messages: Sequence[Any], outcomes: Sequence[Any]
) -> str | None:
    """The sleepers that a write concerns, if any."""
    claims = [one for m, one in zip(messages, outcomes, strict=True) if isinstance(m, Claim)]
    if claims:  # a claiming worker takes the runs that are due, and looks itself
        return "runs are returned" if any(one.returned for one in claims) else None
    return next(_sleepers(before, after), None)


def _sleepers(before: Seen, after: Seen) -> Iterator[str]:
    for run in after.rows["runs"]:
        was = before.runs.get(run["id"], {})
        if run["state"] == "queued" and was.get("state") != "queued":
            yield f"{run['id']} can be claimed"
        if run["state"] == "running" and run["undoing"] and not was["undoing"]:
            yield f"{run['id']} is to be undone"
        if run["inbox"] > was.get("inbox", 0):
            yield f"{run['id']} has a message"
    for key, target in after.targets.items():
        fenced = target["stage"] == "fenced" and not before.targets.get(key, {}).get("fenced_at")
        if target["ended_at"] is None and (key not in before.targets or fenced):
            yield f"{target['target']} is to be stopped"
    for worker in after.rows["workers"]:
        known = before.workers.get(worker["id"])
        if known and worker["drain_asked_at"] and not known["drain_asked_at"]:
            yield f"{worker['id']} is to go"


# ── messages of a run ─────────────────────────────────────────────────────────────────────────


def _append(before: Seen, after: Seen, m: Append, _: Any) -> Iterator[str]:
    yield from _written(after, m)
    if (m.run_id, m.entries[0].seq) in before.entries:
        return  # it was written before
    if not before.owns(m):
        yield f"an entry of {m.run_id} is taken from {m.fence}, which does not own it"
    if m.ask is not None and (m.run_id, m.ask.id) not in after.asks:
        yield f"{m.run_id} waits for an answer to {m.ask.id}, which is not open"
    if m.close_ask is not None and (m.run_id, m.close_ask) in after.asks:
        yield f"{m.run_id} waits no more for an answer to {m.close_ask}, which is open"
    if m.take is not None and not all(r["taken"] for r in after.rows["inbox"] if r["id"] == m.take):
        yield f"message {m.take} of {m.run_id} was taken, and would be taken again"
    if m.checkpoint_of is not None and (m.run_id, m.checkpoint_of) in after.kept:
        yield f"{m.run_id} keeps a partial value of a finished step"
    if m.spawn is not None:
        yield from _child(before.runs[m.run_id], after.runs.get(m.spawn.id), m.spawn.id)


def _written(after: Seen, m: Append | Settle) -> Iterator[str]:
    for entry in m.entries:
        if after.entries.get((m.run_id, entry.seq), {}).get("hash") != entry.hash:
            yield f"entry {entry.seq} of {m.run_id} is acknowledged and not there"
    for effect in m.effects:
        row = after.effects.get((m.run_id, effect.name, effect.key), {})
        if row.get("seq", -1) < effect.seq:
            yield f"the ledger of {m.run_id} does not know of {effect.key} at {effect.seq}"
        elif row["seq"] == effect.seq and row != {**row, **fields(effect)}:
            yield f"the ledger of {m.run_id} does not say that {effect.key} is {effect}: {row}"
    for blob in m.blobs:
        if {"name": blob.name, "body": blob.body} not in after.rows["blobs"]:
            yield f"{blob.name} of {m.run_id} is acknowledged and not there"


def _child(parent: Row, child: Row | None, name: str) -> Iterator[str]:
    if child is None:
        yield f"{name} is not there, and its parent believes that it is"
    elif parent["stop"] and _goes_on(child):
        yield f"{name} goes on, and its parent is being stopped"


def _goes_on(run: Row) -> bool:
    """Whether it will be executed further, and not only undone."""
    return run["state"] in ("queued", "suspended") and run["undoing"] is None


def _checkpoint(before: Seen, after: Seen, m: Checkpoint, _: Any) -> Iterator[str]:
    if not before.owns(m):
        yield f"a checkpoint of {m.run_id} is taken from {m.fence}, which does not own it"
    if after.kept.get((m.run_id, m.op)) != m.body:
        yield f"a checkpoint of {m.run_id} is not there"


def _start(before: Seen, after: Seen, m: Start, new: bool) -> Iterator[str]:
    if new == (m.run.id in before.runs) or (m.run.id, 0) not in after.entries:
        yield f"{m.run.id} is started: {new}"
    if new and any(latch["kind"] == "halt" for latch in before.latches):
        yield f"{m.run.id} is started while everything is halted"


def _settle(before: Seen, after: Seen, m: Settle, _: Any) -> Iterator[str]:
    attempt = after.attempts[m.run_id, m.fence.counter]
    if attempt["ended_at"] is None:
        yield f"{m.run_id} is settled, and its attempt goes on"
    if not before.owns(m):
        if before.attempts[m.run_id, m.fence.counter]["ending"] != m.ending:
            yield f"{m.run_id} is settled by {m.fence}, which does not own it"
        return
    was, run = before.runs[m.run_id], after.runs[m.run_id]
    yield from _written(after, m)
    if run["state"] == "suspended" and was["inbox"] > m.seen_inbox:
        yield f"{m.run_id} sleeps past a message"
    if was["undoing"] is not None and run["state"] in OVER and not m.undone and not was["stop"]:
        yield f"{m.run_id} is over, and a person wanted it undone"
    looked_for = any(row["run_id"] == m.run_id and _left_behind(row) for row in _open(after))
    if was["stop"] is not None and _goes_on(run) and not looked_for:
        yield f"{m.run_id} was to be stopped, and goes on"


def _deliver(before: Seen, after: Seen, m: Deliver, new: bool) -> Iterator[str]:
    named = m.run_id, m.message_id
    if new == (named in before.inbox) or named not in after.inbox:
        yield f"{m.run_id} has a message {m.message_id}, and its sender is told otherwise"
    if new and after.runs[m.run_id]["state"] == "suspended":
        yield f"{m.run_id} sleeps past a message"


# ── claims ────────────────────────────────────────────────────────────────────────────────────


def _beat(before: Seen, after: Seen, m: Beat, _: Any) -> Iterator[str]:
    was, worker = before.workers[m.worker_id], after.workers[m.worker_id]
    if was["state"] != "live":
        yield f"{m.worker_id} may go on, although it was ended"
    if was["lease_until"] < after.now and worker["contact_since"] < after.now:
        yield f"{m.worker_id} was silent, and counts as if it had been there all the time"


def _claim(before: Seen, after: Seen, m: Claim, outcome: Any) -> Iterator[str]:
    worker = before.workers[m.worker_id]
    held = {row["id"] for row in before.rows["runs"] if row["worker"] == m.worker_id}
    new = [after.runs[run.id] for run in outcome.runs if run.id not in held]
    if len(new) > m.limit:
        yield f"{m.worker_id} is given {len(new)} runs, and wanted {m.limit}"
    if new and (worker["state"] != "live" or worker["draining_at"] is not None):
        yield f"{m.worker_id} claims, and is {worker['state']} or leaves"
    for run in new:
        yield from _claimed(before.runs[run["id"]], run, after)
    yield from queue_promises.limits(after, new)
    yield from queue_promises.chosen(after, m, new, len(new) < len(outcome.runs))
    yield from _late(before, after)


def _claimed(was: Row, run: Row, after: Seen) -> Iterator[str]:
    for latch in after.latches:
        if _is_in(run, _scope(latch)):
            yield f"{run['id']} is claimed under {latch['kind']} {_scope(latch)}"
    if run["stop"] or any(r["run_id"] == run["id"] and not r["mark"] for r in _open(after)):
        yield f"{run['id']} is claimed before its stop is proved"
    if run["available_at"] > after.now:
        yield f"{run['id']} is claimed before it is due"
    if run["fence"] <= was["fence"]:
        yield f"{run['id']} is claimed under a fence that another worker may have"


def _late(before: Seen, after: Seen, *_: Any) -> Iterator[str]:
    """Any worker that looks turns overdue polite orders into hard ones."""
    for (stop_id, _), target in before.targets.items():
        stop = before.stops[stop_id]
        over = stop["escalate_at"] is not None and stop["escalate_at"] <= after.now
        if not over or target["ended_at"] or target["run_id"] is None:
            continue
        run = after.runs[target["run_id"]]
        if run["state"] == "running" and run["fence"] == target["fence"]:
            yield f"{run['id']} goes on, and its time to stop by itself is over"


# ── orders ────────────────────────────────────────────────────────────────────────────────────


def _open(seen: Seen) -> list[Row]:
    return [row for row in seen.rows["targets"] if row["ended_at"] is None]


def _left_behind(target: Row) -> bool:
    """Whether it concerns an earlier attempt: its programs, or its worker, now silent."""
    return bool(target["target"] == f"run:{target['run_id']}:{target['fence']}")


def _targets(seen: Seen, stop_id: str) -> Iterator[Row]:
    return (row for (of, _), row in sorted(seen.targets.items()) if of == stop_id)


def _order(before: Seen, after: Seen, m: Order, outcome: str) -> Iterator[str]:
    if outcome != m.id or m.id in before.stops:
        return  # it was given before
    for was in before.rows["runs"]:
        if was["state"] not in OVER and before.within(was["id"], m):
            target = next((t for t in _targets(after, m.id) if t["run_id"] == was["id"]), None)
            for wrong in _reached(was, after.runs[was["id"]], m, target):
                yield f"{m.kind} {m.scope} {m.name}: {wrong}"
        marked, now = (one.runs[was["id"]]["stop"] for one in (before, after))
        if marked and now and before.within(was["id"], m):
            old, new = json.loads(marked)["kind"], json.loads(now)["kind"]
            if new != supervisor_promises.decisive(m.kind, old):
                yield f"{m.kind} of {was['id']} after {old}: it would be as if {new} was ordered"
    yield from supervisor_promises.frozen(before, after, m)
    for worker in before.rows["workers"] if m.kind == "halt" else ():
        if worker["state"] == "live" and (m.id, f"worker:{worker['id']}") not in after.targets:
            yield f"halt: {worker['id']} has no target and may go on"


def _reached(was: Row, run: Row, m: Order, target: Row | None) -> Iterator[str]:
    if was["state"] == "running":
        if target is None:
            yield f"{run['id']} has no target and may go on"
        if m.kind in HARD and (run["state"] == "running" or run["fence"] == was["fence"]):
            yield f"the attempt of {run['id']} is not fenced"
        if not run["stop"]:
            yield f"{run['id']} would go on afterwards"
    elif was["stop"] is not None and target is None:  # of another order, and not proved
        yield f"{run['id']} has no target that proves its stop"
    # The fleet's latch holds waiting runs.
    elif _goes_on(run) and (m.scope != "fleet" or m.kind == "cancel"):
        yield f"{run['id']} is still {run['state']}"


def _move(before: Seen, _: Seen, m: MoveRun, __: Any) -> Iterator[str]:
    was = before.runs[m.run_id]
    if was["state"] != m.seen or was["stop"] is not None:
        yield f"{m.run_id} is moved by a caller that has seen it {m.seen}: {was}"


def _resume(before: Seen, after: Seen, m: Resume, _: Any) -> Iterator[str]:
    for latch in before.latches:
        if latch["kind"] in HARD and _scope(latch) in (_scope(m), ("fleet", "", "")):
            yield f"{_scope(m)} is resumed under a {latch['kind']}"
    for run in after.rows["runs"]:
        was = before.runs[run["id"]]
        if run["state"] != "queued" or was["state"] == "queued":
            continue
        if (
            was["stop"]
            or was["state"] not in ("paused", "killed")
            or not after.within(run["id"], m)
        ):
            yield f"{run['id']} is resumed, and was {was['state']}: {was['stop']}"
        for latch in after.latches:
            if latch["scope"] != "fleet" and after.within(run["id"], latch):
                yield f"{run['id']} is resumed under {latch['kind']} {_scope(latch)}"


def _reauthorize(before: Seen, after: Seen, m: Reauthorize, _: Any) -> Iterator[str]:
    held = [row for row in before.latches if row["kind"] in HARD and _scope(row) == _scope(m)]
    if held and max(row["epoch"] for row in held) != m.epoch:
        yield f"{_scope(m)} is reauthorized by a person who has not seen the newest stop"
    for run in after.rows["runs"] if held else ():
        waits = run["state"] in ("queued", "suspended") and not run["stop"]
        if waits and after.within(run["id"], m):
            yield f"{run['id']} goes on by itself after {_scope(m)} was reauthorized"


# ── at all times ──────────────────────────────────────────────────────────────────────────────


def _journals(after: Seen) -> Iterator[str]:
    last: dict[str, Row] = {}
    for row in sorted(after.rows["journal"], key=lambda one: (one["run_id"], one["seq"])):
        before = last.get(row["run_id"])
        if row["seq"] != (0 if before is None else before["seq"] + 1):
            yield f"the journal of {row['run_id']} has a gap before {row['seq']}"
        if before is not None and row["fence"] < before["fence"]:
            yield f"an earlier owner of {row['run_id']} wrote after a later one"
        last[row["run_id"]] = row
    for run in after.rows["runs"]:
        end = last[run["id"]]
        if (end["seq"], end["hash"]) != (run["head_seq"], run["head_hash"]):
            yield f"the journal of {run['id']} ends at {end['seq']}, the run says {run['head_seq']}"
        if run["state"] in OVER and (end["kind"], end["state"]) != ("end", run["state"]):
            yield f"{run['id']} is {run['state']}, its last entry {end['kind']} {end['state']}"


def _owners(before: Seen, after: Seen, done: Sequence[Done]) -> Iterator[str]:
    """A run has one owner, which is alive as far as is known; otherwise none, and no attempt."""
    unended = {key for key, row in after.attempts.items() if row["ended_at"] is None}
    held = {(r["id"], r["fence"]) for r in after.rows["runs"] if r["state"] == "running"}
    for run_id, fence in held ^ unended:
        yield f"{run_id} is {after.runs[run_id]['state']}, its attempts say otherwise at {fence}"
    for run in after.rows["runs"]:
        owner = after.workers.get(run["worker"], {})
        if run["state"] == "running" and owner.get("state") != "live":
            yield f"{run['id']} is in the hands of {run['worker']}, which is {owner.get('state')}"
        if run["fence"] < before.runs.get(run["id"], run)["fence"]:
            yield f"the fence of {run['id']} goes down"
    gone = {m.worker_id for m, _ in done if isinstance(m, Depart)}
    dead = {m.worker_id for m, _ in done if isinstance(m, WorkerGone)}
    claims = [one for m, _ in done if isinstance(m, Claim) for one in m.dead]
    dead |= {name for name, how in claims if supervisor_promises.is_certain(before, name, how)}
    silent = {name for name, how in claims if name not in dead}
    for m, _ in done:
        if isinstance(m, Claim):
            yield from _outage(before, after, m)
    for worker_id, was in before.workers.items():
        state = after.workers[worker_id]["state"]
        if state == was["state"] or (state == "silent" and was["lease_until"] < after.now):
            continue
        if worker_id not in {"gone": gone, "dead": dead, "silent": silent}.get(state, ()):
            yield f"{worker_id} was {was['state']} and is called {state}"


def _outage(before: Seen, after: Seen, m: Claim) -> Iterator[str]:
    """After an outage all are silent: the first worker back must not take the others' runs."""
    was = before.workers[m.worker_id]
    back = was["lease_until"] <= after.now or after.now - was["contact_since"] < m.lease_seconds
    seen = {name for name, _ in m.dead}
    for worker_id, worker in after.workers.items():
        if worker_id in seen:
            continue  # not because of its lease
        known = before.workers.get(worker_id, worker)["state"]
        if back and (known, worker["state"]) == ("live", "silent"):
            yield f"{worker_id} is called silent by {m.worker_id}, which has just come back itself"


def _ends(before: Seen, after: Seen) -> Iterator[str]:
    """A run that is over stays over, and its waiting parent is notified.

    But a dead run may have to be undone, if no person resumes it in time.
    """
    for run in after.rows["runs"]:
        was = before.runs.get(run["id"], run)
        given_up = was["state"] == "dead" and was["undo_at"] is not None and run["undoing"]
        if was["state"] in OVER and run["state"] != was["state"] and not given_up:
            yield f"{run['id']} was {was['state']} and is {run['state']}"
        messages = sum(row["run_id"] == run["id"] for row in after.rows["inbox"])
        if run["inbox"] != messages:
            yield f"{run['id']} has {messages} messages, and counts {run['inbox']}"
        parent = after.runs.get(run["parent_id"])
        if run["state"] in OVER and was["state"] not in OVER and parent is not None:
            told = (parent["id"], f"child:{run['id']}") in after.inbox
            if parent["state"] not in OVER and not told:
                yield f"{run['id']} is {run['state']}, and {parent['id']} is never told"


def _stops(after: Seen) -> Iterator[str]:
    """An order is closed when the end of every target is known; until then its runs are held."""
    # The run's own target comes last, so that it wins over targets for leftover programs.
    rows = sorted(_open(after), key=lambda one: not _left_behind(one))
    awaited = {row["run_id"]: row for row in rows}
    stopping = {row["stop_id"] for row in _open(after)}
    for stop in after.rows["stops"]:
        if (stop["closed_at"] is None) != (stop["id"] in stopping):
            yield f"order {stop['id']} is closed at {stop['closed_at']}: {sorted(stopping)} are not"
    for run in after.rows["runs"]:
        target = awaited.get(run["id"])
        # An order that does not affect a run holds nothing, but the programs of the run are looked
        # for.
        behind = target is not None and _left_behind(target)
        idle = behind and run["state"] in (*OVER, "stranded", "killed")
        if run["stop"] is None and idle:
            continue
        if (run["stop"] is None) != (target is None):
            yield f"{run['id']} is {run['state']}, stopped by {run['stop']}, awaited: {target}"
        elif target and behind:
            if run["state"] in ("running", *OVER):
                yield f"{run['id']} is {run['state']}, and its programs are looked for"
        elif target and run["state"] != ("killed" if target["stage"] == "fenced" else "running"):
            yield f"{run['id']} is {run['state']}, and its stop is {target['stage']}"


def _proofs(before: Seen, after: Seen, done: Sequence[Done]) -> Iterator[str]:
    """The end of execution is known from the executing worker, or because that worker is gone."""
    words = {(m.run_id, m.fence) for m, _ in done if isinstance(m, Ended)}
    settled = {(m.run_id, m.fence.counter) for m, _ in done if isinstance(m, Settle)}
    buried = {m.worker_id for m, _ in done if isinstance(m, WorkerGone)}
    reported = {(m.stop_id, m.target) for m, _ in done if isinstance(m, TargetReport)}
    may_act = {
        (row["run_id"], row["fence"])
        for row in after.rows["attempts"]
        if row["mark"] and not row["quiet"]
    }
    for key, target in after.targets.items():
        if target["stage"] != "verified" or before.targets.get(key, {}).get("stage") == "verified":
            continue
        worker = after.workers.get(target["worker"], {})
        gone = worker.get("state") == "dead" or target["worker"] in buried
        said = key in reported
        said |= target["target"].startswith("supervisor:")  # see supervisor_promises.py
        attempt = target["run_id"], target["fence"]
        if after.stops[target["stop_id"]]["kind"] not in HARD:  # no report proves a hard stop
            said |= attempt in words
            if not target["mark"]:  # nor does the end of an attempt prove that its programs ended
                gone |= worker.get("state") == "gone"
                said |= attempt in settled - may_act
        if not gone and not said:
            yield f"the stop of {target['target']} is called proved: {target['evidence']}"


def _latches(before: Seen, after: Seen, done: Sequence[Done]) -> Iterator[str]:
    """A latch holds until an authorised person lifts it."""
    left = {row["id"] for row in after.latches}
    for latch in before.latches:
        by = Reauthorize if latch["kind"] in HARD else Resume
        lifted = any(isinstance(m, by) and _scope(m) == _scope(latch) for m, _ in done)
        if latch["id"] not in left and not lifted:
            yield f"{latch['kind']} {_scope(latch)} holds no more, and was not lifted"


_JUDGES: dict[type, Callable[[Seen, Seen, Any, Any], Iterator[str]]] = {
    Append: _append,
    Settle: _settle,
    Checkpoint: _checkpoint,
    Start: _start,
    Deliver: _deliver,
    Beat: _beat,
    Claim: _claim,
    Escalate: _late,
    Order: _order,
    Attend: supervisor_promises.attend,
    MoveRun: _move,
    Resume: _resume,
    Reauthorize: _reauthorize,
}
