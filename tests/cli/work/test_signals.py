"""A worker drains by every way there is to ask it: all of them on a real process."""

import http.client
import json
import re
import signal
from pathlib import Path

import pytest
from tests.cli.terminal import Process, Terminal, until
from tests.cli.work.test_drain import HANGS, begin, endings


@pytest.fixture
def site(local: Terminal) -> Terminal:
    (local.folder / "hangs.py").write_text(HANGS)
    return local


def ask(port: int, method: str, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def port_of(worker: Process) -> int:
    found = re.search(r"health: http://[^:]+:(\d+)/", worker.text)
    assert found is not None, worker.text
    return int(found[1])


def test_creating_the_stop_file_drains_and_deleting_it_changes_nothing(site: Terminal) -> None:
    with site.worker("hangs.py", "--grace", "1") as worker:
        run_id = begin(site, "slow", "words=100000")
        stop = site.folder / ".stop"
        stop.touch()
        until(lambda: site.json("workers", "--old")[0]["draining_at"], "the drain")
        stop.unlink()
        assert worker.ends() == 0
    assert endings(site, run_id) == ["cut"]


def test_a_worker_does_not_start_beside_a_stop_file(site: Terminal) -> None:
    (site.folder / ".stop").touch()
    said = site.error("work", "hangs.py", code=1)
    assert ".stop" in said
    assert not Path(site.folder / ".andon").exists()


@pytest.mark.parametrize(("method", "path"), [("POST", "/shutdown"), ("GET", "/drain")])
def test_a_request_from_this_machine_drains_the_worker(
    site: Terminal, method: str, path: str
) -> None:
    with site.worker("hangs.py", "--grace", "30", "--health-port", "0") as worker:
        port = port_of(worker)
        until(lambda: ask(port, "GET", "/readyz")[0] == 200, "readiness")
        run_id = begin(site, "careful")
        assert ask(port, method, path)[0] in (200, 202)
        status, body = ask(port, "GET", "/readyz")
        assert (status, json.loads(body)["status"]) == (503, "draining")
        assert ask(port, "GET", "/livez")[0] == 200, "it must not be restarted while it drains"
        (site.folder / "go").touch()
        assert worker.ends() == 0
    assert endings(site, run_id) == ["returned"]


def test_a_signal_ends_readiness_before_any_run_has_ended(site: Terminal) -> None:
    with site.worker("hangs.py", "--grace", "30", "--health-port", "0") as worker:
        port = port_of(worker)
        until(lambda: ask(port, "GET", "/readyz")[0] == 200, "readiness")
        run_id = begin(site, "careful")
        worker.signal(signal.SIGTERM)
        until(lambda: ask(port, "GET", "/readyz")[0] == 503, "the drain")
        assert json.loads(ask(port, "GET", "/readyz")[1])["runs_in_hand"] == 1
        (site.folder / "go").touch()
        assert worker.ends() == 0
    assert endings(site, run_id) == ["returned"]


def test_a_signal_after_another_drain_request_does_not_cut_off_steps(site: Terminal) -> None:
    """As Kubernetes does: first preStop, then SIGTERM."""
    with site.worker("hangs.py", "--grace", "30") as worker:
        run_id = begin(site, "careful")
        site("drain", "--self", "--no-wait")
        until(lambda: site.json("workers")[0]["draining_at"], "the drain")
        worker.signal(signal.SIGTERM)
        worker.says("SIGTERM: finishing 1 run")
        (site.folder / "go").touch()
        assert worker.ends() == 0
    assert endings(site, run_id) == ["returned"]


def test_a_worker_asked_by_a_command_drains_and_the_command_waits(andon: Terminal) -> None:
    (andon.folder / "hangs.py").write_text(HANGS)
    with andon.worker("hangs.py", "--grace", "1") as worker:
        run_id = begin(andon, "slow", "words=100000")
        assert "1 worker ended" in andon("drain", "--all")
        assert worker.ends() == 0
    assert endings(andon, run_id) == ["cut"]
    [deploy] = andon.json("deploys")
    assert (deploy["runs"], deploy["cut"], deploy["lost"], deploy["doubled"]) == (1, 1, 0, 0)
    assert deploy["workers"][0]["why"] == "andon drain"


def test_metrics_show_the_work_of_a_worker(site: Terminal) -> None:
    with site.worker("agents.py", "--health-port", "0") as worker:
        port = port_of(worker)
        site("wait", site.start("greet"))
        status, text = ask(port, "GET", "/metrics")
    assert status == 200
    assert re.search(r"^andon_runs_finished_total 1$", text, re.MULTILINE), text
    assert re.search(r"^andon_store_up 1$", text, re.MULTILINE)
