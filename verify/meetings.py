"""Two writers of PostgreSQL meet: the result must be that of one of the two orders.

SQLite has one writer at a time. PostgreSQL has many, and only locks keep them apart; a missing lock
would fail no message sent alone. So one message is held up before each of its statements and before
its commit. Meanwhile another connection writes a second message until it is done or has to wait;
then the first one continues. SQLite plays both messages in either order, and PostgreSQL must end in
one of those two states.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import psycopg

from andon.store.postgres.connection import CONTENDED, Connection
from andon.store.postgres.session import WriteSession
from andon.store.postgres.store import PostgresStore
from andon.store.store import Message, Outcome
from verify.meeting_scenes import Both, Scene, Stage
from verify.store_pair import Pair, compared

# Generous: a writer that waits longer waits for one that waits for it.
PATIENCE_SECONDS = 30.0
# The same in either order, except for its numbers; and text that only people read.
_UNORDERED = {"events", "logs"}


class Watched(PostgresStore):
    """A writer that can be held up."""

    def __init__(self, url: str) -> None:
        self.before = 0  # the number of statements until it is held up
        self.count = 0
        self.contended = False
        self.held, self.released = threading.Event(), threading.Event()
        super().__init__(url)
        self._sql = self._session._sql = _Looked(self._sql, self._look)
        self._session.transaction = self._transaction  # type: ignore[method-assign]

    def hold_before(self, number: int) -> None:
        self.count, self.before = 0, number
        self.held.clear()
        self.released.clear()

    def _look(self) -> None:
        """Before a statement is sent: all statements sent before it are carried out."""
        self.count += 1
        if self.count != self.before or self._session.db is None:
            return
        if self._session.db.pgconn.pipeline_status:
            with self._session.db.pipeline():  # its end waits for the answers
                pass
        self.held.set()
        self.released.wait(PATIENCE_SECONDS)

    def _commit(self, batch: Sequence[Message]) -> list[Outcome]:
        try:
            return super()._commit(batch)
        except CONTENDED:
            self.contended = True
            raise

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with WriteSession.transaction(self._session) as db:
            yield db
            self._look()  # before its commit


class _Looked(dict[str, bytes]):
    """The statements; each is looked up just before it is sent."""

    def __init__(self, sql: dict[str, bytes], look: Callable[[], None]) -> None:
        super().__init__(sql)
        self._look = look

    def __getitem__(self, name: str) -> bytes:
        self._look()
        return super().__getitem__(name)


class Meetings:
    """Every message meets every other one."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.met = self._left = 0
        self._stores = [Watched(pair.url), Watched(pair.url)]
        self._pool = ThreadPoolExecutor(2)
        self._eye = psycopg.connect(pair.url, autocommit=True)

    def close(self) -> None:
        self._pool.shutdown()
        self._eye.close()
        for store in self._stores:
            store.close()

    def play(self, scene: Scene, every: int = 1) -> None:
        """Holds up each of the two before each statement, or before every n-th."""
        allowed = [self._in_order(scene, 0)]
        while self._left:
            allowed.append(self._in_order(scene, len(allowed)))
        for held_up in (0, 1) if len(allowed) == 2 else (0,):
            number = 1
            while self._meet(scene, held_up, number, allowed):
                number += every

    def _prepare(self, scene: Scene, *, alone: bool = False) -> Both:
        """Both stores get what exists before the meeting; `alone`: SQLite."""
        self.pair.begin_anew(alone=alone)
        batches = scene(Stage(self.pair, alone=alone))
        self.pair.clock.now += 1.0
        self.pair.set_clock()
        return batches

    def _in_order(self, scene: Scene, after: int) -> Any:
        """The result of SQLite if the first message comes after this many of the other's."""
        first, *others = self._prepare(scene, alone=True)
        self._left = len(others) - after
        for batch in (*others[:after], first, *others[after:]):
            self.pair.sqlite.write(batch)
        return self._rows(self.pair.rows_of_sqlite)

    def _meet(self, scene: Scene, held_up: int, number: int, allowed: list[Any]) -> bool:
        """False if there are not that many statements."""
        batches = self._prepare(scene)
        one, other = self._stores[held_up], self._stores[1 - held_up]
        one.hold_before(number)
        other.hold_before(0)
        first = self._pool.submit(one.write, batches[held_up])
        while not one.held.wait(0.0005) and not first.done():
            pass
        if not one.held.is_set():
            first.result()
            return False
        rest = batches[1:] if held_up == 0 else batches[:1]
        second = self._pool.submit(lambda: [other.write(batch) for batch in rest])
        self._until_it_waits(other, second)
        one.released.set()
        outcomes = [first.result(PATIENCE_SECONDS), *second.result(PATIENCE_SECONDS)]
        for store, batch, answers in zip(
            (one, *[other] * len(rest)), (batches[held_up], *rest), outcomes, strict=True
        ):
            if any(getattr(answer, "wake_in", None) == 0 for answer in answers):
                store.write(batch)  # it has passed over locked rows, and looks again
        self.met += 1
        found = self._rows(self.pair.rows_of_postgres)
        names = [" and ".join(type(m).__name__ for m in batch) for batch in batches]
        meeting = f"{names.pop(held_up)}, held up before statement {number}, meets {names}"
        if found not in allowed:
            raise AssertionError(f"{meeting}: {outcomes}; {_nearest(found, allowed)}")
        if one.contended or other.contended:
            raise AssertionError(f"{meeting}: they wait for each other")
        return True

    def _until_it_waits(self, store: Watched, done: "Future[Any]") -> None:
        assert store._session.db is not None
        pid = store._session.db.info.backend_pid
        waits = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        while not done.done():
            if self._eye.execute(waits, [pid]).fetchone():
                return
            wait([done], 0.001)

    def _rows(self, of: Callable[[str], Any]) -> dict[str, list[str]]:
        kept = [name for name in self.pair.tables if name not in _UNORDERED]
        return {name: compared(name, of(name)) for name in kept}


def _nearest(found: dict[str, list[str]], allowed: list[dict[str, list[str]]]) -> str:
    """The one of the two orders with the fewest differences."""
    wrong = [
        [
            f"{name} has {sorted(set(found[name]) - set(one[name]))} "
            f"instead of {sorted(set(one[name]) - set(found[name]))}"
            for name in found
            if found[name] != one[name]
        ]
        for one in allowed
    ]
    fewest: list[str] = min(wrong, key=len)
    return "; ".join(fewest)
