"""Bugs planted on purpose. A layer that does not find its own canaries proves nothing.

A canary changes one place in a copy of the product, and its layer runs against that copy. It is
caught only by a violation, and only if runs without faults still end well in the copy: a copy that
merely crashes counts as not caught. The product itself has no switch that turns a safety off;
docs/decisions/0015 says why.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from verify import (
    planted,
    planted_orphans,
    planted_stores,
    planted_stories,
    planted_writers,
)
from verify.layer import Say
from verify.planted import Canary

ROOT = Path(__file__).resolve().parent.parent
# Generous: a canary that makes its layer hang must not hold up the others for ever.
LIMIT_SECONDS = 900
CANARIES = (
    planted.CANARIES
    + planted_stores.CANARIES
    + planted_stories.CANARIES
    + planted_writers.CANARIES
    + planted_orphans.CANARIES
)


@dataclass
class Tried:
    """The outcome of one canary."""

    name: str
    layer: str
    caught: bool
    why: str  # why it was not caught
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0


class NotPlanted(Exception):
    """The text that a canary replaces is missing or stands there twice: the product has changed."""


def named(name: str) -> Canary:
    found = [one for one in CANARIES if one.name == name]
    if not found:
        raise SystemExit(f"--canary {name}: expected {', '.join(one.name for one in CANARIES)}")
    return found[0]


def plant(canary: Canary, package: Path) -> None:
    """Replaces the canary's text in a copy of the package."""
    path = package / canary.file
    text = path.read_text("utf-8") if path.is_file() else ""
    times = text.count(canary.old)
    if times != 1:
        raise NotPlanted(
            f"its text is {times} times in {canary.file}, expected once: {canary.old!r}"
        )
    path.write_text(text.replace(canary.old, canary.new), "utf-8")


def try_all(layers: Iterable[str], say: Say) -> list[Tried]:
    """Tries every canary whose layer exists. The others are reported, and are red."""
    present = set(layers)
    tried = []
    for canary in CANARIES:
        if canary.layer in present:
            tried.append(try_one(canary, say))
        else:
            tried.append(Tried(canary.name, canary.layer, False, "its layer is missing"))
    return tried


def try_one(canary: Canary, say: Say) -> Tried:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="andon-canary-") as folder:
        package = Path(folder) / "andon"
        shutil.copytree(
            ROOT / "src" / "andon", package, ignore=shutil.ignore_patterns("__pycache__")
        )
        try:
            plant(canary, package)
        except NotPlanted as error:
            found = Tried(canary.name, canary.layer, False, str(error))
        else:
            found = _run(canary, Path(folder))
            if found.caught and (broken := _broken(Path(folder))):
                found = Tried(canary.name, canary.layer, False, f"it merely breaks: {broken}")
    found.seconds = time.monotonic() - began
    how = "caught" if found.caught else f"MISSED: {found.why}"
    say(f"{canary.name} ({canary.layer}): {how}, {found.seconds:.0f} s")
    return found


def _run(canary: Canary, folder: Path) -> Tried:
    """Runs the layer in a process of its own that imports the copy."""
    answer = folder / "answer.json"
    command = [sys.executable, str(ROOT / "verify" / "verify.py"), "--only", canary.layer]
    try:
        command += ["--effort", "ci", "--until-red", "--json", str(answer)]
        done = _with_copy(folder, command)
    except subprocess.TimeoutExpired:
        why = f"its layer did not end within {LIMIT_SECONDS} s"
        return Tried(canary.name, canary.layer, False, why)
    if not answer.exists():
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        return Tried(canary.name, canary.layer, False, f"the program broke: {last}")
    found = json.loads(answer.read_text())
    if not found["product"].startswith(str(folder)):
        return Tried(canary.name, canary.layer, False, f"{found['product']} was run instead")
    [outcome] = found["layers"]
    violations = outcome["violations"]
    why = "" if violations else f"nothing was found; guards: {outcome['guards'] or 'met'}"
    return Tried(canary.name, canary.layer, bool(violations), why, violations[:5])


def _broken(folder: Path) -> str:
    done = _with_copy(folder, [sys.executable, "-m", "verify.baseline"])
    return (done.stderr.strip().splitlines() or ["it ended"])[-1] if done.returncode else ""


def _with_copy(folder: Path, command: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(folder)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
