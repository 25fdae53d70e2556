"""Splits a state into parts, so that saving it again stores only the changes.

A long list becomes a tree: its last elements, blocks of 32 elements before them, blocks of 32
blocks. A conversation that grows by one message shares all parts with its last snapshot except that
message. So the stored size grows with its length, not with its square.

A part is JSON, stored under the hash of its content. The list is replaced by {"@andon.list": […]},
which holds [level, name] for a part (0: an element, 1: a block of elements, 2: a block of blocks,
…) and [element] for an element too small to be a part.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from andon.core.values import value

# Smaller states and lists are not split.
LARGE_BYTES = 4_000
SMALL_BYTES = 200
FAN = 32

# The name of a journal entry whose state is in parts.
PARTS = "parts"

_LIST = "@andon.list"

Parts = dict[str, bytes]  # by name


def split(raw: bytes) -> tuple[bytes, Parts] | None:
    """Return the state with its long lists in parts, or None if it is not to be split."""
    if len(raw) <= LARGE_BYTES or f'"{_LIST}"'.encode() in raw:
        return None
    parts: Parts = {}
    state = msgspec.json.encode(_split(msgspec.json.decode(raw), parts))
    return (state, parts) if parts else None


def joined(raw: str, fetch: Callable[[str], str]) -> bytes:
    """Rebuild the state; `fetch` returns the part with that name."""
    return msgspec.json.encode(_joined(msgspec.json.decode(raw), fetch))


def names(raw: str, fetch: Callable[[str], str], known: set[str]) -> None:
    """Add the names of a state's parts to `known`. Parts below a known one are known already."""
    todo = [msgspec.json.decode(raw)]
    while todo:
        found = todo.pop()
        if isinstance(found, list):
            todo += found
        elif isinstance(found, dict):
            todo += found.values() if _LIST not in found else _below(found[_LIST], fetch, known)


def _below(listed: list[list[Any]], fetch: Callable[[str], str], known: set[str]) -> Iterator[Any]:
    for part in listed:
        if len(part) == 1:
            yield part[0]
        elif part[1] not in known:
            level, name = part
            known.add(name)
            found = msgspec.json.decode(fetch(name))
            yield found if level < 2 else {_LIST: [[level - 1, one] for one in found]}


def _split(found: Any, parts: Parts) -> Any:
    if isinstance(found, dict):
        return {key: _split(one, parts) for key, one in found.items()}
    if not isinstance(found, list):
        return found
    elements = [msgspec.json.encode(_split(one, parts)) for one in found]
    if sum(map(len, elements)) <= LARGE_BYTES:
        return [msgspec.json.decode(one) for one in elements]
    blocked = len(elements) // FAN * FAN
    tail = [_element(one, parts) for one in elements[blocked:]]
    blocks = [b"[%s]" % b",".join(some) for some in _groups(elements[:blocked])]
    return {_LIST: [*_tree([_keep(one, parts) for one in blocks], parts), *tail]}


def _tree(names: list[str], parts: Parts) -> list[tuple[int, str]]:
    """Group blocks into larger blocks; return the remainder of each level, highest first."""
    found: list[tuple[int, str]] = []
    level = 1
    while names:
        grouped = len(names) // FAN * FAN
        found = [*((level, name) for name in names[grouped:]), *found]
        names = [_keep(msgspec.json.encode(some), parts) for some in _groups(names[:grouped])]
        level += 1
    return found


def _groups(things: list[Any]) -> Iterator[list[Any]]:
    return (things[at : at + FAN] for at in range(0, len(things), FAN))


def _element(raw: bytes, parts: Parts) -> tuple[int, str] | tuple[Any]:
    if len(raw) <= SMALL_BYTES:
        return (msgspec.json.decode(raw),)
    return 0, _keep(raw, parts)


def _keep(raw: bytes, parts: Parts) -> str:
    name = value.content_name(raw)
    parts[name] = raw
    return name


def _joined(found: Any, fetch: Callable[[str], str]) -> Any:
    if isinstance(found, list):
        return [_joined(one, fetch) for one in found]
    if not isinstance(found, dict):
        return found
    if _LIST not in found:
        return {key: _joined(one, fetch) for key, one in found.items()}
    return [_joined(one, fetch) for part in found[_LIST] for one in _elements(part, fetch)]


def _elements(part: list[Any], fetch: Callable[[str], str]) -> Iterator[Any]:
    if len(part) == 1:
        yield part[0]
        return
    level, name = part
    found = msgspec.json.decode(fetch(name))
    if level == 0:
        yield found
    elif level == 1:
        yield from found
    else:
        for below in found:
            yield from _elements([level - 1, below], fetch)
