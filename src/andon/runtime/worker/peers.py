"""Who is alive: death is noticed, not waited for.

A worker on this machine is watched through its pidfd, which the kernel makes readable at the
moment of death; pid and start time together name a process for ever. Where that is not possible
(another container, another machine) its lock is looked at. What is only silent keeps its runs
until its lease ends.
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

TYPE_CHECKING = False  # whoever waits for a stop waits for this import too
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from andon.store.store import Seen

# How often the locks of workers elsewhere are looked at by somebody here, if they hold runs.
FOREIGN_SECONDS = 0.1
# How often this process does so at least, and if they hold none.
REFRESH_SECONDS = 2.5
# How often the list of workers is read again if the worker, which looks with its claims, does not,
UNSEEN_SECONDS = 10.0
# and after a ring, of which a busy store has hundreds a second: few of them are about workers.
RUNG_SECONDS = 0.05
# For what a dead worker had started to end: killed processes are gone long before.
REMAINS_SECONDS = 1.0


def this_process() -> WorkerRow:
    """A new incarnation of a worker in this process."""
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
    """Whether another worker's process is certainly gone; None if this cannot be seen from here."""
    if not mine.boot or not other.boot:
        return None
    if (mine.boot, mine.namespace) != (other.boot, other.namespace):
        return None
    return not proc.alive(other.pid, other.start_ticks)


def mark_of(worker: WorkerRow) -> int:
    """The mark of a worker's process, and of all that it starts."""
    return marks.of_process(worker.boot, worker.namespace, worker.pid, worker.start_ticks)


def remains_of(worker: WorkerRow) -> Remains:
    """A worker's process on this host, and everything that it has started."""
    process = mark_of(worker)
    roots = {worker.pid: worker.start_ticks}
    return Remains(roots, lambda found: marks.belongs(found, process), put_on=process)


def has_started_us(worker: WorkerRow) -> bool:
    """Whether this process was started by a run of that worker.

    Then it is one of those that may go on, and cannot say that none is left.
    """
    return marks.belongs(mark.own(), mark_of(worker))


def end_remains(worker: WorkerRow, death: str) -> str:
    """After a worker's death: end what it had started here; answers the evidence.

    Its runs go on elsewhere, and what a run has started must not act meanwhile.
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
        self._told: set[str] = {mine.id}
        self._watched: dict[int, WorkerRow] = {}  # pidfd → worker
        self._foreign: list[WorkerRow] = []
        self._every = REFRESH_SECONDS  # how often their locks are looked at
        self._stale = True
        self._seen: tuple[list[WorkerRow], frozenset[str]] | None = None
        self._ended = False
        self._closing = threading.Lock()
        self._wake_in, self._wake_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._work, name="andon-peers", daemon=True)
        self._thread.start()

    def refresh(self) -> None:
        """Somebody may have come: look again."""
        if not self._stale:
            self._stale = True
            self._wake()

    def see(self, seen: Seen) -> None:
        """The worker has looked, with a claim."""
        self._seen = seen.workers, seen.busy
        self._wake()

    def _wake(self) -> None:
        with self._closing, contextlib.suppress(OSError):
            # Its number may be another file's by now: nobody writes there after the close.
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
                with contextlib.suppress(StoreError):  # away: there is nobody to hand over to
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
            if worker.id in self._told or worker.id in watched:
                continue
            gone = is_gone(self._mine, worker)
            if gone:
                self._end(worker, "its process is gone")
            elif gone is None:
                self._foreign.append(worker)
            elif worker.pid != self._mine.pid:
                self._watch(worker)

        # Those on this host see the same, and look in turn: together as often as one alone would.
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
        # The pid may have been used again since the look above; then this is somebody else.
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
            self._tell(worker, f"{self._store.free_means}:its lock is free")

    def _end(self, worker: WorkerRow, death: str, seen_at: float = 0.0) -> None:
        """Its process has ended; what it had started is ended too."""
        if has_started_us(worker):
            self._told.add(worker.id)  # somebody else sees it, or its lease ends
        else:
            self._tell(worker, end_remains(worker, death), seen_at)

    def _tell(self, worker: WorkerRow, evidence: str, seen_at: float = 0.0) -> None:
        self._told.add(worker.id)
        self._on_death(worker.id, evidence, seen_at)
