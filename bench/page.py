"""The results, as tables for the terminal and as a page of the docs. Pure."""

from dataclasses import dataclass
from math import isinf
from typing import Any

from bench.systems import BY_KEY, System
from bench.verdicts import Results, Verdict, against_raw, ahead, best_peer, figure, judge
from bench.workloads import TARGETS, Column, Workload

FACTORS = {"µs": 1e6, "ms": 1e3, "KB": 1 / 1024}
NOTHING = "–"

Rows = list[tuple[str, ...]]


@dataclass(frozen=True)
class Story:
    results: Results
    workloads: list[Workload]
    systems: list[System]
    versions: dict[str, dict[str, str]]
    machine: dict[str, str]
    commit: str
    on: str
    load: str
    minutes: float
    quick: bool


def shown(value: Any, unit: str) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, str):
        return value
    if isinf(value):
        return "goes on"
    number = value * FACTORS.get(unit, 1)
    if unit in ("count", "/s"):
        return f"{number:,.0f}"
    digits = 0 if number >= 100 else 1 if number >= 10 else 2
    return f"{number:,.{digits}f}" + (f" {unit}" if unit in ("µs", "ms", "s", "KB") else unit)


def times(value: float | None) -> str:
    return NOTHING if value is None or isinf(value) else shown(value, "×")


def table(story: Story, workload: Workload) -> tuple[Rows, list[str]]:
    """The rows of a workload, the head first, and the footnotes."""
    head = ["system"]
    for column in workload.columns:
        head.append(column.title)
        head += ["/ raw"] if column.raw else []
        head += ["/ best peer"] if column.better and _peers_count(story, workload) else []
    rows, notes = [tuple(head)], list[str]()
    present = story.results.systems(workload.name)
    for system in (one for one in story.systems if one.key in present):
        why = story.results.absent.get((workload.name, system.key)) or system.lesser
        cells = [system.label + (f" [{len(notes) + 1}]" if why else "")]
        for column in workload.columns:
            cells += _cells(story, workload, system.key, column)
        rows.append(tuple(cells))
        if why:
            notes.append(f"[{len(notes) + 1}] {system.label}: {why}")
    if workload.why_only:
        notes.append(f"Only some systems: {workload.why_only}.")
    return rows, notes


def rounds(story: Story, workload: Workload) -> str:
    found = [
        len({one.round for one in story.results.of(workload.name, system)})
        for system in story.results.systems(workload.name)
    ]
    return f"{max(found)} round{'' if max(found) == 1 else 's'}"


def _cells(story: Story, workload: Workload, system: str, column: Column) -> list[str]:
    results, name = story.results, workload.name
    cells = [shown(figure(results, name, system, column), column.unit)]
    if column.raw:
        cells.append(times(against_raw(results, name, system, column)))
    if column.better and _peers_count(story, workload):
        best = best_peer(results, name, column)
        first = best is not None and best[0] == system
        cells.append("best peer" if first else times(_behind(results, name, system, column)))
    return cells


def _behind(results: Results, workload: str, system: str, column: Column) -> float | None:
    """Times the best peer's figure, as the ratio to the limit is times the limit's."""
    found = ahead(results, workload, system, column)
    if found is None or not found:
        return None
    return 1 / found if column.better == "less" else found


def _peers_count(story: Story, workload: Workload) -> int:
    return sum(one in story.results.peers for one in story.results.systems(workload.name))


def verdicts(story: Story) -> list[tuple[Verdict, str]]:
    """Each target of the measured workloads, and its figures as text."""
    by_name = {one.name: one for one in story.workloads}
    found = []
    for target in TARGETS:
        if target.workload not in by_name:
            continue
        workload = by_name[target.workload]
        verdict = judge(story.results, target, workload)
        column = next(one for one in workload.columns if one.measure == target.measure)
        unit = column.unit if target.of == "value" else "×"
        texts = [
            f"{BY_KEY[system].store if system in BY_KEY else system} {shown(value, unit)}"
            for system, value in verdict.figures.items()
        ]
        found.append((verdict, ", ".join(texts)))
    return found


def tables(story: Story) -> str:
    """Everything for the terminal."""
    mark = " (quick: small sizes, not for comparison)" if story.quick else ""
    parts = []
    for workload in story.workloads:
        rows, notes = table(story, workload)
        if len(rows) > 1:
            title = f"{workload.name}: {workload.title}, {rounds(story, workload)}{mark}"
            parts.append("\n".join([title, "", *_aligned(rows), *(f"  {note}" for note in notes)]))
    judged: Rows = [("target", "measured", "")]
    for verdict, text in verdicts(story):
        name = f"{verdict.target.workload} {verdict.target.text}"
        judged.append((name, text, verdict.verdict))
    parts.append("\n".join([f"targets{mark}", "", *_aligned(judged)]))
    facts = ", ".join(f"{name} {value}" for name, value in story.machine.items())
    made = f"commit {story.commit}, {story.on}, {story.minutes:.0f} minutes"
    parts.append(f"{made}, load {story.load}; {facts}")
    return "\n\n".join(parts)


def _aligned(rows: Rows) -> list[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _markdown(rows: Rows, right: bool = True) -> str:
    rule = tuple("---" if at == 0 or not right else "--:" for at in range(len(rows[0])))
    return "\n".join(f"| {' | '.join(row)} |" for row in [rows[0], rule, *rows[1:]])


def page(story: Story) -> str:
    parts = []
    for workload in story.workloads:
        rows, notes = table(story, workload)
        if len(rows) > 1:
            plotted = any(column.better for column in workload.columns)
            plot = (
                f"![{workload.title}](comparison-{workload.name.lower()}.svg)\n" if plotted else ""
            )
            head = f"## {workload.name}: {workload.title}\n"
            text = [head, f"{rounds(story, workload)}.\n", _markdown(rows) + "\n", plot]
            text += [f"{note}\n" for note in notes]
            parts.append("\n".join(line for line in text if line))
    judged: Rows = [("target", "measured", "verdict")]
    for verdict, figures in verdicts(story):
        mark = {"met": "met", "missed": "**missed**"}.get(verdict.verdict, verdict.verdict)
        judged.append((f"{verdict.target.workload}: {verdict.target.text}", figures, mark))
    versions: Rows = [("system", "versions")]
    versions += [
        (one.label, ", ".join(f"{n} {v}" for n, v in story.versions[one.key].items()))
        for one in story.systems
        if one.key in story.versions
    ]
    return PAGE.format(
        mark=QUICK_MARK if story.quick else "",
        judged=_markdown(judged, right=False),
        tables="\n".join(parts),
        versions=_markdown(versions, right=False),
        machine=", ".join(f"{name} {value}" for name, value in story.machine.items()),
        commit=story.commit,
        on=story.on,
        load=story.load,
        minutes=f"{story.minutes:.0f}",
    )


QUICK_MARK = """

**A quick run**: small sizes. It shows that everything is measured, not how quick anything is."""

PAGE = """\
# Speed, beside every peer

`make bench` measures andon, its peers and the raw loops of the same databases in one run, and
writes this page. Measured at commit `{commit}` on {on} in {minutes} minutes; load of the machine
{load}; {machine}.{mark}

## Targets

{judged}

{tables}
## How it is measured

Every system executes the same steps (`bench/speed/scenes.py`) in worker processes of its own, which
note what happens in a file with a clock that all processes share; the measurements are the same
code for all (`bench/speed/system.py`). Each system has its own environment and the settings that
its documentation recommends for speed and safety; `bench/speed/with_andon.py` and its siblings say
which, and why. Systems take turns in every round, in an order that changes. A figure is the median
of round medians. `/ raw` is against the raw loop on the same database (where a system has its own
storage: raw SQLite on the same disk), asked just before, in the same block. `/ best peer` is
against the best figure of any peer, on any store.

Raw is the minimum work of a durable system: one row of 1 KB, found by its run and number, in
its own commit, or in a commit with other waiting rows; no fence, no journal, no replay
([why it has a key](decisions/0018-the-raw-row-can-be-found-again.md)).

## Limits of the comparison

The machine was not always quiet: see the load above, and measure on yours. Every server runs on one
machine. Temporal is its development server, on SQLite. Redis keeps only snapshots by default: when
it crashes, recent work of Celery is lost. No table has features that peers have and andon lacks.

## Versions

{versions}
"""
