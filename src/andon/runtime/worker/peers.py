"""Watches other workers, so that a death is noticed at once instead of when a lease ends.

A worker on this machine is watched through its pidfd, which the kernel makes readable at the moment
of death; pid and start time together identify a process for ever. Where that is impossible (another
container, another machine) the worker's lock is checked. A worker that is merely silent keeps its
runs until its lease ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time

from andon.core import mark as marks
from andon.core.lease import ENDED
from andon.errors import StoreError
from andon.host import mark, proc
from andon.host.remains import Remains
from andon.store.store import WorkerRow

TYPE_CHECKING = False  # not typing's: a caller waiting for a stop would also wait for that import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from andon.store.store import FleetState

# How often this host checks the locks of workers elsewhere that hold runs.
FOREIGN_SECONDS = 0.1
# How often this process checks at least, and when those workers hold no runs.
REFRESH_SECONDS = 2.5
# How often the list of workers is read again if the worker's claims do not bring it,
UNSEEN_SECONDS = 10.0
# and the delay after a notification: a busy store sends hundreds a second, few about workers.
NOTIFIED_SECONDS = 0.05
# For processes a dead worker had started to end: killed ones are gone long before.
REMAINS_SECONDS = 1.0


def this_process() -> WorkerRow:
    """Identify a new incarnation of the worker in this process."""
    pid, host = os.getpid(), os.uname().nodename
    return WorkerRow(
        id=f"{host}.{pid}.{os.urandom(4).hex()}",
        host=host,
        boot=proc.boot_id(),
        namespace=proc.pid_namespace(),
        pid=pid,
        start_ticks=proc.start_ticks(pid),
    )


def is_gone(mine: WorkerRow, other: WorkerRow) -> bool | None:
    """Whether another worker's process is certainly gone; None if this host cannot tell."""
    if not mine.boot or not other.boot:
        return None
    if (mine.boot, mine.namespace) != (other.boot, other.namespace):
        return None
    return not proc.alive(other.pid, other.start_ticks)


def mark_of(worker: WorkerRow) -> int:
    """The mark carried by a worker's process and by everything it starts."""
    return marks.of_process(worker.boot, worker.namespace, worker.pid, worker.start_ticks)


def remains_of(worker: WorkerRow) -> Remains:
    """A worker's process on this host, and everything that it has started."""
    process = mark_of(worker)
    roots = {worker.pid: worker.start_ticks}
    return Remains(roots, lambda found: marks.belongs(found, process), put_on=process)


def has_started_us(worker: WorkerRow) -> bool:
    """Whether a run of that worker started this process.

    If so, it is one of the processes that may outlive the worker, and cannot report that none is
    left.
    """
    return marks.belongs(mark.own(), mark_of(worker))


def end_remains(worker: WorkerRow, death: str) -> str:
    """End the processes that a dead worker had started here; returns the evidence.

    The worker's runs continue elsewhere, and the processes they started must not act meanwhile.
    """
    remains = remains_of(worker)
    if not remains.end(REMAINS_SECONDS):
        return f"silent:{death}; what it had started could not be ended: {_named(remains)}"
    ended = remains.named(sorted(set(remains.known) - {worker.pid}))
    return f"dead:{death}" + (f"; ended with it: {ended}" if ended else "")


def _named(remains: Remains) -> str:
    return remains.named(remains.survivors)


class Peers:
    """Watches all other workers from a thread of its own."""

    def __init__(
        self, store: Any, mine: WorkerRow, on_death: Callable[[str, str, float], None]
    ) -> None:
        self._store, self._mine, self._on_death = store, mine, on_death
        self._reported: set[str] = {mine.id}
        self._watched: dict[int, WorkerRow] = {}  # pidfd → worker
        self._foreign: list[WorkerRow] = []
        self._every = REFRESH_SECONDS  # how often to check foreign locks
        self._stale = True
        self._seen: tuple[list[WorkerRow], frozenset[str]] | None = None
        self._ended = False
        self._closing = threading.Lock()
        self._wake_in, self._wake_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._work, name="andon-peers", daemon=True)
        self._thread.start()

    def refresh(self) -> None:
        """Read the list of workers again, because a new one may have joined."""
        if not self._stale:
            self._stale = True
            self._wake()

    def see(self, seen: FleetState) -> None:
        """Use the list of workers that the worker read along with a claim."""
        self._seen = seen.workers, seen.busy
        self._wake()

    def _wake(self) -> None:
        with self._closing, contextlib.suppress(OSError):
            # After the close this descriptor number may belong to another file: do not write to it.
            if self._wake_out >= 0:
                os.write(self._wake_out, b"!")

    def close(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._wake()
        self._thread.join()
        with self._closing:
            for descriptor in (*self._watched, self._wake_in, self._wake_out):
                os.close(descriptor)
            self._wake_out = -1

    def _work(self) -> None:
        refreshed, checked = 0.0, 0.0
        while not self._ended:
            now = time.monotonic()
            seen, self._seen = self._seen, None
            if self._stale or seen is not None or now - refreshed > UNSEEN_SECONDS:
                stale, self._stale, refreshed = self._stale, False, now
                with contextlib.suppress(StoreError):  # unavailable: nothing to hand over
                    if stale or seen is None:
                        seen = self._store.workers(), self._store.busy()
                    self._look_around(*seen)
            self._wait(self._every if self._foreign else REFRESH_SECONDS)
            now = time.monotonic()
            if self._foreign and now - checked >= 0.9 * self._every:
                checked = now
                with contextlib.suppress(StoreError):
                    self._check_foreign()

    def _wait(self, seconds: float) -> None:
        poll = select.poll()
        for descriptor in (*self._watched, self._wake_in):
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(seconds * 1000):
            if descriptor == self._wake_in:
                with contextlib.suppress(OSError):
                    os.read(self._wake_in, 4096)
            else:
                worker = self._watched.pop(descriptor)
                os.close(descriptor)
                self._end(worker, ENDED, time.monotonic())

    def _look_around(self, workers: list[WorkerRow], busy: frozenset[str]) -> None:
        watched = {worker.id for worker in self._watched.values()}
        self._foreign = []
        for worker in workers:
            if worker.id in self._reported or worker.id in watched:
                continue
            gone = is_gone(self._mine, worker)
            if gone:
                self._end(worker, "its process is gone")
            elif gone is None:
                self._foreign.append(worker)
            elif worker.pid != self._mine.pid:
                self._watch(worker)

        # Every worker on this host checks in turn, so together they check as often as one would
        # alone.
        together = FOREIGN_SECONDS * (len(workers) - len(self._foreign))
        held = any(worker.id in busy for worker in self._foreign)
        self._every = (
            min(max(together, FOREIGN_SECONDS), REFRESH_SECONDS) if held else REFRESH_SECONDS
        )

    def _watch(self, worker: WorkerRow) -> None:
        try:
            descriptor = os.pidfd_open(worker.pid)
        except ProcessLookupError:
            self._end(worker, "its process is gone")
            return
        except (OSError, AttributeError):
            self._foreign.append(worker)
            return
        # The pid may have been reused since the check above; then this is another process.
        if proc.alive(worker.pid, worker.start_ticks):
            self._watched[descriptor] = worker
        else:
            os.close(descriptor)
            self._end(worker, "its process is gone")

    def _check_foreign(self) -> None:
        gone, soon = self._store.lost(self._foreign)
        if soon:
            self._every = FOREIGN_SECONDS
        for worker in gone:
            self._foreign.remove(worker)
            self._report(worker, f"{self._store.free_means}:its lock is free")

    def _end(self, worker: WorkerRow, death: str, seen_at: float = 0.0) -> None:
        """Report a worker whose process has ended, after ending what it had started."""
        if has_started_us(worker):
            self._reported.add(worker.id)  # another worker notices, or its lease ends
        else:
            self._report(worker, end_remains(worker, death), seen_at)

    def _report(self, worker: WorkerRow, evidence: str, seen_at: float = 0.0) -> None:
        self._reported.add(worker.id)
        self._on_death(worker.id, evidence, seen_at)
