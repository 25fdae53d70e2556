"""One message without a thread: sent at once, its answer taken when the event loop sees it.

A single run gains nothing from the writer's thread and pays for two switches at every step, at its
start and at its claim. These are the same statements as in a batch of one, on the same connection,
spoken through libpq's non-blocking calls. What is sent up to a sync is one transaction.
"""

import re
import select
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg import pq

from andon.store.postgres_batch import Transaction
from andon.store.reads import Rows

_INT8, _TEXT, _FLOAT8, _BOOL = 20, 25, 701, 16
_KINDS = {
    **dict.fromkeys(("counter", "epoch", "before", "last", "progress", "seq", "fence"), _INT8),
    **dict.fromkeys(("e_seq", "e_fence", "priority", "limit", "suspect_from"), _INT8),
    **dict.fromkeys(("claim", "number"), _INT8),
    **dict.fromkeys(("since", "at", "start_at", "delay_seconds", "e_undo_within"), _FLOAT8),
    "e_quiet": _BOOL,
}
_LOADERS: dict[int, Callable[[bytes], Any]] = {
    _INT8: int,
    23: int,
    _FLOAT8: float,
    _BOOL: b"t".__eq__,
}


class Direct:
    """The statements, prepared on one connection."""

    def __init__(self, db: "psycopg.Connection[Any]", sql: dict[str, bytes]) -> None:
        self.link = db.pgconn
        self._sql = sql
        self._prepared: dict[str, tuple[bytes, list[str]]] = {}  # with the names of parameters
        self._syncs = 0  # that have not been answered
        self._last: Any = None  # answer of a statement
        self._first: Any = None  # answer of a transaction: that of its last statement

    def send(self, transactions: Sequence[Transaction]) -> int:
        """Send the statements; answers the descriptor on which their answers will come."""
        ready = [[self._ready(*one) for one in statements] for statements in transactions]
        self._first, self._syncs = None, len(transactions)
        self.link.enter_pipeline_mode()
        for statements in ready:
            for command, given in statements:
                self.link.send_query_prepared(command, given)
            self.link.pipeline_sync()
        while self.link.flush():  # what is sent here is small: the network takes it at once
            select.select([], [self.link.socket], [], 1.0)
        return self.link.socket

    def _ready(self, name: str, params: dict[str, Any]) -> tuple[bytes, list[bytes | None]]:
        """The prepared statement, and its parameters as they are sent."""
        if name not in self._prepared:
            self._prepare(name)
        command, names = self._prepared[name]
        return command, [_encoded(params[one]) for one in names]

    def _prepare(self, name: str) -> None:
        names: list[str] = []

        def number(found: re.Match[str]) -> str:
            if found[1] not in names:
                names.append(found[1])
            return f"${names.index(found[1]) + 1}"

        text = re.sub(r"%\((\w+)\)s", number, self._sql[name].decode())
        command = f"andon_{name}".encode()
        kinds = [_KINDS.get(name, _TEXT) for name in names]
        prepared = self.link.prepare(command, text.encode(), kinds)
        if prepared.status != pq.ExecStatus.COMMAND_OK:
            raise psycopg.OperationalError(prepared.get_error_message())
        self._prepared[name] = command, names

    def receive(self) -> tuple[Rows, bool] | None:
        """What the last statement of the first transaction answers, and whether more is to come.

        None: it is not there yet.
        """
        self.link.consume_input()
        while self._syncs and not self.link.is_busy():
            result = self.link.get_result()
            if result is None:  # the end of one statement's answer
                continue
            if result.status == pq.ExecStatus.PIPELINE_SYNC:
                self._syncs -= 1
                self._first = self._last if self._first is None else self._first
            elif result.status == pq.ExecStatus.TUPLES_OK:
                self._last = result
            else:
                raise psycopg.OperationalError(result.get_error_message())
        if not self._syncs:
            self.link.exit_pipeline_mode()
        return None if self._first is None else (_rows(self._first), self._syncs > 0)


def _encoded(value: Any) -> bytes | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else repr(value)
    if "\0" in text:
        raise UnicodeEncodeError("utf-8", text, 0, 1, "it contains NUL (0x00)")
    return text.encode()


def _rows(result: Any) -> Rows:
    loaders = [_LOADERS.get(result.ftype(at), bytes.decode) for at in range(result.nfields)]
    return [
        tuple(
            None if (raw := result.get_value(row, at)) is None else load(raw)
            for at, load in enumerate(loaders)
        )
        for row in range(result.ntuples)
    ]
