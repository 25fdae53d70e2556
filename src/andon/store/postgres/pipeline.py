"""Batches sent and received by an event loop; several may be in flight at once.

The sender holds the writing connection until all are answered. The server carries them out in the
order in which they were sent.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence

import psycopg

from andon.errors import StoreUnavailable
from andon.store.handlers import concerns_others
from andon.store.postgres import batch as batches
from andon.store.postgres.connection import SPOILED, Connector
from andon.store.postgres.direct import Direct
from andon.store.postgres.notifier import PostgresNotifier
from andon.store.postgres.session import WriteSession
from andon.store.sql.reads import Rows
from andon.store.store import Message, Outcome, Start

NOTIFY: batches.Transaction = [("notify", {})]


class _Flight:
    """A batch in flight."""

    __slots__ = ("batch", "left", "notifies", "open", "outcomes")

    def __init__(self, batch: Sequence[Message], transactions: int, *, notifies: bool) -> None:
        self.batch, self.open, self.notifies = batch, transactions, notifies
        self.outcomes: list[Outcome] = [None] * len(batch)
        self.left: list[int] = []  # the places of messages that were not carried out


class Pipeline:
    """Sends batches on the connection that writes, without waiting for their answers."""

    def __init__(
        self, connector: Connector, session: WriteSession, notifier: PostgresNotifier
    ) -> None:
        self._connector, self._session, self._notifier = connector, session, notifier
        self._direct: Direct | None = None  # the connection that the batches in flight use
        # For each transaction the function that takes its answer; None for a notification.
        self._expected: deque[tuple[_Flight, Callable[..., list[int]]] | None] = deque()

    def send(self, batch: Sequence[Message], *, behind: bool = False) -> Direct | None:
        """Send a batch and hold the connection for it; return None if that is impossible now.

        Otherwise return the object to watch; the caller must call `receive` until nothing is in
        flight.
        """
        sent = None if self._connector.pooled else batches.directly(batch)
        if sent is None or not (behind or self._begin_sending()):
            return None
        # A notification sent directly behind the commit arrives two thread switches earlier.
        notifies = Start in map(type, batch) and self._notifier.may_notify()
        transactions = [one.statements for one in sent]
        try:
            direct = self._direct = self._session.direct()
            direct.send([*transactions, NOTIFY] if notifies else transactions)
        except psycopg.Error as error:
            raise self._lost() from error
        except SPOILED:  # nothing was sent
            if not self._expected:
                self._end_sending()
            return None
        flight = _Flight(batch, len(sent), notifies=notifies)
        self._expected += [(flight, one.take) for one in sent]
        if notifies:
            self._expected.append(None)
        return direct

    def _begin_sending(self) -> bool:
        if not self._session.lock.acquire(blocking=False):
            return False
        self._session.sender = threading.get_ident()
        return True

    def receive(self) -> tuple[list[tuple[list[Outcome], list[int]]], bool]:
        """Return the newly answered batches, and whether more are in flight.

        Each batch is its outcomes and the places not carried out. Raises StoreUnavailable if the
        outcome of everything in flight is unknown.
        """
        assert self._direct is not None
        try:
            answers = self._direct.receive()
        except psycopg.Error as error:
            raise self._lost() from error
        flights = [flight for rows in answers if (flight := self._take(rows)) is not None]
        if not self._expected:
            self._end_sending()
        return [(flight.outcomes, flight.left) for flight in flights], bool(self._expected)

    def unsent(self) -> bool:
        """Return whether unsent data remains; if so, call `receive` when the socket is writable."""
        return self._direct is not None and self._direct.unsent

    def _take(self, rows: Rows) -> _Flight | None:
        """Take one answer; return the flight that it completes, if any."""
        expected = self._expected.popleft()
        if expected is None:
            return None
        flight, take = expected
        flight.left += take(rows, flight.outcomes)
        flight.open -= 1
        if flight.open:
            return None
        outcomes = flight.outcomes
        if flight.left or (not flight.notifies and concerns_others(flight.batch, outcomes)):
            self._notifier.notify()
        return flight

    def _lost(self) -> StoreUnavailable:
        self._session.drop()
        self._expected.clear()
        self._end_sending()
        return StoreUnavailable(f"{self._connector.name}: the connection was lost")

    def _end_sending(self) -> None:
        self._session.sender = None
        self._session.lock.release()
