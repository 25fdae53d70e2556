"""The kill matrix: agents on real libraries are killed at every moment, with andon and without.

    make matrix      minutes; writes docs/kill-matrix.md
    python verify/matrix.py [--only loop,langgraph] [--with | --without] [--verbose]

A file of verify/drivers is a framework. Each cell is two processes and a model server that refuses
requests as the providers do. A cell is judged by a file that the tools write to, by the refusals of
the server, and by the model's last message. A cell with andon in which anything is wrong is red.
"""

import argparse
import importlib
import itertools
import queue
import random
import sys
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.chaos.fleet import Forker  # noqa: E402 (the folder above is on the path now)

from andon.store import open_store  # noqa: E402
from andon.testing.postgres import Cluster  # noqa: E402
from verify import harness, matrix_page, session  # noqa: E402
from verify.cells import Cell, Found, Trial, of_driver  # noqa: E402
from verify.layer import Effort, Outcome, Say  # noqa: E402

DRIVERS = (
    "loop",
    "loop_by_message",
    "loop_by_program",
    "langgraph",
    "openai_agents",
    "pydantic_ai",
)
# At least this many cells of each driver, as a layer.
LEAST = 20


def drivers(names: Sequence[str] = DRIVERS) -> dict[str, Any]:
    """Frameworks take seconds to import: only the named ones are imported."""
    return {name: importlib.import_module(f"verify.drivers.{name}") for name in names}


def cells(name: str, driver: Any, *, andon: bool) -> list[Cell]:
    """A driver may have one side only."""
    there = hasattr(driver, "with_andon" if andon else "plain")
    return list(of_driver(name, driver, andon=andon)) if there else []


class Ground:
    """Where cells are played: folders, a PostgreSQL, and fork servers, one cell at a time."""

    def __init__(self, folder: Path, postgres: Cluster | None) -> None:
        self.folder = folder
        self._number = itertools.count()
        self._forkers: list[Forker] = []
        self._idle: dict[str, queue.SimpleQueue[Forker]] = {
            name: queue.SimpleQueue() for name in DRIVERS
        }
        self._postgres, self._databases = postgres, dict[str, str]()
        self._making = threading.Lock()

    def close(self) -> None:
        for one in self._forkers:
            one.close()

    def play(self, cell: Cell) -> Found:
        name = f"{cell.driver}-{next(self._number)}-of-the-matrix"  # no name is a prefix of another
        folder = self.folder / name
        own = f"sqlite:///{folder}/kept.db"
        url = self._database(cell.driver) if cell.store == "postgres" else own
        forker = self._forker(cell.driver)
        found = Trial(forker, cell, folder, url).play()
        self._idle[cell.driver].put(forker)
        return found

    def _database(self, driver: str) -> str:
        """One for each driver: drivers may have agents of the same name."""
        with self._making:
            if driver not in self._databases:
                assert self._postgres is not None
                self._databases[driver] = self._postgres.fresh_database()
                open_store(self._databases[driver]).close()  # its tables, once
            return self._databases[driver]

    def _forker(self, driver: str) -> Forker:
        try:
            return self._idle[driver].get_nowait()
        except queue.Empty:
            program = str(ROOT / "verify" / "drivers" / "child.py")
            made = Forker(program=(program, driver))
            self._forkers.append(made)
            return made

    def played(self, wanted: Sequence[Cell]) -> "Generator[Found, None, None]":
        """The outcome of each cell, in order."""
        with ThreadPoolExecutor(harness.THREADS) as pool:
            yield from pool.map(self.play, wanted)


@contextmanager
def ground(*, postgres: bool = True) -> Iterator[Ground]:
    with harness.scratch("matrix") as folder, ExitStack() as stack:
        cluster = stack.enter_context(Cluster()) if postgres else None
        yield stack.enter_context(closing(Ground(folder, cluster)))


# ── a layer of `make verify` ──────────────────────────────────────────────────────────────────


@harness.layer("matrix")
def check(effort: Effort, say: Say, outcome: Outcome) -> None:
    chance = random.Random(effort.seed)
    wanted: list[Cell] = []
    for name, driver in drivers().items():
        every = cells(name, driver, andon=True)
        wanted += harness.some(every, max(LEAST, len(every) * effort.scale), chance)
    with ground() as where:
        found = harness.until_red(where.played(wanted), effort, say)
    outcome.runs = outcome.faults = len(found)
    asked = sum(one.asked for one in found)
    outcome.injected = f"kill {len(found)}; in doubt, and answered {asked}"
    outcome.violations += [wrong for one in found if not one.broken for wrong in one.wrong]
    outcome.guards += [f"{one.cell}: {one.broken}" for one in found if one.broken]


# ── the command ───────────────────────────────────────────────────────────────────────────────


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Kill agents, with andon and without.")
    parser.add_argument("--only", help=f"of {', '.join(DRIVERS)}")
    parser.add_argument("--with", dest="with_andon", action="store_true", help="with andon only")
    parser.add_argument("--without", action="store_true", help="without andon only")
    parser.add_argument("--verbose", action="store_true", help="a line for each cell")
    given = parser.parse_args(arguments)
    names = given.only.split(",") if given.only else list(DRIVERS)
    if unknown := set(names) - set(DRIVERS):
        parser.error(f"--only: expected {', '.join(DRIVERS)}; found {', '.join(sorted(unknown))}")
    sides = [True] * (not given.without) + [False] * (not given.with_andon)
    began, commit, known = time.monotonic(), matrix_page.commit(), drivers(names)
    wanted = [
        one for name in names for andon in sides for one in cells(name, known[name], andon=andon)
    ]
    print(f"{len(wanted)} cells", flush=True)
    found = []
    with ground() as where:
        for one in where.played(wanted):
            found.append(one)
            if given.verbose or (one.cell.andon and one.wrong) or one.broken:
                print("\n".join(one.wrong) or f"{one.cell}: well", flush=True)
    seconds = time.monotonic() - began
    print(matrix_page.table(found))
    if not given.only and len(sides) == 2:
        page = matrix_page.page(found, known, commit, seconds)
        (ROOT / "docs" / "kill-matrix.md").write_text(page)
        print("written to docs/kill-matrix.md")
    red = any(one.wrong for one in found if one.cell.andon) or any(one.broken for one in found)
    print(f"{'RED' if red else 'green'} after {seconds:.0f} s")
    return int(red)


if __name__ == "__main__":
    sys.exit(session.apart(main))
