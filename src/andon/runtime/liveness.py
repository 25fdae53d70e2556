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

from andon.errors import StoreError
from andon.store.store import WorkerRow

TYPE_CHECKING = False  # whoever waits for a stop waits for this import too
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# How often the locks of workers elsewhere are looked at.
FOREIGN_SECONDS = 0.1
# How often the list of workers is read again without a ring,
REFRESH_SECONDS = 1.0
# and after a ring, of which a busy store has hundreds a second: few of them are about workers.
RUNG_SECONDS = 0.05


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def start_ticks(pid: int) -> int | None:
    """When a process started, by the kernel's count; None if there is none."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    # One that nobody has waited for yet executes nothing any more, unless it has other threads.
    if not fields or (fields[0] in "ZX" and int(fields[17]) <= 1):
        return None
    return int(fields[19])


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def this_process() -> WorkerRow:
    """A new incarnation of a worker in this process."""
    pid, host = os.getpid(), os.uname().nodename
    return WorkerRow(
        id=f"{host}.{pid}.{os.urandom(4).hex()}",
        host=host,
        boot=_read("/proc/sys/kernel/random/boot_id"),
        namespace=_namespace(),
        pid=pid,
        start_ticks=start_ticks(pid) or 0,
    )


def is_gone(mine: WorkerRow, other: WorkerRow) -> bool | None:
    """Whether another worker's process is certainly gone; None if this cannot be seen from here."""
    if not mine.boot or not other.boot:
        return None
    if (mine.boot, mine.namespace) != (other.boot, other.namespace):
        return None
    return start_ticks(other.pid) != other.start_ticks


class Peers:
    """Watches all other workers from a thread of its own."""

    def __init__(self, store: Any, mine: WorkerRow, on_death: Callable[[str, str], None]) -> None:
        self._store, self._mine, self._on_death = store, mine, on_death
        self._told: set[str] = {mine.id}
        self._watched: dict[int, WorkerRow] = {}  # pidfd → worker
        self._foreign: list[WorkerRow] = []
        self._stale = True
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
        refreshed = 0.0
        while not self._ended:
            now = time.monotonic()
            if self._stale or now - refreshed > REFRESH_SECONDS:
                self._stale, refreshed = False, now
                with contextlib.suppress(StoreError):  # away: there is nobody to hand over to
                    self._look_around()
            self._wait(FOREIGN_SECONDS if self._foreign else REFRESH_SECONDS)
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
                self._tell(worker, "dead:its process ended")

    def _look_around(self) -> None:
        watched = {worker.id for worker in self._watched.values()}
        self._foreign = []
        for worker in self._store.workers():
            if worker.id in self._told or worker.id in watched:
                continue
            gone = is_gone(self._mine, worker)
            if gone:
                self._tell(worker, "dead:its process is gone")
            elif gone is None:
                self._foreign.append(worker)
            elif worker.pid != self._mine.pid:
                self._watch(worker)

    def _watch(self, worker: WorkerRow) -> None:
        try:
            descriptor = os.pidfd_open(worker.pid)
        except ProcessLookupError:
            self._tell(worker, "dead:its process is gone")
            return
        except (OSError, AttributeError):
            self._foreign.append(worker)
            return
        # The pid may have been used again since the look above; then this is somebody else.
        if start_ticks(worker.pid) == worker.start_ticks:
            self._watched[descriptor] = worker
        else:
            os.close(descriptor)
            self._tell(worker, "dead:its process is gone")

    def _check_foreign(self) -> None:
        for worker in list(self._foreign):
            if self._store.is_free(worker):
                self._foreign.remove(worker)
                self._tell(worker, f"{self._store.free_means}:its lock is free")

    def _tell(self, worker: WorkerRow, evidence: str) -> None:
        self._told.add(worker.id)
        self._on_death(worker.id, evidence)
