"""The table: what was injected, what was found, which planted bugs were caught, and on what."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from verify.canaries import Tried
from verify.layer import Effort, Outcome

ROOT = Path(__file__).resolve().parent.parent
MOST_LISTED = 20  # violations of one layer


def is_red(outcomes: list[Outcome], canaries: list[Tried]) -> bool:
    found = any(one.violations or one.guards for one in outcomes)
    return found or not all(one.caught for one in canaries)


def line(one: Outcome) -> str:
    """One layer in a sentence."""
    state = "RED" if one.violations or one.guards else "green"
    return (
        f"   {state}: {one.faults} faults in {one.runs} runs, {len(one.violations)} violations, "
        f"{one.seconds:.0f} s"
    )


def page(outcomes: list[Outcome], canaries: list[Tried], effort: Effort) -> str:
    """docs/verification.md."""
    colour = "RED" if is_red(outcomes, canaries) else "Green"
    command = "make soak" if effort.name == "soak" else "make verify"
    made = f"Written by `{command}` (effort {effort.name}) on {datetime.now(UTC):%Y-%m-%d}"
    parts = [
        "# What was injected, and what was found",
        "",
        f"{made}, from commit {_commit()}. **{colour}.**",
        "",
        *_table(outcomes, canaries),
        "",
        *_findings(outcomes),
        *_canaries(canaries),
        *_machine(),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _table(outcomes: list[Outcome], canaries: list[Tried]) -> list[str]:
    rows = [
        "| layer | injected | faults | runs | violations | canaries caught | seconds |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for one in outcomes:
        mine = [tried for tried in canaries if tried.layer == one.layer]
        caught = f"{sum(tried.caught for tried in mine)} of {len(mine)}" if mine else "–"
        missed = sum(not tried.caught for tried in mine)
        mark = "**RED** " if one.violations or one.guards or missed else ""
        rows.append(
            f"| {mark}{one.layer} | {one.injected} | {one.faults} | {one.runs} | "
            f"{len(one.violations)} | {caught} | {one.seconds:.0f} |"
        )
    return rows


def _findings(outcomes: list[Outcome]) -> list[str]:
    found = []
    for one in outcomes:
        if one.violations or one.guards:
            found += [f"## {one.layer}", ""]
            found += [f"- violation: {wrong}" for wrong in one.violations[:MOST_LISTED]]
            found += [f"- guard not met: {unmet}" for unmet in one.guards]
            found += [""]
    return found


def _canaries(canaries: list[Tried]) -> list[str]:
    if not canaries:
        return []
    what = "Bugs that are planted in a copy of the product; each has to be found by its layer."
    rows = [
        "## Canaries",
        "",
        f"{what} `python verify/verify.py --canary NAME` plants one.",
        "",
        "| canary | layer | caught | by |",
        "|---|---|---|---|",
    ]
    for one in canaries:
        evidence = one.violations[0] if one.violations else one.why
        caught = "yes" if one.caught else "**NO**"
        rows.append(f"| {one.name} | {one.layer} | {caught} | {_cell(evidence)} |")
    return [*rows, ""]


def _cell(text: str) -> str:
    short = text if len(text) <= 160 else f"{text[:157]}…"
    return short.replace("|", "\\|").replace("\n", " ")


def _machine() -> list[str]:
    import apsw

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    machine = f"{os.cpu_count()} cores, {memory:.0f} GB, {platform.system()} {platform.release()}"
    programs = f"Python {platform.python_version()}, SQLite {apsw.sqlite_lib_version()}"
    return ["## Machine", "", f"{machine}, {programs}."]


def _commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", "src", "verify", "tests")
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + (
        " and changes" if changed else ""
    )
