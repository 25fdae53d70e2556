"""`andon drain`: asks workers to drain, and waits until they have exited.

The request goes through the store, which reaches every machine. If the store cannot be reached,
workers of this container get SIGTERM instead: a drain must not depend on the store.
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any

from andon.control import workers
from andon.control.runs.shown_state import Surroundings
from andon.host import proc
from andon.store.store import AskDrain, Store, WorkerRow


def ask(store: Store, chosen: Sequence[WorkerRow], by: str) -> None:
    """Ask workers to drain; workers that have ended meanwhile are skipped."""
    outcomes = store.write([AskDrain(worker_id=worker.id, by=by) for worker in chosen])
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


class Watch:
    """Polls workers until all have ended; calls `on_change` for each whose state changed."""

    def __init__(
        self,
        store: Store,
        ids: Sequence[str],
        on_change: Callable[[dict[str, Any]], None],
        on_look: Callable[[int, int], None] | None = None,
    ) -> None:
        self._store, self._ids = store, ids
        self._on_change, self._on_look = on_change, on_look
        self._seen: dict[str, object] = {}
        self.lines: list[dict[str, Any]] = []

    def look(self) -> bool:
        """Poll once; returns whether all workers have ended."""
        around = Surroundings(self._store)
        rows = {row.id: row for row in self._store.fleet(around.now - workers.RECENT_SECONDS)}
        self.lines = [
            self._line(rows[worker_id], around) for worker_id in self._ids if worker_id in rows
        ]
        for line in self.lines:
            blocks = line["blocked_by"]
            known = line["state"], line["in_hand"], blocks[0]["run"] if blocks else None
            if self._seen.get(line["worker"]) != known:
                self._seen[line["worker"]] = known
                self._on_change(line)
        ended = sum(line["ended"] for line in self.lines)
        if self._on_look is not None:
            self._on_look(ended, len(self.lines))
        return bool(ended == len(self.lines))

    def _line(self, worker: WorkerRow, around: Surroundings) -> dict[str, Any]:
        worker, stands = workers.current(self._store, worker, around)
        told, ended = workers.told_at(worker), worker.state != "live" or stands == workers.DIED
        held = [] if ended else [one.run_id for one in self._store.held_by(worker.id, inf)]
        end = worker.ended_at if worker.ended_at is not None else around.now
        return {
            "worker": worker.id,
            "state": stands,
            "ended": ended,
            "in_hand": len(held),
            "took_seconds": None if told is None else round(max(end - told, 0.0), 3),
            "overran": workers.overrun(worker, around.now),
            "blocked_by": workers.blocked_by(self._store, held, around.now),
        }


def processes(url: str) -> list[int]:
    """The pids of workers of this store, among this user's processes in this pid namespace."""
    found = []
    for pid in proc.every_pid():
        if pid == os.getpid() or os.geteuid() not in proc.uids(pid)[1:2]:
            continue
        with contextlib.suppress(OSError):
            line = proc.words(pid)
            environ = proc.from_any_thread(pid, "environ") if is_worker(line) else b""
            if is_worker(line) and serves(line, environ, Path(f"/proc/{pid}/cwd"), url):
                found.append(pid)
    return sorted(found)


def serves(line: Sequence[str], environ: bytes, folder: Path, url: str) -> bool:
    """Whether a worker serves this store, by its arguments, its environment or its folder."""
    for word, following in zip(line, [*line[1:], ""], strict=True):
        if word == "--store" or word.startswith("--store="):
            return url == (following if word == "--store" else word.removeprefix("--store="))
    for pair in environ.decode("utf-8", "replace").split("\0"):
        name, _, given = pair.partition("=")
        if name == "ANDON_STORE" and given:
            return given == url
    return folder.resolve() == Path.cwd()


def is_worker(line: Sequence[str]) -> bool:
    """Whether a command line is `andon work` or `python -m andon work`, with any Python."""
    words = list(line)
    if words and Path(words[0]).name.startswith("python"):
        del words[0]
        words = words[1:] if words[:1] == ["-m"] else words
    return len(words) > 1 and Path(words[0]).name == "andon" and "work" in words[1:]


@contextlib.contextmanager
def signalled(pids: Iterable[int], ticks: dict[int, int] | None = None) -> Iterator[dict[int, int]]:
    """Send SIGTERM to these processes and to no others; yields pidfd → pid."""
    sent: dict[int, int] = {}
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                descriptor = os.pidfd_open(pid)
                # The pid may belong to another process by now. An open pidfd keeps its process, so
                # the start time is compared after the open.
                if ticks is None or ticks.get(pid) == proc.start_ticks(pid):
                    sent[descriptor] = pid
                    signal.pidfd_send_signal(descriptor, signal.SIGTERM)
                else:
                    os.close(descriptor)
        yield sent
    finally:
        for descriptor in sent:
            os.close(descriptor)


def await_ends(signalled: dict[int, int], timeout: float) -> list[int]:
    """The pids of those that have not ended in time."""
    poll, left = select.poll(), dict(signalled)
    for descriptor in left:
        poll.register(descriptor, select.POLLIN)
    until = time.monotonic() + timeout
    while left and (rest := until - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(rest * 1000):
            poll.unregister(descriptor)
            del left[descriptor]
    return sorted(left.values())
