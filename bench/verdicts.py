"""From samples to figures, ratios and verdicts. Pure.

A sample is the result of one system in one block of a round, together with the result of the limit
just before it. A figure is the median of round medians; a ratio to the limit is taken within a
block, so that a slow moment of the machine affects both sides of it.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.workloads import Column, Target, Workload


@dataclass(frozen=True)
class Sample:
    workload: str
    system: str
    round: int
    values: dict[str, Any]
    raw: dict[str, Any] = field(default_factory=dict)


@dataclass
class Results:
    samples: list[Sample] = field(default_factory=list)
    absent: dict[tuple[str, str], str] = field(default_factory=dict)  # workload, system: why
    peers: frozenset[str] = frozenset()

    def of(self, workload: str, system: str) -> list[Sample]:
        return [one for one in self.samples if (one.workload, one.system) == (workload, system)]

    def systems(self, workload: str) -> list[str]:
        seen = [one.system for one in self.samples if one.workload == workload]
        return list(dict.fromkeys([*seen, *(s for w, s in self.absent if w == workload)]))


def median_of_rounds(pairs: Iterable[tuple[int, float]]) -> float | None:
    rounds = defaultdict[int, list[float]](list)
    for number, value in pairs:
        rounds[number].append(value)
    return statistics.median(map(statistics.median, rounds.values())) if rounds else None


def figure(results: Results, workload: str, system: str, column: Column) -> Any:
    """The number or the word in the table; None where nothing was measured."""
    found = [
        (one.round, one.values[column.measure])
        for one in results.of(workload, system)
        if one.values.get(column.measure) is not None
    ]
    if not found:
        return None
    values = [value for _, value in found]
    if column.unit == "word":
        return _most_frequent(values)
    folds: dict[str, Callable[[Sequence[float]], float]] = {"worst": max, "sum": sum}
    if column.fold in folds:
        return folds[column.fold](values)
    return median_of_rounds(found)


def _most_frequent(words: Sequence[str]) -> str:
    """One word if all rounds agree, else each with its count."""
    counted = Counter(words).most_common()
    if len(counted) == 1:
        return counted[0][0]
    return ", ".join(f"{word} ({count} of {len(words)})" for word, count in counted)


def against_raw(results: Results, workload: str, system: str, column: Column) -> float | None:
    """Its ratio to the limit, in the same block."""
    return median_of_rounds(
        (one.round, one.values[column.measure] / one.raw[column.measure])
        for one in results.of(workload, system)
        if one.values.get(column.measure) is not None and one.raw.get(column.measure)
    )


def best_peer(results: Results, workload: str, column: Column) -> tuple[str, float] | None:
    found = [
        (system, value)
        for system in results.systems(workload)
        if system in results.peers
        and (value := figure(results, workload, system, column)) is not None
    ]
    if not found or not column.better:
        return None
    choose = min if column.better == "less" else max
    return choose(found, key=lambda pair: pair[1])


def ahead(results: Results, workload: str, system: str, column: Column) -> float | None:
    """How many times better than the best peer; less than 1 is behind."""
    own, best = figure(results, workload, system, column), best_peer(results, workload, column)
    if own is None or best is None or not own or not best[1]:
        return None
    return float(best[1] / own if column.better == "less" else own / best[1])


@dataclass(frozen=True)
class Verdict:
    target: Target
    figures: dict[str, Any]  # by system
    verdict: str  # met, missed, not measured


def judge(results: Results, target: Target, workload: Workload) -> Verdict:
    """Met only if every store of andon that was measured meets it."""
    column = next(one for one in workload.columns if one.measure == target.measure)
    sources = {"value": figure, "raw": against_raw, "peer": ahead}
    figures = {
        system: sources[target.of](results, target.workload, system, column)
        for system in results.systems(target.workload)
        if system.startswith("andon")
    }
    known = [value for value in figures.values() if value is not None]
    if not known or len(known) < len(figures):
        return Verdict(target, figures, "not measured")
    met = all(_holds(target, value) for value in known)
    return Verdict(target, figures, "met" if met else "missed")


def _holds(target: Target, value: Any) -> bool:
    limit: Any = target.value
    match target.rule:
        case "at most":
            return bool(value <= limit)
        case "less than":
            return bool(value < limit)
        case "at least":
            return bool(value >= limit)
        case _:
            return bool(value == limit)
