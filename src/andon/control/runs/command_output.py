"""Reads the output of a command, which its supervisor keeps in a file of the host it ran on.

FILE.1 holds the older output once FILE has grown beyond its limit. The store keeps no output:
output is unbounded, and the store is shared by everyone.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from andon.control.changes import until_change
from andon.control.runs.command_run import VERSION
from andon.core.text import clean
from andon.host import home as homes
from andon.runtime.requests import requests
from andon.runtime.worker.peers import this_process
from andon.store.messages.rows import RunRow
from andon.store.store import Store

AT_ONCE = 65_536


def is_kept(row: RunRow) -> bool:
    return row.version == VERSION


def place(store: Store, row: RunRow) -> tuple[Path, str]:
    """The file of a run's output, and its host (empty for this one, or if it is unknown)."""
    name = f"{row.id.replace('/', '_')}.log"
    attempts = store.attempts(row.id)
    workers = {one.id: one for one in store.fleet(0.0)}
    for attempt in reversed(attempts):
        worker = workers.get(attempt.worker)
        if worker is None:
            continue
        for one in store.supervisors(0.0):
            if one.id == worker.supervisor:
                here = not one.boot or one.boot == this_process().boot
                return Path(one.home, "logs", name), "" if here else one.host
    return Path(homes.find(), "logs", name), ""


def lines(path: Path) -> Iterator[str]:
    """Yield all lines that are kept, oldest first."""
    for file in (path.with_name(f"{path.name}.1"), path):
        try:
            with file.open(encoding="utf-8", errors="replace") as text:
                yield from (line.rstrip("\n") for line in text)
        except OSError:
            continue


def missing(path: Path, host: str) -> str:
    where = f"host {clean(host)}" if host else "this host"
    return f"no output: {clean(str(path))} of {where} has none"


def follow(store: Store, row: RunRow, path: Path, on_line: Callable[[str], None]) -> None:
    """Pass on each line as it is written, until the run is over."""
    place_in, rest = 0, b""
    with until_change(store) as pause:
        while True:
            now = store.run(row.id)
            over = now is None or requests.is_over(now) or now.worker is None
            try:
                with path.open("rb") as file:
                    if os.fstat(file.fileno()).st_size < place_in:  # rotated
                        place_in = 0
                    file.seek(place_in)
                    while part := file.read(AT_ONCE):
                        place_in += len(part)
                        *whole, rest = (rest + part).split(b"\n")
                        for line in whole:
                            on_line(line.decode("utf-8", "replace"))
            except OSError:
                pass
            if over:
                if rest:
                    on_line(rest.decode("utf-8", "replace"))
                return
            pause(0.2)
