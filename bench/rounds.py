"""The order of the rounds: every system in turn, the limit just before it, and again.

A system that cannot be installed, started or asked becomes a row with the reason; others go on.
"""

import contextlib
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.peers.environments import Missing
from bench.peers.side import Cannot, Side
from bench.systems import BY_KEY, System
from bench.verdicts import Results, Sample
from bench.workloads import QUICK_SCALES, SCALES, W6, W8, Ask, Workload

from andon.testing.postgres import Cluster
from bench import stops

ASK_SECONDS = 900.0  # a million runs are written in one answer
REASON_LENGTH = 200
# How each is stopped in W6: the best documented way of the product.
WAYS = {
    "andon": "cancel",
    "dbos": "cancel",
    "langgraph": "cancel",
    "absurd": "cancel",
    "restate": "cancel",
    "temporal": "tuned",
    "celery": "SIGTERM",
}
MEASURED_ONCE = {
    "dbos-sqlite": "on PostgreSQL",
    "langgraph-postgres": "on SQLite",
    "temporal-local": "with activities",
}
GOES_ON = float("inf")


class Absent(Exception):
    """The system has no such feature; the message says which."""


def tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def ask(side: Side, question: Ask, *, peer: bool, quick: bool) -> dict[str, Any]:
    given = question.given(peer=peer, quick=quick)
    answer = put(side, question.method, **given)
    return {f"{name}{question.suffix}": value for name, value in (answer or {}).items()}


def put(side: Side, method: str, **given: Any) -> Any:
    side.ask(ask=method, **{"with": given})
    said = side.answer(ASK_SECONDS)
    if "absent" in said:
        raise Absent(said["absent"])
    return said["answer"]


class Measuring:
    def __init__(
        self, cluster: Cluster, systems: list[System], workloads: list[Workload], *, quick: bool
    ) -> None:
        self.cluster, self.systems, self.workloads, self.quick = cluster, systems, workloads, quick
        self.results = Results(
            peers=frozenset(one.key for one in systems if one.peer and not one.lesser)
        )
        self.versions: dict[str, dict[str, str]] = {}
        self._limits: dict[str, Side] = {}
        self._took = defaultdict[str, float](float)  # seconds of each workload in the last round
        self._refused: set[tuple[str, str]] = set()  # failed once, and not asked again

    def carry_out(self, rounds: int, minutes: float = 60.0) -> None:
        """Runs as many rounds as each workload has, but not more than `rounds`.

        No round starts that would end after so many minutes; the first is always whole.
        """
        end = time.monotonic() + 60 * minutes
        with contextlib.ExitStack() as stack:
            for key in ("raw-sqlite", "raw-postgres"):
                self._limits[key] = stack.enter_context(self._opened(BY_KEY[key]))
                self.versions[key] = self._limits[key].versions
            for number in range(rounds):
                due = [one for one in self.workloads if number < one.rounds]
                needed = sum(self._took[one.name] for one in due)
                if not due or (number and time.monotonic() + needed > end):
                    break
                tell(f"round {number + 1} of {rounds}: {', '.join(one.name for one in due)}")
                self._round(number, due)

    def _round(self, number: int, due: list[Workload]) -> None:
        # Another order in each round: no system always follows the same neighbour.
        self._took.clear()
        order = random.Random(number).sample(self.systems, len(self.systems))
        together = [one for one in due if not one.alone and one is not W6]
        for system in order:
            self._in_turn(number, system, together)
            for workload in due:
                if workload is W8:
                    self._guarded(workload, system, self._beside_finished, number)
                elif workload is W6:
                    self._guarded(workload, system, self._stopped, number)
                elif workload.alone:
                    self._in_turn(number, system, [workload])

    def _in_turn(self, number: int, system: System, workloads: list[Workload]) -> None:
        """All of them on one start of the system; a new start after one that failed."""
        left = [one for one in workloads if self._applies(one, system)]
        while left:
            started = False
            try:
                with self._timed(left[0]), self._opened(system) as side:
                    started = True
                    self.versions[system.key] = side.versions
                    while left:
                        with self._timed(left[0]):
                            self._measure(number, system, left[0], side)
                        left.pop(0)
            except (Cannot, Missing) as why:
                for workload in [left.pop(0)] if started else left:
                    self._refuse(workload, system, why)
                if not started:
                    return

    def _applies(self, workload: Workload, system: System) -> bool:
        if (workload.name, system.key) in self._refused:
            return False
        if workload.only and not {system.key, system.product} & set(workload.only):
            return False
        if system.product == "raw" and workload is not W8:
            return False  # asked beside each of the others
        return not workload.stores or system.store in workload.stores

    def _measure(self, number: int, system: System, workload: Workload, side: Side) -> None:
        compared = any(column.raw for column in workload.columns) and system.limit != system.key
        for _ in range(1 if self.quick else workload.blocks):
            values: dict[str, Any] = {}
            raw: dict[str, Any] = {}
            for question in workload.asks:
                if compared:
                    raw |= self._limit(question, self._limits[system.limit], system)
                try:
                    values |= ask(side, question, peer=system.peer, quick=self.quick)
                except Absent as why:
                    self.results.absent[workload.name, system.key] = str(why)
            self._keep(number, workload, system, values, raw)
            if raw:
                self.results.samples.append(Sample(workload.name, system.limit, number, raw))

    @contextlib.contextmanager
    def _timed(self, workload: Workload) -> Iterator[None]:
        """Time spent in a nested measurement counts once, for the inner one."""
        began, inner = time.monotonic(), sum(self._took.values())
        try:
            yield
        finally:
            spent = time.monotonic() - began
            self._took[workload.name] += spent - (sum(self._took.values()) - inner)

    def _limit(self, question: Ask, side: Side, system: System) -> dict[str, Any]:
        try:
            return ask(side, question, peer=system.peer, quick=self.quick)
        except Absent:
            return {}

    def _keep(
        self,
        number: int,
        workload: Workload,
        system: System,
        values: dict[str, Any],
        raw: dict[str, Any] | None = None,
    ) -> None:
        if not values:
            return
        self.results.samples.append(Sample(workload.name, system.key, number, values, raw or {}))
        shown = {name: round(v, 6) if isinstance(v, float) else v for name, v in values.items()}
        tell(f"{workload.name} {system.key}: {shown}")

    def _refuse(self, workload: Workload, system: System, why: Exception) -> None:
        reason = " ".join(str(why).split())
        tell(f"{workload.name} {system.key}: not measured: {reason}")
        # The message may hold anything: it is quoted, and cut.
        quoted = reason.replace("`", "'")[:REASON_LENGTH]
        self._refused.add((workload.name, system.key))
        self.results.absent[workload.name, system.key] = f"could not be measured here: `{quoted}`"

    def _guarded(self, workload: Workload, system: System, measure: Any, number: int) -> None:
        if not self._applies(workload, system):
            return
        try:
            with self._timed(workload):
                measure(number, system)
        except Absent as why:
            self.results.absent[workload.name, system.key] = str(why)
        except (Cannot, Missing) as why:
            self._refuse(workload, system, why)

    def _stopped(self, number: int, system: System) -> None:
        """W6, with the driver and the step of `make stops`."""
        name = system.product
        if system.key in MEASURED_ONCE:
            raise Absent(f"measured {MEASURED_ONCE[system.key]}: the store has no part in it")
        stopped = next(one for one in stops.SYSTEMS if one.key == name)
        values = {}
        gone_on = {
            kind
            for one in self.results.of(W6.name, system.key)
            for kind, took in one.values.items()
            if took == GOES_ON
        }
        for kind in ("async", "sync"):
            if kind in gone_on:
                continue  # once is enough
            with self._place(system) as (_, url):
                environ = {"STOPS_POSTGRES": url}
                [once], _ = stops.measure(stopped, WAYS[name], kind, 1, environ)
            values[kind] = GOES_ON if once["ended"] is None else once["ended"]
        self._keep(number, W6, system, values)

    def _beside_finished(self, number: int, system: System) -> None:
        """W8: three stores with more and more finished runs, asked in turn."""
        scales = QUICK_SCALES if self.quick else SCALES
        with contextlib.ExitStack() as stack:
            sides = []
            for scale in scales:
                side = stack.enter_context(self._opened(system))
                if scale:
                    put(side, "fill", count=scale)
                    tell(f"W8 {system.key}: {scale:,} finished runs are there")
                sides.append(side)
            self.versions.setdefault(system.key, sides[0].versions)
            for _ in range(1 if self.quick else W8.blocks):
                values: dict[str, Any] = {}
                for place, side in enumerate(sides):
                    found = ask(side, W8.asks[0], peer=system.peer, quick=self.quick)
                    put(side, "dismiss")  # its idle worker would poll beside the next one
                    values |= {f"{name} {place}": value for name, value in found.items()}
                for name in ("start", "enqueue"):
                    values[f"{name} growth"] = values[f"{name} 2"] / values[f"{name} 0"]
                self._keep(number, W8, system, values)

    @contextlib.contextmanager
    def _place(self, system: System) -> Iterator[tuple[Path, str]]:
        """A folder and a database of its own; the address of the one that the system uses."""
        with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name:
            if system.store == "sqlite":
                yield Path(name), f"sqlite:///{name}/store.db"
                return
            url = self.cluster.fresh_database()
            try:
                yield Path(name), url
            finally:
                self.cluster.drop_database(url.rpartition("/")[2])

    @contextlib.contextmanager
    def _opened(self, system: System) -> Iterator[Side]:
        with self._place(system) as (folder, url), system.open(folder, url) as side:
            yield side
