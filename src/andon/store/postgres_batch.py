"""Many messages as one statement: its name, and what it has to know."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from andon.core.journal import Entry
from andon.core.run import State
from andon.store.groups import Group, parted
from andon.store.postgres_arrays import Bools, Floats, Ints, Texts, columns, kinds_of
from andon.store.reads import Rows, fields
from andon.store.store import EffectRow, Message, Outcome, Settle, Start

ENTRY = kinds_of(Entry, seq=Ints, fence=Ints, since=Floats, at=Floats)
EFFECT = kinds_of(EffectRow, seq=Ints, fence=Ints, quiet=Bools, undo_within=Floats)


class Query(NamedTuple):
    name: str
    params: dict[str, Any]
    expected: dict[int, tuple[str, Outcome]]  # by place: the run, and the outcome if it is answered


class Together:
    """The statements that a batch consists of, and what is carried out one by one after them."""

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
        """Note what was carried out, by the answers in order; answers the places of the rest."""
        left: list[int] = []
        for query, rows in zip(self.queries, answers, strict=True):
            done = {run_id for (run_id,) in rows}
            for place, (run_id, outcome) in query.expected.items():
                if run_id in done:
                    outcomes[place] = outcome
                else:
                    left.append(place)
        return left


def appending(groups: Sequence[Group]) -> Query:
    expected = {place: (group.run_id, None) for group in groups for place in group.places}
    if len(groups) == 1 and len(groups[0].entries) == 1 and not groups[0].effects:
        return Query("append_one", params_of_one(groups[0]), expected)
    return Query("append_many", params_of_many(groups), expected)


def params_of_one(group: Group) -> dict[str, Any]:
    """For a group of one entry without effects."""
    [entry] = group.entries
    return {
        "run_id": group.run_id,
        "counter": group.fence.counter,
        "epoch": group.fence.epoch,
        "before": entry.seq - 1,
        "last": entry.seq,
        "head": entry.hash,
        "step": group.step,
        "progress": group.progress,
        **fields(entry),
    }


def params_of_many(groups: Sequence[Group]) -> dict[str, Any]:
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
    params = {
        "ids": Texts([run.id for run in runs]),
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


def is_end(m: Settle) -> bool:
    """Whether a run just ends by its own code, as most do."""
    if m.state not in (State.SUCCEEDED, State.FAILED) or not m.entries:
        return False
    others = (m.returned, m.keeps_place, m.tried, m.undone, m.version, m.waits, m.wake_at)
    return not any(others) and m.delay_seconds == 0


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
