"""Power loss: what a disk may hold after a cut, and whether everything acknowledged is still there.

A worker's writes and syncs are recorded by the shim. From the record come images of its files as
they may be after a cut at any call: what was synced is there; of the rest each sector is there or
not, in any combination. Each image is opened by the real product, and some are worked to the end.
Where the host lets it, a real ext4 is shut down under a worker besides (verify/cuts.py).

The model is ext4's: the sync of a file makes its own bytes and the names of files durable.
"""

import contextlib
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos import laws
from tests.chaos.fleet import Forker

from andon.store import open_store
from verify import cuts, scene, syscalls
from verify.calls import Call, recorded
from verify.layer import Effort, Outcome, Say

SECTOR = 512
IMAGES = 1200  # at scale 1; each is opened
WORKED = 40  # of these, worked to the end
KINDS = ("dropped", "kept", "reordered", "torn")


@dataclass
class Disk:
    """The files below a folder: what of them is durable, and what is on its way."""

    durable: dict[str, bytearray] = field(default_factory=dict)
    pending: list[Call] = field(default_factory=list)

    def take(self, call: Call) -> None:
        if call.kind != "sync":
            self.pending.append(call)
            return
        later = []
        for one in self.pending:
            if one.path == call.path or one.kind in ("create", "unlink", "rename"):
                apply(self.durable, one)
            else:
                later.append(one)
        self.pending = later

    def after_a_cut(self, kind: str, chance: random.Random) -> dict[str, bytearray]:
        files = {path: bytearray(found) for path, found in self.durable.items()}
        for call in self.pending:
            if kind == "kept" or (kind != "dropped" and chance.random() < 0.5):
                torn = kind == "torn" and call.kind == "write"
                for part in sectors(call, chance) if torn else [call]:
                    apply(files, part)
        return files


def apply(files: dict[str, bytearray], call: Call) -> None:
    match call.kind:
        case "create":
            files.setdefault(call.path, bytearray())
        case "unlink":
            files.pop(call.path, None)
        case "rename":
            files[call.bytes.decode()] = files.pop(call.path, bytearray())
        case "truncate":
            found = files.setdefault(call.path, bytearray())
            del found[call.offset :]
            found.extend(bytes(call.offset - len(found)))
        case _:  # a write
            found = files.setdefault(call.path, bytearray())
            found.extend(bytes(max(0, call.offset - len(found))))
            found[call.offset : call.offset + len(call.bytes)] = call.bytes


def sectors(call: Call, chance: random.Random) -> Iterator[Call]:
    """Half of the sectors of a write."""
    start, end = call.offset, call.offset + len(call.bytes)
    while start < end:
        stop = min(end, (start // SECTOR + 1) * SECTOR)
        if chance.random() < 0.5:
            bytes_ = call.bytes[start - call.offset : stop - call.offset]
            yield Call("write", call.path, start, bytes_)
        start = stop


@scene.layer("power")
def check(effort: Effort, say: Say, outcome: Outcome) -> None:
    with scene.scratch("power") as folder:
        preload = {"LD_PRELOAD": str(scene.shim(folder))}
        with scene.forker(preload) as forker:
            made = Images(forker, folder, effort)
            made.record()
            made.judge(outcome, say)
            cut = cuts.check(forker, folder / "cuts", effort)
    outcome.violations += cut.violations
    outcome.faults += cut.faults
    outcome.runs += cut.runs
    outcome.injected += f", {cut.injected}"


class Images:
    """The record of one worker, and the disks that may come of it."""

    def __init__(self, forker: Forker, folder: Path, effort: Effort) -> None:
        self.forker, self.folder, self.effort = forker, folder, effort
        self.chance = random.Random(effort.seed)
        self.source = folder / "recorded"
        self.disk = Disk()
        self.calls: list[Call] = []

    def record(self) -> None:
        """One run from its first worker to its end; what was there before it is durable."""
        folder, store = self.source, self.source / "store"
        with syscalls.placed(self.forker, folder) as site:
            syscalls.make_ready(site)
            for path in (store / "andon.db", store / "andon.db-wal"):
                self.disk.durable[str(path)] = bytearray(path.read_bytes())
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
        scene.count(outcome, KINDS, kinds)

    def build(self, image: Path, kind: str, seen: str) -> None:
        (image / "store").mkdir(parents=True)
        (image / "world").mkdir()
        (image / "world" / "log").write_text(seen)
        for path, found in self.disk.after_a_cut(kind, self.chance).items():
            (image / "store" / Path(path).name).write_bytes(found)

    def work_on(self, image: Path) -> list[str]:
        wrong: list[str] = []
        with scene.told(wrong), syscalls.placed(self.forker, image) as site:
            site.worker(settings=syscalls.SETTINGS)
            site.finish(scene.HANG_SECONDS)
            site.end()
            wrong += syscalls.judged(site)
        return wrong


def opened(image: Path) -> list[str]:
    """What is wrong with an image that the product opens."""
    wrong: list[str] = []
    with scene.told(wrong):
        store = open_store(f"sqlite:///{image}/store/andon.db")
        with contextlib.closing(store):
            wrong += scene.damage(store)
            wrong += laws.broken(store, image / "world", [syscalls.RUN])
            wrong += scene.lost(store, image / "world", syscalls.RUN)
    return wrong


if __name__ == "__main__":
    scene.alone(check)
