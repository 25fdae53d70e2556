"""System-call faults: the n-th call with which a worker writes to its store goes wrong.

A real worker carries out a sequence of steps and effects of every kind. At one call it is killed,
its write is torn or cut short, or the call fails. Then another worker continues without faults. A
clear error is legal. A wrong result, an effect that happened twice, acknowledged work that is gone,
and a run that never ends are violations. Faults named `open:…` hit the process that creates the
store; the others hit one that finds it.
"""

import random
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos import agents, laws
from tests.chaos.fleet import Forker, Process, Site, until
from tests.chaos.kill import make_tally, tally
from tests.chaos.worker import Order

from verify import harness
from verify.calls import recorded
from verify.layer import Effort, Outcome, Say

SETTINGS = {"poll_seconds": 0.1, "lease_seconds": 5.0}
# Small, so that the WAL is checkpointed and begun anew within one short run.
CHECKPOINT_PAGES = 40
# Kind → the calls it concerns, as in verify/shim.c.
KINDS = {
    "kill": {"write", "sync", "truncate", "rename", "unlink"},
    "torn": {"write"},
    "eio": {"write", "sync", "truncate", "rename"},
    "enospc": {"write", "truncate"},
    "short": {"write"},
    "fsync": {"sync"},
}
# An error lasts for so many calls: a moment, and longer than the writer's first tries.
LASTING = {"eio": (1, 8), "enospc": (1, 8), "fsync": (1, 3)}
TRIALS = {"": 240, "open:": 60}  # at scale 1
RUN = "run"


@dataclass
class Trial:
    """A sequence with one fault, and its outcome."""

    fault: str  # e.g. torn@17: the shim's instruction
    fired: bool = False
    ended: bool = False
    status: int | None = None  # of the process with the fault
    wrong: list[str] = field(default_factory=list)


@harness.layer("syscalls")
def check(effort: Effort, say: Say, outcome: Outcome) -> None:
    with harness.scratch("syscalls") as folder:
        preload = {"LD_PRELOAD": str(harness.shim(folder))}
        with harness.forker(preload) as forker:
            faults = planned(creation(forker, folder / "creation"), "open:", effort)
            faults += planned(calls(forker, folder / "calls"), "", effort)
        say(f"{len(faults)} faults")
        numbered = list(enumerate(faults))
        trials = harness.shared_out(
            numbered, lambda forker, one: befall(forker, folder / str(one[0]), one[1]), preload
        )
        judge(outcome, harness.until_red(trials, effort, say))


def calls(forker: Forker, folder: Path) -> Counter[str]:
    """How many calls of each kind an undisturbed worker makes."""
    with placed(forker, folder) as site:
        shim = {"SHIM_FOLDER": f"{folder}/store/", "SHIM_LOG": f"{folder}/log"}
        make_ready(site)
        finish(site, work(site, shim))
        wrong = judged(site)
    if wrong:
        raise AssertionError(f"wrong without any fault: {wrong}")
    return Counter(call.kind for call in recorded(folder / "log"))


def creation(forker: Forker, folder: Path) -> Counter[str]:
    """The same for a worker that creates its store and finds nothing to do."""
    open_first(forker, folder, {"SHIM_LOG": f"{folder}/log"})
    return Counter(call.kind for call in recorded(folder / "log"))


def open_first(forker: Forker, folder: Path, shim: dict[str, str]) -> int | None:
    """Lets a worker create the store, until it waits for work, meets its fault or ends."""
    (folder / "store").mkdir(parents=True)
    (folder / "world").mkdir()
    order = Order(
        url=f"sqlite:///{folder}/store/andon.db",
        world=f"{folder}/world",
        errors=f"{folder}/world/stderr",
        environ={"SHIM_FOLDER": f"{folder}/store/", **shim},
        settings=SETTINGS,
    )
    process = forker.spawn(order)
    waits = folder / "store" / "andon.db.d"

    def over() -> bool:
        listening = waits.exists() and any(one.suffix == ".lock" for one in waits.iterdir())
        return process.status is not None or listening

    until(over, "a worker that waits for work", harness.HANG_SECONDS)
    status = process.status
    process.kill()
    return status


def planned(found: Counter[str], prefix: str, effort: Effort) -> list[str]:
    """Every fault at every call, or as many of each kind as the effort allows."""
    chance = random.Random(effort.seed)
    faults = []
    for kind, concerned in KINDS.items():
        total = sum(found[one] for one in concerned)
        every = [
            f"{prefix}{kind}@{number}+{lasting}"
            for number in range(1, total + 1)
            for lasting in LASTING.get(kind, (1,))
        ]
        faults += harness.some(every, max(1, TRIALS[prefix] * effort.scale / len(KINDS)), chance)
    return faults


def placed(forker: Forker, folder: Path) -> AbstractContextManager[Site]:
    """A store, a world and a run that waits for its first worker."""
    (folder / "store").mkdir(parents=True, exist_ok=True)
    return harness.sited(forker, f"sqlite:///{folder}/store/andon.db", folder / "world")


def make_ready(site: Site) -> None:
    make_tally(site)
    site.start(agents.sequence, run=RUN)


def work(site: Site, shim: dict[str, str]) -> Process:
    return site.worker(environ=shim, settings=SETTINGS, checkpoint_pages=CHECKPOINT_PAGES)


def finish(site: Site, process: Process, fired: Path | None = None) -> None:
    """Waits until the run or the process has ended; after a fault, asks what andon knows."""

    def over() -> bool:
        site.answer_open_asks()
        if fired is not None and fired.exists():
            lost = harness.lost(site.store, site.folder, RUN)
            assert not lost, lost[0]
        return process.status is not None or not site.open_runs()

    until(over, "the end of the run or of its worker", harness.HANG_SECONDS)


def befall(forker: Forker, folder: Path, fault: str) -> Trial:
    trial = Trial(fault)
    creates = fault.startswith("open:")
    shim = {"SHIM_FAULT": fault.removeprefix("open:"), "SHIM_FIRED": f"{folder}/fired"}
    if creates:
        trial.status, shim = open_first(forker, folder, shim), {}
    else:
        shim["SHIM_FOLDER"] = f"{folder}/store/"
    with harness.findings(trial.wrong), placed(forker, folder) as site:
        with harness.findings(trial.wrong):
            make_ready(site)
            process = work(site, shim)
            finish(site, process, None if creates else folder / "fired")
            trial.status = trial.status if creates else process.status
            process.kill()
            site.worker(settings=SETTINGS, checkpoint_pages=CHECKPOINT_PAGES)
            site.finish(harness.HANG_SECONDS)
            trial.ended = True
        site.end()
        trial.wrong += judged(site)
        trial.fired = (folder / "fired").exists()
        if trial.fired and trial.status not in (None, -9) and not site.errors:
            trial.wrong.append(f"the worker ended with {trial.status} and said nothing")
    return trial


def judged(site: Site) -> list[str]:
    """Everything that is wrong with the run, its store and the world."""
    wrong = laws.broken(site.store, site.folder, [RUN]) + harness.damage(site.store)
    wrong += harness.forgotten(site.folder, RUN)
    if site.state(RUN) != "succeeded":
        wrong.append(f"it is {site.state(RUN)}: {site.store.run(RUN).error}")
    elif (found := laws.result(site.store, RUN)) != agents.SEQUENCE:
        wrong.append(f"its result is {found}")
    if len(tally(site)) != 1:
        wrong.append(f"its transaction was done {len(tally(site))} times")
    return wrong


def judge(outcome: Outcome, trials: list[Trial]) -> None:
    kinds = (trial.fault.partition("@")[0].removeprefix("open:") for trial in trials if trial.fired)
    outcome.runs = len(trials)
    for trial in trials:
        outcome.violations += [f"SHIM_FAULT={trial.fault}: {wrong}" for wrong in trial.wrong]
    harness.count(outcome, KINDS, Counter(kinds))
    if outcome.faults < outcome.runs / 2:
        outcome.guards.append(f"only {outcome.faults} of {outcome.runs} faults were ever due")
    harness.count_ended(outcome, sum(trial.ended for trial in trials))


if __name__ == "__main__":
    harness.alone(check)
