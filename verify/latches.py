"""The latch after a cut: a pull that was answered holds, whatever else the disk has lost.

A process pulls the latch of its home, says that it is pulled, and lifts it, some times. A cut after
each word leaves images of the home; the product looks at each, also when somebody deletes STOP.
"""

import os
import random
import subprocess
import sys
from pathlib import Path

from tests.chaos.fleet import environment

from andon.supervisor.latch import Latch
from verify.calls import recorded
from verify.disk import KINDS, Disk
from verify.layer import Effort, Outcome

VARIANTS = 10  # at scale 1; of each kind, after each word
PULLED, LIFTING = "pulled", "lifting"
PROGRAM = f"""
import os, sys
from andon.supervisor.latch import Latch

home, said = sys.argv[1:]
latch = Latch(home)
words = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for _ in range(5):
    found = latch.pull("ana", "odd")
    os.write(words, b"{PULLED}")
    os.write(words, b"{LIFTING}")
    latch.clear(found.epoch, "ana", "looked")
"""


def check(preload: dict[str, str], folder: Path, effort: Effort) -> Outcome:
    home, said, log = folder / "home", folder / "said", folder / "log"
    folder.mkdir()
    Latch(str(home)).init()
    disk = Disk(
        {str(path): bytearray(path.read_bytes()) for path in home.iterdir() if path.is_file()}
    )
    shim = {**preload, "SHIM_FOLDER": f"{folder}/", "SHIM_LOG": str(log)}
    command = [sys.executable, "-c", PROGRAM, str(home), str(said)]
    subprocess.run(command, env={**environment(), **shim}, check=True)
    outcome, chance = Outcome("latches", "", 0, 0), random.Random(effort.seed)
    for number, call in enumerate(recorded(log)):
        if call.path != str(said):
            disk.take(call)
        elif call.bytes == PULLED.encode():
            for kind in KINDS * max(1, round(VARIANTS * effort.scale)):
                image = folder / f"image-{outcome.runs}"
                outcome.runs += 1
                found = held(image, disk.after_a_cut(kind, chance))
                name = f"seed {effort.seed}, latch cut after call {number}, {kind}"
                outcome.violations += [f"{name}: {one}" for one in found]
    outcome.faults = outcome.runs
    outcome.injected = f"latches {outcome.faults}"
    outcome.guards += [] if outcome.runs else ["no latch was cut"]
    return outcome


def held(image: Path, files: dict[str, bytearray]) -> list[str]:
    """What is wrong with a home whose latch is pulled. Deleting STOP lifts nothing."""
    image.mkdir()
    for path, found in files.items():
        (image / os.path.basename(path)).write_bytes(found)
    wrong = [] if Latch(str(image)).look().pulled else ["a pull was answered and is lost"]
    (image / "STOP").unlink(missing_ok=True)
    if not wrong and not Latch(str(image)).look().pulled:
        wrong.append("a pull was answered, and only STOP is left of it")
    return wrong
