"""Shutdown triggers other than signals: stop file, latch, cloud preemption notices, health port.

Each watches from a daemon thread. It logs errors and retries; an error ends neither the watch nor
the worker.
"""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from andon.core.fleet.preemption import Notice, grace
from andon.errors import Refused
from andon.runtime.worker.preemption import CLOUDS, FAILED, METADATA_URL, Cloud, Metadata
from andon.settings import Settings

if TYPE_CHECKING:
    from andon.runtime.health.probes import Health

log = logging.getLogger("andon")

# Rare enough that an idle worker costs next to nothing: the cost is waking a thread.
STOP_FILE_SECONDS = 0.5
LATCH_SECONDS = 0.2


class WorkerView(Protocol):
    """A worker as seen from other threads."""

    worker_id: str
    draining: bool
    started: bool  # registered, and its first claim was answered
    loop: asyncio.AbstractEventLoop
    active: dict[Any, Any]  # runs in hand
    settings: Settings
    store: Any  # its calls block
    # time.monotonic() when the store last answered a claim or heartbeat.
    last_contact: float

    def tell(self, why: str, grace_seconds: float | None = None) -> None:
        """Drain the worker. Safe from any thread; a second call changes nothing."""
        ...

    def counts(self) -> dict[str, float]:
        """Numbers for /metrics by name; names of counters end in `_total`."""
        ...


class _Watch:
    """A daemon thread that polls until it sees its trigger, then stops the worker."""

    def __init__(self, worker: WorkerView, name: str) -> None:
        self._worker = worker
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the watch; a request in flight may outlive this by a little."""
        self._ended.set()

    def _work(self) -> None:
        raise NotImplementedError


class StopFile(_Watch):
    """Drains the worker once the file exists; deleting the file afterwards changes nothing."""

    def __init__(self, worker: WorkerView, path: str) -> None:
        self._path = Path(path).absolute()  # the agent's code may change the folder
        super().__init__(worker, "andon-stop-file")

    def _work(self) -> None:
        while not self._ended.wait(STOP_FILE_SECONDS):
            found = stop_order(self._path)
            if found:
                self._worker.tell(found)
                return


def stop_order(path: Path) -> str:
    """Return why the stop file applies, or "". A file that cannot be checked counts as present."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return f"the stop file {path} cannot be checked for: {error.strerror}"
    return f"the stop file {path} is there"


def refuse_if_stopped(path: str) -> None:
    """Refuse to start a worker while its stop file exists."""
    found = stop_order(Path(path).absolute()) if path else ""
    if found:
        raise Refused(f"{found}: nothing starts. To allow work again: rm {path}")


class Latched:
    """Polls `pulled` from a daemon thread until it returns a reason; calls `then` with it, once."""

    def __init__(self, pulled: Callable[[], str], then: Callable[[str], None]) -> None:
        self._pulled, self._then = pulled, then
        self._ended = threading.Event()
        threading.Thread(target=self._work, name="andon-latch", daemon=True).start()

    def close(self) -> None:
        self._ended.set()

    def _work(self) -> None:
        while not self._ended.is_set():
            found = self._look()
            if found:
                self._then(found)
                return
            self._ended.wait(LATCH_SECONDS)

    def _look(self) -> str:
        try:
            return self._pulled()
        except Exception as error:  # noqa: BLE001 (an error in a check is a refusal)
            return f"the latch cannot be read: {type(error).__name__}: {error}"


class Preemption(_Watch):
    """Drains the worker when the cloud announces that it reclaims the machine."""

    def __init__(self, worker: WorkerView, which: str, url: str = "") -> None:
        self._which, self._metadata = which, Metadata(url or METADATA_URL)
        self._level = logging.WARNING  # of the first failure only; repeats say nothing new
        super().__init__(worker, "andon-preemption")

    def _work(self) -> None:
        cloud = self._choose()
        while cloud is not None:
            notice = self._look(cloud)
            if notice is not None:
                own = self._worker.settings.grace_seconds
                self._worker.tell(notice.why, grace(own, notice))
                return
            if self._ended.wait(cloud.every_seconds):
                return

    def _choose(self) -> Cloud | None:
        if self._which != "auto":
            return CLOUDS[self._which](self._metadata)
        for name, cloud in self._answering():
            log.info("preemption: this machine is one of %s", name)
            return cloud
        log.info("preemption: no cloud answers here; nothing is watched")
        return None

    def _answering(self) -> Iterator[tuple[str, Cloud]]:
        for name, kind in CLOUDS.items():
            cloud = kind(self._metadata)
            try:
                answers = cloud.answers()
            except FAILED:
                continue
            if answers:
                yield name, cloud

    def _look(self, cloud: Cloud) -> Notice | None:
        try:
            return cloud.look()
        except FAILED as error:
            name = type(cloud).__name__
            log.log(self._level, "preemption: %s did not answer; still asking: %s", name, error)
            self._level = logging.DEBUG
            return None


@contextlib.contextmanager
def reachable(
    worker: WorkerView, note: Callable[[str], None] = lambda text: None
) -> Iterator["Health | None"]:
    """Start the probes and triggers that the settings ask for, and yield the probes' server.

    They end with the block. Enter it on the event loop before the worker registers, so that a
    start-up probe gets an answer.
    """
    from andon.runtime.health.probes import Health

    settings = worker.settings
    with contextlib.ExitStack() as stack:
        server = None
        if settings.health_port >= 0:
            server = Health(worker)
            stack.callback(server.close)
            host = settings.health_host
            at = f"[{host}]" if ":" in host else host
            note(f"health: http://{at}:{server.port}/readyz")
        if settings.stop_file:
            stack.callback(StopFile(worker, settings.stop_file).close)
        if settings.preemption:
            watch = Preemption(worker, settings.preemption, settings.preemption_url)
            stack.callback(watch.close)
        yield server
