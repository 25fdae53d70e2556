"""Which appends of a batch share one statement, and the arrays it takes.

The entries of one run stay in the order in which they were given. An append that brings more than
entries and effects is carried out by itself, and so is everything of its run that comes after it.
"""

from collections.abc import Callable, Iterable, Sequence
from struct import pack
from typing import Any, ClassVar

from psycopg.adapt import Dumper
from psycopg.pq import Format

from andon.core.journal import Entry
from andon.store.sql import fields, is_progress
from andon.store.store import Append, EffectRow, Message, Start


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
    if isinstance(message, Start):
        return [message.run.id]
    run_id = getattr(message, "run_id", None)
    return [] if run_id is None else [run_id]


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
    entries = [(group.run_id, entry) for group in groups for entry in group.entries]
    effects = [(group.run_id, row) for group in groups for row in group.effects.values()]
    return {
        "run_ids": Texts(group.run_id for group in groups),
        "counters": Ints(group.fence.counter for group in groups),
        "epochs": Ints(group.fence.epoch for group in groups),
        "befores": Ints(group.entries[0].seq - 1 for group in groups),
        "lasts": Ints(group.entries[-1].seq for group in groups),
        "heads": Texts(group.entries[-1].hash for group in groups),
        "steps": Texts(group.step for group in groups),
        "progresses": Ints(group.progress for group in groups),
        **_columns("", _ENTRY, entries),
        **_columns("e_", _EFFECT, effects),
    }


def _columns(
    prefix: str, kinds: dict[str, type["Array"]], rows: Sequence[tuple[str, Any]]
) -> dict[str, "Array"]:
    arrays: dict[str, Array] = {f"{prefix}run_id": Texts(run_id for run_id, _ in rows)}
    for name, kind in kinds.items():
        arrays[prefix + name] = kind(getattr(row, name) for _, row in rows)
    return arrays


class Array(list[Any]):
    """A parameter that is always of the same type, also when it is empty or holds only NULLs.

    Else each of those would be prepared as another statement.
    """


class Texts(Array):
    pass


class Ints(Array):
    pass


class Floats(Array):
    pass


class Bools(Array):
    pass


_ENTRY: dict[str, type[Array]] = dict.fromkeys(Entry.__struct_fields__, Texts) | {
    "seq": Ints,
    "fence": Ints,
    "since": Floats,
    "at": Floats,
}
_EFFECT: dict[str, type[Array]] = dict.fromkeys(EffectRow.__struct_fields__, Texts) | {
    "seq": Ints,
    "fence": Ints,
    "quiet": Bools,
}


class _ArrayDumper(Dumper):
    format = Format.BINARY
    item_oid: ClassVar[int]
    dump_item: ClassVar[Callable[[Any], bytes]]

    def dump(self, obj: Array) -> bytes:
        parts = [pack("!iiIii", 1, 1, self.item_oid, len(obj), 1)] if obj else []
        parts += _items(obj, type(self).dump_item)
        return b"".join(parts) or pack("!iiI", 0, 0, self.item_oid)


def _items(items: Iterable[Any], dump_item: Callable[[Any], bytes]) -> Iterable[bytes]:
    for item in items:
        if item is None:
            yield b"\xff\xff\xff\xff"
        else:
            raw = dump_item(item)
            yield pack("!i", len(raw))
            yield raw


def _text(item: str) -> bytes:
    if "\0" in item:
        raise UnicodeEncodeError("utf-8", item, 0, 1, "it contains NUL (0x00)")
    return item.encode()


class _TextsDumper(_ArrayDumper):
    oid, item_oid, dump_item = 1009, 25, staticmethod(_text)


class _IntsDumper(_ArrayDumper):
    oid, item_oid, dump_item = 1016, 20, staticmethod(lambda item: pack("!q", item))


class _FloatsDumper(_ArrayDumper):
    oid, item_oid, dump_item = 1022, 701, staticmethod(lambda item: pack("!d", item))


class _BoolsDumper(_ArrayDumper):
    oid, item_oid, dump_item = 1000, 16, staticmethod(lambda item: pack("!?", item))


DUMPERS: tuple[tuple[type[Array], type[Dumper]], ...] = (
    (Texts, _TextsDumper),
    (Ints, _IntsDumper),
    (Floats, _FloatsDumper),
    (Bools, _BoolsDumper),
)
