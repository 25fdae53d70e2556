"""`andon drain` and `andon workers`: the workers meant, the output, and the length of the wait."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.terminal import Terminal, until
from tests.control.seeded_store import SeededStore
from tests.store.parts import do

from andon.control import drain as draining
from andon.control import workers
from andon.errors import NotFound
from andon.host.proc import start_ticks
from andon.runtime.worker.peers import this_process
from andon.store import open_store
from andon.testing.postgres import Cluster

# A worker that notices a drain request. Until `andon work` does so itself, this thread notifies it,
# and does nothing once it does.
LISTENING = """
import importlib.util, os, signal, threading, time
from agents import *
from andon.store import open_store


def listen():
    while True:
        time.sleep(0.02)
        store = open_store(os.environ["ANDON_STORE"])
        asked = [w for w in store.workers() if w.pid == os.getpid() and w.drain_asked_at]
        store.close()
        if asked:
            os.kill(os.getpid(), signal.SIGTERM)
            return


if importlib.util.find_spec("andon.runtime.worker.drain") is None:
    threading.Thread(target=listen, daemon=True).start()
"""


@pytest.fixture
def seeded(store_url: str) -> Iterator[SeededStore]:
    store = open_store(store_url)
    yield SeededStore(store)
    store.close()


def here(**changes: Any) -> dict[str, Any]:
    """A row that looks like a worker of this container."""
    mine = this_process()
    return {"boot": mine.boot, "namespace": mine.namespace, "host": "this-host", **changes}


def ids(found: list[Any]) -> list[str]:
    return sorted(worker.id for worker in found)


# ── which workers are meant ───────────────────────────────────────────────────────────────────


def test_a_worker_is_found_by_id_by_prefix_and_by_host(seeded: SeededStore) -> None:
    seeded.worker("pod-a.1.aa", host="pod-a")
    seeded.worker("pod-a.2.bb", host="pod-a")
    seeded.worker("pod-b.1.cc", host="pod-b")
    assert ids(workers.find(seeded.store, ["pod-a.1.aa"])) == ["pod-a.1.aa"]
    assert ids(workers.find(seeded.store, ["pod-a"])) == ["pod-a.1.aa", "pod-a.2.bb"]
    assert ids(workers.find(seeded.store, ["pod-b.1"])) == ["pod-b.1.cc"]
    assert ids(workers.find(seeded.store, ["pod-b", "pod-b.1.cc"])) == ["pod-b.1.cc"]
    with pytest.raises(NotFound, match=r"several workers begin with 'pod': pod-a.1.aa, pod-a.2"):
        workers.find(seeded.store, ["pod"])
    for nobody in ("nobody", ""):
        with pytest.raises(NotFound, match=r"alive: pod-a.1.aa, "):
            workers.find(seeded.store, [nobody])


def test_self_means_the_worker_of_this_container_only(seeded: SeededStore) -> None:
    seeded.worker("mine", **here())
    seeded.worker("other-container", **here(namespace="pid:[1]"))
    seeded.worker("other-machine", **here(boot="another"))
    assert ids(workers.here(seeded.store)) == ["mine"]


def test_an_unknown_worker_is_not_found(andon: Terminal, seeded: SeededStore) -> None:
    seeded.worker("w1")
    assert "there is no worker 'w9'; alive: w1" in andon.error("drain", "w9", code=4)


@pytest.mark.parametrize("words", [(), ("w1", "--self"), ("--self", "--all"), ("w1", "--all")])
def test_a_drain_without_a_target_is_refused(local: Terminal, words: tuple[str, ...]) -> None:
    assert "say which workers" in local.error("drain", *words, code=2)


def test_a_drain_without_workers_is_done_at_once(andon: Terminal, seeded: SeededStore) -> None:
    seeded.worker("far")
    assert "no worker is running here" in andon.run("drain", "--self").stderr
    assert andon.json("drain", "--self") == {"ended": True, "workers": []}


# ── asking and waiting ────────────────────────────────────────────────────────────────────────


def test_a_drain_without_waiting_only_asks(andon: Terminal, seeded: SeededStore) -> None:
    seeded.worker("w1")
    seeded.worker("w2")
    assert andon("drain", "w1", "--no-wait") == "asked: w1\n"
    one, two = seeded.store.fleet(0.0)
    assert one.drain_asked_at is not None
    assert two.drain_asked_at is None
    [event] = [event for event in seeded.store.events() if event.kind == "worker.asked"]
    assert event.worker == "w1"
    assert '"tester"' in event.body
    assert andon("drain", "--all", "--no-wait") == "asked: w1, w2\n"


def test_a_worker_that_does_not_leave_in_time_is_named(
    andon: Terminal, seeded: SeededStore
) -> None:
    seeded.worker("slow")
    seeded.start("r")
    [held] = seeded.take("slow", "r")
    do(seeded.store, held.append(of={"name": "plan", "state": "begun", "at": seeded.store.now()}))
    done = andon.run("drain", "slow", "--timeout", "0", code=3)
    assert "1 worker did not end within 0 s: slow" in done.stderr
    assert "1 in hand: run r step plan" in done.stderr
    found = andon.json("drain", "slow", "--timeout", "0", code=3)
    assert found["ended"] is False
    assert found["workers"][0]["in_hand"] == 1


def test_a_worker_that_has_ended_needs_no_waiting(andon: Terminal, seeded: SeededStore) -> None:
    seeded.worker("w1")
    seeded.leave("w1")
    assert "1 worker ended" in andon("drain", "w1")


def test_a_worker_whose_process_is_gone_has_ended(andon: Terminal, seeded: SeededStore) -> None:
    seeded.worker("gone", **here(pid=2**22 + 1, start_ticks=1))
    done = andon.run("drain", "gone")
    assert "died" in done.stderr


def test_a_worker_that_departs_while_it_is_checked_has_not_died(
    seeded: SeededStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeded.worker("w", **here(pid=2**22 + 1, start_ticks=1))
    left: list[None] = []

    def is_gone(*_: Any) -> bool:
        if not left:  # after its row was read
            left.append(None)
            seeded.leave("w")
        return True

    monkeypatch.setattr(workers, "is_gone", is_gone)
    said: list[str] = []
    assert draining.Watch(seeded.store, ["w"], lambda line: said.append(line["state"])).look()
    assert said == ["exited"]


@pytest.mark.parametrize("words", [("--self",), ("--all",)])
def test_a_real_worker_leaves_and_gives_its_run_back(andon: Terminal, words: tuple[str]) -> None:
    (andon.folder / "listening.py").write_text(LISTENING)
    marker = andon.folder / "marker"
    with andon.worker("listening.py", "--grace", "0.5") as worker:
        run_id = andon.start("stuck", f"marker={marker}")
        until(marker.exists, "the step")
        done = andon.run("drain", *words)
        assert worker.ends() == 0
    assert "1 worker ended" in done.stdout
    assert "1 in hand" in done.stderr
    assert andon.state(run_id) == "queued"
    [line] = andon.json("deploys")[0]["workers"]
    assert line["state"] == "exited"
    assert line["saved"] + line["cut"] == 1


def test_ctrl_c_ends_the_waiting_and_not_the_drain(local: Terminal) -> None:
    store = open_store(local.url)
    seeded = SeededStore(store)
    seeded.worker("w1")
    with local.process("drain", "w1") as drain:
        drain.says("asked")
        drain.signal(signal.SIGINT)
        assert drain.ends() == 130
        assert "continue to drain" in drain.text
    assert store.fleet(0.0)[0].drain_asked_at is not None
    store.close()


# ── without the store ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("line", "is_worker"),
    [
        (["/usr/bin/python3", "-m", "andon", "work", "a.py"], True),
        (["/venv/bin/python", "/venv/bin/andon", "--store", "x", "work", "a.py"], True),
        (["/venv/bin/andon", "work", "a.py"], True),
        (["/venv/bin/andon", "drain", "--self"], False),
        (["vim", "andon", "work"], False),
        (["bash", "-c", "andon work a.py"], False),
        (["python", "-m", "other", "work"], False),
        (["python"], False),
        ([], False),
    ],
)
def test_a_worker_is_known_by_its_command_line(line: list[str], is_worker: bool) -> None:
    assert draining.is_worker(line) is is_worker


def test_workers_of_this_user_and_this_store_are_found(tmp_path: Path) -> None:
    (tmp_path / "andon").write_text("input()")
    url = f"sqlite:///{tmp_path}/here.db"
    line = [sys.executable, str(tmp_path / "andon"), "work"]
    env = {**os.environ, "ANDON_STORE": url}
    with (
        subprocess.Popen(line, stdin=subprocess.PIPE, env=env) as worker,
        subprocess.Popen([*line[:2], "vim"], stdin=subprocess.PIPE, env=env) as other,
    ):
        try:
            until(lambda: draining.processes(url) == [worker.pid], "the worker")
            assert draining.processes(f"sqlite:///{tmp_path}/other.db") == []
        finally:
            worker.kill()
            other.kill()


@pytest.mark.parametrize(
    ("words", "environ", "folder", "serves"),
    [
        (("--store", "sqlite:///a"), b"ANDON_STORE=sqlite:///b", "/", True),
        (("--store=sqlite:///a",), b"", "/", True),
        (("--store", "sqlite:///b"), b"ANDON_STORE=sqlite:///a", ".", False),
        ((), b"A=1\0ANDON_STORE=sqlite:///b", ".", False),
        ((), b"ANDON_STORE=", ".", True),
        ((), b"", "/", False),
        (("--store",), b"", ".", False),
    ],
)
def test_a_worker_of_another_store_is_left_alone(
    words: tuple[str, ...], environ: bytes, folder: str, serves: bool
) -> None:
    line = ["andon", "work", "a.py", *words]
    assert draining.serves(line, environ, Path(folder), "sqlite:///a") is serves


def test_a_store_that_is_away_does_not_keep_a_container_from_draining(
    cluster: Cluster, postgres_url: str, tmp_path: Path
) -> None:
    andon = Terminal(tmp_path, postgres_url)
    with andon.worker():
        cluster.kill()
        done = andon.run("drain", "--self", "--no-wait")
    assert done.stdout == "SIGTERM to 1 process\n"
    assert "Sending SIGTERM to the workers of this container instead" in done.stderr


def sleeper() -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


def test_a_signal_reaches_exactly_the_process_meant(tmp_path: Path) -> None:
    with sleeper() as process:
        ticks = start_ticks(process.pid)
        assert ticks is not None
        with draining.signalled([process.pid], {process.pid: ticks}) as told:
            assert list(told.values()) == [process.pid]
            assert draining.await_ends(told, 60) == []
        assert process.wait(60) == -signal.SIGTERM


def test_a_process_that_reused_a_pid_is_left_alone() -> None:
    with sleeper() as process:
        try:
            with draining.signalled([process.pid], {process.pid: 1}) as told:
                assert told == {}
            with draining.signalled([2**22 + 1]) as told:
                assert told == {}
            assert process.poll() is None
        finally:
            process.kill()


def test_a_process_that_does_not_end_is_late() -> None:
    with sleeper() as process:
        try:
            descriptor = os.pidfd_open(process.pid)
            assert draining.await_ends({descriptor: process.pid}, 0.01) == [process.pid]
            os.close(descriptor)
        finally:
            process.kill()


def test_workers_elsewhere_need_the_store(local: Terminal) -> None:
    url = "postgresql://ann@127.0.0.1:9/db"
    assert "Traceback" not in local.error("drain", "--all", "--store", url, code=1)


# ── workers ───────────────────────────────────────────────────────────────────────────────────


def test_workers_are_listed_with_the_runs_they_hold(andon: Terminal, seeded: SeededStore) -> None:
    assert "andon work FILE" in andon.run("workers").stderr
    seeded.worker("serves", "2")
    seeded.worker("drains")
    seeded.worker("went")
    seeded.start("r")
    seeded.take("drains", "r")
    seeded.drain("drains")
    seeded.leave("went")
    found = {one["id"]: one for one in andon.json("workers")}
    assert {name: one["state"] for name, one in found.items()} == {
        "serves": "serving",
        "drains": "draining",
    }
    assert (found["drains"]["in_hand"], found["drains"]["concurrency"]) == (1, 10)
    assert found["serves"]["agents"] == [{"name": "agent", "version": "2"}]
    text = andon("workers", "--old")
    assert "draining" in text
    assert "1 of 10" in text
    assert "exited" in text


def test_a_silent_worker_is_neither_alive_nor_dead(seeded: SeededStore) -> None:
    from tests.store.parts import agent_row, worker_row

    from andon.store.store import Register

    register = Register(worker=worker_row("w"), agents=(agent_row(),), lease_seconds=-1)
    do(seeded.store, register)
    assert [one["state"] for one in workers.workers(seeded.store)] == ["silent"]
