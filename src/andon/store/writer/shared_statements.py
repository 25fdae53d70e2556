"""Decides which messages of a batch can share statements.

Plain appends, starts and settlements of many runs share statements, in this order. The entries of
one run stay in the order given. A message with more parts than is usual for its kind is carried out
by itself, and so are all later messages of its run.
"""

from __future__ import annotations

import json

from andon.core.values.struct import Struct
from andon.store.messages.stops import Ended, Heard, TargetReport
from andon.store.sql.runs import BARE
from andon.store.store import Append, Claim, Settle, Start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from andon.core.journal import Entry
    from andon.store.store import EffectRow, Message


class AppendGroup:
    """Successive plain appends of one run under one fence."""

    __slots__ = ("effects", "entries", "fence", "places", "progress", "run_id", "step")

    def __init__(self, place: int, m: Append) -> None:
        self.run_id, self.fence = m.run_id, m.fence
        self.places: list[int] = [place]  # in the batch
        self.entries: list[Entry] = [*m.entries]
        # Only the latest row of each effect: one statement can change a row only once.
        self.effects: dict[tuple[str, str], EffectRow] = {}
        if m.effects:
            self.effects = {(effect.name, effect.key): effect for effect in m.effects}
        self.step = m.step
        self.progress = progress_of(m.entries)

    def takes(self, m: Append) -> bool:
        return self.fence == m.fence and m.entries[0].seq == self.entries[-1].seq + 1

    def add(self, place: int, m: Append) -> None:
        self.places.append(place)
        self.entries += m.entries
        self.effects.update({(effect.name, effect.key): effect for effect in m.effects})
        self.step = m.step if m.step is not None else self.step
        progress = progress_of(m.entries)
        self.progress = self.progress if progress is None else progress


def progress_of(entries: Sequence[Entry]) -> int | None:
    """Return the head after entries that bring the run further; None if they only try."""
    for entry in entries:
        if entry.state not in BARE:  # is_progress, inlined: every step comes here
            return entries[-1].seq
    return None


class Parts(Struct):
    """A batch, split by which messages are carried out together."""

    groups: list[AppendGroup]
    starts: dict[int, Start]  # by their places in the batch
    settles: dict[int, Settle]
    others: list[int]  # the places of messages to carry out one by one


def parted(batch: Sequence[Message]) -> Parts:
    groups: dict[str, AppendGroup] = {}
    starts: dict[int, Start] = {}
    settles: dict[int, Settle] = {}
    others: list[int] = []
    closed: set[str] = set()  # runs that have a message of another kind
    for place, message in enumerate(batch):
        match message:
            case Append() if message.run_id not in closed and is_plain(message):
                group = groups.get(message.run_id)
                if group is None:
                    groups[message.run_id] = AppendGroup(place, message)
                    continue
                if group.takes(message):
                    group.add(place, message)
                    continue
                others.append(place)
            case Settle() if message.run_id not in closed and _plain_settle(message):
                settles[place] = message
            case Start() if message.run.id not in closed and is_plain_start(message):
                starts[place] = message
            case _:
                others.append(place)
        closed.update(runs_of(message))
    return Parts(groups=list(groups.values()), starts=starts, settles=settles, others=others)


def _plain_settle(m: Settle) -> bool:
    return not (m.blobs or m.effects or m.cleared or m.also)


def is_plain_start(m: Start) -> bool:
    return not m.run.blobs and "\\u0000" not in m.run.labels  # `starting` refuses NUL alone


def is_plain(m: Append) -> bool:
    if m.blobs or m.ask is not None or m.close_ask is not None or m.spawn is not None:
        return False
    return m.take is None and m.give_back is None and m.checkpoint_of is None


def runs_of(message: Message) -> list[str]:
    """Return the runs that a message names."""
    match message:
        case Start():
            return [message.run.id]
        case Heard():
            return list(message.run_ids)
        case TargetReport() if message.target.startswith("run:"):
            name = message.target.removeprefix("run:")
            return [name, name.rpartition(":")[0]]  # an attempt's target ends with its fence
    run_id = getattr(message, "run_id", None)
    return [] if run_id is None else [run_id]


def workers_of(message: Message) -> list[str]:
    """Return the workers whose rows a message changes."""
    if isinstance(message, Heard | Ended):
        return []
    dead = [worker_id for worker_id, _ in message.dead] if isinstance(message, Claim) else []
    worker_id = getattr(message, "worker_id", None)
    return dead if worker_id is None else [worker_id, *dead]


def locks_of(batch: Sequence[Message]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the queries that lock a batch's workers, then its runs and the parents it notifies.

    An order locks every worker before it looks at runs. A batch that locked a run first and then
    waited for its worker would deadlock with an order that waits for the run.
    """
    workers = sorted({one for message in batch for one in workers_of(message)})
    runs = sorted({one for message in batch for one in runs_of(message)})
    if workers and (runs or len(workers) > 1):
        yield "lock_named_workers", {"worker_ids": json.dumps(workers)}
    if runs:
        ending = [m.run_id for m in batch if isinstance(m, Settle | Ended)]
        yield "lock_runs", {"run_ids": json.dumps(runs), "ending": json.dumps(ending)}
