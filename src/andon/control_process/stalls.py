"""Finds stalls that the supervisor cannot see: steps that exceed their time limit.

The stack of the process is written to `stacks/` first: by py-spy where it is installed, else by
the worker itself, if it has registered for the signal. Stacks contain no values.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from andon.host import home as homes
from andon.host import proc
from andon.store.store import WorkerRow

DUMP_SECONDS = 5.0
FIRST_LINES = 12
# The line at which the relevant stack begins: the main thread's by faulthandler, the first one by
# py-spy. Evidence from the kernel may stand before it.
STACKS = ("Current thread", "Thread ")
ASK = signal.SIGRTMIN + 4


def overlong(row: WorkerRow, limit: float) -> tuple[str, str, float] | None:
    """The run, the step and its seconds, of the longest step beyond the limit, if there is one."""
    if not limit or not row.progress:
        return None
    found = []
    with contextlib.suppress(ValueError, TypeError, AttributeError, KeyError):
        for run_id, (step, seconds) in json.loads(row.progress)["runs"].items():
            found.append((float(seconds), str(run_id), str(step)))
    if not found or max(found)[0] <= limit:
        return None
    seconds, run_id, step = max(found)
    return run_id, step, seconds


def tick(row: WorkerRow) -> int:
    """The number of turns of the worker's event loop at its last heartbeat."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return int(json.loads(row.progress or "{}")["tick"])
    return 0


def evidence(home: str, owner: str, child: str, pid: int) -> tuple[str, list[str]]:
    """Write the stack of a process to a file; returns the path and the first lines."""
    name = f"{child}-{pid}-{int(time.time())}.txt".replace("/", "_")
    path = os.path.join(home, "stacks", name)
    text = _py_spy(pid) or _faulthandler(stacks_file(home, owner, child), pid) or _kernel(pid)
    with contextlib.suppress(OSError):
        homes.make(home)
        homes.write(path, text.encode())
    return path, text.splitlines()[:FIRST_LINES]


def described(why: str, seconds: float, path: str, lines: list[str]) -> str:
    return json.dumps(
        {"since": time.time() - seconds, "why": why, "evidence": path, "stack": lines}
    )


def first_lines(path: str) -> list[str]:
    """The first lines of the stack in a file; of the file, if it contains no stack."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    for stack in STACKS:
        for number, line in enumerate(lines):
            if line.startswith(stack):
                return lines[number : number + FIRST_LINES]
    return lines[:FIRST_LINES]


def _py_spy(pid: int) -> str:
    program = shutil.which("py-spy")
    if program is None:
        return ""
    argv = [program, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(  # noqa: S603
            argv, capture_output=True, text=True, timeout=DUMP_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _faulthandler(file: str, pid: int) -> str:
    """Ask the process for its stack, if it catches the signal: the signal would kill any other."""
    if not proc.catches(pid, ASK):
        return ""
    path = Path(file)
    try:
        before = path.stat().st_size if path.exists() else 0
        os.kill(pid, ASK)
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            if path.exists() and path.stat().st_size > before:
                return path.read_text("utf-8", "replace")[before:]
            time.sleep(0.02)
    except OSError:
        pass
    return ""


def stacks_file(home: str, owner: str, child: str) -> str:
    """The file that ANDON_STACKS names for a child of that supervisor."""
    return os.path.join(home, "stacks", f"{owner}-{child}.asked".replace("~", "-"))


def _kernel(pid: int) -> str:
    found = proc.evidence(pid).decode("utf-8", "replace")
    return (
        f"no stack: py-spy is not installed. What the kernel reports about process {pid}:\n{found}"
    )
