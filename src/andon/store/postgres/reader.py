"""The reads of a PostgreSQL store: on a spare connection, or on an open one without room for it."""

import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from andon.errors import StoreError, StoreFull, StoreUnavailable
from andon.store.postgres.connection import SPOILED, Connection, Connector
from andon.store.postgres.notifier import PostgresNotifier
from andon.store.postgres.session import WriteSession
from andon.store.postgres.spare_connection import SpareConnection
from andon.store.sql.reads import Rows

T = TypeVar("T")


class PostgresReader:
    """Runs one query at a time. `lean`: on the connection that writes."""

    def __init__(
        self,
        connector: Connector,
        session: WriteSession,
        spare: SpareConnection,
        notifier: PostgresNotifier,
        sql: dict[str, bytes],
        *,
        lean: bool,
    ) -> None:
        self._connector, self._session = connector, session
        self._spare, self._notifier = spare, notifier
        self._sql, self._lean = sql, lean
        self.lock = threading.Lock()

    def read(self, name: str, /, **params: Any) -> Rows:
        return self.ask(lambda db: db.execute(self._sql[name], params).fetchall())

    def ask(self, question: Callable[[Connection], T]) -> T:
        for last in (False, True):
            if self._session.closed:
                raise StoreError("the store was closed")
            try:
                return self._ask(question)
            except SPOILED as error:
                meaning = self._connector.meaning(error)
                # An idle connection may have ended long ago, which is no reason to fail: retry.
                if (
                    last
                    or isinstance(error, StoreFull)
                    or not isinstance(meaning, StoreUnavailable)
                ):
                    raise meaning from error
        raise AssertionError("unreachable")

    def _ask(self, question: Callable[[Connection], T]) -> T:
        if not self._lean:
            with self.lock:
                # While the spare is lent, open another one only if the notifier's is not open.
                if not (self._spare.lent and self._notifier.open):
                    with contextlib.suppress(StoreFull), self._spare.taken() as db:
                        return question(db)
            if self._notifier.open:
                return self._notifier.ask(question)
            if self._session.sender == threading.get_ident():
                name = self._connector.name
                raise StoreUnavailable(f"{name}: there is no connection left to read on")
        with self._session.lock:
            return question(self._session.connection())
