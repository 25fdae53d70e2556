"""A process killed at any point loses nothing and repeats nothing.

A process is killed at every point of andon.points, on both databases, the first time and later
times it passes the point; then its successor is killed as well.
"""

import itertools
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.chaos import agents, laws
from tests.chaos.fleet import Site, until

import andon
from andon.points import POINTS

SETTINGS = {"poll_seconds": 0.1}
# Passed by every worker that finds the run unfinished.
ALWAYS = ("writer:before-commit", "writer:after-commit", "claim:claimed", "attempt:loaded")


def test_the_points_in_the_code_are_the_declared_ones() -> None:
    root = Path(andon.__file__).parent
    found = [re.findall(r'\bpoint\("([^"]*)"[,)]', path.read_text()) for path in root.rglob("*.py")]
    assert {name for names in found for name in names} == set(POINTS)


class Trial:
    """A tour that is killed where the faults say, and then brought to its end."""

    def __init__(self, site: Site, run: str, *faults: str) -> None:
        self.site, self.run = site, run
        self.died: list[str] = []
        site.start(agents.tour, run=run)
        for fault in faults:
            self.be_killed(fault)
        last = site.worker(settings=SETTINGS)
        site.finish()
        last.kill()

    def be_killed(self, fault: str) -> None:
        process = self.site.worker(settings=SETTINGS, faults=fault)

        def over() -> bool:
            self.site.answer_open_asks()
            self.site.send_awaited_events()
            return process.status is not None or not self.site.open_runs()

        until(over, f"the end of the tour or of a process with {fault}\n{self.site.errors[-2000:]}")
        if fault.endswith("settled=kill@1") and process.status is None:
            until(lambda: process.status is not None, "the kill after the last settlement", 5)
        if process.status is not None:
            assert process.status == -9, self.site.errors[-4000:]
            self.died.append(fault)
        process.kill()

    def wrong(self) -> list[str]:
        runs = [row.id for row in self.site.rows() if row.root_id == self.run]
        found = laws.broken(self.site.store, self.site.folder, runs)
        if self.site.state(self.run) != "succeeded":
            found.append(f"{self.run}: {self.site.store.run(self.run)}")
        elif laws.result(self.site.store, self.run) != agents.TOUR:
            found.append(f"{self.run}: result {laws.result(self.site.store, self.run)}")
        return [f"{self.died}: {wrong}" for wrong in found]


def passes(site: Site) -> dict[str, int]:
    """How often one worker passes each point in one tour."""
    counted = site.folder / "counted"
    worker = site.worker(settings=SETTINGS, count_to=str(counted))
    site.start(agents.tour, run="counted")
    site.finish()
    worker.kill()
    assert not laws.broken(site.store, site.folder, ["counted"])
    assert laws.result(site.store, "counted") == agents.TOUR
    return Counter(counted.read_text().splitlines())


@pytest.fixture
def counted(site: Site) -> dict[str, int]:
    kept = _counted.setdefault(site.url.partition(":")[0], {})
    if not kept:
        kept.update(passes(site))
    return kept


_counted: dict[str, dict[str, int]] = {}


def test_a_tour_passes_every_point(counted: dict[str, int]) -> None:
    assert counted.keys() == set(agents.TOURED)


def some_passes(name: str, total: int, site: Site) -> list[int]:
    """A selection of the passes; how often a run is claimed and suspended varies with timing."""
    certain = total if name.startswith(("step:", "effect:")) else (total + 1) // 2
    if site.url.startswith("postgresql"):
        return sorted({1, (certain + 2) // 2})
    return sorted({1, min(2, certain), (certain + 1) // 2, certain})


@pytest.mark.parametrize("name", agents.TOURED)
def test_a_process_killed_at_a_point_loses_and_repeats_nothing(
    site: Site, counted: dict[str, int], name: str
) -> None:
    wrong: list[str] = []
    for number in some_passes(name, counted[name], site):
        trial = Trial(site, f"tour-{number}", f"{name}=kill@{number}")
        assert trial.died, f"{name}@{number} was not reached\n{site.errors[-4000:]}"
        wrong += trial.wrong()
    assert not wrong


@pytest.mark.parametrize("seed", range(1))
def test_a_process_killed_while_it_recovers_loses_and_repeats_nothing(
    site: Site, counted: dict[str, int], seed: int
) -> None:
    assert not killed_twice(site, counted, random.Random(seed), trials=5)


def killed_twice(site: Site, counted: dict[str, int], chance: random.Random, trials: int) -> Any:
    wrong, deaths = [], 0
    for number in range(trials):
        first, second = chance.choice(agents.TOURED), chance.choice((*agents.TOURED, *ALWAYS))
        trial = Trial(
            site,
            f"tour-{number}",
            f"{first}=kill@{chance.randint(1, max(1, counted[first] - 1))}",
            f"{second}=kill@{chance.randint(1, 3)}",
        )
        deaths += len(trial.died)
        wrong += trial.wrong()
    assert deaths >= trials * 1.3, f"only {deaths} of {2 * trials} kills were reached"
    return wrong


@pytest.mark.chaos
@pytest.mark.parametrize("name", agents.TOURED)
def test_a_process_killed_at_every_pass_of_a_point_loses_and_repeats_nothing(
    site: Site, name: str
) -> None:
    """Kills at each pass in turn until none is left: the number of passes varies with timing."""
    for number in itertools.count(1):
        trial = Trial(site, f"tour-{number}", f"{name}=kill@{number}")
        assert not trial.wrong()
        if not trial.died:
            break
    assert number > 1, f"{name} was not reached\n{site.errors[-4000:]}"


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(100, 105))
def test_many_processes_killed_while_they_recover_lose_and_repeat_nothing(
    site: Site, counted: dict[str, int], seed: int
) -> None:
    assert not killed_twice(site, counted, random.Random(seed), trials=40)
