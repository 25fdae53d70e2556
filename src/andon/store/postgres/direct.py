"""Statements sent from the event loop, without the writer's thread.

If all its runs wait, a worker gains nothing from the writer's thread and pays for two thread
switches at every step; and while the server carries out one half of a turn, the loop can execute
the other. The statements and the connection are the thread's own, used through libpq's non-blocking
calls. All statements up to a sync are one transaction.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from functools import cache
from struct import Struct as Packing
from typing import Any

import psycopg
from psycopg import pq
from psycopg.pq import Format

from andon.store.postgres.arrays import packed
from andon.store.postgres.batch import Transaction
from andon.store.sql.reads import Rows

_INT8, _TEXT, _FLOAT8, _BOOL = 20, 25, 701, 16
_KINDS = {
    **dict.fromkeys(("counter", "epoch", "progress", "seq", "fence"), _INT8),
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

_Encoder = Callable[[Any], bytes]
_ENCODERS: dict[int, _Encoder] = {
    _INT8: b"%d".__mod__,
    _TEXT: str.encode,
    _FLOAT8: Packing("!d").pack,
    _BOOL: b"%d".__mod__,
}

_numbers = itertools.count()

_Given = tuple[list[bytes | None], list[int]]


class Direct:
    """Prepares and sends statements on one connection."""

    def __init__(self, db: "psycopg.Connection[Any]", sql: dict[str, bytes]) -> None:
        self.link = db.pgconn
        self._sql = sql
        self._prepared: dict[str, bytes] = {}  # our name → the server's name
        self._number = next(_numbers)  # an earlier Direct may have used this connection
        self._syncs = 0  # syncs that have not been answered
        self._last: Any = None  # the last answer of a statement
        self.unsent = False  # the network has not taken everything yet

    def fileno(self) -> int:
        return self.link.socket

    def send(self, transactions: Sequence[Transaction]) -> None:
        """Send transactions behind those that are in flight."""
        given = [[(name, self._given(name, of)) for name, of in one] for one in transactions]
        if not self._syncs:
            self.link.enter_pipeline_mode()
        for statements in given:
            for name, (values, formats) in statements:
                command = self._prepared.get(name) or self._prepare(name)
                self.link.send_query_prepared(command, values, formats)
            self.link.pipeline_sync()
        self._syncs += len(transactions)
        self.unsent = bool(self.link.flush())

    def _given(self, name: str, params: dict[str, Any]) -> _Given:
        """Encode the parameters; statements for many rows take arrays, in binary form."""
        if name.endswith("_many"):
            _text, names = _numbered(self._sql[name])
            return [packed(params[one]) for one in names], [Format.BINARY] * len(names)
        names, formats, encoders = _shape(self._sql[name])
        return _encoded([params[one] for one in names], encoders), formats

    def _prepare(self, name: str) -> bytes:
        text, names = _numbered(self._sql[name])
        # The statement itself declares the types of arrays.
        kinds = [0 if name.endswith("_many") else _KINDS.get(one, _TEXT) for one in names]
        command = self._prepared[name] = f"andon_{name}_{self._number}".encode()
        self.link.send_prepare(command, text, kinds)
        return command

    def receive(self) -> list[Rows]:
        """Return the rows of the last statement of each newly answered transaction, in order."""
        if self.unsent:
            self.unsent = bool(self.link.flush())
        self.link.consume_input()
        found: list[Rows] = []
        while self._syncs and not self.link.is_busy():
            result = self.link.get_result()
            if result is None:  # the end of one statement's answer
                continue
            if result.status == pq.ExecStatus.PIPELINE_SYNC:
                self._syncs -= 1
                found.append(_rows(self._last))
            elif result.status == pq.ExecStatus.TUPLES_OK:
                self._last = result
            elif result.status != pq.ExecStatus.COMMAND_OK:  # COMMAND_OK answers a prepare
                raise psycopg.OperationalError(result.get_error_message())
        if not self._syncs:
            self.link.exit_pipeline_mode()
        return found


@cache
def _numbered(sql: bytes) -> tuple[bytes, list[str]]:
    """Return the statement with numbered parameters, and their names in order."""
    names: list[str] = []

    def number(found: re.Match[str]) -> str:
        if found[1] not in names:
            names.append(found[1])
        return f"${names.index(found[1]) + 1}"

    return re.sub(r"%\((\w+)\)s", number, sql.decode()).encode(), names


@cache
def _shape(sql: bytes) -> tuple[list[str], list[int], list[_Encoder]]:
    """Return a statement's parameter names in order, their formats (floats binary) and encoders."""
    names = _numbered(sql)[1]
    kinds = [_KINDS.get(one, _TEXT) for one in names]
    formats: list[int] = [Format.BINARY if one == _FLOAT8 else Format.TEXT for one in kinds]
    return names, formats, [_ENCODERS[one] for one in kinds]


def _encoded(values: list[Any], encoders: list[_Encoder]) -> list[bytes | None]:
    """Encode all values with C-level callables: every step goes through here."""
    text = "".join([value for value in values if value.__class__ is str])
    if "\0" in text:
        raise UnicodeEncodeError("utf-8", text, 0, 1, "it contains NUL (0x00)")
    return [
        None if value is None else encode(value)
        for encode, value in zip(encoders, values, strict=True)
    ]


def _rows(result: Any) -> Rows:
    if not result.ntuples:
        return []
    loaders = [_LOADERS.get(result.ftype(at), bytes.decode) for at in range(result.nfields)]
    return [
        tuple(
            None if (raw := result.get_value(row, at)) is None else load(raw)
            for at, load in enumerate(loaders)
        )
        for row in range(result.ntuples)
    ]
