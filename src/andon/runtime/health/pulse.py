"""Checks whether a worker's event loop answers and whether the store is available.

Both checks run in threads of their own, one question at a time, so a blocked loop or a hanging
database costs a caller at most `PATIENCE_SECONDS`.
"""

import contextlib
import json
import logging
import threading
import time
from collections import Counter
from typing import NamedTuple

from andon.core.fleet.health import Vitals
from andon.core.run import State
from andon.runtime.worker.triggers import WorkerView
from andon.store.messages.rows import WaitingRuns
from andon.store.store import Store, WorkerRow

log = logging.getLogger("andon")

# How long one look at the store is reused.
FRESH_SECONDS = 5.0
# How long a caller waits for the store before it counts as unavailable. Probes wait little longer.
PATIENCE_SECONDS = 0.8
# How often the event loop is asked.
BEAT_SECONDS = 1.0
EVENTS = 1000


class Stops(NamedTuple):
    """Counts of stops, from the store."""

    latches: int  # scopes that are held now
    open: int  # orders that are not proved yet
    overruns: int  # polite stops that became kills since this worker started counting
    unproved: int  # stops that ended without proof since then


class FleetView(NamedTuple):
    """The store's view of the whole fleet."""

    waiting: list[WaitingRuns]
    # Versions with runs that no live worker takes: [agent, version, number of runs].
    stranded: list[tuple[str, str, int]]
    stops: Stops = Stops(0, 0, 0, 0)


class StorePulse:
    """Queries the store on behalf of all callers, and reuses each answer for a while."""

    def __init__(self, store: Store, limit_seconds: float) -> None:
        self._store = store
        # A stale view of a store that has failed since would make its workers look stuck.
        self._fresh = min(FRESH_SECONDS, limit_seconds / 4)
        self._lock = threading.Lock()
        self._looking: threading.Event | None = None
        self._view: FleetView | None = None
        self._looked_at = 0.0
        self._up_since: float | None = None
        self._after: int | None = None  # the last event that was counted
        self._counted: Counter[str] = Counter()

    def look(self) -> FleetView | None:
        """Return the last view if fresh, else a new one; None if the store is unavailable."""
        with self._lock:
            if self._looked_at and time.monotonic() - self._looked_at < self._fresh:
                return self._view
            if self._looking is None:
                try:
                    threading.Thread(target=self._see, name="andon-look", daemon=True).start()
                except RuntimeError:  # out of threads
                    return None
                self._looking = threading.Event()
            done = self._looking
        answered = done.wait(PATIENCE_SECONDS)
        with self._lock:
            if not answered:
                self._up_since = None
            return self._view if answered else None

    def up_for(self) -> float | None:
        """Return how long the store has been seen to answer; None if it is unavailable."""
        self.look()
        with self._lock:
            return None if self._up_since is None else time.monotonic() - self._up_since

    def close(self) -> None:
        """Wait for a look in progress, so that the store may be closed."""
        with self._lock:
            looking = self._looking
        if looking is not None:
            looking.wait(PATIENCE_SECONDS)

    def _see(self) -> None:
        view = None
        try:
            waiting = self._store.waiting()
            view = FleetView(waiting, _stranded(self._store, waiting), self._stops())
        except Exception as error:  # noqa: BLE001 (any error means the store did not answer)
            log.debug("health: the store did not answer: %s", error)
        with self._lock:
            now = time.monotonic()
            if view is None:
                self._up_since = None
            elif self._up_since is None:
                self._up_since = now
            self._view, self._looked_at = view, now
            done, self._looking = self._looking, None
        if done is not None:
            done.set()

    def _stops(self) -> Stops:
        store = self._store
        if self._after is None:
            self._after = store.last_event()
        while events := store.events(self._after, EVENTS):
            self._counted.update(event.kind for event in events)
            self._after = events[-1].id
        still_open = sum(stop.closed_at is None for stop in store.stops())
        overran, unproved = self._counted["stop.overran"], self._counted["stop.unproved"]
        return Stops(len(store.latches()), still_open, overran, unproved)


def _stranded(store: Store, waiting: list[WaitingRuns]) -> list[tuple[str, str, int]]:
    """Count stranded runs as other views do; query all waiting runs only if there may be some."""
    now = store.now()
    serving = [
        worker
        for worker in store.workers()
        if worker.state == "live" and worker.lease_until >= now and worker.draining_at is None
    ]
    found: dict[tuple[str, str], int] = {}
    for row in waiting:
        if row.state == State.STRANDED:
            found[row.agent, row.version] = found.get((row.agent, row.version), 0) + row.runs
    queued = [row for row in waiting if row.state == State.QUEUED]
    if not all(any(_takes(worker, row) for worker in serving) for row in queued):
        for one in store.forsaken():
            found[one.agent, one.version] = found.get((one.agent, one.version), 0) + one.runs
    return [(agent, version, runs) for (agent, version), runs in sorted(found.items())]


def _takes(worker: WorkerRow, row: WaitingRuns) -> bool:
    serves = worker.queues is None or row.queue in json.loads(worker.queues)
    return serves and [row.agent, row.version] in json.loads(worker.agents)


class Pulse:
    """Asks the event loop repeatedly whether it answers."""

    def __init__(self, worker: WorkerView) -> None:
        self._worker = worker
        self.sight = StorePulse(worker.store, worker.settings.liveness_seconds)
        self._asked_at: float | None = None  # when the unanswered question was asked
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="andon-pulse", daemon=True)
        self._thread.start()

    def seen(self, *, with_store: bool = False) -> Vitals:
        """Return the current state; the store is asked only if requested or if it matters."""
        worker, now, asked_at = self._worker, time.monotonic(), self._asked_at
        contact_age = max(0.0, now - worker.last_contact)
        quiet = contact_age > worker.settings.liveness_seconds / 2
        # A draining worker reports that at once, even if the store hangs.
        asks = worker.started and not worker.draining and (with_store or quiet)
        return Vitals(
            started=worker.started,
            draining=worker.draining,
            loop_silent=0.0 if asked_at is None else now - asked_at,
            contact_age=contact_age if worker.started else 0.0,
            store_up_for=self.sight.up_for() if asks else 0.0,
        )

    def close(self) -> None:
        self._ended.set()
        self._thread.join(PATIENCE_SECONDS)
        self.sight.close()

    def _beat(self) -> None:
        limit = self._worker.settings.liveness_seconds
        while not self._ended.wait(min(BEAT_SECONDS, limit / 4)):
            self._ask()
            quiet = time.monotonic() - self._worker.last_contact > limit / 2
            if quiet and not self._worker.draining:
                self.sight.look()  # keeps up_for() measuring from the store's return

    def _ask(self) -> None:
        if self._asked_at is not None:
            return
        self._asked_at = time.monotonic()
        with contextlib.suppress(RuntimeError):  # loop closed: it will not answer
            self._worker.loop.call_soon_threadsafe(self._answered)

    def _answered(self) -> None:
        self._asked_at = None
