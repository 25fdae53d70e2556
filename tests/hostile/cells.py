"""One cell of the matrix: a shape, an order, and the worker's owner; judged from outside."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cli.hosts import Host
from tests.cli.terminal import until
from tests.hostile import actors, shapes

from andon.host import proc

SHAPES = (*shapes.WORKERS, *shapes.LEFT, shapes.NATIVE, shapes.WAITS, *actors.SHAPES)
ORDERS = ("kill", "pause", "cancel", "halt")
OWNERS = ("work", "up")
# A process still running after the answer acts within this time; an act is due every 5 ms.
WATCH_SECONDS = 0.5
TIMEOUT = "10s"


@dataclass
class Verdict:
    """The answer of the command, and the observation from outside."""

    proved: bool
    code: int
    seconds: float  # from the order to the answer
    acts_after: int  # after the answer
    left: list[str]  # processes that were still there after the watch
    ended_seconds: float  # from the order to the last act
    said: str
    named: bool = False  # each process that acted until then, in the receipt

    @property
    def honest(self) -> bool:
        """No process acts, or is able to act again, after the proof that none does."""
        return not (self.proved and (self.acts_after or self.left))

    @property
    def ended(self) -> bool:
        return not self.acts_after and not self.left


def cell(folder: Path, url: str, shape: str, order: str, owner: str) -> Verdict:
    """Starts the shape, gives the order, and judges."""
    host = Host(folder, url)
    witness = folder / "witness"
    with _owner(host, owner), _daemon(witness):  # the daemon may hold the worker: it goes first
        run = host.start("hostile", f"shape={shape}", f"witness={witness}")
        if shape == shapes.WAITS:
            until(lambda: host.json("show", run)["state"] == "suspended", "the run waits")
        else:
            until(Path(f"{witness}.up").exists, "the shape acts")
        words = [order, "--json", *([] if order == "halt" else [run, "--timeout", TIMEOUT])]
        if order in ("pause", "cancel"):
            words += ["--within", "0.2s"]
        try:
            return _judge(host, words, witness, spare=shape in shapes.LEFT)
        finally:
            _sweep(witness)


@contextlib.contextmanager
def _owner(host: Host, owner: str) -> Iterator[None]:
    host.environment["PYTHONPATH"] += f":{Path(__file__).parents[2]}"
    with host.process(owner, shapes.__file__) as process:
        process.says("is ready")
        try:
            yield
        finally:
            for pid in [*proc.descendants([process.process.pid])]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def _daemon(witness: Path) -> Iterator[None]:
    line = [sys.executable, "-S", actors.__file__, "serve", f"{witness}.sock", str(witness)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, start_new_session=True) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"up\n"
        try:
            yield
        finally:
            daemon.kill()


def _judge(host: Host, words: list[str], witness: Path, *, spare: bool) -> Verdict:
    began = time.monotonic()
    line = [sys.executable, "-m", "andon", *words]
    done = subprocess.run(
        line, cwd=host.folder, env=host.environment, capture_output=True, text=True, check=False
    )
    answered = time.monotonic()
    acts: list[float] = []
    while time.monotonic() < answered + WATCH_SECONDS and not acts:
        acts = [at for at in _acts(witness) if at > answered]
    last = max(_acts(witness), default=began)
    told: dict[str, Any] = {}
    with contextlib.suppress(ValueError):
        told = json.loads(done.stdout)
    acted = {int(line.split()[0]) for line in witness.read_bytes().split(b"\n")[:-1]}
    proved = done.returncode == 0 and bool(told.get("proved"))
    return Verdict(
        proved,
        done.returncode,
        round(answered - began, 3),
        len([at for at in _acts(witness) if at > answered]),
        [f"{pid} {proc.command(pid)}" for pid in _actors(witness, spare=spare)],
        round(last - began, 3),
        done.stderr.strip()[-300:],
        all(str(pid) in json.dumps(told) for pid in acted),
    )


def _acts(witness: Path) -> list[float]:
    """Return the time of each act; the last line may be incomplete."""
    lines = witness.read_bytes().split(b"\n")[:-1]
    return [int(words[1]) / 1e9 for line in lines if len(words := line.split()) == 2]


def _actors(witness: Path, *, spare: bool = False) -> list[int]:
    """Those that still execute, by their command line or by the pid they wrote down.

    `spare`: without the worker, which may go on when it has ended the processes that acted in it.
    """
    named = {int(line.split()[0]) for line in witness.read_bytes().split(b"\n")[:-1]}
    named = set() if spare else named
    inside = [pid for pid in named if shapes.__file__ in proc.words(pid) and proc.alive(pid)]
    return inside + [
        pid
        for pid in proc.every_pid()
        if str(witness) in (words := proc.words(pid)) and "serve" not in words and proc.alive(pid)
    ]


def _sweep(witness: Path) -> None:
    """Leaves no process behind, whatever the verdict is."""

    def swept() -> bool:
        found = _actors(witness)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not found

    if witness.exists():
        until(swept, "the shape is swept away")
