"""A stop file or a cloud notice drains a worker, and no failure to read them does.

The clouds are fakes on loopback that keep the providers' rules: a request without the documented
header or token is refused, and there is nothing to see before there is a notice.
"""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.runtime.fakes import FakeWorker, until

from andon.errors import BadInput, Refused
from andon.runtime.worker import preemption
from andon.runtime.worker.preemption import Azure, Ec2, Gce, Metadata
from andon.runtime.worker.triggers import Preemption, StopFile, refuse_if_stopped


@pytest.fixture
def worker() -> Iterator[FakeWorker]:
    found = FakeWorker(grace_seconds=25.0)
    yield found
    found.close()


# ── the stop file ─────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def stop_file(worker: FakeWorker, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / ".stop"
    watch = StopFile(worker, str(path))
    yield path
    watch.close()


def test_creating_the_stop_file_drains_and_deleting_it_changes_nothing(
    worker: FakeWorker, stop_file: Path
) -> None:
    stop_file.touch()
    until(lambda: worker.draining)
    stop_file.unlink()
    assert worker.draining
    assert worker.told == [(f"the stop file {stop_file} is there", None)]


@pytest.mark.parametrize("kind", ["folder", "link to nothing", "unreadable"])
def test_a_stop_file_may_be_of_any_file_type(
    worker: FakeWorker, stop_file: Path, kind: str
) -> None:
    if kind == "folder":
        stop_file.mkdir()
    elif kind == "link to nothing":
        stop_file.symlink_to("nowhere")
    else:
        stop_file.touch(0o000)
    until(lambda: worker.draining)


def test_the_stop_file_is_looked_for_in_the_workers_starting_folder(
    worker: FakeWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    watch = StopFile(worker, ".stop")
    monkeypatch.chdir("/")
    (tmp_path / ".stop").touch()
    until(lambda: worker.draining)
    watch.close()


def test_a_worker_does_not_start_while_the_stop_file_exists(tmp_path: Path) -> None:
    path = tmp_path / ".stop"
    refuse_if_stopped(str(path))
    refuse_if_stopped(str(tmp_path / "no" / "folder"))
    refuse_if_stopped("")
    path.touch()
    with pytest.raises(Refused, match=f"the stop file {path} is there.*rm {path}"):
        refuse_if_stopped(str(path))


def test_a_stop_file_that_cannot_be_looked_for_counts_as_present() -> None:
    name = "x" * 300  # no file system takes it, root or not
    with pytest.raises(Refused, match="cannot be checked for: File name too long"):
        refuse_if_stopped(name)


# ── clouds ────────────────────────────────────────────────────────────────────────────────────


class Cloud:
    """A metadata service: `answer` gets every request, and keeps its provider's rules."""

    def __init__(self) -> None:
        self.gone = False  # whether the machine is to be taken away
        self.asked: list[str] = []
        self.broken = 0  # so many answers are nonsense before one is right

    def answer(self, method: str, path: str, query: Any, headers: Any) -> tuple[int, str, Any]:
        raise NotImplementedError


class FakeEc2(Cloud):
    """Tokens by PUT with a ttl; nothing without one; 404 until there is a notice."""

    def __init__(self) -> None:
        super().__init__()
        self.valid: set[str] = set()
        self.action = "terminate"

    def answer(self, method: str, path: str, query: Any, headers: Any) -> tuple[int, str, Any]:
        if path == "/latest/api/token":
            ttl = headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
            if method != "PUT" or not ttl.isdigit() or not 1 <= int(ttl) <= 21600:
                return 400, "", {}
            self.valid.add(f"pass-{len(self.asked)}==")
            return 200, f"pass-{len(self.asked)}==", {}
        if headers.get("X-aws-ec2-metadata-token") not in self.valid:
            return 401, "", {}
        if path != "/latest/meta-data/spot/instance-action" or not self.gone:
            return 404, "<html>", {}
        at = datetime.fromtimestamp(time.time() + 120, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return 200, json.dumps({"action": self.action, "time": at}), {}


class FakeGce(Cloud):
    """403 without the header; the request is held while the etag is the known one."""

    def answer(self, method: str, path: str, query: Any, headers: Any) -> tuple[int, str, Any]:
        if headers.get("Metadata-Flavor") != "Google":
            return 403, "", {}
        flavor = {"Metadata-Flavor": "Google"}
        if path != "/computeMetadata/v1/instance/preempted":
            return 404, "", flavor
        if query.get("wait_for_change") == ["true"]:
            until_then = time.monotonic() + float(query["timeout_sec"][0])
            known = query.get("last_etag", [self.etag])  # else: the current value
            while known == [self.etag] and time.monotonic() < until_then:
                time.sleep(0.002)
        return 200, "TRUE" if self.gone else "FALSE", {**flavor, "ETag": self.etag}

    @property
    def etag(self) -> str:
        return "e1" if self.gone else "e0"


class FakeAzure(Cloud):
    """400 without the header or the version; events of the whole group."""

    def __init__(self) -> None:
        super().__init__()
        self.meant = ["ours_1"]
        self.named = json.dumps({"name": "ours_1", "vmId": "x"})

    def answer(self, method: str, path: str, query: Any, headers: Any) -> tuple[int, str, Any]:
        if headers.get("Metadata") != "true" or "api-version" not in query:
            return 400, "", {}
        if path == "/metadata/instance/compute":
            return 200, self.named, {}
        if path != "/metadata/scheduledevents":
            return 404, "", {}
        event = {
            "EventId": "1",
            "EventType": "Preempt",
            "ResourceType": "VirtualMachine",
            "Resources": self.meant,
            "EventStatus": "Scheduled",
            "NotBefore": format_datetime(datetime.fromtimestamp(time.time() + 30, UTC), True),
        }
        return 200, json.dumps({"DocumentIncarnation": 1, "Events": [event] * self.gone}), {}


@contextlib.contextmanager
def served(cloud: Cloud) -> Iterator[str]:
    class Visit(BaseHTTPRequestHandler):
        def visit(self) -> None:
            parts = urlsplit(self.path)
            cloud.asked.append(f"{self.command} {parts.path}")
            if cloud.broken:
                cloud.broken -= 1
                self.wfile.write(b"\x00nonsense\r\n\r\n")
                return
            status, body, headers = cloud.answer(
                self.command, parts.path, parse_qs(parts.query), self.headers
            )
            with contextlib.suppress(OSError):
                self.send_response(status)
                for name, found in headers.items():
                    self.send_header(name, found)
                self.end_headers()
                self.wfile.write(body.encode())

        do_GET = do_PUT = visit  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Visit) as server:
        server.daemon_threads = True
        server.block_on_close = False
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (Ec2, Gce, Azure):
        monkeypatch.setattr(kind, "every_seconds", 0.005)
    monkeypatch.setattr(Gce, "hold_seconds", 1)


CLOUDS: dict[str, tuple[Callable[[], Cloud], str]] = {
    "ec2": (FakeEc2, "EC2 announced: terminate"),
    "gce": (FakeGce, "GCE announced: preempted"),
    "azure": (FakeAzure, "Azure announced: Preempt"),
}
each_cloud = pytest.mark.parametrize("name", CLOUDS)


@each_cloud
@pytest.mark.parametrize("auto", [False, True], ids=["named", "found"])
def test_a_cloud_notice_drains_the_worker(worker: FakeWorker, name: str, auto: bool) -> None:
    make, why = CLOUDS[name]
    cloud = make()
    with served(cloud) as url:
        watch = Preemption(worker, "auto" if auto else name, url)
        until(lambda: len(cloud.asked) > 6 or (name == "gce" and len(cloud.asked) > 2))
        assert not worker.told
        cloud.gone = True
        until(lambda: worker.told)
        watch.close()
    [(found, grace)] = worker.told
    assert found == why
    assert grace is not None
    assert 20 < grace <= 25


@each_cloud
def test_a_drain_by_notice_fits_into_the_remaining_time(name: str) -> None:
    make, _ = CLOUDS[name]
    worker, cloud = FakeWorker(grace_seconds=600.0), make()
    cloud.gone = True
    with served(cloud) as url:
        watch = Preemption(worker, name, url)
        until(lambda: worker.told)
        watch.close()
    [(_, grace)] = worker.told
    assert grace is not None
    assert grace <= (115 if name == "ec2" else 25)
    worker.close()


@each_cloud
def test_invalid_answers_do_not_end_the_watch(
    worker: FakeWorker, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    cloud = CLOUDS[name][0]()
    cloud.broken, cloud.gone = 5, True
    with served(cloud) as url:
        watch = Preemption(worker, name, url)
        until(lambda: worker.told)
        watch.close()
    warned = [line for line in caplog.records if line.levelno == logging.WARNING]
    assert len(warned) == 1, "one line, not one for each try"


@pytest.mark.parametrize(
    "name", ["<html>login</html>", "[" * 90_000, "[]"], ids=["html", "deep", "list"]
)
def test_a_machine_without_a_readable_name_is_drained_all_the_same(
    worker: FakeWorker, name: str
) -> None:
    cloud = FakeAzure()
    cloud.gone, cloud.named = True, name
    with served(cloud) as url:
        watch = Preemption(worker, "azure", url)
        until(lambda: worker.told)
        watch.close()


def test_a_token_that_has_expired_is_renewed(worker: FakeWorker) -> None:
    cloud = FakeEc2()
    with served(cloud) as url:
        watch = Preemption(worker, "ec2", url)
        until(lambda: len(cloud.asked) > 5)
        assert cloud.asked.count("PUT /latest/api/token") == 1
        cloud.valid.clear()
        cloud.gone = True
        until(lambda: worker.told)
        watch.close()


def test_a_notice_from_before_the_first_request_is_not_missed(worker: FakeWorker) -> None:
    cloud = FakeGce()
    cloud.gone = True  # it will not change any more
    with served(cloud) as url:
        watch = Preemption(worker, "gce", url)
        until(lambda: worker.told)
        watch.close()


def test_a_notice_between_two_requests_is_not_missed(
    worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Sudden(FakeGce):
        def answer(self, *asked: Any) -> tuple[int, str, Any]:
            found = super().answer(*asked)
            self.gone = True
            return found

    monkeypatch.setattr(Gce, "hold_seconds", 600)
    with served(Sudden()) as url:
        watch = Preemption(worker, "gce", url)
        until(lambda: worker.told)
        watch.close()


def test_a_notice_for_a_neighbour_does_not_drain_us(worker: FakeWorker) -> None:
    cloud = FakeAzure()
    cloud.gone, cloud.meant = True, ["theirs_2"]
    with served(cloud) as url:
        watch = Preemption(worker, "azure", url)
        until(lambda: len(cloud.asked) > 5)
        assert not worker.told
        cloud.meant = ["theirs_2", "ours_1"]
        until(lambda: worker.told)
        watch.close()


def test_where_no_cloud_answers_nothing_is_watched(
    worker: FakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    watch = Preemption(worker, "auto", "http://127.0.0.1:1")
    watch._thread.join(30)
    assert not watch._thread.is_alive()
    assert not worker.told
    assert not [line for line in caplog.records if line.levelno >= logging.WARNING]


def test_metadata_requests_bypass_proxies(
    worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    cloud = FakeEc2()
    cloud.gone = True
    with served(cloud) as url:
        watch = Preemption(worker, "ec2", url)
        until(lambda: worker.told)
        watch.close()


def test_a_watch_that_is_closed_sends_no_more_requests(worker: FakeWorker) -> None:
    cloud = FakeEc2()
    with served(cloud) as url:
        watch = Preemption(worker, "ec2", url)
        watch.close()
        watch._thread.join(30)
        assert not watch._thread.is_alive()


@pytest.mark.parametrize("url", ["169.254.169.254", "ftp://x", "http://", "http://x:port"])
def test_an_invalid_metadata_address_is_refused(url: str) -> None:
    with pytest.raises(BadInput, match="expected http://HOST"):
        Metadata(url)


def test_every_cloud_that_can_be_configured_is_implemented() -> None:
    from andon import settings

    assert {*settings._CHOICES["preemption"]} == {"", "auto", *preemption.CLOUDS}
