"""Groups of appends as the parameters of one statement: a column is an array."""

from collections.abc import Callable, Iterable, Sequence
from struct import pack
from typing import Any, ClassVar

from psycopg.adapt import Dumper
from psycopg.pq import Format

from andon.core.journal import Entry
from andon.store.groups import Group
from andon.store.reads import fields
from andon.store.store import EffectRow


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
    "undo_within": Floats,
}


class _ArrayDumper(Dumper):
    """PostgreSQL's binary form of an array of one dimension."""

    format = Format.BINARY
    item_oid: ClassVar[int]

    @staticmethod
    def dump_item(item: Any) -> bytes:
        raise NotImplementedError

    def dump(self, obj: Array) -> bytes:
        if not obj:
            return pack("!iiI", 0, 0, self.item_oid)
        head = pack("!iiIii", 1, 1, self.item_oid, len(obj), 1)
        return b"".join((head, *_items(obj, self.dump_item)))


def _items(items: Iterable[Any], dump_item: Callable[[Any], bytes]) -> Iterable[bytes]:
    for item in items:
        if item is None:
            yield b"\xff\xff\xff\xff"
        else:
            raw = dump_item(item)
            yield pack("!i", len(raw))
            yield raw


class _TextsDumper(_ArrayDumper):
    oid, item_oid = 1009, 25

    @staticmethod
    def dump_item(item: str) -> bytes:
        if "\0" in item:
            raise UnicodeEncodeError("utf-8", item, 0, 1, "it contains NUL (0x00)")
        return item.encode()


class _IntsDumper(_ArrayDumper):
    oid, item_oid = 1016, 20

    @staticmethod
    def dump_item(item: int) -> bytes:
        return pack("!q", item)


class _FloatsDumper(_ArrayDumper):
    oid, item_oid = 1022, 701

    @staticmethod
    def dump_item(item: float) -> bytes:
        return pack("!d", item)


class _BoolsDumper(_ArrayDumper):
    oid, item_oid = 1000, 16

    @staticmethod
    def dump_item(item: bool) -> bytes:
        return pack("!?", item)


DUMPERS: tuple[tuple[type[Array], type[Dumper]], ...] = (
    (Texts, _TextsDumper),
    (Ints, _IntsDumper),
    (Floats, _FloatsDumper),
    (Bools, _BoolsDumper),
)
