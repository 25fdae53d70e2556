"""Declared crash points: a process is killed at every one, and at another while it recovers.

The trials are those of tests/chaos, on SQLite and on PostgreSQL, at more passes of each point than
the tests take. A point of andon.points at which no trial was killed turns the layer red.
"""

import json
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.chaos import agents, test_drain, test_halt, test_points, test_stops
from tests.chaos.fleet import ROOT, Forker, Site, environment
from tests.cli.hosts import Host
from tests.cli.terminal import until
from tests.control.halt.test_halt import PROGRAM

from andon.host.latch import Latch
from andon.points import POINTS
from andon.testing.postgres import Cluster
from verify import harness, host_scenes
from verify.layer import Effort, Outcome, Say

DATABASES = ("sqlite", "postgres")
SETTINGS = test_points.SETTINGS
HANG_SECONDS = 20.0  # no promise: a second would do
STORMS = 5  # in some of them no process starts between a look and its kill
HALT = (*test_halt.OF_THE_SUPERVISOR, *test_halt.OF_THE_CONTROL_PROCESS)


@dataclass
class Task:
    """One trial: the points it is killed at, its database, and how it runs."""

    points: tuple[str, ...]
    database: str
    act: "Callable[[Site], int] | Callable[[Host], int]"  # returns the number of kills
    on_host: bool = False
    kills: int = 0
    wrong: list[str] = field(default_factory=list)


class Tour:
    """How often a tour passes each point, counted once for each database."""

    def __init__(self) -> None:
        self._counted: dict[str, Counter[str]] = {}
        self._counting = threading.Lock()

    def passes(self, site: Site) -> Counter[str]:
        with self._counting:
            kind = site.url.partition(":")[0]
            if kind not in self._counted:
                self._counted[kind] = Counter(test_points.passes(site))
            return self._counted[kind]

    def killed(self, name: str, part: float, site: Site) -> int:
        """At the first pass of the point (part 0), at the last (1), or between."""
        passes = self.passes(site)[name]
        # How often a run is claimed and suspended varies with the order of events.
        certain = passes if name.startswith(("step:", "effect:")) else (passes + 1) // 2
        return self._try(site, f"{name}=kill@{1 + round(part * (certain - 1))}")

    def killed_twice(self, first: str, second: str, number: int, site: Site) -> int:
        return self._try(site, f"{first}=kill@1", f"{second}=kill@{number}")

    def _try(self, site: Site, *faults: str) -> int:
        trial = test_points.Trial(site, "tour", *faults)
        assert trial.died[:1] == [faults[0]], f"{faults[0]} was not reached"
        assert not trial.wrong(), trial.wrong()
        return len(trial.died)


def undone_twice(first: str, second: str, site: Site) -> int:
    """Killed while it undoes, and again while it continues."""
    site.start(agents.saga, run="saga")
    for fault in (f"{first}=kill", f"{second}=kill"):
        status = site.worker(settings=SETTINGS, faults=fault).wait()
        assert status == -9, f"{fault}: ended with {status}\n{site.errors[-2000:]}"
    last = site.worker(settings=SETTINGS)
    site.finish(harness.HANG_SECONDS)
    last.kill()
    assert site.state("saga") == "failed"
    test_drain.check_undone(site, "saga")
    return 2


def once(test: Callable[..., None], *given: object) -> "Callable[[Site], int]":
    def act(where: Site) -> int:
        test(where, *given)
        return 1

    return act


def tasks(effort: Effort) -> list[Task]:
    """Every point at least once on each database; more passes, and pairs, as the effort allows."""
    tour, chance = Tour(), random.Random(effort.seed)
    found = []
    times = max(1, round(2 * effort.scale))
    for database in DATABASES:
        for name in agents.TOURED:
            for number in range(times):
                part = number / (times - 1) if times > 1 else chance.random()
                found.append(Task((name,), database, partial(tour.killed, name, part)))
        for _ in range(max(2, round(12 * effort.scale))):
            pair = chance.choice(agents.TOURED), chance.choice(agents.TOURED)
            act = partial(tour.killed_twice, *pair, chance.randint(1, 2))
            found.append(Task(pair[:1], database, act))
        drains = test_drain.test_a_process_killed_while_it_drains_loses_and_repeats_nothing
        found += [Task((name,), database, once(drains, name)) for name in test_drain.DRAIN]
        found += undos(database)
        stops = test_stops.test_a_run_is_stopped_although_its_worker_is_killed_while_it_obeys
        passed = test_stops.PASSED if effort.scale >= 1 else unalike(test_stops.PASSED)
        found += [Task((name,), database, once(stops, kind, name)) for kind, name in passed]
        found += halts(database)
    return scenes(effort) + (found if effort.scale >= 1 else by_turns(found))


def by_turns(found: list[Task]) -> list[Task]:
    """Each on one database only, and halts on SQLite: for an effort of seconds."""
    half = len(found) // 2
    pairs = zip(found[:half], found[half:], strict=True)
    return [both[0 if both[0].on_host else turn % 2] for turn, both in enumerate(pairs)]


def undos(database: str) -> list[Task]:
    undoes = test_drain.test_an_undo_interrupted_by_a_kill_is_completed_by_the_next_worker
    found = [Task((name,), database, once(undoes, name, 1)) for name in test_drain.UNDO]
    pairs = [("undo:begun", "undo:started"), ("undo:started", "undo:executed")]
    for pair in (*pairs, ("undo:confirmed", "undo:started")):
        found.append(Task(pair, database, partial(undone_twice, *pair)))
    return found


def halts(database: str) -> list[Task]:
    kills = test_halt.test_a_halt_holds_and_is_proved_although_a_process_is_killed_in_the_middle
    pulls = test_halt.test_a_pull_whose_command_is_killed_holds
    spawns = (
        test_halt.test_a_supervisor_killed_just_after_it_started_a_child_leaves_no_process_behind
    )
    named = [(name, once(kills, name)) for name in HALT]
    named += [(name, once(pulls, name)) for name in test_halt.OF_THE_COMMAND]
    named += [("supervisor:spawned", once(spawns, 2)), ("halt:sent", once(deleted))]
    found = [Task((name,), database, act, on_host=True) for name, act in named]
    found.append(Task(("halt:pulled",), database, held_in_a_program, on_host=True))
    return [*found, Task(("halt:killing",), database, storm_is_ended, on_host=True)]


def scenes(effort: Effort) -> list[Task]:
    """The scenes of verify/host_scenes.py; on PostgreSQL only those that involve the store."""
    found = [
        Task((name,), "sqlite", partial(seen, play), on_host=True)
        for name, plays in host_scenes.SCENES.items()
        for play in plays
    ]
    found.append(Task(("halt:killing",), "sqlite", host_scenes.signalled, on_host=True))
    if effort.scale >= 1:
        others = [(("halt:sent",), partial(seen, play)) for play in host_scenes.STORED]
        found += [Task(names, "postgres", act, on_host=True) for names, act in others]
    return found


def seen(play: Callable[[Host], None], host: Host) -> int:
    try:
        play(host)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        raise AssertionError(f"{play.__name__}: {error}") from error
    return 0  # no process was killed at a point


def deleted(host: Host) -> None:
    """A halt whose files are deleted, each and both: it holds until it is lifted."""
    test_halt.test_a_pull_whose_command_is_killed_holds(host, "halt:sent")
    for names in (["latch"], ["STOP"], ["latch", "STOP"]):
        for name in names:
            (host.home / name).rename(host.home / f"{name}.deleted")
        test_halt.assert_nothing_begins(host)
        for name in names:
            (host.home / f"{name}.deleted").replace(host.home / name)


def held_in_a_program(host: Host) -> int:
    """A program that uses andon as a library sees the latch by itself: no process is killed."""
    (host.folder / "program.py").write_text(PROGRAM)
    marker = host.folder / "marker"
    with subprocess.Popen(
        [sys.executable, "program.py", str(marker)], cwd=host.folder, env=host.environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as program:  # fmt: skip
        assert program.stdin is not None
        assert program.stdout is not None
        hanging = threading.Timer(HANG_SECONDS, program.kill)
        hanging.start()
        try:
            until(marker.exists, "the step")
            Latch(str(host.home)).pull("ana", "odd")
            assert "one was stopped with it" in program.stdout.readline(), "its run goes on"
            print("again", file=program.stdin, flush=True)
            assert "To allow starts again" in program.stdout.readline(), "another run was begun"
            program.stdin.close()
            assert program.wait() == 0
            host.becomes("one", "queued")
        finally:
            hanging.cancel()
            program.kill()
    return 0


def storm_is_ended(_: Host) -> int:
    """Processes that replace themselves while being killed: none is left when the halt says so."""
    command = [sys.executable, "-m", "tests.supervisor.scratch_tree", "halt", "walk", "storm"]
    for _storm in range(STORMS):
        done = subprocess.run(
            command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        seen = json.loads(done.stdout)
        assert seen["gone"] or seen["survivors"], "the halt says that none is left, and some live"
    return 0


def unalike(passed: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """One order for each point."""
    return list({name: (kind, name) for kind, name in passed}.values())


def carry_out(cluster: Cluster, folder: Path, forker: Forker, task: Task) -> Task:
    folder.mkdir()
    postgres = task.database == "postgres"
    url = cluster.fresh_database() if postgres else f"sqlite:///{folder}/andon.db"
    with harness.findings(task.wrong):
        if task.on_host:
            task.kills = task.act(Host(folder, url))  # type: ignore[arg-type]
        else:
            with harness.sited(forker, url, folder / "world") as site:
                task.kills = task.act(site)  # type: ignore[arg-type]
    return task


@harness.layer("points")
def check(effort: Effort, say: Say, outcome: Outcome) -> None:
    with harness.scratch("points") as folder, Cluster() as cluster:
        planned = list(enumerate(tasks(effort)))
        say(f"{len(planned)} trials")

        def work(forker: Forker, one: tuple[int, Task]) -> Task:
            return carry_out(cluster, folder / str(one[0]), forker, one[1])

        done = harness.until_red(harness.shared_out(planned, work), effort, say)
    judge(outcome, done)


def judge(outcome: Outcome, done: list[Task]) -> None:
    killed: Counter[str] = Counter()
    for task in done:
        where = f"killed at {' and '.join(task.points)} on {task.database}"
        outcome.violations += [f"{where}: {one[-1500:]}" for one in task.wrong]
        for name in task.points if task.kills else ():
            killed[name] += 1
    outcome.runs = len(done)
    harness.count(outcome, POINTS, killed)
    twice = sum(task.kills == 2 for task in done)
    outcome.injected = f"kill at {len(killed)} points {killed.total()}, again in recovery {twice}"
    outcome.faults = sum(task.kills for task in done)
    if not twice:
        outcome.guards.append("no process was killed while it recovered")
    harness.count_ended(outcome, sum(not task.wrong for task in done))


if __name__ == "__main__":
    harness.alone(check)
