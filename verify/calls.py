"""The calls the shim recorded: every call with which a process wrote to its files, in order."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

KINDS = {1: "write", 2: "sync", 4: "truncate", 8: "rename", 16: "unlink", 32: "create"}


@dataclass(frozen=True)
class Call:
    kind: str
    path: str
    offset: int  # of a write; of a truncation, the new size
    bytes: bytes  # the bytes written; of a rename, the new name


def recorded(log: Path) -> list[Call]:
    return list(_read(log.read_bytes()))


def _read(text: bytes) -> Iterator[Call]:
    place = 0
    while place < len(text):
        kind, length = struct.unpack_from("<BH", text, place)
        path = text[place + 3 : place + 3 + length].decode()
        place += 3 + length
        offset, size = struct.unpack_from("<qI", text, place)
        place += 12
        yield Call(KINDS[kind], path, offset, text[place : place + size])
        place += size
