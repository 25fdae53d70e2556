"""The block of numbers in the README, made from the results. Pure but for the last function."""

from pathlib import Path
from typing import NamedTuple

from bench.page import NOTHING, Story, shown, times
from bench.verdicts import against_raw, ahead, figure
from bench.workloads import WORKLOADS, Column

BEGIN, END = "<!-- numbers: ", "<!-- end of numbers -->"
ABOUT = (
    "`make bench` measures andon, every peer and the raw loop of the same database in one run: "
    "[all of it](docs/comparison.md). Compare ratios, not absolutes."
)
STORES = ("andon-sqlite", "andon-postgres")


class Line(NamedTuple):
    text: str
    workload: str
    measure: str
    of: str = "value"  # raw: times the limit; peer: how far ahead of the best peer
    unit: str = ""  # instead of the table's


LINES = (
    Line("one durable step, 1 KB result, against a raw durable commit", "W1", "step", "raw"),
    Line("the same with a plain function (it runs in a thread)", "W1", "plain", "raw"),
    Line("one durable step, times faster than the best peer", "W1", "step", "peer"),
    Line("100 runs × 50 steps in one process, steps/s", "W2", "rate"),
    Line("the same, against the best peer", "W2", "rate", "peer"),
    Line("enqueue → the run's first line", "W3", "start"),
    Line("short runs/s", "W3", "rate"),
    Line("SIGKILL in the middle of an effect → the run resumes", "W4", "resumed", unit="ms"),
    Line("effects repeated by that", "W4", "repeated"),
    Line("SIGTERM with a 5 s step in flight and a grace of 2 s: announced", "W5", "announced"),
    Line("the same: exit with 0", "W5", "exit"),
    Line("the same: continued by another worker, from its partial value", "W5", "elsewhere"),
    Line("resume of a run with 10,000 finished steps", "W7", "resume"),
    Line("memory of a suspended run", "W11", "suspended"),
)


def block(story: Story) -> str:
    rows = [
        f"| {line.text} | {' | '.join(cell(story, line, store) for store in STORES)} |"
        for line in LINES
    ]
    return "\n".join(
        [
            f"{BEGIN}written by `make bench`; this is the only place that has them -->",
            f"{ABOUT}\n",
            f"| commit {story.commit}, load {story.load} | SQLite | PostgreSQL |",
            "|---|--:|--:|",
            *rows,
            END,
        ]
    )


def cell(story: Story, line: Line, store: str) -> str:
    column = _column(line)
    results = story.results
    if line.of == "raw":
        return times(against_raw(results, line.workload, store, column))
    if line.of == "peer":
        return times(ahead(results, line.workload, store, column))
    value = figure(results, line.workload, store, column)
    return NOTHING if value is None else shown(value, line.unit or column.unit)


def _column(line: Line) -> Column:
    workload = next(one for one in WORKLOADS if one.name == line.workload)
    return next(one for one in workload.columns if one.measure == line.measure)


def replaced(text: str, new: str) -> str:
    """The page with another block of numbers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the README has no block from {BEGIN!r} to {END!r}")
    return before + new + after


def write(story: Story, path: Path) -> None:
    path.write_text(replaced(path.read_text("utf-8"), block(story)), "utf-8")
