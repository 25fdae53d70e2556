"""Split brain: workers that are frozen, cut off, or lose their database, and come back.

Workers are frozen for longer than their lease, at declared points and at random ones, and
partitioned from the database in both directions and in one. The database restarts, crashes, drops
its connections, stays away for longer than any worker waits, or is replaced by an asynchronous
standby. A worker that comes back has lost its runs: it writes nothing and starts nothing, and no
effect happens twice. A promotion changes the epoch, and a halt still holds after it.
"""

import contextlib
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from tests.chaos import agents, laws, world
from tests.chaos.fleet import Forker, Site, environment, until
from tests.chaos.freeze import (
    SETTINGS,
    answer_asks_if_no_worker_is_silent,
    freeze_at_random,
    frozen_in,
    has_new_incarnation,
    until_frozen,
    until_live,
)
from tests.chaos.kill import make_tally

from andon.errors import StoreUnavailable
from andon.store.messages.stops import Escalate
from andon.testing.postgres import Cluster
from verify import harness, networks
from verify.layer import Effort, Outcome, Say
from verify.standby import Standby

AWAY_SECONDS = 2.5 * SETTINGS["lease_seconds"]
KINDS = ("freeze at a point", "freeze in an effect", "freeze at random", "backend kill",
         "restart", "crash", "outage", "partition", "one-way partition", "promotion")  # fmt: skip
# How long a worker waits for its database before it gives up its runs.
PATIENCE_SECONDS = 0.5


class Brains:
    """One run of the layer."""

    def __init__(self, forker: Forker, cluster: Cluster, folder: Path, effort: Effort) -> None:
        self.forker, self.cluster, self.folder, self.effort = forker, cluster, folder, effort
        self.chance = random.Random(effort.seed)
        self.faults: Counter[str] = Counter()
        self.runs = self.ended = 0
        self.wrong: list[str] = []
        self.notes: list[str] = []

    def acts(self) -> "Iterator[tuple[str, Callable[[], None]]]":
        yield "an outage", self.outlast
        for kind in ("sqlite", "postgres"):
            yield f"frozen at points on {kind}", partial(self.freeze_at_points, kind)
            for effect in ("probeable", "compensatable", "irreversible"):
                act = partial(self.freeze_in_effect, kind, effect)
                yield f"frozen in {effect} on {kind}", act
            yield f"frozen before a result on {kind}", partial(self.freeze_before_result, kind)
            yield f"frozen at random on {kind}", partial(self.freeze_at_random, kind)
        for fault in ("backend kill", "restart", "crash"):
            for _ in range(self.times(2)):
                yield fault, partial(self.lose_database, fault)
        yield "partitions", self.partition
        yield "a promotion", self.promote

    def times(self, at_scale_one: float) -> int:
        return max(1, round(at_scale_one * self.effort.scale))

    @contextlib.contextmanager
    def site(self, name: str, kind: str) -> Iterator[Site]:
        """A site for one fault; every violation in it carries the name of the fault."""
        folder = self.folder / f"{name}-{self.runs}"
        folder.mkdir()
        self.cluster.start()
        postgres = kind == "postgres"
        url = self.cluster.fresh_database() if postgres else f"sqlite:///{folder}/andon.db"
        wrong: list[str] = []
        with harness.findings(wrong), harness.sited(self.forker, url, folder / "world") as site:
            yield site
            rows = site.rows()
            self.runs += len(rows)
            self.ended += sum(row.state == "succeeded" for row in rows)
            wrong += harness.damage(site.store)
        self.wrong += [f"{name} on {kind}, seed {self.effort.seed}: {one}" for one in wrong]

    def judge(self, site: Site, name: str) -> None:
        rows = site.rows()
        found = laws.broken(site.store, site.folder, [row.id for row in rows])
        found += [f"{row.id} is {row.state}" for row in rows if row.state != "succeeded"]
        self.wrong += [f"{name}, seed {self.effort.seed}: {one}" for one in found]

    # ── frozen ────────────────────────────────────────────────────────────────────────────────

    def freeze_at_points(self, kind: str) -> None:
        """One worker for each point, all frozen at the same time; one more worker takes over."""
        points = harness.some(list(agents.TOURED), self.times(len(agents.TOURED)), self.chance)
        with self.site("points", kind) as site:
            frozen = [frozen_in(site, agents.tour, fault=f"{name}=freeze")[0] for name in points]
            site.ready_worker(settings=SETTINGS)
            site.finish(harness.HANG_SECONDS)
            before = {row.id: (row.head_seq, row.head_hash) for row in site.rows()}
            begun_anew = [has_new_incarnation(site, process) for process in frozen]
            for process in frozen:
                process.thaw()
            for process, begun in zip(frozen, begun_anew, strict=True):
                until_live(site, process, begun)
            if before != {row.id: (row.head_seq, row.head_hash) for row in site.rows()}:
                self.wrong.append(f"frozen at {points} on {kind}: the frozen worker wrote")
            self.faults["freeze at a point"] += len(points)
            self.judge(site, f"frozen at {points} on {kind}")

    def freeze_in_effect(self, kind: str, effect: str) -> None:
        """The frozen worker will act when it wakes, so no other worker may act before it."""
        with self.site(f"in-{effect}", kind) as site:
            site.set_flag(f"freeze-{effect}")
            frozen, run = frozen_in(site, agents.acting, effect)
            site.clear_flag(f"freeze-{effect}")
            site.ready_worker(settings=SETTINGS)
            until(lambda: site.store.asks() or not site.open_runs(), "a person who is asked")
            begun_anew = has_new_incarnation(site, frozen)
            frozen.thaw()
            until(lambda: site.count(effect, f"{run}/{effect}-0"), "the late effect")
            until_live(site, frozen, begun_anew)
            site.finish(harness.HANG_SECONDS)
            self.faults["freeze in an effect"] += 1
            self.judge(site, f"frozen in {effect} on {kind}")

    def freeze_before_result(self, kind: str) -> None:
        """It wakes when another worker owns the run and wrote nothing: only the fence stops it."""
        with self.site("result", kind) as site:
            site.set_flag("go")
            frozen, run = frozen_in(site, agents.held, fault="step:executed=freeze@2")
            before = site.store.run(run)
            owner = site.ready_worker(settings=SETTINGS, faults="attempt:loaded=freeze")
            until_frozen(owner, "attempt:loaded")
            begun_anew = has_new_incarnation(site, frozen)
            frozen.thaw()
            until_live(site, frozen, begun_anew)
            owner.thaw()
            site.finish(harness.HANG_SECONDS)
            self.faults["freeze at a point"] += 2
            entries = laws.evidence(site.store, run, site.folder).entries
            if any(one.fence == before.fence and one.seq > before.head_seq for one in entries):
                self.wrong.append(f"frozen before a result on {kind}: the frozen worker wrote")
            self.judge(site, f"frozen before a result on {kind}")

    def freeze_at_random(self, kind: str) -> None:
        freezes = self.times(6)
        with self.site("random", kind) as site:
            found = freeze_at_random(site, self.effort.seed, runs=5 * freezes, freezes=freezes)
            self.wrong += [f"frozen at random, seed {self.effort.seed}, {kind}: {w}" for w in found]
            self.faults["freeze at random"] += freezes

    # ── the database goes ─────────────────────────────────────────────────────────────────────

    def lose_database(self, fault: str) -> None:
        with self.site(fault, "postgres") as site:
            fleet = self.under_load(site)
            match fault:
                case "backend kill":
                    cut_connections(site.url)
                case "restart":
                    self.cluster.restart()
                case _:
                    self.cluster.kill()
                    self.cluster.start()
            self.faults[fault] += 1
            site.finish(harness.HANG_SECONDS)
            self.judge(site, fault)
            if any(process.status is not None for process in fleet):
                self.wrong.append(f"{fault}: a worker ended\n{site.errors[-1000:]}")

    def outlast(self) -> None:
        """The database is away longer than any worker waits: none continues past a failed write."""
        with self.site("outage", "postgres") as site:
            self.under_load(
                site, patience_seconds=PATIENCE_SECONDS, lease_seconds=AWAY_SECONDS * 10
            )
            self.cluster.kill()
            before = begun(site)

            def late() -> dict[str, int]:
                """At most one step of each run was written down and had not begun."""
                return {run: n for run, n in (begun(site) - before).items() if n > 1}

            until(lambda: late() or "given up here" in site.errors, "who gives up")
            if found := late():
                self.wrong.append(f"outage: {found} began, and nothing could be written")
            self.cluster.start()
            self.faults["outage"] += 1
            with contextlib.suppress(StoreUnavailable):  # our own connection is lost too
                site.store.write([Escalate()])
            site.finish(harness.HANG_SECONDS)
            self.judge(site, "outage")

    def under_load(self, site: Site, runs: int = 8, **settings: Any) -> list[Any]:
        make_tally(site)
        for number in range(runs):
            site.start(agents.chaos, run=f"run-{number}")
        environ, settings = {"CHAOS_STEP_SECONDS": "0.02"}, {**SETTINGS, **settings}
        fleet = [site.ready_worker(settings=settings, environ=environ) for _ in range(2)]
        some = self.chance.randrange(10, 60)
        until(lambda: sum(row.head_seq for row in site.rows()) > some, "some work")
        return fleet

    # ── partitions ────────────────────────────────────────────────────────────────────────────

    def partition(self) -> None:
        if refused := networks.refuse():
            self.notes.append(f"no partitions: {refused}")
            return
        socket = self.cluster.directory / f".s.PGSQL.{self.cluster.port}"
        with (
            networks.cabled(socket, self.cluster.port) as cable,
            self.site("partition", "postgres") as site,
        ):
            url = cable.url(site.url.rpartition("/")[2])
            outside = Forker(inside=cable.inside)
            there = Site(outside, site.store, url, site.folder)
            try:
                self.cut_off(site, there, cable)
            finally:
                there.end()
                outside.close()

    def cut_off(self, site: Site, there: Site, cable: networks.Cable) -> None:
        make_tally(site)
        environ = {"CHAOS_STEP_SECONDS": "0.02"}
        for number in range(self.times(2)):
            for kind in ("partition", "one-way partition"):
                for one in range(6):
                    site.start(agents.chaos, run=f"{kind[0]}{number}-{one}")
                away = there.ready_worker(settings=SETTINGS, environ=environ)
                until(partial(self.held_by, site, away), "a run of the worker that is cut off")
                (cable.cut if kind == "partition" else cable.cut_one_way)()
                here = site.ready_worker(settings=SETTINGS, environ=environ)
                time.sleep(AWAY_SECONDS)  # longer than its lease
                answer_asks_if_no_worker_is_silent(site)
                cable.mend()
                self.faults[kind] += 1
                self.finish_carefully(site)
                here.kill()
                away.kill()
        self.judge(site, "partition")

    def held_by(self, site: Site, process: Any) -> bool:
        own = {row.id for row in site.incarnations(process)}
        return any(row.worker in own for row in site.open_runs())

    def finish_carefully(self, site: Site) -> None:
        def over() -> bool:
            answer_asks_if_no_worker_is_silent(site)
            return not site.open_runs()

        until(over, f"the end of all runs\n{site.errors[-2000:]}", 2 * harness.HANG_SECONDS)

    # ── a standby takes over ──────────────────────────────────────────────────────────────────

    def promote(self) -> None:
        """The standby is missing the worker's claim and a halt."""
        with (
            Cluster() as primary,
            harness.findings(self.wrong),
            harness.sited(self.forker, primary.fresh_database(), self.folder / "promoted") as site,
        ):
            site.start(agents.held, run="run")
            standby = Standby(primary)
            try:
                standby.start()
                until(standby.has_caught_up, "a standby that has caught up")
                standby.stop()
                self.fail_over(site, primary, standby)
            finally:
                standby.close()

    def fail_over(self, site: Site, primary: Cluster, standby: Standby) -> None:
        old = site.ready_worker(settings=SETTINGS)
        until(lambda: site.count("step", "run/step-1"), "a run in hand")
        before = site.store.run("run")
        old.freeze()
        halted = andon(site, "halt")
        primary.kill()
        standby.take_over()
        self.faults["promotion"] += 1
        refused = andon(site, "work", str(Path(agents.__file__)))
        if refused.returncode == 0 or "reauthorize" not in refused.stderr:
            self.wrong.append(f"promotion: the halt ({halted.stdout}) no longer holds: {refused}")
        new = site.ready_worker(settings=SETTINGS)
        until(lambda: site.count("step", "run/step-1") == 2, "the run in other hands")
        now = site.store.run("run")
        if (now.epoch, now.fence) <= (before.epoch, before.fence):
            self.wrong.append(f"promotion: the fence was {before}, and is {now}")
        begun_anew = has_new_incarnation(site, old)
        old.thaw()
        site.set_flag("go")
        site.finish(harness.HANG_SECONDS)
        until_live(site, old, begun_anew)
        self.runs += 1
        self.ended += site.state("run") == "succeeded"
        writers = {entry.fence for entry in laws.evidence(site.store, "run", site.folder).entries}
        if not {0, now.fence} >= writers or laws.result(site.store, "run") != [0, 2, 4]:
            self.wrong.append(f"promotion: entries of claims {writers}, the owner was {now.fence}")
        self.wrong += [f"promotion: {one}" for one in harness.damage(site.store)]
        new.kill()


def andon(site: Site, *words: str) -> "subprocess.CompletedProcess[str]":
    """Runs an andon command on this host."""
    return subprocess.run(
        [sys.executable, "-m", "andon", *words],
        env={**environment(), "ANDON_STORE": site.url, "ANDON_HOME": os.environ["ANDON_HOME"]},
        cwd=site.folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=harness.HANG_SECONDS,
    )


def begun(site: Site) -> Counter[str]:
    """How many steps and effects of each run have begun."""
    lines = (line.split() for line in world.lines(site.folder))
    return Counter(
        key.partition("/")[0] for what, key, _ in lines if what in ("step", *harness.KINDS)
    )


def cut_connections(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


@harness.layer("brains")
def check(effort: Effort, say: Say, outcome: Outcome) -> None:
    with harness.scratch("brains") as folder, Cluster() as cluster, harness.forker() as forker:
        brains = Brains(forker, cluster, folder, effort)
        for what, act in brains.acts():
            say(what)
            act()
            if effort.until_red and brains.wrong:
                break
    outcome.runs, outcome.violations = brains.runs, brains.wrong
    # A fault this host cannot inject is noted and is not red.
    tried = [kind for kind in KINDS if "partition" not in kind or not brains.notes]
    harness.count(outcome, tried, brains.faults)
    outcome.injected = ", ".join([outcome.injected, *brains.notes])
    harness.count_ended(outcome, brains.ended)


if __name__ == "__main__":
    harness.alone(check)
