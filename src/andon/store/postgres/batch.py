"""Turns the messages of a batch into as few statements as possible, with their parameters."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from andon.core.journal import Entry
from andon.core.run import State
from andon.store import queries
from andon.store.messages.stops import stop_notices
from andon.store.postgres.arrays import Bools, Floats, Ints, Texts, columns, kinds_of
from andon.store.sql.claims import NO_CLAIM, claimed, soonest
from andon.store.sql.limits import wanted
from andon.store.sql.reads import Rows, build, fields
from andon.store.store import (
    Append,
    Claim,
    Claimed,
    ClaimResult,
    EffectRow,
    Message,
    NewRun,
    Outcome,
    Settle,
    Start,
)
from andon.store.writer.shared_statements import AppendGroup, is_plain, is_plain_start, parted

ENTRY = kinds_of(Entry, seq=Ints, fence=Ints, since=Floats, at=Floats)
EFFECT = kinds_of(EffectRow, seq=Ints, fence=Ints, quiet=Bools, undo_within=Floats)
# Where the column groups of claim_usual end: the facts it read, then a run (whose fence takes two
# columns); the run's start entry follows.
_SEEN = 6
_RUN = _SEEN + len(Claimed.__struct_fields__)

Transaction = Sequence[tuple[str, dict[str, Any]]]  # query names and their parameters


def load() -> dict[str, bytes]:
    """Load all statements, with the claim that `claim_usual` contains filled in."""
    named = queries.load("postgres") | queries.load("postgres_batch")
    # If the claim is not a usual one, limit 0 keeps the query from finding or locking any run.
    limit = "(SELECT CASE WHEN usual THEN %(limit)s ELSE 0 END FROM seen)"
    claim = named["claim_runs"].rstrip(";").replace("%(limit)s", limit)
    named["claim_usual"] = named["claim_usual"].replace("%(claim_runs)s", claim)
    return {name: sql.encode() for name, sql in named.items()}


class Query(NamedTuple):
    name: str
    params: dict[str, Any]
    expected: dict[int, tuple[str, Outcome]]  # by place: the run, and the outcome if it is returned


class SharedStatements:
    """The shared statements of a batch, and the messages to carry out one by one after them."""

    def __init__(self, batch: Sequence[Message]) -> None:
        parts = parted(batch)
        ends = {place: m for place, m in parts.settles.items() if is_end(m)}
        self.others = parts.others + [place for place in parts.settles if place not in ends]
        self.queries: list[Query] = []
        if parts.groups:
            self.queries.append(appending(parts.groups))
        if parts.starts:
            self.queries.append(starting(parts.starts))
        if ends:
            self.queries.append(ending(ends))

    def take(self, answers: Sequence[Rows], outcomes: list[Outcome]) -> list[int]:
        """Fill in outcomes from the answers, in order; return the places not carried out."""
        left: list[int] = []
        for query, rows in zip(self.queries, answers, strict=True):
            left += take(query, rows, outcomes)
        return left


def take(query: Query, rows: Rows, outcomes: list[Outcome]) -> list[int]:
    """Fill in outcomes from the answer to one query; return the places not carried out."""
    left: list[int] = []
    done = {run_id for (run_id,) in rows}
    for place, (run_id, outcome) in query.expected.items():
        if run_id in done:
            outcomes[place] = outcome
        else:
            left.append(place)
    return left


def appending(groups: Sequence[AppendGroup]) -> Query:
    expected = {place: (group.run_id, None) for group in groups for place in group.places}
    if len(groups) == 1 and is_short(groups[0]):
        return Query(*of_one(groups[0]), expected)
    return Query("append_many", params_of_many(groups), expected)


def is_short(group: AppendGroup) -> bool:
    return len(group.entries) == 1 and len(group.effects) <= 1


def of_one(group: AppendGroup) -> tuple[str, dict[str, Any]]:
    """Return the query for a group of one entry with at most one effect."""
    [entry] = group.entries
    params = {
        "run_id": group.run_id,
        "counter": group.fence.counter,
        "epoch": group.fence.epoch,
        "step": group.step,
        "progress": group.progress,
        **fields(entry),
    }
    for effect in group.effects.values():
        params |= {f"e_{name}": given for name, given in fields(effect).items()}
    return ("append_effect" if group.effects else "append_one"), params


def params_of_many(groups: Sequence[AppendGroup]) -> dict[str, Any]:
    return {
        "run_ids": Texts([group.run_id for group in groups]),
        "counters": Ints([group.fence.counter for group in groups]),
        "epochs": Ints([group.fence.epoch for group in groups]),
        "befores": Ints([group.entries[0].seq - 1 for group in groups]),
        "lasts": Ints([group.entries[-1].seq for group in groups]),
        "heads": Texts([group.entries[-1].hash for group in groups]),
        "steps": Texts([group.step for group in groups]),
        "progresses": Ints([group.progress for group in groups]),
        "run_id": Texts([group.run_id for group in groups for _ in group.entries]),
        **columns(ENTRY, [entry for group in groups for entry in group.entries]),
        "e_run_id": Texts([group.run_id for group in groups for _ in group.effects]),
        **columns(EFFECT, [row for group in groups for row in group.effects.values()], "e_"),
    }


def starting(starts: dict[int, Start]) -> Query:
    expected = {place: (m.run.id, True) for place, m in starts.items()}
    runs = [m.run for m in starts.values()]
    if len(runs) == 1:
        return Query(*of_start(runs[0]), expected)
    params = {
        "run_id": Texts([run.id for run in runs]),
        "agents": Texts([run.agent for run in runs]),
        "versions": Texts([run.version for run in runs]),
        "queues": Texts([run.queue for run in runs]),
        "priorities": Ints([run.priority for run in runs]),
        "ats": Floats([run.at for run in runs]),
        "delays": Floats([run.delay_seconds for run in runs]),
        "labels": Texts([run.labels for run in runs]),
        "parents": Texts([run.parent_id for run in runs]),
        "roots": Texts([run.root_id or run.id for run in runs]),
        "heads": Texts([run.entry.hash for run in runs]),
        **columns(ENTRY, [run.entry for run in runs]),
    }
    return Query("start_many", params, expected)


def of_start(run: NewRun) -> tuple[str, dict[str, Any]]:
    given = fields(run)
    started = {"start_at": given.pop("at"), "root_id": run.root_id or run.id}
    return "start_one", {**given, **started, **fields(run.entry)}


def is_end(m: Settle) -> bool:
    """Return whether a run simply ends by its own code, as most do."""
    if m.state not in (State.SUCCEEDED, State.FAILED) or not m.entries:
        return False
    others = (m.returned, m.keeps_place, m.tried, m.undone, m.version, m.waits, m.wake_at)
    return not any((*others, m.cleared, m.also)) and m.delay_seconds == 0


def ending(ends: dict[int, Settle]) -> Query:
    expected = {place: (m.run_id, str(m.state)) for place, m in ends.items()}
    settles = ends.values()
    params = {
        "run_ids": Texts([m.run_id for m in settles]),
        "counters": Ints([m.fence.counter for m in settles]),
        "epochs": Ints([m.fence.epoch for m in settles]),
        "befores": Ints([m.entries[0].seq - 1 for m in settles]),
        "states": Texts([m.state for m in settles]),
        "errors": Texts([m.error for m in settles]),
        "failures": Ints([int(m.failed) for m in settles]),
        "endings": Texts([m.ending for m in settles]),
        "lasts": Ints([m.entries[-1].seq for m in settles]),
        "heads": Texts([m.entries[-1].hash for m in settles]),
        "run_id": Texts([m.run_id for m in settles for _ in m.entries]),
        **columns(ENTRY, [entry for m in settles for entry in m.entries]),
    }
    return Query("end_many", params, expected)


def of_claim(m: Claim) -> tuple[str, dict[str, Any]]:
    numbers = {"claim": m.number or NO_CLAIM, "number": m.number, "limit": m.limit, "chosen": None}
    return "claim_usual", {**wanted(m), **numbers}


def usual(rows: Rows) -> ClaimResult | None:
    """Return what claim_usual claimed; None if anything was unusual or the worker is unknown."""
    if not rows or not rows[0][0]:
        return None
    _, drain, wake_in, ends_in, recalled, orders = rows[0][:_SEEN]
    return ClaimResult(
        runs=[_with_start(row) for row in rows if row[_SEEN] is not None],
        wake_in=soonest(wake_in, ends_in),
        returned=0,
        drain=drain,
        recalled=json.loads(recalled),
        notices=stop_notices(orders),
    )


def _with_start(row: Sequence[Any]) -> Claimed:
    run, entry = claimed(row[_SEEN:_RUN]), row[_RUN:]
    return run if entry[0] is None else run.but(start=build(Entry, entry))


class SentTransaction(NamedTuple):
    """A transaction, and the function that takes its last answer, like `SharedStatements.take`."""

    statements: Transaction
    take: Callable[[Rows, list[Outcome]], list[int]]


def directly(batch: Sequence[Message]) -> list[SentTransaction] | None:
    """Return the transactions of a batch that needs nothing but usual statements, else None.

    Each kind of message gets its own transaction, so that none locks rows that another changes.
    """
    if len(batch) == 1 and (alone := _alone(batch[0])) is not None:
        return [alone]
    together = SharedStatements(batch)
    sent = [SentTransaction([query[:2]], partial(take, query)) for query in together.queries]
    for place in together.others:
        message = batch[place]
        if not isinstance(message, Claim) or message.dead:
            return None
        sent.append(_claiming(message, place))
    return sent


def _alone(m: Message) -> SentTransaction | None:
    """Return the transaction of a lone step, start or claim; None for any other message."""
    if isinstance(m, Append) and is_plain(m):
        group = AppendGroup(0, m)
        if is_short(group):
            return SentTransaction([of_one(group)], _TAKE_STEP)
    elif isinstance(m, Start) and is_plain_start(m):
        return SentTransaction([of_start(m.run)], _TAKE_START)
    elif isinstance(m, Claim) and not m.dead:
        return _claiming(m, 0)
    return None


def _claiming(m: Claim, place: int) -> SentTransaction:
    lock = "lock_worker", {"worker_id": m.worker_id}
    return SentTransaction([lock, of_claim(m)], partial(_take_claim, place))


def _take_one(outcome: Outcome, rows: Rows, outcomes: list[Outcome]) -> list[int]:
    if not rows:
        return [0]
    outcomes[0] = outcome
    return []


_TAKE_STEP, _TAKE_START = partial(_take_one, None), partial(_take_one, True)


def _take_claim(place: int, rows: Rows, outcomes: list[Outcome]) -> list[int]:
    result = usual(rows)
    if result is None:
        return [place]
    outcomes[place] = result
    return []
