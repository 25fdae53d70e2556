"""One append without a thread: sent at once, its answer taken when the event loop sees it.

A single run gains nothing from the writer's thread and pays for two switches at every step. This
is the same statement as the short path of a batch of one, on the same connection, spoken through
libpq's non-blocking calls.
"""

import re
import select
from typing import Any

import psycopg
from psycopg import pq

from andon.store.groups import Group
from andon.store.postgres_batch import params_of_one

_NAME = b"andon_append_one"
_INT8, _TEXT, _FLOAT8 = 20, 25, 701
_KINDS = {
    **dict.fromkeys(("counter", "epoch", "before", "last", "progress", "seq", "fence"), _INT8),
    **dict.fromkeys(("since", "at"), _FLOAT8),
}


class Direct:
    """The statement, prepared on one connection."""

    def __init__(self, db: "psycopg.Connection[Any]", sql: str) -> None:
        self.link = db.pgconn
        self.names: list[str] = []

        def number(found: re.Match[str]) -> str:
            if found[1] not in self.names:
                self.names.append(found[1])
            return f"${self.names.index(found[1]) + 1}"

        command = re.sub(r"%\((\w+)\)s", number, sql)
        kinds = [_KINDS.get(name, _TEXT) for name in self.names]
        prepared = self.link.prepare(_NAME, command.encode(), kinds)
        if prepared.status != pq.ExecStatus.COMMAND_OK:
            raise psycopg.OperationalError(prepared.get_error_message())

    def send(self, group: Group) -> int:
        """Send the append; answers the descriptor on which its answer will come."""
        params = params_of_one(group)
        self.link.send_query_prepared(_NAME, [_encoded(params[name]) for name in self.names])
        while self.link.flush():  # what is sent here is small: the network takes it at once
            select.select([], [self.link.socket], [], 1.0)
        return self.link.socket

    def receive(self) -> bool | None:
        """True: written. False: refused, or written before. None: the answer is not whole yet."""
        self.link.consume_input()
        if self.link.is_busy():
            return None
        written = False
        while (result := self.link.get_result()) is not None:
            if result.status != pq.ExecStatus.TUPLES_OK:
                raise psycopg.OperationalError(result.get_error_message())
            written = result.ntuples == 1
        return written


def _encoded(value: Any) -> bytes | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else repr(value)
    if "\0" in text:
        raise UnicodeEncodeError("utf-8", text, 0, 1, "it contains NUL (0x00)")
    return text.encode()
