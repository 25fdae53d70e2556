"""Shutdown triggers other than signals: stop file, latch, cloud preemption notices, health port.

Each watches from a daemon thread. It logs errors and retries; an error ends neither the watch nor
the worker.
"""

import asyncio
import contextlib
import http.client
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from andon.core.fleet.preemption import Notice, grace, names_of_azure, of_azure, of_ec2, of_gce
from andon.errors import BadInput, Refused
from andon.settings import Settings

if TYPE_CHECKING:
    from andon.runtime.health.probes import Health

log = logging.getLogger("andon")

# Rare enough that an idle worker costs next to nothing: the cost is waking a thread.
STOP_FILE_SECONDS = 0.5
LATCH_SECONDS = 0.2
# The same address in all three clouds; requests to it do not leave the machine.
METADATA_URL = "http://169.254.169.254"
LARGEST_BYTES = 100_000
# The services refuse requests without these headers, so a redirected request cannot reach them.
GOOGLE, AZURE = {"Metadata-Flavor": "Google"}, {"Metadata": "true"}


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


class Reply(NamedTuple):
    status: int
    body: str
    headers: dict[str, str]  # names in lower case


class Metadata:
    """A machine's metadata service: no proxy, no redirect, short timeouts."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        try:
            self._host, self._port = parts.hostname or "", parts.port or 80
        except ValueError:
            self._host = ""
        if parts.scheme != "http" or not self._host:
            raise BadInput(f"setting 'preemption_url': expected http://HOST[:PORT], found {url!r}")

    def ask(self, method: str, path: str, timeout: float, headers: dict[str, str]) -> Reply:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            body = answer.read(LARGEST_BYTES).decode("utf-8", "replace")
            found = {name.lower(): text for name, text in answer.getheaders()}
            return Reply(answer.status, body, found)
        finally:
            connection.close()


class Ec2:
    """EC2 through IMDSv2: it requests a token first and sends it with every request."""

    # EC2 recommends polling every 5 s; the notice comes two minutes ahead.
    every_seconds = 5.0

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._session = ""

    def answers(self) -> bool:
        return bool(self._new_session(1.0))

    def look(self) -> Notice | None:
        reply = self._ask(self._session or self._new_session(2.0))
        if reply.status == 401:  # the token has expired
            reply = self._ask(self._new_session(2.0))
        return of_ec2(reply.status, reply.body, time.time())

    def _ask(self, session: str) -> Reply:
        path = "/latest/meta-data/spot/instance-action"
        return self._metadata.ask("GET", path, 2.0, {"X-aws-ec2-metadata-token": session})

    def _new_session(self, timeout: float) -> str:
        lasts = {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}
        reply = self._metadata.ask("PUT", "/latest/api/token", timeout, lasts)
        self._session = reply.body.strip() if reply.status == 200 else ""
        return self._session


class Gce:
    """Google Compute Engine: its metadata server holds a request until the answer changes."""

    every_seconds = 0.5
    hold_seconds = 20

    _path = "/computeMetadata/v1/instance/preempted"

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._etag = ""  # of the last answer: a change between two requests is not missed

    def answers(self) -> bool:
        reply = self._metadata.ask("GET", self._path, 1.0, GOOGLE)
        return reply.headers.get("metadata-flavor") == "Google"

    def look(self) -> Notice | None:
        path, timeout = self._path, 2.0
        if self._etag:
            hold = f"wait_for_change=true&timeout_sec={self.hold_seconds}"
            path, timeout = f"{path}?{hold}&last_etag={self._etag}", self.hold_seconds + 5.0
        reply = self._metadata.ask("GET", path, timeout, GOOGLE)
        etag = reply.headers.get("etag", "") if reply.status == 200 else ""
        self._etag = etag if etag.isalnum() else ""
        return of_gce(reply.status, reply.body)


class Azure:
    """Azure scheduled events; the first request enables them and may take two minutes."""

    # Short, because a spot machine has only 30 seconds.
    every_seconds = 1.0

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._names: frozenset[str] = frozenset()

    def answers(self) -> bool:
        self._learn_names(1.0)
        return bool(self._names)

    def look(self) -> Notice | None:
        if not self._names:
            self._learn_names(2.0)
        path = "/metadata/scheduledevents?api-version=2020-07-01"
        reply = self._metadata.ask("GET", path, 10.0, AZURE)
        return of_azure(reply.status, reply.body, time.time(), self._names)

    def _learn_names(self, timeout: float) -> None:
        """Learn this machine's names: events of a scale set name other machines too."""
        path = "/metadata/instance/compute?api-version=2021-02-01"
        reply = self._metadata.ask("GET", path, timeout, AZURE)
        self._names = names_of_azure(reply.status, reply.body)


Cloud = Ec2 | Gce | Azure
CLOUDS: dict[str, Callable[[Metadata], Cloud]] = {"ec2": Ec2, "gce": Gce, "azure": Azure}
# Failures of a request: no network, a truncated answer, nonsense.
_FAILED = (OSError, http.client.HTTPException, ValueError)


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
            except _FAILED:
                continue
            if answers:
                yield name, cloud

    def _look(self, cloud: Cloud) -> Notice | None:
        try:
            return cloud.look()
        except _FAILED as error:
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
