"""Promises about processes, tested with real ones, on every database."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from tests.store.parts import claim, eventually, register, start, worker_row

from andon.core.journal import check_chain
from andon.store.messages.rows import Filter
from andon.store.store import Store

OPEN = """
import sys
from andon.store import open_store
from tests.store.parts import *
print("ready", flush=True)
sys.stdin.readline()
store = open_store(sys.argv[1])
me = register(store, sys.argv[2])
start(store, "run of " + me)
print(store.facts()["epoch"], flush=True)
store.close()
"""

HOLD = """
import sys
from andon.store import open_store
store = open_store(sys.argv[1])
print(store.hold("w"), flush=True)
sys.stdin.readline()
"""

WORK = """
import sys
from andon.store import open_store
from tests.store.parts import *
store = open_store(sys.argv[1])
me = register(store, sys.argv[2])
held = [Held(run) for run in claim(store, me, limit=1).runs]
print(held[0].id, flush=True)
while True:
    assert store.write([one.append() for one in held]) == [None]
    print("+", flush=True)
"""


@contextlib.contextmanager
def process(code: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    path = os.pathsep.join(sys.path)
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def read_line(child: "subprocess.Popen[str]") -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def send_line(child: "subprocess.Popen[str]") -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def test_five_processes_may_open_an_empty_store_at_the_same_instant(
    store_url: str, opened: Callable[[], Store]
) -> None:
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(process(OPEN, store_url, f"w{n}")) for n in range(5)]
        assert [read_line(child) for child in children] == ["ready"] * 5
        for child in children:
            send_line(child)
        assert [read_line(child) for child in children] == ["1"] * 5
        assert [child.wait() for child in children] == [0] * 5
    store = opened()
    assert (store.facts()["epoch"], len(store.workers()), len(store.runs(Filter()))) == (1, 5, 5)


@pytest.mark.usefixtures("long_running_server")
def test_a_killed_process_releases_its_lock(store_url: str, store: Store) -> None:
    with process(HOLD, store_url) as child:
        row = worker_row("w", read_line(child))
        assert not store.is_free(row)
        os.kill(child.pid, signal.SIGKILL)
        eventually(lambda: store.is_free(row), "the lock outlived its process")


@pytest.mark.usefixtures("long_running_server")
def test_a_stopped_process_keeps_its_lock(store_url: str, store: Store) -> None:
    with process(HOLD, store_url) as child:
        row = worker_row("w", read_line(child))
        os.kill(child.pid, signal.SIGSTOP)
        assert not store.is_free(row)


def test_a_write_that_was_acknowledged_to_a_killed_process_is_there(
    store_url: str, store: Store
) -> None:
    start(store, "r")
    with process(WORK, store_url, "w") as child:
        assert read_line(child) == "r"
        told = 0
        while told < 20:
            assert read_line(child) == "+"
            told += 1
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        assert child.stdout is not None
        told += child.stdout.read().count("+")
    entries = store.journal("r")
    assert told <= len(entries) - 1 <= told + 1
    check_chain(entries, run_id="r")
    register(store, "second")
    dead = (("w", "dead:killed"),)
    assert [run.id for run in claim(store, "second", dead=dead).runs] == ["r"]
