"""The kill test: workers are killed with SIGKILL at random while a checker counts what happened.

    python tests/chaos/kill.py STORE_URL [--runs 50] [--workers 3] [--every 0.2] [--seed 1]

A person is played by this program: it answers the asks of in-doubt effects by looking at the
world. It reports what was waiting for it, and what the laws say must not have happened.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from andon.core.run import TERMINAL
from andon.runtime import requests
from andon.store import open_store
from andon.store.store import Filter

HERE = Path(__file__).parent


@dataclass
class Report:
    """What a kill test saw."""

    seconds: float = 0.0
    kills: int = 0
    asked: int = 0
    states: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    attempts: int = 0
    unfinished: list[str] = field(default_factory=list)


class Fleet:
    """Worker processes that are killed and started again."""

    def __init__(self, url: str, folder: Path, size: int, concurrency: int) -> None:
        self.command = [sys.executable, str(HERE / "worker.py"), url, str(concurrency), "5"]
        self.environ = {**os.environ, "CHAOS_WORLD": str(folder)}
        self.folder = folder
        self.workers = [self.spawn() for _ in range(size)]

    def spawn(self) -> "subprocess.Popen[bytes]":
        with (self.folder / "stderr").open("ab") as errors:
            return subprocess.Popen(
                self.command, env=self.environ, stdout=subprocess.DEVNULL, stderr=errors
            )

    def kill_one(self, chance: random.Random) -> None:
        number = chance.randrange(len(self.workers))
        victim = self.workers[number]
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()
        self.workers[number] = self.spawn()

    def end(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()


def kill_test(
    url: str, *, runs: int, workers: int, every: float, seed: int, limit_seconds: float = 300
) -> Report:
    report, chance = Report(), random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="andon-chaos-") as name:
        folder = Path(name)
        os.environ["CHAOS_WORLD"] = name
        import world

        store = open_store(url)
        for number in range(runs):
            requests.start(store, world.chaos, id=f"run-{number}")
        fleet = Fleet(url, folder, workers, concurrency=10)
        began = time.monotonic()
        next_kill = began + every
        try:
            while open_runs(store, runs) and time.monotonic() - began < limit_seconds:
                time.sleep(0.02)
                if time.monotonic() >= next_kill:
                    fleet.kill_one(chance)
                    report.kills += 1
                    next_kill = time.monotonic() + every
                report.asked += answer_asks(store, folder)
        finally:
            report.seconds = time.monotonic() - began
            fleet.end()
        check(store, folder, runs, report)
        store.close()
    return report


def open_runs(store: Any, runs: int) -> list[Any]:
    found = store.runs(Filter(limit=runs + 1))
    return [row for row in found if row.state not in TERMINAL]


def answer_asks(store: Any, folder: Path) -> int:
    """Be the person: look at the world, and say what is there."""
    asks = store.asks()
    if not asks:
        return 0
    log = (folder / "log").read_text()
    for ask in asks:
        key = ask.id.partition("/")[2]
        name = ask.id.partition(":")[2].partition("/")[0]
        there = f"{name} {key}\n" in log
        decision = "happened" if there else "did_not_happen"
        requests.answer(store, ask.run_id, decision, key if there else None, ask=ask.id)
    return len(asks)


def check(store: Any, folder: Path, runs: int, report: Report) -> None:
    """The laws, counted from the world's own log and from the journal."""
    log = (folder / "log").read_text().splitlines()
    happened = Counter(line for line in log if not line.startswith(("step ", "undone ")))
    undone = Counter(line.removeprefix("undone ") for line in log if line.startswith("undone "))
    for line, count in happened.items():
        kind, key = line.split(" ", 1)
        allowed = 1 + (undone[key] if kind == "compensatable" else 0)
        if count > allowed:
            report.violations.append(f"{line}: happened {count} times, allowed {allowed}")
    for row in store.runs(Filter(limit=runs + 1)):
        report.states[row.state] += 1
        report.attempts += row.attempt
        if row.state != "succeeded":
            report.unfinished.append(f"{row.id}: {row.state} {row.error}")
            continue
        check_run(store, row.id, log, report)


def check_run(store: Any, run_id: str, log: list[str], report: Report) -> None:
    entries = requests.journal(store, run_id)
    done = {}  # step number → when its result became durable, as a place in the journal
    for entry in entries:
        if entry.kind == "step" and entry.state == "done":
            if entry.place in done:
                report.violations.append(f"{run_id}: {entry.place} was finished twice")
            done[entry.place] = entry
    result = json.loads(entries[-1].body or "null")
    expected = [2 * number for number in range(len(done))]
    if result != expected:
        report.violations.append(f"{run_id}: result {result}, expected {expected}")
    # A step executed again after its result was durable would start in a later attempt than the
    # one that finished it: at most one start per attempt, and none after the finishing one.
    starts = Counter(line.rsplit(" ", 1)[0] for line in log if line.startswith(f"step {run_id} "))
    attempts = {attempt.fence for attempt in store.attempts(run_id)}
    for line, count in starts.items():
        number = int(line.split()[2])
        begun = [e for e in entries if e.kind == "step" and e.name.endswith("step")]
        finished = [e for e in begun if e.state == "done"][number]
        before = sum(fence <= finished.fence for fence in attempts)
        if count > before:
            report.violations.append(f"{line}: executed {count} times in {before} attempts")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--every", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    report = kill_test(
        given.url, runs=given.runs, workers=given.workers, every=given.every, seed=given.seed
    )
    for name, found in vars(report).items():
        print(f"{name:12} {found}")
    return 1 if report.violations or report.unfinished else 0


if __name__ == "__main__":
    sys.exit(main())
