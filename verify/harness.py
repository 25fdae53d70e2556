"""The stage of a layer: folders, sites of real processes, the shim, and checks of the outcome."""

import argparse
import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from tests.chaos import laws, world
from tests.chaos.fleet import Forker, Site

from andon.control.verification import verify
from andon.errors import AndonError
from andon.store import open_store
from andon.testing.postgres import PostgresMissing
from verify.layer import Effort, Layer, Outcome, Say

Item = TypeVar("Item")
Result = TypeVar("Result")

# As many as there are cores on the smallest machine that is meant.
THREADS = 2
SCALES = {"ci": 0.1, "verify": 1.0, "soak": 30.0}
# No promise: a process that has not ended after this long hangs.
HANG_SECONDS = 60.0


class Missing(Exception):
    """The machine lacks something that a layer needs."""


@contextlib.contextmanager
def scratch(name: str) -> Iterator[Path]:
    """A folder that is deleted afterwards, with a latch that no other process pulls."""
    before = os.environ.get("ANDON_HOME")
    with tempfile.TemporaryDirectory(prefix=f"andon-{name}-") as folder:
        os.environ["ANDON_HOME"] = f"{folder}/home"
        try:
            yield Path(folder)
        finally:
            os.environ.pop("ANDON_HOME")
            if before is not None:
                os.environ["ANDON_HOME"] = before


def shim(folder: Path) -> Path:
    """verify/shim.c, compiled."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise Missing("no C compiler: cc, gcc and clang are not on PATH")
    made = folder / "shim.so"
    source = Path(__file__).with_name("shim.c")
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-O2",
        "-Wall",
        "-Werror",
        "-o",
        str(made),
        str(source),
    ]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        raise Missing(f"{compiler} does not build verify/shim.c: {built.stderr[-500:]}")
    return made


@contextlib.contextmanager
def forker(environ: dict[str, str] | None = None) -> Iterator[Forker]:
    found = Forker(environ)
    try:
        yield found
    finally:
        found.close()


def shared_out(
    items: Sequence[Item],
    work: Callable[[Forker, Item], Result],
    environ: dict[str, str] | None = None,
) -> "Generator[Result, None, None]":
    """The results of the work, in order, from threads that have a fork server each."""

    def part(first: int) -> Iterator[Result]:
        with forker(environ) as own:
            for item in items[first::THREADS]:
                yield work(own, item)

    parts = [part(number) for number in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        # One result ahead of each: a thread waits only for the consumer of its results.
        coming = [pool.submit(next, one, None) for one in parts]
        for number in range(len(items)):
            own = number % THREADS
            found = coming[own].result()
            coming[own] = pool.submit(next, parts[own], None)
            yield found  # type: ignore[misc]
        for last in coming:
            last.result()


def until_red(results: "Generator[Result, None, None]", effort: Effort, say: Say) -> list[Result]:
    """Return all results; for a canary, only those up to the first violation."""
    found: list[Result] = []
    with contextlib.closing(results):
        for one in results:
            found.append(one)
            if len(found) % 50 == 0:
                say(f"{len(found)} done")
            if effort.until_red and one.wrong:  # type: ignore[attr-defined]
                break
    return found


@contextlib.contextmanager
def sited(workers: Forker, url: str, folder: Path) -> Iterator[Site]:
    """A site with a store of its own; its processes end with it."""
    store = open_store(url)
    found = Site(workers, store, url, folder)
    try:
        yield found
    finally:
        found.end()
        store.close()


def damage(store: Any) -> list[str]:
    """The damage that `andon verify` reports."""
    return [f"andon verify: {one['run']}: {one['what']}" for one in verify(store).damage]


def forgotten(folder: Path, run: str) -> list[str]:
    """Steps that a run repeated although a later one had begun, in this attempt or an earlier one.

    A run does one thing after the other, so the beginning of each acknowledges the one before. A
    worker that was frozen may begin late what others have done meanwhile: it is of an earlier
    attempt.
    """
    found, furthest = [], dict[int, int]()  # attempt → the last number that it began
    for what, key, word in map(str.split, world.lines(folder)):
        number, attempt = key.rpartition("-")[2], int(word)
        if what in ENDS and key.startswith(f"{run}@"):
            furthest[attempt] = sys.maxsize
        if what in ("step", *KINDS) and key.startswith(f"{run}/") and number.isdigit():
            if int(number) < max((furthest[one] for one in furthest if one <= attempt), default=-1):
                found.append(f"{key} was done again in attempt {attempt}, after what follows it")
            furthest[attempt] = max(furthest.get(attempt, -1), int(number))
    return found


KINDS = tuple(kind.__name__ for kind in world.KINDS)
ENDS = ("over", "ended")  # the entry agents write when all is done


def lost(store: Any, folder: Path, run: str) -> list[str]:
    """Acknowledged work that is missing: values that the agent got, and all before them."""
    lines = list(world.lines(folder))  # first: anything the run does meanwhile is written by then
    there = {
        int((entry.key or entry.name).rpartition("-")[2])
        for entry in laws.evidence(store, run, folder).entries
        if entry.state in ("done", "confirmed") and (entry.key or entry.name)[-1:].isdigit()
    }
    begun, over = -1, False
    for what, key, _ in map(str.split, lines):
        if key.startswith(f"{run}/") and what in ("step", "given", *KINDS):
            begun = max(begun, int(key.rpartition("-")[2]) + (what == "given"))
        over = over or (what == "over" and key.startswith(f"{run}@"))
    found = [f"number {n} was acknowledged and is lost" for n in range(begun) if n not in there]
    if over and store.run(run).state != "succeeded":
        found.append("its end was acknowledged and is lost")
    return found


@contextlib.contextmanager
def findings(wrong: list[str]) -> Iterator[None]:
    """A hang or an unreadable store is a finding about the product; the layer continues."""
    try:
        yield
    except (AssertionError, AndonError) as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        wrong.append(str(error) or f"{place.name}: {place.line}")


def some(found: list[Any], most: float, chance: random.Random) -> list[Any]:
    """Return at most `most` of them, chosen at random, in their order."""
    places = range(len(found))
    if len(found) > most:
        places = sorted(chance.sample(places, max(1, round(most))))  # type: ignore[assignment]
    return [found[place] for place in places]


def layer(name: str) -> Callable[[Callable[[Effort, Say, Outcome], None]], Layer]:
    """Makes a layer of a function that fills in an outcome; a missing tool is an unmet guard."""

    def make(play: Callable[[Effort, Say, Outcome], None]) -> Layer:
        def check(effort: Effort, say: Say) -> Outcome:
            outcome = Outcome(name, "", 0, 0)
            began = time.monotonic()
            try:
                play(effort, say, outcome)
            except (Missing, PostgresMissing) as missing:
                outcome.guards.append(str(missing))
            outcome.seconds = time.monotonic() - began
            return outcome

        return check

    return make


def count(outcome: Outcome, kinds: Iterable[str], fired: Counter[str]) -> None:
    """The injected faults; a kind of fault that never occurred is red."""
    outcome.faults = fired.total()
    outcome.injected = ", ".join(f"{kind} {fired[kind]}" for kind in kinds)
    outcome.guards += [f"never: {kind}" for kind in kinds if not fired[kind]]


def count_ended(outcome: Outcome, ended: int) -> None:
    if ended < 0.95 * outcome.runs:
        outcome.guards.append(f"only {ended} of {outcome.runs} runs ended after the fault")


def alone(check: Layer) -> None:
    """Tries one layer: python -m verify.NAME [--effort ci] [--seed 1] [--scale 0.5]"""
    parser = argparse.ArgumentParser()
    parser.add_argument("--effort", choices=SCALES, default="ci")
    parser.add_argument("--scale", type=float)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    scale = given.scale if given.scale is not None else SCALES[given.effort]
    outcome = check(Effort(given.effort, scale, given.seed), print)
    for name, value in vars(outcome).items():
        for line in value if isinstance(value, list) else [value]:
            sys.stdout.write(f"{name:12} {line}\n")
    sys.exit(1 if outcome.violations or outcome.guards else 0)
