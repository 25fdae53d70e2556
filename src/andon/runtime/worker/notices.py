"""Ways to be told without a signal: the stop file, the latch, and the notices of clouds.

Each watches from a daemon thread. What goes wrong in it is logged and tried again; it never ends
the watch, and never the worker.
"""

import http.client
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from andon.core.fleet.preemption import Notice, grace, names_of_azure, of_azure, of_ec2, of_gce
from andon.errors import BadInput, Refused
from andon.runtime.worker.view import Told

log = logging.getLogger("andon")

# Rarely enough that an idle worker costs next to nothing: waking a thread is what it costs.
STOP_FILE_SECONDS = 0.5
LATCH_SECONDS = 0.2
# Of all three clouds; it leaves the machine on no network.
METADATA_URL = "http://169.254.169.254"
LARGEST_BYTES = 100_000
# Without them they refuse: a request that was redirected to them would not have them.
GOOGLE, AZURE = {"Metadata-Flavor": "Google"}, {"Metadata": "true"}


class _Watch:
    """A daemon thread that looks until it has seen something, and then tells."""

    def __init__(self, told: Told, name: str) -> None:
        self._told = told
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """It may be in the middle of a question, which it does not outlive by much."""
        self._ended.set()

    def _work(self) -> None:
        raise NotImplementedError


# ── the stop file ─────────────────────────────────────────────────────────────────────────────


class StopFile(_Watch):
    """Creating the file drains; deleting it afterwards changes nothing."""

    def __init__(self, told: Told, path: str) -> None:
        self._path = Path(path).absolute()  # the agent's code may change the folder
        super().__init__(told, "andon-stop-file")

    def _work(self) -> None:
        while not self._ended.wait(STOP_FILE_SECONDS):
            found = stop_order(self._path)
            if found:
                self._told.tell(found)
                return


def stop_order(path: Path) -> str:
    """What the stop file says; nothing if it is not there. What cannot be seen counts as there."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return f"the stop file {path} cannot be checked for: {error.strerror}"
    return f"the stop file {path} is there"


def refuse_if_stopped(path: str) -> None:
    """A worker does not start while its stop file is there."""
    found = stop_order(Path(path).absolute()) if path else ""
    if found:
        raise Refused(f"{found}: nothing starts. To allow work again: rm {path}")


# ── the latch of this host ────────────────────────────────────────────────────────────────────


class Latched:
    """Looks from a daemon thread until `pulled` says why; then calls `then` with it, once."""

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
        except Exception as error:  # noqa: BLE001 (an error inside a check is a refusal)
            return f"the latch cannot be read: {type(error).__name__}: {error}"


# ── clouds ────────────────────────────────────────────────────────────────────────────────────


class Reply(NamedTuple):
    status: int
    body: str
    headers: dict[str, str]  # names in small letters


class Metadata:
    """The metadata service of a machine: no proxy, no redirect, no long wait."""

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
    """IMDSv2: a pass is asked for first and shown with every question."""

    # As EC2 recommends; the notice comes two minutes before.
    every_seconds = 5.0

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._pass = ""

    def answers(self) -> bool:
        return bool(self._admitted(1.0))

    def look(self) -> Notice | None:
        reply = self._ask(self._pass or self._admitted(2.0))
        if reply.status == 401:  # it has run out
            reply = self._ask(self._admitted(2.0))
        return of_ec2(reply.status, reply.body, time.time())

    def _ask(self, shown: str) -> Reply:
        path = "/latest/meta-data/spot/instance-action"
        return self._metadata.ask("GET", path, 2.0, {"X-aws-ec2-metadata-token": shown})

    def _admitted(self, timeout: float) -> str:
        lasts = {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}
        reply = self._metadata.ask("PUT", "/latest/api/token", timeout, lasts)
        self._pass = reply.body.strip() if reply.status == 200 else ""
        return self._pass


class Gce:
    """Its metadata server holds the question until the answer changes."""

    every_seconds = 0.5
    hold_seconds = 20

    _path = "/computeMetadata/v1/instance/preempted"

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._etag = ""  # of the answer that is known: a change before the question is not missed

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
    """Scheduled events; the first question switches them on and may take two minutes."""

    # A spot machine has 30 seconds.
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
        """Events of a scale set name other machines too."""
        path = "/metadata/instance/compute?api-version=2021-02-01"
        reply = self._metadata.ask("GET", path, timeout, AZURE)
        self._names = names_of_azure(reply.status, reply.body)


Cloud = Ec2 | Gce | Azure
CLOUDS: dict[str, Callable[[Metadata], Cloud]] = {"ec2": Ec2, "gce": Gce, "azure": Azure}
# What a question may end with: no network, half an answer, nonsense.
_FAILED = (OSError, http.client.HTTPException, ValueError)


class Preemption(_Watch):
    """Tells the worker when the cloud announces that it takes the machine away."""

    def __init__(self, told: Told, which: str, url: str = "") -> None:
        self._which, self._metadata = which, Metadata(url or METADATA_URL)
        self._level = logging.WARNING  # the first failure; the others say nothing new
        super().__init__(told, "andon-preemption")

    def _work(self) -> None:
        cloud = self._choose()
        while cloud is not None:
            notice = self._look(cloud)
            if notice is not None:
                own = self._told.settings.grace_seconds
                self._told.tell(notice.why, grace(own, notice))
                return
            if self._ended.wait(cloud.every_seconds):
                return

    def _choose(self) -> Cloud | None:
        if self._which != "auto":
            return CLOUDS[self._which](self._metadata)
        for name, cloud in self._those_that_answer():
            log.info("preemption: this machine is one of %s", name)
            return cloud
        log.info("preemption: no cloud answers here; nothing is watched")
        return None

    def _those_that_answer(self) -> Iterator[tuple[str, Cloud]]:
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
