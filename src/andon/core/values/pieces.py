"""Splits a large value into pieces, each stored under the hash of its content.

A list becomes a tree: its elements, blocks of up to 32 elements, blocks of blocks. After an element
is appended, the new list shares all pieces with the old one except the blocks on its right edge. So
a conversation takes space in proportion to its length, however often it is saved.

A value is (kind, body). Normally the kind is the serializer's and the body is the whole value.
PIECE means that the body names the piece holding the value, and LIST that the body is a block too
small to be a piece of its own.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple, TypeVar

import msgspec

Value = tuple[str, bytes]
T = TypeVar("T")

PIECE, LIST = "@piece", "@list"

# A block of 32 names takes 700 bytes, which is the cost of one more element per level of the tree.
FAN = 32
# Smaller values stay where they are used: a piece costs a row, and its name takes 20 bytes.
SMALL = 200
TINY = 48

_VALUE, _LIST, _BLOCKS = b"v", b"l", b"b"
_NAME_BYTES = 20


class Piece(NamedTuple):
    """Part of a value. If `under`, a piece that refers to this one, is stored, so is this one."""

    name: bytes
    body: bytes
    under: bytes | None = None


def named(body: bytes) -> bytes:
    return sha256(body).digest()[:_NAME_BYTES]


def whole(value: Value) -> tuple[Value, list[Piece]]:
    """Split a value that is not a list."""
    if len(value[1]) <= SMALL:
        return value, []
    body = _body(value)
    return (PIECE, named(body)), [Piece(named(body), body)]


def listed(elements: Iterable[Value]) -> tuple[Value, list[Piece]]:
    """Split a list by its elements. Every save runs this for every message."""
    pieces: list[Piece] = []
    tops: list[tuple[bytes, bytes]] = []  # (name, body)
    values = list(elements)
    for part in _parts(values) or [[]]:
        bodies = [None if len(one[1]) <= TINY else _body(one) for one in part]
        names = [None if body is None else named(body) for body in bodies]
        block = _LIST + msgspec.msgpack.encode(
            [name or one for name, one in zip(names, part, strict=True)]
        )
        alone = len(values) <= FAN and len(block) <= SMALL
        under = None if alone else named(block)
        pieces += [
            Piece(name, body, under)
            for name, body in zip(names, bodies, strict=True)
            if name and body
        ]
        if under is None:
            return (LIST, block), pieces
        tops.append((under, block))
    while len(tops) > 1:
        below, tops = tops, []
        for some in _parts(below):
            block = _BLOCKS + b"".join(name for name, _ in some)
            tops.append((named(block), block))
            pieces += [Piece(name, body, tops[-1][0]) for name, body in some]
    return (PIECE, tops[0][0]), [*pieces, Piece(*tops[0])]


def in_question(pieces: Sequence[Piece]) -> list[bytes]:
    """Return the names to look up before pieces are sent: blocks, and pieces under the last block.

    If a block is stored, so is everything under it. The last block changes with every appended
    element, although nearly everything under it is stored.
    """
    last = next((one.under for one in reversed(pieces) if not _is_block(one)), None)
    return [one.name for one in pieces if _is_block(one) or one.under in (None, last)]


def _is_block(piece: Piece) -> bool:
    return piece.body[:1] != _VALUE


def missing(pieces: Sequence[Piece], known: frozenset[bytes]) -> list[Piece]:
    """Return the pieces to write, each once, in name order so that two writers never deadlock."""
    found = {
        piece.name: piece
        for piece in pieces
        if piece.name not in known and piece.under not in known
    }
    return [found[name] for name in sorted(found)]


def names_in(value: Value) -> list[bytes]:
    """Return the pieces that a value itself names."""
    kind, body = value
    if kind == PIECE:
        return [body]
    return names_under(body) if kind == LIST else []


def names_under(body: bytes) -> list[bytes]:
    """Return the pieces that a piece names."""
    if body[:1] == _BLOCKS:
        return [body[at : at + _NAME_BYTES] for at in range(1, len(body), _NAME_BYTES)]
    if body[:1] == _LIST:
        return [one for one in msgspec.msgpack.decode(body[1:]) if isinstance(one, bytes)]
    return []


def joined(value: Value, pieces: dict[bytes, bytes]) -> Value | list[Value]:
    """Rebuild the value, or the elements of the list it was made from."""
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


def _body(value: Value) -> bytes:
    kind, body = value
    return b"".join((_VALUE, kind.encode(), b"\0", body))


def _value(body: bytes) -> Value:
    kind, _, rest = body[1:].partition(b"\0")
    return kind.decode(), rest


def _parts(things: Sequence[T]) -> list[Sequence[T]]:
    return [things[at : at + FAN] for at in range(0, len(things), FAN)]
