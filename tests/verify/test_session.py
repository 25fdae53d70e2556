"""The command, interrupted: it leaves no process behind, frozen and orphaned ones included."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, signal, subprocess, sys, time
from verify import session

def play():
    orphan = "import os, time; os.fork() or os.setsid() or time.sleep(600)"
    subprocess.run([sys.executable, "-c", orphan], stdout=subprocess.DEVNULL)
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    frozen = subprocess.Popen(sleeper, stdout=subprocess.DEVNULL)
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        print("ready", flush=True)
        time.sleep(600)
    finally:
        print("put away", flush=True)

session.LEAVE_SECONDS = 0.1
sys.exit(session.apart(play))
"""


def marked(mark: str) -> list[int]:
    """Every process that was started with this in its environment, whoever its parent is."""

    def environments() -> Iterator[tuple[int, bytes]]:
        for found in Path("/proc").glob("[0-9]*/environ"):
            try:
                yield int(found.parent.name), found.read_bytes()
            except OSError:  # it has ended, or belongs to another user
                continue

    return [pid for pid, found in environments() if mark.encode() in found]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_command_leaves_no_process_behind(
    tmp_path: Path, number: signal.Signals
) -> None:
    mark = f"ANDON_TEST_MARK={tmp_path}"
    name, _, own = mark.partition("=")
    command = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, name: own, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert command.stdout is not None
    with command.stdout as said:
        assert said.readline() == "ready\n"
        assert len(marked(mark)) == 4  # the command, the layers, the orphan and the frozen one
        os.killpg(command.pid, number)  # as a terminal does it
        assert command.wait(60) == 130
        assert said.read() == "put away\ninterrupted: nothing is written\n"
    assert marked(mark) == []
