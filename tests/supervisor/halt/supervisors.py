"""Supervisors to halt: a real one, and a fake that answers as a test wants."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.cli.terminal import until

import andon
from andon.host import home as homes
from andon.host import proc

# Of the product under test: it may be a copy with a planted bug.
SOURCE = Path(andon.__file__).parents[1]
# A child that stays, and one that leaves its parent, its group and its session.
ESCAPES = "(setsid sh -c 'sleep 900 & sleep 900' &) ; sleep 900"


def environment(home: Path) -> dict[str, str]:
    own = {name: text for name, text in os.environ.items() if not name.startswith("ANDON_")}
    return {**own, "PYTHONPATH": str(SOURCE), "ANDON_HOME": str(home), "ANDON_BY": "ana"}


def halted(
    home: Path, *arguments: str, code: int | None = 0, **given: Any
) -> "subprocess.CompletedProcess[str]":
    """`andon halt` in an empty folder."""
    folder = home.with_name("folder")
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "andon", "halt", *arguments],
        cwd=given.pop("cwd", folder),
        env=environment(home) | given.pop("env", {}),
        capture_output=True, encoding="utf-8", timeout=60, check=False, **given,
    )  # fmt: skip
    assert code is None or done.returncode == code, f"{done.returncode}\n{done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


def receipt(home: Path, *arguments: str, code: int | None = 0, **given: Any) -> dict[str, Any]:
    found = json.loads(halted(home, "--json", *arguments, code=code, **given).stdout)
    assert isinstance(found, dict)
    return found


def below(pid: int) -> list[tuple[int, int]]:
    return [(one, proc.start_ticks(one)) for one in proc.descendants([pid])]


def alive(processes: list[tuple[int, int]]) -> list[int]:
    return [pid for pid, ticks in processes if proc.alive(pid, ticks)]


def _has_begun(home: Path, pid: int, commands: int, processes: int) -> bool:
    """Before its children it has scratch ones, and a pid namespace takes two processes each."""
    states = [json.loads(path.read_text()) for path in (home / "state").glob("*.json")]
    owned = [one for state in states if state["pid"] == pid for one in state["children"]]
    trees = [one["tree"] for one in owned if one["kind"] == "command"]
    aides = 2 * sum(tree["by"] == "pidns" for tree in trees)
    return len(trees) == commands and len(below(pid)) >= processes + aides


@contextlib.contextmanager
def supervisor(
    home: Path, *scripts: str, processes: int, control: list[str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """A real supervisor whose commands have started this many processes."""
    child = {"kind": "command", "restart": "never", "log": False, "env": dict(os.environ)}
    children = [
        {**child, "name": f"c{n}", "argv": ["sh", "-c", script]} for n, script in enumerate(scripts)
    ]
    if control is not None:
        children.append({**child, "name": "control", "kind": "control", "argv": control})
    spec = {"home": str(home), "children": children}
    read, write = os.pipe()
    os.write(write, json.dumps(spec).encode())
    os.close(write)
    process = subprocess.Popen(
        [sys.executable, "-m", "andon.supervisor", "--spec-fd", str(read)],
        pass_fds=[read], env=environment(home), stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(read)
    try:
        until(lambda: _has_begun(home, process.pid, len(scripts), processes), "its processes")
        yield process
    finally:
        everything = below(process.pid)
        process.kill()
        process.wait()
        for pid in alive(everything):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def fake(home: Path, answer: bytes, times: int = 1) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that is registered as a supervisor and answers these bytes, or nothing."""
    homes.make(str(home))
    path = homes.socket_path(str(home), "fake")
    code = (
        "import signal, socket, sys, time\n"
        "signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
        "own = socket.socket(socket.AF_UNIX); own.bind(sys.argv[1]); own.listen(9)\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    client, _ = own.accept()\n"
        "    client.recv(9999)\n"
        "    client.sendall(bytes.fromhex(sys.argv[2]) * int(sys.argv[3]))\n"
        "    if not sys.argv[2]: time.sleep(900)\n"
        "    client.close()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, path, answer.hex(), str(times)], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        ticks = proc.start_ticks(process.pid)
        assert ticks
        entry = homes.this_process("fake", "supervisor", socket=path)
        homes.register(str(home), entry._replace(pid=process.pid, start_ticks=ticks))
        yield process
    finally:
        process.kill()
        process.communicate()


def unreachable() -> str:
    """A store at an address where nothing answers: the port was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"postgresql://u:secret@127.0.0.1:{probe.getsockname()[1]}/none"
