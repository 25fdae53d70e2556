"""Real power cuts: an ext4 is shut down while a worker writes to it, and mounted again.

EXT4_IOC_SHUTDOWN without a flush of the journal: unsynced data is gone, as after a power cut. The
worker is stopped first, because the call races with a sync in flight. Needs root, a loop device and
mkfs.ext4; where one is missing, the outcome says so and nothing is red.
"""

import contextlib
import fcntl
import os
import random
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.chaos import agents, laws, world
from tests.chaos.fleet import Forker, Site, until
from tests.chaos.kill import make_tally

from verify import harness, syscalls
from verify.layer import Effort, Outcome

SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32), from <ext4.h>
WITHOUT_FLUSH = 2
CUTS = 12  # at scale 1
RUNS = [f"run{number}" for number in range(4)]


def check(forker: Forker, folder: Path, effort: Effort) -> Outcome:
    outcome = Outcome("cuts", "real cuts 0", 0, 0)
    folder.mkdir()
    chance = random.Random(effort.seed)
    if refused := refuse(folder):
        outcome.injected = f"real cuts 0 ({refused})"
        return outcome
    for number in range(max(1, round(CUTS * effort.scale))):
        place = folder / str(number)
        place.mkdir()
        found = cut(forker, place, chance)
        outcome.violations += [f"real cut {number}, seed {effort.seed}: {one}" for one in found]
        outcome.faults += 1
        outcome.runs += len(RUNS)
    outcome.injected = f"real cuts {outcome.faults}"
    return outcome


def refuse(folder: Path) -> str:
    """Why this host allows no real cuts."""
    place = folder / "try"
    place.mkdir()
    try:
        with mounted(made(place), place / "disk") as disk:
            shut_down(disk)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", b"") or str(error).encode()
        return said.decode().strip().splitlines()[-1]
    return ""


def made(place: Path) -> Path:
    image = place / "image"
    with image.open("wb") as file:
        file.truncate(64 << 20)
    run("mkfs.ext4", "-q", "-F", str(image))
    return image


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@contextlib.contextmanager
def mounted(image: Path, disk: Path) -> Iterator[Path]:
    disk.mkdir(exist_ok=True)
    run("mount", "-o", "loop", str(image), str(disk))
    try:
        yield disk
    finally:
        for _ in range(100):  # A killed process releases the mount a moment later.
            if not subprocess.run(["umount", disk], capture_output=True, check=False).returncode:
                break
            time.sleep(0.05)
        else:
            run("umount", "--lazy", str(disk))


def shut_down(disk: Path) -> None:
    descriptor = os.open(disk, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, SHUTDOWN, struct.pack("I", WITHOUT_FLUSH))
    finally:
        os.close(descriptor)


def cut(forker: Forker, place: Path, chance: random.Random) -> list[str]:
    image, disk, folder = made(place), place / "disk", place / "world"
    url = f"sqlite:///{disk}/andon.db"
    with mounted(image, disk):
        with harness.sited(forker, url, folder) as site:
            make_tally(site)
            for name in RUNS:
                site.start(agents.sequence, run=name)
            environ = {"CHAOS_STEP_SECONDS": "0.02"}
            process = site.worker(environ=environ, settings=syscalls.SETTINGS, checkpoint_pages=40)
            some = chance.randrange(1, 40)
            until(lambda: len(world.lines(folder)) >= some or not site.open_runs(), "some work")
            process.freeze()
        # The processes of the site are gone without a shutdown; the disk has not been synced.
        shut_down(disk)
    wrong: list[str] = []
    with mounted(image, disk), harness.findings(wrong), harness.sited(forker, url, folder) as site:
        wrong += judged(site)
        site.worker(settings=syscalls.SETTINGS)
        site.finish(harness.HANG_SECONDS)
        site.end()
        wrong += judged(site, over=True)
    return wrong


def judged(site: Site, *, over: bool = False) -> list[str]:
    wrong = laws.broken(site.store, site.folder, RUNS) + harness.damage(site.store)
    for name in RUNS:
        wrong += harness.lost(site.store, site.folder, name)
        wrong += harness.forgotten(site.folder, name)
        if over and laws.result(site.store, name) != agents.SEQUENCE:
            wrong.append(f"{name}: its result is {laws.result(site.store, name)}")
    return wrong
