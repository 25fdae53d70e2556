"""The notes that runs write, read by the driver. Standard library only."""

import time
from pathlib import Path
from typing import NamedTuple

from driver import Cannot

LIMIT_SECONDS = 240


class Note(NamedTuple):
    word: str
    at: float
    pid: int
    text: str


class Log:
    """The notes of the runs so far."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._file = path.open()
        self._rest = ""
        self.notes: list[Note] = []

    def read(self) -> list[Note]:
        *lines, self._rest = (self._rest + self._file.read()).split("\n")
        for line in lines:
            word, at, pid, text = line.split(" ", 3)
            self.notes.append(Note(word, float(at), int(pid), text))
        return self.notes

    def of(self, word: str) -> list[Note]:
        return [one for one in self.read() if one.word == word]

    def wait(self, words: set[str], seconds: float = LIMIT_SECONDS) -> dict[str, Note]:
        """The first note of each word."""
        end, found, seen = time.monotonic() + seconds, dict[str, Note](), 0
        while len(found) < len(words):
            for one in self.read()[seen:]:
                if one.word in words:
                    found.setdefault(one.word, one)
            seen = len(self.notes)
            if time.monotonic() > end:
                raise Cannot(f"waited {seconds} s for {sorted(words - found.keys())[:3]}")
            time.sleep(0.0005)
        return found
