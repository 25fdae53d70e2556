"""A fake worker for its probes and watchers: a real event loop, and the test's own settings."""

import asyncio
import contextlib
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from andon.settings import Settings
from andon.store.messages.rows import EventRow, Forsaken, WaitingRuns
from andon.store.messages.stops import StopRow
from andon.store.store import WorkerRow

# Generous: only a failing test reaches it.
LIMIT_SECONDS = 30.0


def until(condition: Callable[[], Any]) -> Any:
    """Wait until `condition` is true, and return its value."""
    end = time.monotonic() + LIMIT_SECONDS
    while not (found := condition()):
        assert time.monotonic() < end, "the condition was never true"
        time.sleep(0.002)
    return found


class FakeStore:
    """A store that answers as the test wants, late or not at all."""

    def __init__(self) -> None:
        self.broken: Exception | None = None
        self.held = threading.Event()
        self.held.set()
        self.rows: list[WaitingRuns] = []
        self.fleet: list[WorkerRow] = []
        self.happened: list[EventRow] = []
        self.asked = 0

    def waiting(self) -> list[WaitingRuns]:
        self.asked += 1
        self.held.wait(LIMIT_SECONDS)
        if self.broken:
            raise self.broken
        return self.rows

    def workers(self) -> list[WorkerRow]:
        return self.fleet

    def forsaken(self) -> list[Forsaken]:
        return [
            Forsaken(agent=row.agent, version=row.version, runs=row.runs, oldest_available_at=0.0)
            for row in self.rows
        ]

    def now(self) -> float:
        return 0.0

    def last_event(self) -> int:
        return 0

    def events(self, after: int, _limit: int) -> list[EventRow]:
        return [event for event in self.happened if event.id > after]

    def stops(self) -> list[StopRow]:
        return []

    def latches(self) -> list[StopRow]:
        return []


class FakeWorker:
    """A fake of `WorkerView`; its loop runs in a thread and can be blocked."""

    def __init__(self, store: Any = None, **settings: Any) -> None:
        self.worker_id = "host.1.abc"
        self.draining = False
        self.started = True
        self.active: dict[Any, Any] = {}
        plain: dict[str, Any] = {"health_port": 0, "health_host": "127.0.0.1"}
        self.settings = Settings(**plain | settings)
        self.store = store or FakeStore()
        self.last_contact = time.monotonic()
        self.told: list[tuple[str, float | None]] = []
        self.numbers: dict[str, float] = {}
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def tell(self, why: str, grace_seconds: float | None = None) -> None:
        self.told.append((why, grace_seconds))
        self.draining = True

    def counts(self) -> dict[str, float]:
        return self.numbers

    @contextlib.contextmanager
    def blocked(self) -> Iterator[None]:
        """Agent code that blocks the event loop."""
        inside, release = threading.Event(), threading.Event()

        def hold() -> None:
            inside.set()
            release.wait(LIMIT_SECONDS)

        self.loop.call_soon_threadsafe(hold)
        assert inside.wait(LIMIT_SECONDS)
        try:
            yield
        finally:
            release.set()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(LIMIT_SECONDS)
        self.loop.close()


class Answer:
    """One answer over HTTP."""

    def __init__(self, status: int, headers: dict[str, str], text: str) -> None:
        self.status, self.headers, self.text = status, headers, text

    @property
    def json(self) -> Any:
        return json.loads(self.text)


def ask(
    port: int,
    path: str,
    method: str = "GET",
    *,
    source: str = "",
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    """Send a request to a server on this machine, from its address `source` if that is given."""
    connection = http.client.HTTPConnection(
        "127.0.0.1",
        port,
        timeout=LIMIT_SECONDS,
        source_address=(source, 0) if source else None,
    )
    with contextlib.closing(connection):
        connection.request(method, path, body=body, headers=headers or {})
        found = connection.getresponse()
        return Answer(found.status, dict(found.getheaders()), found.read().decode())
