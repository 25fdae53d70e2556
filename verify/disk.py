"""A disk that may lose power: what is durable, and what may be there after a cut.

The model is ext4's: the sync of a file makes its own bytes and the names of files durable. Of the
rest each sector is there or not, in any combination.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from verify.calls import Call

SECTOR = 512
KINDS = ("dropped", "kept", "reordered", "torn")


@dataclass
class Disk:
    """The files below a folder: what of them is durable, and what is on its way."""

    durable: dict[str, bytearray] = field(default_factory=dict)
    pending: list[Call] = field(default_factory=list)

    def take(self, call: Call) -> None:
        if call.kind != "sync":
            self.pending.append(call)
            return
        later = []
        for one in self.pending:
            if one.path == call.path or one.kind in ("create", "unlink", "rename"):
                apply(self.durable, one)
            else:
                later.append(one)
        self.pending = later

    def after_a_cut(self, kind: str, chance: random.Random) -> dict[str, bytearray]:
        files = {path: bytearray(found) for path, found in self.durable.items()}
        for call in self.pending:
            if kind == "kept" or (kind != "dropped" and chance.random() < 0.5):
                torn = kind == "torn" and call.kind == "write"
                for part in sectors(call, chance) if torn else [call]:
                    apply(files, part)
        return files


def apply(files: dict[str, bytearray], call: Call) -> None:
    match call.kind:
        case "create":
            files.setdefault(call.path, bytearray())
        case "unlink":
            files.pop(call.path, None)
        case "rename":
            files[call.bytes.decode()] = files.pop(call.path, bytearray())
        case "truncate":
            found = files.setdefault(call.path, bytearray())
            del found[call.offset :]
            found.extend(bytes(call.offset - len(found)))
        case _:  # a write
            found = files.setdefault(call.path, bytearray())
            found.extend(bytes(max(0, call.offset - len(found))))
            found[call.offset : call.offset + len(call.bytes)] = call.bytes


def sectors(call: Call, chance: random.Random) -> Iterator[Call]:
    """Half of the sectors of a write."""
    start, end = call.offset, call.offset + len(call.bytes)
    while start < end:
        stop = min(end, (start // SECTOR + 1) * SECTOR)
        if chance.random() < 0.5:
            bytes_ = call.bytes[start - call.offset : stop - call.offset]
            yield Call("write", call.path, start, bytes_)
        start = stop
