"""How a large value is kept in pieces, each under the hash of its content.

A list becomes a tree: its elements, blocks of up to 32 of them, blocks of blocks. A list that was
longer by one element the next time shares all pieces with the one before but the blocks on its
right edge; so a conversation takes room in proportion to its length, however often it is saved.

A value is (kind, body): the kind is its serializer's, and body is all of it, unless it is PIECE
(body names the piece it is in) or LIST (body is a block, too small for a piece of its own).
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple, TypeVar

import msgspec

Value = tuple[str, bytes]
T = TypeVar("T")

PIECE, LIST = "@piece", "@list"

# A block of 32 names is 700 bytes: what one more element costs, once for each level of the tree.
FAN = 32
# What is smaller than this stays where it is used; a piece has its row, and its name is 20 bytes.
SMALL = 200
TINY = 48

_VALUE, _LIST, _BLOCKS = b"v", b"l", b"b"
_NAME_BYTES = 20


class Piece(NamedTuple):
    """Part of a value. `under` is a piece that names it: where that is known, so is this."""

    name: bytes
    body: bytes
    under: bytes | None = None


def named(body: bytes) -> bytes:
    return blake2b(body, digest_size=_NAME_BYTES).digest()


def whole(value: Value) -> tuple[Value, list[Piece]]:
    """A value that is not a list."""
    if len(value[1]) <= SMALL:
        return value, []
    piece = _leaf(value)
    return (PIECE, piece.name), [piece]


def listed(elements: Iterable[Value]) -> tuple[Value, list[Piece]]:
    """A list, by its elements."""
    pieces: list[Piece] = []
    tops: list[Piece] = []
    leaves = [one if len(one[1]) <= TINY else _leaf(one) for one in elements]
    for part in _parts(leaves) or [[]]:
        entries = [one.name if isinstance(one, Piece) else one for one in part]
        block = _LIST + msgspec.msgpack.encode(entries)
        if len(leaves) <= FAN and len(block) <= SMALL:
            return (LIST, block), [one for one in part if isinstance(one, Piece)]
        tops.append(Piece(named(block), block))
        pieces += _under(tops[-1], [one for one in part if isinstance(one, Piece)])
    while len(tops) > 1:
        below, tops = tops, []
        for some in _parts(below):
            block = _BLOCKS + b"".join(one.name for one in some)
            tops.append(Piece(named(block), block))
            pieces += _under(tops[-1], some)
    return (PIECE, tops[0].name), [*pieces, *tops]


def _under(block: Piece, below: Iterable[Piece]) -> Iterator[Piece]:
    return (Piece(one.name, one.body, block.name) for one in below)


def in_question(pieces: Sequence[Piece]) -> list[bytes]:
    """The names to ask for before pieces are sent: of blocks, and of what is under the last one.

    What is under a block that is known is known. The last block changes with every element that
    is added, while nearly all under it is known.
    """
    last = next((one.under for one in reversed(pieces) if not _is_block(one)), None)
    return [one.name for one in pieces if _is_block(one) or one.under in (None, last)]


def _is_block(piece: Piece) -> bool:
    return piece.body[:1] != _VALUE


def missing(pieces: Sequence[Piece], known: frozenset[bytes]) -> list[Piece]:
    """What has to be written, once and in the order of the names, as two writers must."""
    found = {
        piece.name: piece
        for piece in pieces
        if piece.name not in known and piece.under not in known
    }
    return [found[name] for name in sorted(found)]


def names_in(value: Value) -> list[bytes]:
    """The pieces that a value names itself."""
    kind, body = value
    if kind == PIECE:
        return [body]
    return names_under(body) if kind == LIST else []


def names_under(body: bytes) -> list[bytes]:
    """The pieces that a piece names."""
    if body[:1] == _BLOCKS:
        return [body[at : at + _NAME_BYTES] for at in range(1, len(body), _NAME_BYTES)]
    if body[:1] == _LIST:
        return [one for one in msgspec.msgpack.decode(body[1:]) if isinstance(one, bytes)]
    return []


def joined(value: Value, pieces: dict[bytes, bytes]) -> Value | list[Value]:
    """The value again, or the elements of the list that it was."""
    kind, body = value
    if kind not in (PIECE, LIST):
        return value
    body = pieces[body] if kind == PIECE else body
    if body[:1] == _VALUE:
        return _value(body)
    return list(_elements(body, pieces))


def _elements(body: bytes, pieces: dict[bytes, bytes]) -> Iterator[Value]:
    if body[:1] == _BLOCKS:
        for name in names_under(body):
            yield from _elements(pieces[name], pieces)
        return
    for one in msgspec.msgpack.decode(body[1:]):
        yield _value(pieces[one]) if isinstance(one, bytes) else (one[0], one[1])


def _leaf(value: Value) -> Piece:
    kind, body = value
    body = b"".join((_VALUE, kind.encode(), b"\0", body))
    return Piece(name=named(body), body=body)


def _value(body: bytes) -> Value:
    kind, _, rest = body[1:].partition(b"\0")
    return kind.decode(), rest


def _parts(things: Sequence[T]) -> list[Sequence[T]]:
    return [things[at : at + FAN] for at in range(0, len(things), FAN)]
