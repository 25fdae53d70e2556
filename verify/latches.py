"""The latch after a cut: a pull that was acknowledged holds, whatever else the disk has lost.

A process pulls the latch of its home in every way there is, reports that it is pulled, and lifts
it, several times. A cut after each report leaves images of the home. The product reads each, also
after somebody deleted STOP or corrupted the latch. Other processes pull while one of their calls
fails, and are cut after they have answered.
"""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.chaos.fleet import environment

from andon.host.latch import Latch
from verify.calls import recorded
from verify.disk import KINDS, Disk
from verify.layer import Effort, Outcome

VARIANTS = 10  # at scale 1; of each kind, after each report
PULLED, LIFTING, LIFTED = "pulled", "lifting", "lifted"
PROGRAM = f"""
import os, sys
from andon.host.latch import Latch

home, said = sys.argv[1:]
latch = Latch(home)
words = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
stop = home + "/STOP"


def touch():
    os.close(os.open(stop, os.O_WRONLY | os.O_CREAT))


def lift():
    os.write(words, b"{LIFTING}")
    latch.clear(latch.read().epoch, "ana", "looked")
    os.write(words, b"{LIFTED}")


for _ in range(3):
    found = latch.pull("ana", "odd")
    os.write(words, b"{PULLED}")
    latch.pull("ben", "odd here too")
    latch.clear(found.epoch, "ana", "has not seen what ben saw")
    os.write(words, b"{PULLED}")
    lift()
    touch()
    found = latch.read()
    os.write(words, b"{PULLED}")
    os.unlink(stop)
    touch()
    for _ in range(2):  # and tries again
        latch.clear(found.epoch, "ana", "has not seen that it was touched again")
    os.write(words, b"{PULLED}")
    lift()
"""
# Their n-th call fails; they are forked, so that starting them takes no time.
FAULTS = ("kill", "torn", "eio", "enospc", "short", "fsync")
CALLS = 6  # no pull makes so many
BEFALLEN = """
import json, os, sys
from andon.host.latch import Latch

for fault, place, log, answer in json.loads(sys.argv[1]):
    pid = os.fork()
    if pid == 0:
        os.environ.update(SHIM_FAULT=fault, SHIM_FOLDER=place + "/", SHIM_LOG=log)
        found = Latch(place + "/home").pull("ana", "odd")
        with open(answer, "w") as file:
            file.write(found.unwritten)
        os._exit(0)
    os.waitpid(pid, 0)
"""


def check(preload: dict[str, str], folder: Path, effort: Effort) -> Outcome:
    outcome, chance = Outcome("latches", "", 0, 0), random.Random(effort.seed)
    cut(preload, folder, effort, chance, outcome)
    befall(preload, folder, effort, chance, outcome)
    outcome.faults = outcome.runs
    outcome.injected = f"latches {outcome.faults}"
    outcome.guards += [] if outcome.runs else ["no latch was cut"]
    return outcome


def cut(
    preload: dict[str, str], folder: Path, effort: Effort, chance: random.Random, outcome: Outcome
) -> None:
    """After each report."""
    home, said, log = folder / "home", folder / "said", folder / "log"
    folder.mkdir()
    Latch(str(home)).init()
    disk = of(home)
    shim = {**preload, "SHIM_FOLDER": f"{folder}/", "SHIM_LOG": str(log)}
    command = [sys.executable, "-c", PROGRAM, str(home), str(said)]
    subprocess.run(command, env={**environment(), **shim}, check=True)
    for number, call in enumerate(recorded(log)):
        if call.path != str(said):
            disk.take(call)
        elif call.bytes == PULLED.encode():
            for kind in KINDS * max(1, round(VARIANTS * effort.scale)):
                image = placed(folder / f"image-{outcome.runs}", disk.after_a_cut(kind, chance))
                outcome.runs += 1
                name = f"seed {effort.seed}, latch cut after call {number}, {kind}"
                outcome.violations += [f"{name}: {one}" for one in held(image)]
        elif call.bytes == LIFTED.encode():
            image = placed(folder / f"image-{outcome.runs}", disk.after_a_cut("kept", chance))
            outcome.runs += 1
            name = f"latch lifted by call {number}"
            if Latch(str(image)).look().pulled:
                outcome.violations.append(f"{name}: it holds, and was lifted")
            outcome.violations += [f"{name}: {one}" for one in spoilt(image)]


def of(home: Path) -> Disk:
    files = {str(path): path.read_bytes() for path in home.iterdir() if path.is_file()}
    return Disk(files, strict=True)


def placed(image: Path, files: dict[str, bytearray]) -> Path:
    image.mkdir()
    for path, found in files.items():
        (image / os.path.basename(path)).write_bytes(found)
    return image


def held(image: Path) -> list[str]:
    """Every violation in a home whose latch is pulled. Deleting STOP lifts nothing."""
    wrong = [] if Latch(str(image)).look().pulled else ["a pull was acknowledged and is lost"]
    (image / "STOP").unlink(missing_ok=True)
    if not wrong and not Latch(str(image)).look().pulled:
        wrong.append("a pull was acknowledged, and only STOP is left of it")
    return wrong or list(spoilt(image))


# ── a corrupted latch ─────────────────────────────────────────────────────────────────────────────


def spoilt(image: Path) -> Iterator[str]:
    """The unreadable contents that are not read as pulled."""
    path = image / "latch"
    whole = path.read_bytes()
    for name, spoil in SPOILS.items():
        path.unlink()
        spoil(path, whole)
        if not Latch(str(image)).look().pulled:
            yield f"it is free when it is {name}"
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        path.write_bytes(whole)


SPOILS: dict[str, Callable[[Path, bytes], object]] = {
    "missing": lambda _path, _whole: None,
    "empty": lambda path, _whole: path.write_bytes(b""),
    "torn": lambda path, whole: path.write_bytes(whole[:-1]),
    "nonsense": lambda path, whole: path.write_bytes(whole + b"{\n"),
    "a folder": lambda path, _whole: path.mkdir(),
    "a link to nowhere": lambda path, _whole: path.symlink_to("nowhere"),
    "a pipe": lambda path, _whole: os.mkfifo(path),
}


# ── a call fails ──────────────────────────────────────────────────────────────────────────────────


def befall(
    preload: dict[str, str], folder: Path, effort: Effort, chance: random.Random, outcome: Outcome
) -> None:
    """Every fault at every call of a pull, in a known home and in a new one."""
    orders, disks = [], {}
    for known in (True, False):
        for fault in (f"{kind}@{n}" for kind in FAULTS for n in range(1, CALLS)):
            place = folder / f"{fault}-{'known' if known else 'new'}"
            (place / "home").mkdir(parents=True)
            if known:
                Latch(str(place / "home")).init()
            disks[place] = of(place / "home")
            orders.append((fault, str(place), f"{place}.log", f"{place}.answer"))
    command = [sys.executable, "-c", BEFALLEN, json.dumps(orders)]
    subprocess.run(command, env={**environment(), **preload}, check=True)
    for place, disk in disks.items():
        outcome.runs += 1
        for call in recorded(Path(f"{place}.log")):
            disk.take(call)
        answer = Path(f"{place}.answer")
        if not answer.exists():
            continue  # it was killed: nothing was acknowledged
        unwritten = answer.read_text()
        name = f"seed {effort.seed}, latch pulled with {place.name}"
        if not unwritten and not Latch(str(place / "home")).look().pulled:
            outcome.violations.append(f"{name}: it was acknowledged, and does not hold")
        for kind in () if unwritten else KINDS:
            image = placed(place / kind, disk.after_a_cut(kind, chance))
            if not Latch(str(image)).look().pulled:
                outcome.violations.append(f"{name}, cut, {kind}: it was acknowledged and is lost")
