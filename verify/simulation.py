"""The real core, runtime and SQL on virtual time, with seeded faults, one story per seed.

    python verify/verify.py --only simulation --seed 1234      tells the story of that seed

A seed gives the same story every time. In it processes die and freeze, also beyond their leases,
the store's clock jumps, acknowledgements of commits are lost, the disk is slow, people stop and
resume runs. Then the faults cease, and every run has to come to its end.
"""

import gc
import os
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple

from verify.layer import Effort, Outcome, Say

SEEDS = 30_000  # at scale 1
FEWEST = 5_000
CHUNK = 50
# Red is red: a broken product is not simulated to the end.
ENOUGH = 3


class Results(NamedTuple):
    """The outcome of some seeds."""

    seeds: int
    faults: dict[str, int]
    violations: list[str]


def play(seeds: list[int]) -> Results:
    from verify.simulated.fleet import Fleet

    faults: Counter[str] = Counter()
    violations = []
    gc.freeze()  # existing objects are not scanned after each story
    for seed in seeds:
        fleet = Fleet(seed)
        fleet.run()
        faults += fleet.faults
        replay = f"python verify/verify.py --only simulation --seed {seed}"
        violations += [f"seed {seed}: {wrong} ({replay})" for wrong in fleet.world.violations]
        del fleet
        gc.collect()
    return Results(len(seeds), dict(faults), violations)


def story(seed: int) -> tuple[list[str], Results]:
    """One seed, step by step."""
    from verify.simulated.fleet import Fleet

    fleet = Fleet(seed, telling=True)
    fleet.run()
    assert fleet.story is not None
    return fleet.story, Results(1, dict(fleet.faults), fleet.world.violations)


def chunks(seeds: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(seeds), CHUNK):
        yield seeds[start : start + CHUNK]


def play_all(seeds: list[int], effort: Effort, say: Say) -> Results:
    """Many seeds, by several processes, until enough is wrong."""
    enough = 1 if effort.until_red else ENOUGH
    found, faults, done = list[str](), Counter[str](), 0
    pool = ProcessPoolExecutor(os.cpu_count() or 1, mp_context=get_context("spawn"))
    try:
        for some in pool.map(play, chunks(seeds)):
            done += some.seeds
            faults.update(some.faults)
            found += some.violations
            if done % 1000 < CHUNK:
                say(f"{done} of {len(seeds)} seeds, {sum(faults.values())} faults")
            if len(found) >= enough:
                break
    finally:
        pool.shutdown(cancel_futures=True)
    return Results(done, dict(faults), found)


def check(effort: Effort, say: Say) -> Outcome:
    from verify.simulated.fleet import KINDS_OF_FAULTS

    began = time.monotonic()
    if effort.seed:
        lines, one = story(effort.seed)
        for line in lines:
            say(line)
    else:
        # A canary may be rare: search until it is found.
        last = SEEDS if effort.until_red else max(FEWEST, int(SEEDS * effort.scale))
        one = play_all(list(range(1, last + 1)), effort, say)
    unmet = []
    if not effort.seed and not one.violations:
        unmet = [f"no {fault} struck" for fault in KINDS_OF_FAULTS if not one.faults.get(fault)]
    return Outcome(
        layer="simulation",
        injected=", ".join(f"{name} {count}" for name, count in sorted(one.faults.items())),
        faults=sum(one.faults.values()),
        runs=one.seeds,
        violations=one.violations,
        guards=unmet,
        seconds=time.monotonic() - began,
    )
