"""Many rows as parameters of one statement: each column is an array in PostgreSQL's binary form.

In text form the driver would search every element for characters to quote, which takes longer than
writing it. Every step and every short run goes through here, so the code is written for speed.
"""

from collections.abc import Iterable, Sequence
from struct import Struct as Packing
from struct import pack
from typing import Any, ClassVar

from psycopg.adapt import Dumper
from psycopg.pq import Format

from andon.core.journal import Entry
from andon.core.values.struct import Struct
from andon.store.sql.reads import values


class Array(list[Any]):
    """A parameter whose type stays the same even if it is empty or holds only NULLs.

    With varying types psycopg would prepare a separate statement for each.
    """


class Texts(Array):
    pass


class Ints(Array):
    pass


class Floats(Array):
    pass


class Bools(Array):
    pass


Kinds = dict[str, type[Array]]


def kinds_of(struct: type[Struct | Entry], **others: type[Array]) -> Kinds:
    """Return the column types of a struct's fields: text, except for those named."""
    return dict.fromkeys(struct.__struct_fields__, Texts) | others


def columns(kinds: Kinds, rows: Sequence[Struct | Entry], prefix: str = "") -> dict[str, Array]:
    """Return the fields of the rows as one array per column."""
    if not rows:
        return {prefix + name: kind() for name, kind in kinds.items()}
    found = zip(*map(values, rows), strict=True)
    named = zip(kinds.items(), found, strict=True)
    return {prefix + name: kind(column) for (name, kind), column in named}


_NULL = b"\xff\xff\xff\xff"


class _ArrayDumper(Dumper):
    """Dumps a one-dimensional array: a header, then the length and bytes of each item."""

    format = Format.BINARY
    item_oid: ClassVar[int]
    item: ClassVar[Packing]  # for types of fixed size: packs the size and the item

    def dump(self, obj: Array) -> bytes:
        if not obj:
            return pack("!iiI", 0, 0, self.item_oid)
        head = pack("!iiIii", 1, int(None in obj), self.item_oid, len(obj), 1)
        return head + b"".join(self.items(obj))

    def items(self, obj: Array) -> Iterable[bytes]:
        write, size = self.item.pack, self.item.size - 4
        return [_NULL if item is None else write(size, item) for item in obj]


class _TextsDumper(_ArrayDumper):
    oid, item_oid = 1009, 25

    def items(self, obj: Array) -> Iterable[bytes]:
        parts: list[bytes] = []
        for item in obj:
            if item is None:
                parts.append(_NULL)
                continue
            if "\0" in item:
                raise UnicodeEncodeError("utf-8", item, 0, 1, "it contains NUL (0x00)")
            raw = item.encode()
            parts += (len(raw).to_bytes(4, "big"), raw)
        return parts


class _IntsDumper(_ArrayDumper):
    oid, item_oid, item = 1016, 20, Packing("!iq")


class _FloatsDumper(_ArrayDumper):
    oid, item_oid, item = 1022, 701, Packing("!id")


class _BoolsDumper(_ArrayDumper):
    oid, item_oid, item = 1000, 16, Packing("!i?")


def packed(array: Array) -> bytes:
    """Return an array's binary form."""
    return _PACKERS[type(array)].dump(array)


DUMPERS: tuple[tuple[type[Array], type[_ArrayDumper]], ...] = (
    (Texts, _TextsDumper),
    (Ints, _IntsDumper),
    (Floats, _FloatsDumper),
    (Bools, _BoolsDumper),
)

_PACKERS = {kind: dumper(kind) for kind, dumper in DUMPERS}
