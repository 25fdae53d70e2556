"""Alerts: signed, sent once each, retried, and never a delay for anything else."""

import hashlib
import hmac
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.cli.terminal import until
from tests.control_process.fake_supervisor import FakeSupervisor
from tests.store.parts import begin
from tests.store.sql.test_stops import order

from andon.control_process.alerts import Alerts
from andon.settings import Settings
from andon.store import open_store

SECRET = "between us"


class Receiver:
    """A server on this machine that keeps the requests it gets."""

    def __init__(self) -> None:
        self.taken: list[tuple[bytes, str]] = []
        self.refusals = 0
        self.may_answer = threading.Event()
        self.may_answer.set()
        receiver = self

        class Answering(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.may_answer.wait(30)
                if receiver.refusals:
                    receiver.refusals -= 1
                    self.send_error(503)
                    return
                receiver.taken.append((body, self.headers["X-Andon-Signature"] or ""))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        self.url = f"http://127.0.0.1:{self.server.server_port}/alerts"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self._thread.start()

    def bodies(self) -> list[dict[str, str]]:
        return [json.loads(body) for body, _ in self.taken]

    def close(self) -> None:
        self.may_answer.set()
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


def test_an_alert_is_signed_with_the_secret(receiver: Receiver) -> None:
    alerts = Alerts(Settings(alert_url=receiver.url, alert_secret=SECRET))
    assert alerts.send("overrun", "rcp_1", "it takes too long", seconds=3)
    alerts.close()
    [(body, found)] = receiver.taken
    wanted = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    assert found == f"sha256={wanted}"
    said = json.loads(body)
    assert (said["alert"], said["about"], said["seconds"]) == ("overrun", "rcp_1", 3)


def test_an_alert_is_sent_once_per_kind_and_receipt(receiver: Receiver) -> None:
    alerts = Alerts(Settings(alert_url=receiver.url))
    said = [
        alerts.send("overrun", "rcp_1", "once"),
        alerts.send("overrun", "rcp_1", "again"),
        alerts.send("unproved", "rcp_1", "another layer"),
        alerts.send("overrun", "rcp_2", "another order"),
    ]
    alerts.close()
    assert said == [True, False, True, True]
    assert [one["text"] for one in receiver.bodies()] == ["once", "another layer", "another order"]


def test_a_receiver_that_refuses_is_asked_again(receiver: Receiver) -> None:
    receiver.refusals = 1
    alerts = Alerts(Settings(alert_url=receiver.url))
    alerts.send("stall", "w", "silent")
    alerts.close()
    assert [one["text"] for one in receiver.bodies()] == ["silent"]
    assert alerts.lost == 0


def test_a_receiver_that_hangs_delays_nothing_else(receiver: Receiver) -> None:
    receiver.may_answer.clear()
    alerts = Alerts(Settings(alert_url=receiver.url))
    alerts.send("stall", "w", "silent")
    alerts.send("stall", "v", "silent too")
    assert receiver.taken == []  # this test goes on
    receiver.may_answer.set()
    alerts.close()
    assert len(receiver.taken) == 2


def test_a_command_gets_the_alert_on_its_stdin(tmp_path: Path) -> None:
    path = tmp_path / "alert.json"
    text = f"import sys; open({str(path)!r}, 'w').write(sys.stdin.read())"
    alerts = Alerts(Settings(alert_command=f'{sys.executable} -c "{text}"'))
    alerts.send("gave_up", "worker-1", "ended 5 times")
    alerts.close(30)
    assert json.loads(path.read_text())["alert"] == "gave_up"


def test_a_failing_alert_command_does_not_block_the_webhook(receiver: Receiver) -> None:
    alerts = Alerts(Settings(alert_url=receiver.url, alert_command="/nonexistent/program"))
    alerts.send("halt", "rcp_1", "halted")
    alerts.send("halt", "rcp_2", "halted again")
    alerts.close(30)
    assert len(receiver.taken) == 2
    assert alerts.lost == 2


def test_every_overrun_on_a_host_is_alerted(
    receiver: Receiver, tmp_path: Path, store_url: str
) -> None:
    store = open_store(store_url)
    fake = FakeSupervisor(tmp_path / "home", store_url, alert_url=receiver.url)
    fake.start()
    fake.expect("contact")
    fake.send("overrun", what="kill of worker-1", seconds=5.0, next="hit again")
    fake.send("gave_up", child="worker-1", crashes=5, seconds=3.0)
    fake.send("lost_contact", seconds=31.0, did=["worker-1"])
    fake.send("stalled", child="worker-1", pid=1, why="is silent", seconds=11.0, evidence="x")
    receipt = order(store, "halt")
    fake.expect("halt", order=receipt)
    fake.halted(receipt, proved=False, survivors=[77])
    wanted = {"overrun", "gave_up", "lost_contact", "stall", "unproved"}
    until(lambda: wanted <= {one["alert"] for one in receiver.bodies()}, "all are alerted")
    fake.close()
    store.close()


def test_an_event_of_the_store_is_alerted_by_one_host_only(
    receiver: Receiver, tmp_path: Path, store_url: str
) -> None:
    store = open_store(store_url)
    hosts = [
        FakeSupervisor(tmp_path / name, store_url, name=name, alert_url=receiver.url)
        for name in ("s1", "s2")
    ]
    for host in hosts:
        host.start()
        host.expect("contact")
    begin(store)
    receipt = order(store, "cancel", "run:r", within=0.0)
    until(lambda: receiver.taken, "an alert")
    for host in hosts:
        host.contact()
        host.contact()
        host.close()
    assert [one["about"] for one in receiver.bodies()] == [receipt]
    store.close()
