"""andon beside its peers and the limit of the same databases, measured in the same run.

    make bench                       (or: python bench/bench.py --quick)
    python bench/bench.py --only W1,W3 --systems andon,dbos --rounds 3

Compare ratios, not absolutes: disks and neighbours differ. Every system runs in its own environment
(.venv-peers, made on first use) with the settings that its own documentation recommends
(bench/speed/with_*.py say which). Results are kept in bench/results; a run of everything also
writes docs/comparison.md with its plots, and the numbers in README.md.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

sys.path.pop(0)  # this folder, in which `bench` would be bench.py
sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.rounds import Measuring, tell
from bench.systems import chosen_systems
from bench.workloads import chosen_workloads

from andon.testing.postgres import Cluster
from bench import machine, page, plots, readme

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "comparison.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, one round, no page")
    parser.add_argument("--only", default="", help="some workloads: W1,W3")
    parser.add_argument("--systems", default="", help="some systems: andon,dbos")
    parser.add_argument("--page", action="store_true", help="write the page also of such a part")
    parser.add_argument("--rounds", type=int, help="at most so many; 5, or 1 with --quick")
    parser.add_argument("--minutes", type=float, default=45, help="no round that ends later")
    given = parser.parse_args()
    try:
        systems, workloads = chosen_systems(given.systems), chosen_workloads(given.only)
    except ValueError as error:
        parser.error(str(error))
    whole = not (given.quick or given.only or given.systems)
    began, load, commit = time.monotonic(), machine.load(), machine.commit()
    with Cluster() as cluster:
        measuring = Measuring(cluster, systems, workloads, quick=given.quick)
        try:
            measuring.carry_out(given.rounds or (1 if given.quick else 5), given.minutes)
        except KeyboardInterrupt:
            tell("interrupted; these are the rounds so far")
            whole = False
    story = page.Story(
        results=measuring.results,
        workloads=workloads,
        systems=systems,
        versions=measuring.versions,
        machine=machine.facts(),
        commit=commit,
        on=machine.today(),
        load=f"{load} before, {machine.load()} after",
        minutes=(time.monotonic() - began) / 60,
        quick=given.quick,
    )
    print(page.tables(story))
    RESULTS.mkdir(exist_ok=True)
    kept = RESULTS / ("quick.json" if given.quick else "bench.json")
    kept.write_text(json.dumps(as_json(story), indent=1, ensure_ascii=False), "utf-8")
    if whole or given.page:
        PAGE.write_text(page.page(story), "utf-8")
        plots.write(story, PAGE.parent)
    if whole:
        readme.write(story, ROOT / "README.md")
    return 0


def as_json(story: page.Story) -> dict[str, object]:
    return {
        "commit": story.commit,
        "on": story.on,
        "load": story.load,
        "minutes": round(story.minutes, 1),
        "quick": story.quick,
        "machine": story.machine,
        "versions": story.versions,
        "samples": [asdict(one) for one in story.results.samples],
        "absent": [
            {"workload": workload, "system": system, "why": why}
            for (workload, system), why in story.results.absent.items()
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
