"""Which appends of a batch can share statements.

The entries of one run stay in the order in which they were given. An append that brings more than
entries and effects is carried out by itself, and so is everything of its run that comes after it.
"""

from __future__ import annotations

import json

from andon.store.orders import Ended, Heard, Report
from andon.store.sql import is_progress
from andon.store.store import Append, Claim, Settle, Start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from andon.core.journal import Entry
    from andon.store.store import EffectRow, Message


class Group:
    """Successive plain appends of one run under one fence."""

    def __init__(self) -> None:
        self.places: list[int] = []  # in the batch
        self.entries: list[Entry] = []
        self.effects: dict[tuple[str, str], EffectRow] = {}  # a statement changes a row once
        self.step: str | None = None
        self.progress: int | None = None

    def takes(self, m: Append) -> bool:
        return not self.entries or (
            self.fence == m.fence and m.entries[0].seq == self.entries[-1].seq + 1
        )

    def add(self, place: int, m: Append) -> None:
        self.run_id, self.fence = m.run_id, m.fence
        self.places.append(place)
        self.entries += m.entries
        self.effects.update({(effect.name, effect.key): effect for effect in m.effects})
        self.step = m.step if m.step is not None else self.step
        if any(is_progress(entry) for entry in m.entries):
            self.progress = m.entries[-1].seq


def grouped(batch: Sequence[Message]) -> tuple[list[Group], list[int]]:
    """The groups of plain appends, and the places of all other messages."""
    groups: dict[str, Group] = {}
    others: list[int] = []
    closed: set[str] = set()  # runs that have a message among the others
    for place, message in enumerate(batch):
        if isinstance(message, Append) and _plain(message) and message.run_id not in closed:
            group = groups.setdefault(message.run_id, Group())
            if group.takes(message):
                group.add(place, message)
                continue
        others.append(place)
        closed.update(runs_of(message))
    return list(groups.values()), others


def _plain(m: Append) -> bool:
    alone = (m.ask, m.close_ask, m.spawn, m.take, m.checkpoint_of)
    return not m.blobs and all(extra is None for extra in alone)


def runs_of(message: Message) -> list[str]:
    """The runs that a message names."""
    match message:
        case Start():
            return [message.run.id]
        case Heard():
            return list(message.run_ids)
        case Report() if message.target.startswith("run:"):
            return [message.target.removeprefix("run:")]
    run_id = getattr(message, "run_id", None)
    return [] if run_id is None else [run_id]


def workers_of(message: Message) -> list[str]:
    """The workers whose rows a message changes."""
    if isinstance(message, Heard | Ended):
        return []
    dead = [worker_id for worker_id, _ in message.dead] if isinstance(message, Claim) else []
    worker_id = getattr(message, "worker_id", None)
    return dead if worker_id is None else [worker_id, *dead]


def locks_of(batch: Sequence[Message]) -> Iterator[tuple[str, dict[str, str]]]:
    """The queries that lock all that a batch names: workers, then runs and parents it will tell.

    An order locks every worker before it looks at runs: who had a run first, and waited for its
    worker then, would wait for the order, which waits for the run.
    """
    workers = sorted({one for message in batch for one in workers_of(message)})
    runs = sorted({one for message in batch for one in runs_of(message)})
    if workers and (runs or len(workers) > 1):
        yield "lock_named_workers", {"worker_ids": json.dumps(workers)}
    if runs:
        ending = [m.run_id for m in batch if isinstance(m, Settle | Ended)]
        yield "lock_runs", {"run_ids": json.dumps(runs), "ending": json.dumps(ending)}
