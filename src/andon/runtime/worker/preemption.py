"""Reads preemption notices from the metadata services of clouds.

core/fleet/preemption.py decides what an answer means; the watch is in triggers.py.
"""

import http.client
import time
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urlsplit

from andon.core.fleet.preemption import Notice, names_of_azure, of_azure, of_ec2, of_gce
from andon.errors import BadInput

# The same address in all three clouds; requests to it do not leave the machine.
METADATA_URL = "http://169.254.169.254"
LARGEST_BYTES = 100_000
# The services refuse requests without these headers, so a redirected request cannot reach them.
GOOGLE, AZURE = {"Metadata-Flavor": "Google"}, {"Metadata": "true"}


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
FAILED = (OSError, http.client.HTTPException, ValueError)
