"""The kill test: workers are killed with SIGKILL at random while a checker counts the damage.

    python tests/chaos/kill.py STORE_URL [--runs 50] [--workers 3] [--every 0.2] [--seed 1]

This program plays the person: it answers the asks of in-doubt effects by looking at the world. It
reports how many asks there were, and every broken law.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.chaos import agents, laws
from tests.chaos.fleet import Forker, Process, Site

from andon.store import open_store

# Long enough that workers die in the middle of a step, short enough for CI.
STEP_SECONDS = 0.05

# On a slow machine kills may outrun every step of a run; test_poison covers its burial.
PLAIN = {"lease_seconds": 5.0, "interruption_limit": 1000}


@dataclass
class Report:
    """The result of a kill test."""

    seconds: float = 0.0
    kills: int = 0
    asked: int = 0
    interrupted: int = 0
    attempts: int = 0
    states: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)


def kill_test(
    site: Site,
    *,
    runs: int = 50,
    workers: int = 3,
    every: float = 0.2,
    seed: int = 1,
    settings: dict[str, Any] | None = None,
    limit_seconds: float = 100.0,
) -> Report:
    make_tally(site)
    for number in range(runs):
        site.start(agents.chaos, run=f"run-{number}")
    report, began = Report(), time.monotonic()

    def worker() -> Process:
        environ = {"CHAOS_STEP_SECONDS": str(STEP_SECONDS)}
        return site.worker(environ=environ, settings=settings or PLAIN)

    fleet, chance = [worker() for _ in range(workers)], random.Random(seed)
    next_kill = began + every
    while site.open_runs() and time.monotonic() < began + limit_seconds:
        time.sleep(0.02)
        if time.monotonic() >= next_kill:
            number = chance.randrange(workers)
            fleet[number].kill()
            fleet[number] = worker()
            report.kills += 1
            next_kill = time.monotonic() + every
        report.asked += site.answer_open_asks()
    report.seconds = time.monotonic() - began
    site.end()
    judge(site, report)
    return report


def judge(site: Site, report: Report) -> None:
    rows = site.rows()
    report.states = Counter(row.state for row in rows)
    report.attempts = sum(row.attempt for row in rows)
    report.interrupted = site.interrupted()
    report.broken += laws.broken(site.store, site.folder, [row.id for row in rows])
    report.broken += [f"{row.id}: {row.state} {row.error}" for row in rows if row.error]
    expected = [2 * number for number in range(agents.STEPS)]
    for row in rows:
        if row.state != "succeeded":
            report.broken.append(f"{row.id} did not end: {row.state} {row.waits}")
        elif laws.result(site.store, row.id) != expected:
            report.broken.append(f"{row.id}: result {laws.result(site.store, row.id)}")
    entered = Counter(tally(site))
    for row in rows:
        if row.state == "succeeded" and entered[row.id] != 1:
            report.broken.append(f"{row.id}: its transaction was done {entered[row.id]} times")


def make_tally(site: Site) -> None:
    on_tally(site, "CREATE TABLE tally (run text)")


def tally(site: Site) -> list[str]:
    return [run for (run,) in on_tally(site, "SELECT run FROM tally")]


def on_tally(site: Site, sql: Any) -> list[Any]:
    """In the user's own table, on a connection of the user's own."""
    if site.url.startswith("postgresql"):
        import psycopg

        with psycopg.connect(site.url, autocommit=True) as db:
            found = db.execute(sql)
            return found.fetchall() if found.description else []
    import apsw

    file = apsw.Connection(str(site.store.path))
    file.set_busy_timeout(10_000)
    try:
        return list(file.execute(sql))
    finally:
        file.close()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--every", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=1)
    given = vars(parser.parse_args())
    url = given.pop("url")
    forker, store = Forker(), open_store(url)
    with tempfile.TemporaryDirectory(prefix="andon-chaos-") as name:
        site = Site(forker, store, url, Path(name))
        try:
            report = kill_test(site, **given)
        finally:
            site.end()
            store.close()
            forker.close()
    for name, found in vars(report).items():
        sys.stdout.write(f"{name:12} {found}\n")
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main())
