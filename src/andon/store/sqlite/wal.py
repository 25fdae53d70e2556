"""Detects a write-ahead log that is damaged in its middle, which SQLite silently accepts.

SQLite reads a WAL up to the first frame whose checksum does not fit, and takes the rest for a
transaction that was being written when the power failed. If a bit has flipped instead, SQLite
silently drops everything committed after it. But a power failure leaves at most one unfinished
transaction, because each is synced before the next begins: if two or more complete ones follow, in
one unbroken chain of checksums, they had been acknowledged.

This code reads only the headers of frames, and computes checksums if those look wrong.
"""

import os
import struct

from andon.errors import StoreError

_HEADER = struct.Struct(">8I")  # magic, version, page size, number, salts, checksum
_FRAME = struct.Struct(">6I")  # page, size of the database if it is a commit, salts, checksum
_MAGIC = 0x377F0682  # for checksums of little-endian words; plus one for big-endian words


class Wal:
    """The contents of a WAL file at one moment."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                self._bytes = file.read()
        except FileNotFoundError:
            self._bytes = b""
        self.header = self._bytes[: _HEADER.size]
        self._checksum: tuple[int, int] | None = None  # the header's, if the header is intact
        self._order, self._page, self._salts = self._begin()
        size = _FRAME.size + self._page
        self._places = range(_HEADER.size, len(self._bytes) - size + 1, size)

    def _begin(self) -> tuple[str, int, tuple[int, int]]:
        """Return byte order, page size and salts; from the frames if the header is damaged."""
        order, page, salts = "<", 4096, (0, 0)
        if len(self.header) < _HEADER.size:
            return order, page, salts
        magic, _, named, _, *rest = _HEADER.unpack(self.header)
        known = magic & ~1 == _MAGIC  # a header of zeroes would pass its checksum, which is zero
        if known:
            order = ">" if magic & 1 else "<"
        if known and _checksum(self.header[:24], (0, 0), order) == (rest[2], rest[3]):
            self._checksum = rest[2], rest[3]
            return order, named, (rest[0], rest[1])
        for place in range(_HEADER.size, len(self._bytes) - _FRAME.size, _FRAME.size + page):
            salts = _FRAME.unpack_from(self._bytes, place)[2:4]
            if any(salts):  # otherwise this frame is lost too
                break
        return order, page, salts

    def is_current(self) -> bool:
        """Return whether SQLite has not restarted the log since it was read."""
        if not self.header:
            return not os.path.exists(self.path)
        with open(self.path, "rb") as file:
            return file.read(_HEADER.size) == self.header

    def readable(self) -> int:
        """Count the frames SQLite reads: the complete transactions of an unbroken chain."""
        found = 0
        for number in range(len(self._places)):
            if not self._follows(number):
                break
            if self._is_commit(number):
                found = number + 1
        return found

    def refuse_lost(self, read: int) -> None:
        """Raise if acknowledged transactions follow the frames that SQLite has read."""
        if self._checksum is None and self._is_in_database():
            return
        commits = [n for n in range(read, len(self._places)) if self._is_commit(n)]
        broken = self._broken(read) if len(commits) >= 2 else None
        if broken is None:
            return
        chained = 0
        for number in range(broken, len(self._places)):
            if number == broken or not self._follows(number):
                chained = 0  # the break itself, or the start of an abandoned transaction
            chained += self._is_commit(number)
            if chained == 2:
                raise StoreError(
                    f"{self.path}: is damaged at frame {broken + 1}: transactions that were "
                    "committed after it cannot be read. Nothing was changed. Restore the "
                    "database from a backup, or move this file away to continue without them."
                )

    def _is_in_database(self) -> bool:
        """Return whether the database has the log's latest version of every page.

        Then nothing can be lost. This holds when SQLite restarts the log, and still holds if the
        power fails in the middle of writing its header.
        """
        frames = [(number, *self._frame(number)) for number in range(len(self._places))]
        own = [(number, page) for number, page, _, salts, _ in frames if salts == self._salts]
        last = max((number for number, _ in own if self._is_commit(number)), default=-1)
        latest = {page: number for number, page in own if number <= last}
        with open(self.path.removesuffix("-wal"), "rb") as database:
            for page, number in latest.items():
                database.seek((page - 1) * self._page)
                start = self._places[number] + _FRAME.size
                if database.read(self._page) != self._bytes[start : start + self._page]:
                    return False
        return True

    def _broken(self, read: int) -> int | None:
        """Return the frame at which SQLite stops reading, which must be in the next transaction.

        None if that transaction is intact. SQLite then stopped for another reason: the database
        has the transaction already, and SQLite is about to restart the log.
        """
        for number in range(read, len(self._places)):
            if not self._follows(number):
                return number
            if self._is_commit(number):
                return None
        return None

    def _frame(self, number: int) -> tuple[int, int, tuple[int, int], tuple[int, int]]:
        page, commit, *rest = _FRAME.unpack_from(self._bytes, self._places[number])
        return page, commit, (rest[0], rest[1]), (rest[2], rest[3])

    def _is_commit(self, number: int) -> bool:
        _, commit, salts, _ = self._frame(number)
        return commit > 0 and salts == self._salts

    def _follows(self, number: int) -> bool:
        """Return whether a frame's checksum fits its bytes and the previous frame's checksum."""
        before = self._frame(number - 1)[3] if number else self._checksum
        _, _, salts, own = self._frame(number)
        place = self._places[number]
        covered = self._bytes[place : place + 8]
        start = place + _FRAME.size
        covered += self._bytes[start : start + self._page]
        fits = before is not None and _checksum(covered, before, self._order) == own
        return fits and salts == self._salts


def _checksum(covered: bytes, seed: tuple[int, int], order: str) -> tuple[int, int]:
    """Compute SQLite's WAL checksum: two sums over pairs of words."""
    one, two = seed
    words = struct.unpack(f"{order}{len(covered) // 4}I", covered)
    for first, second in zip(words[::2], words[1::2], strict=True):
        one = (one + first + two) & 0xFFFFFFFF
        two = (two + second + one) & 0xFFFFFFFF
    return one, two
