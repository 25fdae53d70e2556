"""The step that is stopped, the same for every system, and the page it stamps with the clock.

Standard library only: this runs inside every system's own environment. A step knows nothing of
stops: it stamps the clock into a shared page each 5 ms until it is ended. The page also holds the
process and thread of the step, and whether it was left in an orderly way.
"""

import asyncio
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

EVERY_SECONDS = 0.005
BLOCKED_SECONDS = 30
KINDS = ("async", "stubborn", "sync", "blocked")
PAGE = struct.Struct("=ddQQQQ")


class Seen(NamedTuple):
    stamped: float  # the last stamp; CLOCK_MONOTONIC, one clock for all processes
    left: float  # when the step was left, 0 while it runs
    stamps: int
    begun: int
    pid: int
    thread: int


class StampPage:
    def __init__(self, path: str) -> None:
        with Path(path).open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), PAGE.size)

    def read(self) -> Seen:
        return Seen(*PAGE.unpack_from(self._page))

    def begin(self) -> None:
        self._put("pid", os.getpid())
        self._put("thread", threading.get_native_id())
        self._put("left", 0.0)
        self._put("stamped", time.monotonic())
        self._put("begun", self.read().begun + 1)

    def stamp(self) -> None:
        self._put("stamps", self.read().stamps + 1)
        self._put("stamped", time.monotonic())

    def leave(self) -> None:
        now = time.monotonic()
        self._put("stamped", now)
        self._put("left", now)

    def _put(self, name: str, value: float) -> None:
        """Writes one field at once; pack_into would show its reader zeros for a moment."""
        at = Seen._fields.index(name)
        self._page[8 * at : 8 * at + 8] = struct.pack(f"={PAGE.format[1 + at]}", value)


def new(path: Path) -> StampPage:
    path.write_bytes(bytes(PAGE.size))
    return StampPage(str(path))


async def async_step(path: str, beat: Callable[[], None] = lambda: None) -> str:
    stamps = StampPage(path)
    stamps.begin()
    try:
        while True:
            stamps.stamp()
            beat()
            await asyncio.sleep(EVERY_SECONDS)
    finally:
        stamps.leave()


async def stubborn_step(path: str, beat: Callable[[], None] = lambda: None) -> str:
    """Tries again whatever happens, its own cancellation included."""
    stamps = StampPage(path)
    stamps.begin()
    while True:
        try:
            stamps.stamp()
            beat()
            await asyncio.sleep(EVERY_SECONDS)
        except BaseException:  # noqa: BLE001
            continue


def sync_step(path: str, beat: Callable[[], None] = lambda: None) -> str:
    stamps = StampPage(path)
    stamps.begin()
    try:
        while True:
            stamps.stamp()
            beat()
            time.sleep(EVERY_SECONDS)
    finally:
        stamps.leave()


def blocked_step(path: str) -> str:
    """One call into C that returns by itself after 30 s, as a driver waiting for a socket does."""
    stamps = StampPage(path)
    stamps.begin()
    try:
        time.sleep(BLOCKED_SECONDS)
    finally:
        stamps.leave()
    return "slept"
