"""Power loss: what a disk may hold after a cut, and whether everything acknowledged is still there.

The shim records a worker's writes and syncs. The record yields images of its files as they may be
after a cut at any call: synced data is there; of all other data each sector is there or not, in any
combination. The real product opens each image, and works some of them to the end. The latch of a
host is recorded and cut in the same way (verify/latches.py). Where the host allows it, a real ext4
is shut down under a worker as well (verify/power_cuts.py).
"""

import contextlib
import random
import shutil
from collections import Counter
from pathlib import Path

from tests.chaos import laws
from tests.chaos.fleet import Forker

from andon.store import open_store
from verify import harness, latches, power_cuts, syscalls
from verify.calls import Call, recorded
from verify.disk import KINDS, Disk
from verify.layer import Effort, Outcome, Say

IMAGES = 1200  # at scale 1; each is opened
WORKED = 40  # of these, worked to the end


@harness.layer("power")
def check(effort: Effort, say: Say, outcome: Outcome) -> None:
    with harness.scratch("power") as folder:
        preload = {"LD_PRELOAD": str(harness.shim(folder))}
        with harness.forker(preload) as forker:
            made = Images(forker, folder, effort)
            made.record()
            made.judge(outcome, say)
            more = [
                latches.check(preload, folder / "latches", effort),
                power_cuts.check(forker, folder / "cuts", effort),
            ]
    for one in more:
        outcome.violations += one.violations
        outcome.guards += one.guards
        outcome.faults += one.faults
        outcome.runs += one.runs
        outcome.injected += f", {one.injected}"


class Images:
    """The record of one worker, and the disks that a cut may leave."""

    def __init__(self, forker: Forker, folder: Path, effort: Effort) -> None:
        self.forker, self.folder, self.effort = forker, folder, effort
        self.chance = random.Random(effort.seed)
        self.source = folder / "recorded"
        self.disk = Disk()
        self.calls: list[Call] = []

    def record(self) -> None:
        """One run from its first worker to its end; files that existed before are durable."""
        folder, store = self.source, self.source / "store"
        with syscalls.placed(self.forker, folder) as site:
            syscalls.make_ready(site)
            for path in (store / "andon.db", store / "andon.db-wal"):
                self.disk.put(str(path), path.read_bytes())
            shim = {"SHIM_FOLDER": f"{folder}/", "SHIM_LOG": f"{self.folder}/log"}
            syscalls.finish(site, syscalls.work(site, shim))
            site.end()
            if wrong := syscalls.judged(site):
                raise AssertionError(f"wrong without any cut: {wrong}")
        self.calls = recorded(self.folder / "log")

    def judge(self, outcome: Outcome, say: Say) -> None:
        images = max(60, round(IMAGES * self.effort.scale))
        chosen = Counter(self.chance.randrange(len(self.calls)) for _ in range(images))
        every = max(1, images // max(3, round(WORKED * self.effort.scale)))
        kinds: Counter[str] = Counter()
        worked, seen = [], ""
        log = str(self.source / "world" / "log")
        for number, call in enumerate(self.calls):
            if call.path == log:
                seen += call.bytes.decode()
            elif call.path.endswith(("andon.db", "-wal", "/store")):
                self.disk.take(call)
            for variant in range(chosen[number]):
                kind = KINDS[(number + variant) % len(KINDS)]
                kinds[kind] += 1
                image = self.folder / "images" / f"{number}-{variant}"
                name = f"seed {self.effort.seed}, cut after call {number}, {kind}"
                self.build(image, kind, seen)
                outcome.violations += [f"{name}: {wrong}" for wrong in opened(image)]
                if kinds.total() % every == 0:
                    worked.append((name, image))
                else:
                    shutil.rmtree(image)
        say(f"{kinds.total()} images opened, {len(worked)} to be worked to the end")
        for name, image in worked:
            outcome.violations += [f"{name}: {wrong}" for wrong in self.work_on(image)]
        outcome.runs = kinds.total() + len(worked)
        harness.count(outcome, KINDS, kinds)

    def build(self, image: Path, kind: str, seen: str) -> None:
        (image / "store").mkdir(parents=True)
        (image / "world").mkdir()
        (image / "world" / "log").write_text(seen)
        for path, found in self.disk.after_a_cut(kind, self.chance).items():
            (image / "store" / Path(path).name).write_bytes(found)

    def work_on(self, image: Path) -> list[str]:
        wrong: list[str] = []
        with harness.findings(wrong), syscalls.placed(self.forker, image) as site:
            site.worker(settings=syscalls.SETTINGS)
            site.finish(harness.HANG_SECONDS)
            site.end()
            wrong += syscalls.judged(site)
        return wrong


def opened(image: Path) -> list[str]:
    """Every violation in an image that the product opens."""
    wrong: list[str] = []
    with harness.findings(wrong):
        store = open_store(f"sqlite:///{image}/store/andon.db")
        with contextlib.closing(store):
            wrong += harness.damage(store)
            wrong += laws.broken(store, image / "world", [syscalls.RUN])
            wrong += harness.lost(store, image / "world", syscalls.RUN)
    return wrong


if __name__ == "__main__":
    harness.alone(check)
