"""A disk that may lose power: which data is durable, and what may be there after a cut.

The model is ext4's: the sync of a file makes its own bytes and the names of files durable. A strict
disk does no more than it must: a name is durable once its folder was synced. Of all other data each
sector is there or not, in any combination. Data written to a file that has lost its name is lost
with it.
"""

import os
import random
from collections.abc import Iterator
from dataclasses import replace

from verify.calls import Call

SECTOR = 512
KINDS = ("dropped", "kept", "reordered", "torn")
NAMING = ("create", "unlink", "rename")

Names = dict[str, int]  # path → the file it names
Contents = dict[int, bytearray]


class Disk:
    """The files below a folder: what of them is durable, and what is not yet."""

    def __init__(self, files: dict[str, bytes] | None = None, *, strict: bool = False) -> None:
        self.strict = strict
        self._names: Names = {}
        self._contents: Contents = {}
        self._live: Names = {}  # as the processes see it
        self._pending: list[tuple[int, Call]] = []
        for path, found in (files or {}).items():
            self.put(path, found)

    def put(self, path: str, found: bytes) -> None:
        """Adds a file that exists and is durable."""
        number = self._live[path] = self._names[path] = len(self._contents)
        self._contents[number] = bytearray(found)

    def take(self, call: Call) -> None:
        if call.kind == "sync":
            self._sync(call.path)
            return
        if call.kind == "create":
            self._live[call.path] = len(self._contents)
            self._contents[self._live[call.path]] = bytearray()
        elif call.path not in self._live:
            self.put(call.path, b"")
        number = self._live[call.path]
        if call.kind in NAMING:
            name(self._live, call, number)
        self._pending.append((number, call))

    def _sync(self, path: str) -> None:
        own, later = self._live.get(path), []
        for number, one in self._pending:
            if one.kind in NAMING:
                synced = not self.strict or os.path.dirname(one.path) == path
            else:
                synced = number == own
            if synced:
                apply(self._names, self._contents, number, one)
            else:
                later.append((number, one))
        self._pending = later

    def after_a_cut(self, kind: str, chance: random.Random) -> dict[str, bytearray]:
        names = dict(self._names)
        contents = {number: bytearray(found) for number, found in self._contents.items()}
        for number, call in self._pending:
            if kind == "kept" or (kind != "dropped" and chance.random() < 0.5):
                torn = kind == "torn" and call.kind == "write"
                for part in sectors(call, chance) if torn else [call]:
                    apply(names, contents, number, part)
        return {path: contents[number] for path, number in names.items()}


def apply(names: Names, contents: Contents, number: int, call: Call) -> None:
    if call.kind in NAMING:
        name(names, call, number)
        return
    found = contents[number]
    if call.kind == "truncate":
        del found[call.offset :]
    found.extend(bytes(max(0, call.offset - len(found))))
    found[call.offset : call.offset + len(call.bytes)] = call.bytes


def name(names: Names, call: Call, number: int) -> None:
    if call.kind == "create":
        names[call.path] = number
    elif call.kind == "unlink":
        names.pop(call.path, None)
    elif call.path in names:
        names[call.bytes.decode()] = names.pop(call.path)


def sectors(call: Call, chance: random.Random) -> Iterator[Call]:
    """Half of the sectors of a write."""
    start, end = call.offset, call.offset + len(call.bytes)
    while start < end:
        stop = min(end, (start // SECTOR + 1) * SECTOR)
        if chance.random() < 0.5:
            bytes_ = call.bytes[start - call.offset : stop - call.offset]
            yield replace(call, offset=start, bytes=bytes_)
        start = stop
