"""Rolling chaos: a fleet of real processes that are killed, drained and frozen at random.

Every worker that ends is replaced at once. The world counts the effects, whatever the runtime says:
every run ends with its result, no finished step is executed again, no effect happens twice.
"""

import random
import signal
import time
from collections import Counter
from pathlib import Path

from tests.chaos import agents
from tests.chaos.fleet import Forker, Process, Site
from tests.chaos.freeze import answer_asks_if_no_worker_is_silent
from tests.chaos.kill import Report, judge, make_tally

from andon.testing.postgres import Cluster
from verify import harness
from verify.layer import Effort, Outcome, Say

WORKERS = 3
EVERY_SECONDS = 0.25
# Each worker runs one of these. A worker that does not wait in steps is nearly always in a commit.
STEP_SECONDS = (0.0, 0.0, 0.03)
# Workers that live this briefly finish nothing, and no run may be declared dead for that.
SETTINGS = {
    "lease_seconds": 2.0,
    "poll_seconds": 0.2,
    "grace_seconds": 1.0,
    "interruption_limit": 1000,
}
FROZEN_SECONDS = 3.0
KINDS = {"kill": 6, "drain": 3, "freeze": 1}  # their relative weights
RUNS = 120  # at scale 1, on each database


class Fleet:
    """Workers, some of them frozen."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site, self.chance = site, random.Random(seed)
        self.frozen: dict[Process, float] = {}
        self.faults: Counter[str] = Counter()
        self.workers = [self.worker() for _ in range(WORKERS)]

    def worker(self) -> Process:
        environ = {"CHAOS_STEP_SECONDS": str(self.chance.choice(STEP_SECONDS))}
        return self.site.worker(environ=environ, settings=SETTINGS)

    def befall(self) -> None:
        """Injects a fault into one of the workers."""
        awake = [number for number, one in enumerate(self.workers) if one not in self.frozen]
        number = self.chance.choice(awake)
        victim = self.workers[number]
        [kind] = self.chance.choices(list(KINDS), list(KINDS.values()))
        if kind == "freeze" and len(awake) > 1:
            victim.freeze()
            self.frozen[victim] = time.monotonic() + FROZEN_SECONDS
        elif kind == "drain":
            victim.send(signal.SIGTERM)
            self.workers[number] = self.worker()
        else:
            kind = "kill"
            victim.kill()
            self.workers[number] = self.worker()
        self.faults[kind] += 1

    def thaw(self) -> None:
        for process, until in list(self.frozen.items()):
            if time.monotonic() >= until:
                process.thaw()
                del self.frozen[process]


def roll(site: Site, runs: int, seed: int) -> tuple[Report, Counter[str]]:
    make_tally(site)
    for number in range(runs):
        site.start(agents.chaos, run=f"run-{number}")
    fleet = Fleet(site, seed)
    report, began = Report(), time.monotonic()
    following = began + EVERY_SECONDS
    end = began + 4 * harness.HANG_SECONDS
    while site.open_runs() and time.monotonic() < end:
        time.sleep(0.02)
        fleet.thaw()
        if time.monotonic() >= following:
            fleet.befall()
            following = time.monotonic() + EVERY_SECONDS
        answer_asks_if_no_worker_is_silent(site)
    site.end()
    judge(site, report)
    return report, fleet.faults


@harness.layer("chaos")
def check(effort: Effort, say: Say, outcome: Outcome) -> None:
    faults: Counter[str] = Counter()
    ended = 0
    with harness.scratch("chaos") as folder, Cluster() as cluster, harness.forker() as forker:
        for kind in ("sqlite", "postgres"):
            report = play(kind, forker, cluster, folder / kind, effort, outcome, faults)
            say(f"{kind}: {dict(report.states)}, {report.interrupted} interruptions")
            outcome.runs += report.states.total()
            ended += report.states["succeeded"]
            if effort.until_red and outcome.violations:
                break
    harness.count(outcome, KINDS, faults)
    harness.count_ended(outcome, ended)


def play(
    kind: str,
    forker: Forker,
    cluster: Cluster,
    folder: Path,
    effort: Effort,
    outcome: Outcome,
    faults: Counter[str],
) -> Report:
    folder.mkdir()
    url = cluster.fresh_database() if kind == "postgres" else f"sqlite:///{folder}/andon.db"
    report = Report()
    wrong: list[str] = []
    with harness.findings(wrong), harness.sited(forker, url, folder / "world") as site:
        report, found = roll(site, max(40, round(RUNS * effort.scale)), effort.seed)
        faults.update(found)
        wrong += report.broken + harness.damage(site.store)
        for row in site.rows():
            wrong += [f"{row.id}: {one}" for one in harness.forgotten(site.folder, row.id)]
    outcome.violations += [f"{kind}, seed {effort.seed}: {one}" for one in wrong]
    return report


if __name__ == "__main__":
    harness.alone(check)
