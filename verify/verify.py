"""The verification of andon: every layer, every canary, one table.

    make verify      minutes        make soak      hours
    python verify/verify.py [--only simulation,model] [--effort ci|verify|soak] [--seed N]
                            [--canary NAME] [--until-red] [--json FILE]

Red is a violation, a guard that is not met, a layer that is missing or fails by itself, or a canary
that was not caught; then the exit code is 1. A run of everything writes docs/verification.md.
"""

import argparse
import importlib
import importlib.util
import json
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import andon  # noqa: E402 (the folder above is on the path now)
from verify import canaries, report, session  # noqa: E402
from verify.layer import Effort, Layer, Outcome, Say  # noqa: E402

LAYERS = (
    "model",
    "simulation",
    "twins",
    "writers",
    "points",
    "syscalls",
    "power",
    "brains",
    "chaos",
    "matrix",
    "fuzz",
    "flips",
)
CANARIES = "canaries"
SCALES = {"ci": 0.1, "verify": 1.0, "soak": 30.0}


def present(name: str) -> bool:
    """Whether that layer exists."""
    return importlib.util.find_spec(f"verify.{name}") is not None


def find(name: str) -> Layer:
    layer: Layer = importlib.import_module(f"verify.{name}").check
    return layer


def checked(name: str, effort: Effort, say: Say) -> Outcome:
    """The outcome of a layer. A missing or failing layer is red, like one with a violation."""
    began = time.monotonic()
    if not present(name):
        return Outcome(name, "nothing", 0, 0, guards=[f"missing: there is no verify/{name}.py"])
    try:
        return find(name)(effort, say)
    except Exception as error:  # noqa: BLE001 (the other layers still have to run)
        traceback.print_exc()
        wrong = f"the layer itself failed: {type(error).__name__}: {error}"
        seconds = time.monotonic() - began
        return Outcome(name, "nothing", 0, 0, guards=[wrong], seconds=seconds)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Verify andon, layer by layer.")
    parser.add_argument("--only", help=f"of {', '.join((*LAYERS, CANARIES))}")
    parser.add_argument("--effort", choices=SCALES, default="verify")
    parser.add_argument("--seed", type=int, default=0, help="tell the story of one seed")
    parser.add_argument("--canary", help="run its layer with this bug planted; it must turn red")
    parser.add_argument("--json", type=Path, help="write the findings there too")
    parser.add_argument("--until-red", action="store_true", help="end with the first violation")
    given = parser.parse_args(arguments)
    names = given.only.split(",") if given.only else [*LAYERS, CANARIES]
    if unknown := set(names) - {*LAYERS, CANARIES}:
        parser.error(f"--only: expected {', '.join((*LAYERS, CANARIES))}; found {sorted(unknown)}")
    effort = Effort(given.effort, SCALES[given.effort], given.seed, given.until_red)
    if given.canary:
        return _try_canary(given.canary)
    began, outcomes = time.monotonic(), []
    commit = report.commit()  # now: it may have changed when all is done
    for name in names:
        if name != CANARIES:
            print(f"── {name}: {report.does(name)}", flush=True)
            outcomes.append(checked(name, effort, _say))
            print(report.line(outcomes[-1]), flush=True)
    caught = []
    if CANARIES in names:
        print("── canaries: bugs that are planted in a copy of the product", flush=True)
        caught = canaries.try_all(filter(present, LAYERS), _say)
    if given.json:
        found = {
            "product": andon.__file__,
            "layers": [asdict(one) for one in outcomes],
            "canaries": [asdict(one) for one in caught],
        }
        given.json.write_text(json.dumps(found, indent=2))
    print(f"\n{report.screen(outcomes, caught)}\n")
    if not (given.only or given.seed or given.until_red or given.effort == "ci"):
        page = report.page(outcomes, caught, effort, commit)
        (ROOT / "docs" / "verification.md").write_text(page)
        print("written to docs/verification.md")
    red = report.is_red(outcomes, caught)
    print(f"{'RED' if red else 'green'} after {time.monotonic() - began:.0f} s")
    return int(red)


def _try_canary(name: str) -> int:
    found = canaries.try_one(canaries.named(name), _say)
    print("\n".join(found.violations or [found.why]))
    return int(not found.caught)


def _say(line: str) -> None:
    print(f"   {line}", flush=True)


if __name__ == "__main__":
    sys.exit(session.apart(main))
