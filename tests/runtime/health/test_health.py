"""A worker reports its health truthfully, whatever its agents, its store or its clients do."""

import contextlib
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.runtime.fakes import FakeStore, FakeWorker, ask, until
from tests.runtime.harness import Lab
from tests.store.parts import do, new_run, worker_row

from andon.control.runs.shown_state import Surroundings
from andon.core.run import State
from andon.errors import Refused, StoreUnavailable
from andon.runtime.health import http_server, pulse
from andon.runtime.health.http_server import parse
from andon.runtime.health.probes import Health, refusal
from andon.runtime.worker.triggers import reachable
from andon.store import open_store
from andon.store.messages.rows import EventRow, Filter, WaitingRuns
from andon.store.store import AgentRow, Register, Start
from andon.testing.postgres import Cluster


@contextlib.contextmanager
def serving(worker: FakeWorker) -> Iterator[Health]:
    server = Health(worker)
    try:
        yield server
    finally:
        server.close()
        worker.close()


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker(concurrency=10)


@pytest.fixture
def server(worker: FakeWorker) -> Iterator[Health]:
    with serving(worker) as found:
        yield found


def waiting(**changes: Any) -> WaitingRuns:
    plain: dict[str, Any] = {
        "state": "queued",
        "queue": "q",
        "agent": "refunds",
        "version": "2",
        "runs": 3,
        "oldest_seconds": 1.0,
    }
    return WaitingRuns(**plain | changes)


def make_unavailable(store: FakeStore) -> None:
    store.broken = StoreUnavailable("away")


# ── probes ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", ["/livez", "/health", "/readyz", "/ready", "/startupz"])
def test_a_working_worker_is_live_and_ready(server: Health, path: str) -> None:
    found = ask(server.port, path)
    assert found.status == 200
    assert found.headers["Content-Type"] == "application/json"
    assert found.json["status"] in ("live", "ready", "started")
    assert found.json["worker"] == "host.1.abc"


@pytest.mark.parametrize("path", ["/readyz", "/ready"])
def test_a_draining_worker_is_live_and_not_ready(
    worker: FakeWorker, server: Health, path: str
) -> None:
    worker.draining = True
    found = ask(server.port, path)
    assert (found.status, found.json["status"]) == (503, "draining")
    assert ask(server.port, "/livez").status == 200


def test_a_starting_worker_is_live_and_not_ready(worker: FakeWorker, server: Health) -> None:
    worker.started = False
    assert ask(server.port, "/startupz").status == 503
    assert ask(server.port, "/readyz").json["status"] == "starting"
    assert ask(server.port, "/livez").status == 200


def test_a_blocked_event_loop_is_answered_for_and_reported() -> None:
    worker = FakeWorker(liveness_seconds=0.05)
    worker.last_contact = time.monotonic() + 3600  # its heartbeat is a thread, and continues
    with serving(worker) as server:
        with worker.blocked():
            until(lambda: ask(server.port, "/livez").status == 503)
            found = ask(server.port, "/livez").json
            assert found["status"] == "stuck"
            assert "event loop" in found["why"]
        until(lambda: ask(server.port, "/livez").status == 200)


def test_a_worker_that_cannot_reach_its_store_is_not_live() -> None:
    worker = FakeWorker(liveness_seconds=0.05)
    with serving(worker) as server:
        worker.last_contact = time.monotonic() - 99
        until(lambda: ask(server.port, "/livez").status == 503)
        assert "the store answers" in ask(server.port, "/livez").json["why"]
        worker.last_contact = time.monotonic() + 3600
        assert ask(server.port, "/livez").status == 200


@pytest.mark.parametrize("how", ["broken", "silent"])
def test_an_unavailable_store_kills_no_worker(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(pulse, "PATIENCE_SECONDS", 0.1)
    worker = FakeWorker(liveness_seconds=0.05)
    with serving(worker) as server:
        if how == "broken":
            make_unavailable(worker.store)
        else:
            worker.store.held.clear()
        worker.last_contact = time.monotonic() - 99
        for _ in range(5):
            found = ask(server.port, "/livez")
            assert found.status == 200
        assert "away" in found.json["why"]
        found = ask(server.port, "/readyz")
        assert (found.status, found.json["status"]) == (503, "store away")
        assert worker.store.asked < 20 or how == "broken"  # one question at a time
        worker.store.broken = None
        worker.store.held.set()


def test_an_unavailable_store_is_noticed_before_its_workers_seem_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pulse, "FRESH_SECONDS", 3600.0)
    worker = FakeWorker(liveness_seconds=0.1)
    with serving(worker) as server:
        assert ask(server.port, "/readyz").status == 200
        make_unavailable(worker.store)
        worker.last_contact = time.monotonic() - 99
        until(lambda: "away" in ask(server.port, "/livez").json.get("why", ""))


def test_a_killed_database_server_kills_no_worker(
    cluster: Cluster, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "FRESH_SECONDS", 0.0)
    with contextlib.closing(open_store(postgres_url)) as store:
        worker = FakeWorker(store)
        with serving(worker) as server:
            until(lambda: ask(server.port, "/readyz").status == 200)
            cluster.kill()
            worker.last_contact -= 3600
            assert ask(server.port, "/readyz").json["status"] == "store away"
            assert ask(server.port, "/livez").status == 200
            assert "andon_store_up 0" in ask(server.port, "/metrics").text
            cluster.start()
            worker.last_contact += 3600
            until(lambda: ask(server.port, "/readyz").status == 200)


def test_a_draining_worker_reports_so_while_the_store_hangs(
    worker: FakeWorker, server: Health
) -> None:
    worker.store.held.clear()
    worker.draining = True
    worker.last_contact -= 3600
    asked = worker.store.asked
    assert ask(server.port, "/readyz").status == 503
    assert ask(server.port, "/livez").status == 200
    assert worker.store.asked == asked, "the probe must not query the store first"
    worker.store.held.set()


def test_readiness_names_stranded_versions(worker: FakeWorker, server: Health) -> None:
    worker.store.rows = [waiting()]
    worker.active = {1: 1, 2: 2}
    found = ask(server.port, "/readyz").json
    assert found["stranded"] == [{"agent": "refunds", "version": "2", "runs": 3}]
    assert (found["runs_in_hand"], found["free_slots"]) == (2, 8)


@pytest.mark.parametrize(
    ("changes", "stranded"),
    [
        ({}, False),
        ({"draining_at": 1.0}, True),
        ({"lease_until": -1.0}, True),
        ({"state": "silent"}, True),
        ({"agents": '[["refunds", "1"]]'}, True),
    ],
    ids=str,
)
def test_only_a_worker_that_takes_work_carries_a_version(
    worker: FakeWorker, server: Health, changes: dict[str, Any], stranded: bool
) -> None:
    carrier = {"agents": '[["refunds", "2"]]', "lease_until": 60.0, **changes}
    worker.store.fleet = [worker_row("w").but(**carrier)]
    worker.store.rows = [waiting()]
    assert bool(ask(server.port, "/readyz").json["stranded"]) is stranded


# ── to drain ──────────────────────────────────────────────────────────────────────────────────


def test_post_drains_the_worker(worker: FakeWorker, server: Health) -> None:
    found = ask(server.port, "/shutdown", "POST", body=b"x" * 5000)
    assert (found.status, found.json["status"]) == (202, "draining")
    assert worker.told == [("POST /shutdown from 127.0.0.1", None)]
    assert ask(server.port, "/readyz").status == 503


def test_get_drains_and_waits_until_nothing_is_in_hand(worker: FakeWorker, server: Health) -> None:
    worker.active = {1: 1}
    assert ask(server.port, "/drain").json["status"] == "draining"
    assert ask(server.port, "/drain?wait=0.01").status == 202
    threading.Timer(0.05, worker.active.clear).start()
    found = ask(server.port, "/drain?wait=30")
    assert (found.status, found.json["status"]) == (200, "drained")


@pytest.mark.parametrize("wait", ["-1", "x", "nan", "inf", "601"])
def test_an_invalid_wait_drains_nothing(worker: FakeWorker, server: Health, wait: str) -> None:
    assert ask(server.port, f"/drain?wait={wait}").status == 400
    assert not worker.told


DRAINING = [("GET", "/drain"), ("POST", "/shutdown")]


@pytest.mark.parametrize(("method", "path"), DRAINING)
def test_a_client_on_another_machine_cannot_drain(
    worker: FakeWorker, server: Health, method: str, path: str
) -> None:
    found = ask(server.port, path, method, source="127.0.0.2")  # not an address of the worker's
    assert found.status == 403
    assert found.json["error"].startswith("only this machine may ask for that")
    assert not worker.told
    assert ask(server.port, "/readyz", source="127.0.0.2").status == 200


@pytest.mark.parametrize(("method", "path"), DRAINING)
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Referer": "http://evil.example/"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "evil.example"},
        {"Host": "localhost.evil.example:8080"},
        {"Host": "127.0.0.1.evil.example"},
        {"X-Forwarded-For": "10.0.0.9"},
        {"Via": "1.1 proxy"},
    ],
    ids=str,
)
def test_requests_of_web_pages_and_proxies_do_not_drain(
    worker: FakeWorker, server: Health, method: str, path: str, headers: dict[str, str]
) -> None:
    assert ask(server.port, path, method, headers=headers).status == 403
    assert not worker.told


@pytest.mark.parametrize(
    ("peer", "own", "host", "allowed"),
    [
        ("127.0.0.1", "127.0.0.1", "localhost:8080", True),
        ("::1", "::1", "[::1]:8080", True),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", "127.0.0.1", True),
        ("10.0.0.5", "10.0.0.5", "10.0.0.5:8080", True),  # a container of the same pod
        ("10.0.0.6", "10.0.0.5", "10.0.0.5:8080", False),
        ("127.0.0.6", "10.0.0.5", "10.0.0.5:8080", False),  # a mesh that forwards
        ("fe80::1%eth0", "fe80::2%eth0", "[fe80::2]", False),
        ("", "", "localhost", False),
    ],
)
def test_only_addresses_of_this_machine_may_drain(
    peer: str, own: str, host: str, allowed: bool
) -> None:
    request = parse(f"GET /drain HTTP/1.1\r\nHost: {host}\r\n\r\n", peer, own)
    assert (refusal(request) == "") is allowed


# ── other requests ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/", 404, None),
        ("GET", "/livez/", 404, None),
        ("GET", "//livez", 404, None),
        ("POST", "/livez", 405, "GET, HEAD"),
        ("GET", "/shutdown", 405, "POST"),
        ("POST", "/drain", 405, "GET"),
        ("DELETE", "/metrics", 405, "GET, HEAD"),
    ],
)
def test_an_unknown_path_or_method_is_refused_in_a_sentence(
    server: Health, method: str, path: str, status: int, allow: str | None
) -> None:
    found = ask(server.port, path, method)
    assert (found.status, found.headers.get("Allow")) == (status, allow)
    assert found.json["error"]


def test_head_is_get_without_a_body(server: Health) -> None:
    found = ask(server.port, "/livez", "HEAD")
    assert (found.status, found.text) == (200, "")
    assert int(found.headers["Content-Length"]) > 0


def raw_answer(port: int, text: bytes) -> bytes:
    """The answer to raw bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(text)
        received = b""
        while more := connection.recv(4096):
            received += more
        return received


@pytest.mark.parametrize(
    "text",
    [
        b"\r\n\r\n",
        b"hello\r\n\r\n",
        b"GET livez HTTP/1.1\r\n\r\n",
        b"GET /livez HTTP/2\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n folded: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\n\n",
        b"GET /drain?" + b"a=1&" * 30 + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_a_malformed_request_is_answered_with_400(
    worker: FakeWorker, server: Health, text: bytes
) -> None:
    assert raw_answer(server.port, text).startswith(b"HTTP/1.1 400 ")
    assert not worker.told


def test_a_request_head_without_end_is_cut_off(server: Health) -> None:
    assert raw_answer(server.port, b"GET /livez HTTP/1.1\r\n" + b"A: b\r\n" * 2000).startswith(
        b"HTTP/1.1 431 "
    )


def test_a_request_that_is_not_completed_is_closed(
    server: Health, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "PATIENCE_SECONDS", 0.05)
    assert raw_answer(server.port, b"GET /livez HTTP/1.1\r\n").startswith(b"HTTP/1.1 408 ")


def test_silent_clients_do_not_keep_a_probe_out(
    server: Health, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "PATIENCE_SECONDS", 600.0)
    with contextlib.ExitStack() as stack:
        for _ in range(5 * http_server.MOST):
            idle = socket.create_connection(("127.0.0.1", server.port), timeout=30)
            stack.enter_context(idle)
        assert ask(server.port, "/livez").status == 200
        probes = [t for t in threading.enumerate() if t.name == "andon-probe"]
        assert len(probes) <= http_server.MOST


def test_clients_that_wait_for_a_drain_do_not_keep_a_probe_out(
    worker: FakeWorker, server: Health
) -> None:
    worker.active = {1: 1}
    waiting = [
        threading.Thread(target=ask, args=(server.port, "/drain?wait=30"))
        for _ in range(http_server.MOST + 4)
    ]
    for one in waiting:
        one.start()
    assert ask(server.port, "/livez").status == 200
    worker.active.clear()
    for one in waiting:
        one.join(30)
        assert not one.is_alive()


def test_an_internal_error_is_answered_with_500_and_the_server_continues(
    worker: FakeWorker, server: Health, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> dict[str, float]:
        raise RuntimeError("counts")

    monkeypatch.setattr(worker, "counts", broken)
    assert ask(server.port, "/metrics").status == 500
    assert ask(server.port, "/livez").status == 200


def test_a_port_that_is_taken_is_refused_with_a_hint(server: Health) -> None:
    for port, why in ((server.port, "in use"), (65536, "no such port")):
        second = FakeWorker(health_port=port)
        with pytest.raises(Refused, match=rf"{why}.*--health-port 0"):
            Health(second)
        second.close()


def test_after_close_the_port_is_free(worker: FakeWorker) -> None:
    with serving(worker) as server:
        port = server.port
    with pytest.raises(ConnectionRefusedError):
        ask(port, "/livez")


# ── metrics ───────────────────────────────────────────────────────────────────────────────────


def read(text: str) -> dict[str, float]:
    """The samples of an exposition; every one must belong to a family."""
    families = set(re.findall(r"^# TYPE (\S+) (?:gauge|counter)$", text, re.MULTILINE))
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, number = line.rsplit(" ", 1)
            assert name.partition("{")[0] in families
            found[name] = float(number)
    return found


def test_metrics_have_the_workers_own_numbers(worker: FakeWorker, server: Health) -> None:
    worker.active = {1: 1}
    worker.numbers = {"runs_finished_total": 7, "runs_saved_total": 2, "odd name": 1.5}
    found = ask(server.port, "/metrics")
    assert found.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    numbers = read(found.text)
    assert numbers["andon_runs_in_hand"] == 1
    assert numbers["andon_free_slots"] == 9
    assert numbers["andon_draining"] == 0
    assert numbers["andon_runs_finished_total"] == 7
    assert numbers["andon_odd_name"] == 1.5
    assert "# TYPE andon_runs_saved_total counter" in found.text
    assert 0 <= numbers["andon_contact_seconds"] < 60


def test_a_scrape_does_not_need_the_store(worker: FakeWorker, server: Health) -> None:
    make_unavailable(worker.store)
    found = ask(server.port, "/metrics")
    assert found.status == 200
    numbers = read(found.text)
    assert numbers["andon_store_up"] == 0
    assert not [name for name in numbers if "queue" in name or "stranded" in name]


def test_many_scrapes_are_one_query_to_the_store(worker: FakeWorker, server: Health) -> None:
    for _ in range(5):
        ask(server.port, "/metrics")
    assert worker.store.asked == 1


def start_runs(lab: Lab, queues: str | None = None) -> None:
    """Two queues; a version that a live worker carries, one that no worker carries, and secrets."""
    store: Any = lab.store
    agent = AgentRow(name="a", version="1", queue="default", parameters="[]")
    row = worker_row("w").but(agents='[["a", "1"]]', queues=queues)
    do(store, Register(worker=row, agents=(agent,), lease_seconds=60))
    for number, (queue, version) in enumerate(
        [("default", "1"), ("default", "1"), ('o"dd', "1"), ("default", "2")]
    ):
        run = new_run(
            f"r{number}",
            agent="a",
            version=version,
            queue=queue,
            labels='{"who": "SECRET"}',
            at=store.now() - 60,
        )
        do(store, Start(run=run))
    do(store, Start(run=new_run("later", agent="a", version="1", delay_seconds=3600)))


def test_metrics_report_the_queues_and_stranded_versions_of_the_store(lab: Lab) -> None:
    start_runs(lab)
    with serving(FakeWorker(lab.store)) as server:
        text = ask(server.port, "/metrics").text
        numbers = read(text)
        assert numbers["andon_store_up"] == 1
        assert numbers['andon_queue_depth{queue="default"}'] == 3
        assert numbers['andon_queue_depth{queue="o\\"dd"}'] == 1
        assert numbers['andon_queue_oldest_seconds{queue="default"}'] >= 0
        assert numbers['andon_stranded_runs{agent="a",version="2"}'] == 1
        assert not [name for name in numbers if 'version="1"' in name]
        ready = ask(server.port, "/readyz")
        assert ready.json["stranded"] == [{"agent": "a", "version": "2", "runs": 1}]
        assert "SECRET" not in text + ready.text


@pytest.mark.parametrize(
    ("queues", "stranded"), [(None, {"2": 1}), ('["default"]', {"1": 1, "2": 1})]
)
def test_readiness_and_the_list_of_runs_agree_about_stranded_versions(
    lab: Lab, queues: str | None, stranded: dict[str, int]
) -> None:
    start_runs(lab, queues)
    around = Surroundings(lab.store)
    listed = [row.version for row in lab.store.runs(Filter()) if around.is_stranded(row)]
    assert Counter(listed) == stranded
    with serving(FakeWorker(lab.store)) as server:
        ready = ask(server.port, "/readyz").json
        assert {one["version"]: one["runs"] for one in ready["stranded"]} == stranded


def test_waiting_runs_are_counted_from_the_oldest_on(lab: Lab) -> None:
    start_runs(lab)
    [first] = lab.store.waiting(limit=1)
    assert (first.state, first.runs, first.version) == (State.QUEUED, 1, "1")
    assert [(row.queue, row.version, row.runs) for row in lab.store.waiting()] == [
        ("default", "1", 2),
        ("default", "2", 1),
        ('o"dd', "1", 1),
    ]


# ── all together ──────────────────────────────────────────────────────────────────────────────


def test_a_worker_is_reachable_while_it_works(tmp_path: Any) -> None:
    worker = FakeWorker(stop_file=str(tmp_path / "stop"))
    said: list[str] = []
    with reachable(worker, said.append) as server:
        assert server is not None
        assert said == [f"health: http://127.0.0.1:{server.port}/readyz"]
        assert ask(server.port, "/readyz").status == 200
        (tmp_path / "stop").touch()
        until(lambda: worker.draining)
        assert ask(server.port, "/readyz").json["status"] == "draining"
    worker.close()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_a_server_on_all_ipv6_addresses_is_reachable_over_ipv4() -> None:
    worker = FakeWorker(health_host="::", stop_file="")
    said: list[str] = []
    with reachable(worker, said.append) as server:
        assert server is not None
        assert said == [f"health: http://[::]:{server.port}/readyz"]
        assert ask(server.port, "/readyz").status == 200
        assert ask(server.port, "/shutdown", "POST").status == 202
    worker.close()


def test_without_a_health_port_nothing_listens() -> None:
    worker = FakeWorker(health_port=-1, stop_file="")
    before = threading.active_count()
    with reachable(worker) as server:
        assert server is None
        assert threading.active_count() == before
    worker.close()


def test_stops_that_overran_or_were_not_proved_are_counted(
    worker: FakeWorker, server: Health
) -> None:
    kinds = ["stop.overran", "stop.unproved", "stop.overran", "stop.proved"]
    worker.store.happened = [
        EventRow(id=number + 1, at=0.0, kind=kind, run_id=None, worker=None, body="{}")
        for number, kind in enumerate(kinds)
    ]
    found = ask(server.port, "/metrics").text
    assert "\nandon_stop_overruns_total 2\n" in found
    assert "\nandon_unproved_stops_total 1\n" in found
