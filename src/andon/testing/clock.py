"""A clock that a test moves: timers, leases, asks and delays of one store follow it.

The store takes the time from its SQL, so the clock is set there: in SQLite it replaces `unixepoch`
on this process's connections to that file, in PostgreSQL the scratch database's own `andon.now()`.
The worker's idea of time moves along. Real time does not move: a step that sleeps still sleeps, and
so does a wait shorter than a second, which a run spends in memory.
"""

import re
import time
from pathlib import Path
from typing import Any, Self

import apsw

from andon.errors import BadInput
from andon.runtime.worker import clock as runtime_clock
from andon.store import absolute, sqlite_path
from andon.store.postgres.driver import driver

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")

_NOW = """
CREATE OR REPLACE FUNCTION andon.now() RETURNS double precision LANGUAGE sql VOLATILE
  AS $$ SELECT extract(epoch FROM clock_timestamp())::double precision + AHEAD $$
"""


class Clock:
    """`with Clock(url) as clock:` before anything opens the store; then `clock.advance("3d")`."""

    def __init__(self, store: str, *, ahead: float = 0.0) -> None:
        self._url, self._path = absolute(store), sqlite_path(absolute(store))
        self.ahead = ahead  # seconds

    def __enter__(self) -> Self:
        if self._path is not None:
            apsw.connection_hooks.append(self._hook)
        self._move(self.ahead)
        return self

    def __exit__(self, *_: object) -> None:
        if self._path is not None:
            apsw.connection_hooks.remove(self._hook)
        runtime_clock.ahead -= self.ahead

    def now(self) -> float:
        """Return the store's time."""
        return time.time() + self.ahead

    def advance(self, by: str | float) -> float:
        """Advance by seconds, or "90s", "15m", "2h", "3d", "1w"; return the new time."""
        seconds = _seconds(by)
        self.ahead += seconds
        self._move(seconds)
        self._notify()
        return self.now()

    def _move(self, seconds: float) -> None:
        runtime_clock.ahead += seconds
        if self._path is None and self.ahead:
            psycopg = driver()
            ahead = f"{self.ahead!r}::double precision"
            with psycopg.connect(self._url, autocommit=True) as db:
                db.execute(_NOW.replace("AHEAD", ahead).encode())

    def _hook(self, connection: apsw.Connection) -> None:
        if self._path is not None and connection.filename == str(self._path):
            connection.create_scalar_function("unixepoch", lambda *_: self.now())

    def _notify(self) -> None:
        """Notify workers, so that they look now instead of at their next poll."""
        folder = None if self._path is None else Path(f"{self._path}.d")
        if folder is not None and folder.is_dir():
            from andon.store.notifier import HostNotifier

            notifier: Any = HostNotifier(str(folder))
            notifier.notify()
            notifier.close()


def _seconds(by: str | float) -> float:
    if isinstance(by, int | float) and not isinstance(by, bool) and 0 <= by < float("inf"):
        return float(by)
    match = _DURATION.fullmatch(by.strip()) if isinstance(by, str) else None
    if match is None:
        raise BadInput(f'advance({by!r}): expected seconds, or text like "90s", "2h" or "3d"')
    return float(match[1]) * _UNITS[match[2]]
