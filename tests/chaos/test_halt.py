"""A halt holds, whichever process dies in the middle of it and whatever races with it.

The processes are counted from outside: every one of them holds the writing end of a pipe, so the
end of the pipe is the end of them all.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cli.hosts import Host, gone
from tests.cli.terminal import LIMIT_SECONDS, until

from andon.host.latch import Latch
from andon.store.messages.rows import Filter

OF_THE_SUPERVISOR = ("halt:latched", "halt:killing", "halt:killed", "halt:verified")
OF_THE_CONTROL_PROCESS = ("attend:order", "attend:heard", "attend:reported")
OF_THE_COMMAND = ("halt:pulled", "halt:sent")

# Every process opens the pipe itself: a supervisor closes descriptors it does not know.
FLEET = """
import os, sys, time
alive = os.open("alive", os.O_WRONLY)
os.set_inheritable(alive, True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("escaped", "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
open("stays", "w").write(str(os.getpid()))
time.sleep(600)
"""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.chaos)])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    """PostgreSQL belongs to `make chaos`: to be killed at each point takes a while."""
    return Host(tmp_path, request.getfixturevalue(f"{request.param}_url"))


@contextmanager
def counted(folder: Path) -> Iterator[int]:
    """A pipe that reads as ended when no process that opened it is left."""
    os.mkfifo(folder / "alive")
    reader = os.open(folder / "alive", os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield reader
    finally:
        os.close(reader)


def assert_none_left(reader: int) -> None:
    watch = select.poll()
    watch.register(reader, select.POLLHUP)
    assert watch.poll(LIMIT_SECONDS * 1000), "processes of the fleet are still alive"


def halted(host: Host, **given: Any) -> dict[str, Any]:
    """Pull, whatever the exit code says, and then again until it is proved."""
    words = ["halt", "--json", "--why", "a test"]
    with host.process(*words, **given) as process:
        process.ends()

    seen: list[dict[str, Any]] = []

    def proved() -> bool:
        with host.process(*words, stdout=subprocess.PIPE) as again:
            assert again.process.stdout is not None
            seen.append(json.loads(again.process.stdout.read()))
            return again.ends() == 0

    try:
        until(proved, "the halt is proved")
    except AssertionError as error:
        raise AssertionError(json.dumps(seen[-1], indent=1)) from error
    return seen[-1]


def assert_nothing_begins(host: Host) -> None:
    assert Latch(str(host.home)).read().pulled
    message = host.run("run", "--", sys.executable, "-c", "open('begun', 'w')", code=1).stderr
    assert "reauthorize" in message
    assert "halted" in host.error("start", "greet", code=1)
    assert not (host.folder / "begun").exists()
    with host.store() as store:
        assert [one for one in store.runs(Filter(limit=100)) if one.state == "running"] == []
        assert len([one for one in store.latches() if one.kind == "halt"]) == 1


@pytest.mark.parametrize("point", OF_THE_SUPERVISOR + OF_THE_CONTROL_PROCESS)
def test_a_halt_holds_and_is_proved_although_a_process_is_killed_in_the_middle(
    host: Host, point: str
) -> None:
    with host.process("work", "agents.py") as worker:  # for the agent's name; ended by the halt
        worker.says("is ready")
        command = ["--id", "r", "--", sys.executable, "-c", FLEET]
        with (
            counted(host.folder) as reader,
            host.command(*command, env={"ANDON_FAULTS": f"{point}=kill"}) as process,
        ):
            stays, escaped = host.pid_in("stays"), host.pid_in("escaped")
            receipt = halted(host)
            assert_none_left(reader)
            gone(stays)
            gone(escaped)
            assert process.ends() != 0
    assert_nothing_begins(host)
    with host.store() as store:
        [stop] = [one for one in store.stops() if one.kind == "halt"]
        assert stop.id == receipt["receipt"]
        run = until(lambda: (found := store.run("r")) and found.stop is None and found, "over")
        assert run.state in ("killed", "queued")  # queued, and held by the latch


@pytest.mark.parametrize("point", OF_THE_COMMAND)
def test_a_pull_whose_command_is_killed_holds(host: Host, point: str) -> None:
    with (
        host.process("work", "agents.py"),
        counted(host.folder) as reader,
        host.command("--id", "r", "--", sys.executable, "-c", FLEET),
    ):
        host.pid_in("stays")
        host.pid_in("escaped")
        with host.process("halt", env={"ANDON_FAULTS": f"{point}=kill"}) as process:
            assert process.ends() == -9
        assert_none_left(reader)  # every process that looks for the latch sees it
        halted(host)
    assert_nothing_begins(host)


@pytest.mark.parametrize("number", [1, 2])
def test_a_supervisor_killed_just_after_it_started_a_child_leaves_no_process_behind(
    host: Host, number: int
) -> None:
    """The first child is the control process, the second is the command."""
    env = {"ANDON_FAULTS": f"supervisor:spawned=kill@{number}"}
    with host.command("--id", "r", "--", sys.executable, "-c", FLEET, env=env) as process:
        assert process.ends() == -9
        until(lambda: not in_home(host), "the end of every process with this home")
    assert host.run("run", "--", sys.executable, "-c", "print('goes on')").stdout == "goes on\n"


def in_home(host: Host) -> list[int]:
    """The processes with this home in their environment, except those that are exiting."""
    found = []
    wanted = f"ANDON_HOME={host.home}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def test_a_halt_wins_every_race(host: Host) -> None:
    """Against starts, claims, drains, resumes and a second halt at the same moment."""
    with host.up(workers=2) as supervisor:
        for number in range(6):
            host.start("stuck", f"marker=m{number}")
        until((host.folder / "m0").exists, "a run is in hand")
        races = [
            *[("start", "greet")] * 3,
            ("pause", "--agent", "stuck", "--no-wait"),
            ("resume", "--all"),
            ("drain", "--all"),
            ("halt", "--json"),
            ("halt", "--json"),
        ]
        with ThreadPoolExecutor(len(races)) as pool:
            list(pool.map(lambda words: _run(host, *words), races))
        receipt = halted(host)
        until(lambda: "HALTED" in supervisor.text or supervisor.process.poll() is not None, "")
        assert_nothing_begins_in_store(host, receipt["receipt"])


def _run(host: Host, *words: str) -> int:
    with host.process(*words) as process:
        return process.ends()


def assert_nothing_begins_in_store(host: Host, receipt: str) -> None:
    with host.store() as store:
        assert [one for one in store.runs(Filter(limit=100)) if one.state == "running"] == []
        assert [one.id for one in store.stops() if one.kind == "halt"] == [receipt]
    assert "halted" in host.error("start", "greet", code=1)
