"""Runs without faults, on SQLite. A copy in which not even these end well is merely broken.

python -m verify.baseline
"""

import sys

from tests.chaos import agents, laws
from tests.chaos.kill import make_tally

from verify import harness

RUNS = 3
SECONDS = 20.0  # they take one or two


def wrong() -> list[str]:
    found: list[str] = []
    with (
        harness.scratch("undisturbed") as folder,
        harness.forker() as forker,
        harness.findings(found),
        harness.sited(forker, f"sqlite:///{folder}/andon.db", folder / "world") as site,
    ):
        make_tally(site)
        runs = [site.start(agents.chaos, run=f"run-{number}") for number in range(RUNS)]
        site.worker()
        site.finish(SECONDS)
        found += [f"{run} is {site.state(run)}" for run in runs if site.state(run) != "succeeded"]
        expected = [2 * number for number in range(agents.STEPS)]
        found += [f"{run}: wrong" for run in runs if laws.result(site.store, run) != expected]
    return found


if __name__ == "__main__":
    if found := wrong():
        sys.exit(found[0][:500])
