"""Output of `andon drill`: the agents that were halted, and how long each kind took."""

import statistics
import time
from collections.abc import Sequence
from typing import Any

from andon.cli import output, progress
from andon.cli.app import advise, print_answer, wants_json
from andon.cli.colour import paint, tinted
from andon.cli.table import column, table
from andon.control.doctor import drill
from andon.control.doctor.drill_fleet import MOST_AGENTS
from andon.core.text import clean, plural
from andon.errors import BadInput
from andon.host import home as homes

# Runnable processes per processor, averaged over the last minute.
BUSY = 1.0
_TIMES = (
    ("first order out", "cli_ms", "the command's own start, interpreter included"),
    ("latched", "latch_ms", "at the supervisor, from the order"),
    ("killed and seen gone", "kill_ms", "at the supervisor, from the order"),
    ("last process gone", "gone_ms", "from Enter, by the pipes that they held"),
    ("verified", "verified_ms", "from Enter to the receipt"),
)


def run(agents: int, rounds: int) -> int:
    """Run the drill; return 0 only if, by the receipt too, nothing survived or could start."""
    for name, given, most in (("--agents", agents, MOST_AGENTS), ("--rounds", rounds, 100)):
        if not 1 <= given <= most:
            raise BadInput(f"{name}: expected 1 to {most}, found {given}")
    home = homes.find()
    with progress.line(json=wants_json()) as line:
        reports = list(drill.drill(agents, rounds, _printer(line)))
    drill.remember(reports, home, time.time())
    good = all(map(drill.passed, reports))
    found = {"passed": good, "times": times(reports), "rounds": reports}
    print_answer(found, lambda _: _print_report(reports, good))
    return 0 if good else 1


def _printer(line: progress.ProgressLine) -> drill.OnProgress:
    """Return a printer of progress: on a terminal one line that counts, else one line per part."""
    said = ""

    def show(words: str, done: int | None = None, total: int | None = None) -> None:
        nonlocal said
        line.show(words, done, total)
        if words != said and not line.shown:
            advise(words)
        said = words

    return show


def times(reports: list[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Return median and worst of each time; None if a round lacks it."""
    found: dict[str, dict[str, float | None]] = {}
    for _, name, _ in _TIMES:
        each = [report[name] for report in reports]
        known = None not in each
        found[name] = {
            "median": statistics.median(each) if known else None,
            "worst": max(each) if known else None,
        }
    return found


def _print_report(reports: list[dict[str, Any]], good: bool) -> None:
    several = len(reports) > 1
    kinds = [_together(each) for each in zip(*(one["kinds"] for one in reports), strict=True)]
    gone_in = column("GONE IN, WORST" if several else "GONE IN", of=lambda one: _ms(one["gone_ms"]))
    table((*KINDS, gone_in, column("SURVIVORS")), kinds)
    output.say()
    found = times(reports)
    rows = [{"words": words, "why": why, **found[name]} for words, name, why in _TIMES]
    median = column("MEDIAN" if several else "TIME", of=lambda one: _ms(one["median"]))
    worst = column("WORST", of=lambda one: _ms(one["worst"]))
    words, why = column("", of="words", least=12), column("", 1, "why", least=16)
    table((words, median, *([worst] if several else []), why), rows)
    output.say()
    _verdict(reports, good)


KINDS = (
    column("AGENT", of="kind", least=12),
    column("AGENTS", 2),
    column("PROCESSES", 1),
)


def _together(kinds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Combine what the rounds found of one kind."""
    gone = [kind["gone_ms"] for kind in kinds]
    return kinds[0] | {
        "gone_ms": None if None in gone else max(gone),
        "survivors": sum(kind["survivors"] for kind in kinds),
    }


def _verdict(reports: list[dict[str, Any]], good: bool) -> None:
    first = reports[0]
    survivors = sum(report["survivors"] for report in reports)
    by = ", ".join(sorted({name for report in reports for name in report["by"]})) or "unknown"
    output.say(
        f"{plural(first['agents'], 'agent')}, {first['processes']} processes, "
        f"{first['escaped']} of them escaped; killed by {by}; {survivors} survived"
    )
    refused = all(report["refused"] for report in reports)
    one_more = "refused" if refused else "STARTED: the latch did not hold"
    output.say(f"tried to start one more command and one more worker: {one_more}")
    busy = max(report["load"] for report in reports)
    if busy > BUSY:
        output.say(
            f"this machine was busy (load {busy:.1f} per processor), which made these times longer"
        )
    for sentence in dict.fromkeys(words for report in reports for words in report["unknown"]):
        output.say(f"NOT PROVED  {clean(sentence)}")
    output.say(paint(tinted("passed", "good") if good else tinted("FAILED", "wrong")))


def _ms(value: float | None) -> str:
    return "never" if value is None else f"{value:,.1f} ms" if value < 10 else f"{value:,.0f} ms"
