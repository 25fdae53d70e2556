"""The record of a trial: each call and point, written by the process that executed it.

Each trial has one append-only file. A worker writes a line before it calls a function of the
user's, and one after; a killed process leaves whole lines. Nothing here comes from andon's tables.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec


class Line(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One recorded event."""

    what: str  # begun, ended or raised: a call; passed: a point; killed
    role: str = ""  # of a call: step, effect, probe or undo
    name: str = ""
    key: str = ""
    place: str = ""  # position in the run, for a call without a key
    digest: str = ""  # of the arguments
    call: str = ""  # identifies the call
    kind: str = ""  # of an effect, as declared
    keyed: bool = False  # of an effect: whether its function takes the key
    # Abridged: the arguments of a call that began, the result of one that ended, or the verdict of
    # a probe.
    value: str = ""
    error: str = ""  # of one that raised
    certain: bool = False  # whether the error of an effect says that it did not happen
    point: str = ""
    nth: int = 0  # count for this name since the last kill
    awaits: int = 0
    seconds: float = 0.0


class Notebook:
    """The file, opened for writing."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, line: Line) -> None:
        os.write(self._file, msgspec.json.encode(line) + b"\n")


def seen(lines: Sequence[Line]) -> str:
    """Describe the last recorded activity of a run that has not ended: `it …`."""
    under_way: dict[str, Line] = {}
    for line in lines:
        if line.what == "begun":
            under_way[line.call] = line
        elif line.what == "killed":
            under_way.clear()
        else:
            under_way.pop(line.call, None)
    if under_way:
        names = dict.fromkeys(f"{line.role} {line.name!r}" for line in under_way.values())
        return f"executes {', '.join(names)}"
    passed = [f"{line.point} {line.name}".rstrip() for line in lines if line.what == "passed"]
    return f"came past {passed[-1]}, and nothing since" if passed else "has not begun"


def read(path: Path) -> list[Line]:
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=Line) for line in path.read_bytes().splitlines()]
