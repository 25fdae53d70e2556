"""The table: injected faults, violations, caught canaries, and the machine."""

import ast
import os
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from verify.canaries import Tried
from verify.layer import Effort, Outcome

ROOT = Path(__file__).resolve().parent.parent
MOST_LISTED = 20  # violations of one layer
AGAIN = """\
A violation names the command that replays it. `python verify/verify.py --only simulation --seed 1234` prints that run step by step, the same on every machine;
`--only LAYER --seed N` replays another layer with that seed. For real processes a seed determines the faults and their order; the kernel determines the timing."""  # noqa: E501
COLUMNS = ("layer", "faults", "runs", "violations", "canaries caught", "seconds")


def is_red(outcomes: list[Outcome], canaries: list[Tried]) -> bool:
    found = any(one.violations or one.guards for one in outcomes)
    return found or not all(one.caught for one in canaries)


def line(one: Outcome) -> str:
    """One layer in a sentence."""
    state = "RED" if one.violations or one.guards else "green"
    return (
        f"   {state}: {one.faults:,} faults in {one.runs:,} runs, "
        f"{len(one.violations)} violations, {one.seconds:.0f} s"
    )


def does(layer: str) -> str:
    """A layer's purpose: the first line of its file, even if that cannot be imported."""
    path = Path(__file__).with_name(f"{layer}.py")
    about = ast.get_docstring(ast.parse(path.read_text("utf-8"))) if path.exists() else None
    return (about or "it is not written yet").partition("\n")[0].rstrip(".")


def screen(outcomes: list[Outcome], canaries: list[Tried]) -> str:
    """The table for a terminal, and everything that is wrong."""
    rows = [COLUMNS, *(_row(one, canaries) for one in outcomes)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells))
    wrong = [f"{one.layer}: {what}" for one in outcomes for what in _wrong(one)]
    wrong += [f"missed: {one.name} ({one.layer}): {one.why}" for one in canaries if not one.caught]
    return "\n".join([*lines, *([""] if wrong else []), *wrong])


def page(outcomes: list[Outcome], canaries: list[Tried], effort: Effort, commit: str) -> str:
    """docs/verification.md."""
    colour = "RED" if is_red(outcomes, canaries) else "Green"
    command = "make soak" if effort.name == "soak" else "make verify"
    made = f"Written by `{command}` on {datetime.now(UTC):%Y-%m-%d}, from commit {commit}"
    layers, planted = sum(one.seconds for one in outcomes), sum(one.seconds for one in canaries)
    parts = [
        "# Verification: faults injected, and what they found",
        "",
        f"{made}. **{colour}.** {layers:,.0f} s for the layers, {planted:,.0f} s for the canaries.",
        "",
        *_table(outcomes, canaries),
        "",
        *_findings(outcomes),
        *_injected(outcomes),
        *_replay(),
        *_canaries(canaries),
        *_machine(),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _table(outcomes: list[Outcome], canaries: list[Tried]) -> list[str]:
    head, *numbers = COLUMNS
    rows = [_cells([head, "what it does", *numbers]), "|---|---|" + "--:|" * len(numbers)]
    for one in outcomes:
        name, *found = _row(one, canaries)
        red = one.violations or one.guards or any(_missed(one, canaries))
        rows.append(_cells([f"**RED** {name}" if red else name, does(one.layer), *found]))
    return rows


def _row(one: Outcome, canaries: list[Tried]) -> tuple[str, ...]:
    mine = [tried for tried in canaries if tried.layer == one.layer]
    caught = f"{len(mine) - len(_missed(one, canaries))} of {len(mine)}" if mine else "–"
    numbers = (f"{one.faults:,}", f"{one.runs:,}", str(len(one.violations)))
    return (one.layer, *numbers, caught, f"{one.seconds:,.0f}")


def _missed(one: Outcome, canaries: list[Tried]) -> list[Tried]:
    return [tried for tried in canaries if tried.layer == one.layer and not tried.caught]


def _cells(found: Sequence[str]) -> str:
    return f"| {' | '.join(found)} |"


def _wrong(one: Outcome) -> list[str]:
    found = [f"violation: {wrong}" for wrong in one.violations[:MOST_LISTED]]
    return found + [f"guard not met: {unmet}" for unmet in one.guards]


def _findings(outcomes: list[Outcome]) -> list[str]:
    found = []
    for one in outcomes:
        if wrong := _wrong(one):
            found += [f"## {one.layer}", "", *(f"- {what}" for what in wrong), ""]
    return found


def _injected(outcomes: list[Outcome]) -> list[str]:
    return ["## Injected", "", *(f"- **{one.layer}**: {one.injected}" for one in outcomes), ""]


def _replay() -> list[str]:
    return ["## Again", "", AGAIN, ""]


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
        rows.append(
            _cells([one.name, one.layer, "yes" if one.caught else "**NO**", _cell(evidence)])
        )
    return [*rows, ""]


def _cell(text: str) -> str:
    text = text.replace(tempfile.gettempdir(), "…")  # of the machine it was made on
    short = text if len(text) <= 160 else f"{text[:157]}…"
    return short.replace("|", "\\|").replace("\n", " ")


def _machine() -> list[str]:
    import apsw

    from andon.testing.postgres import PostgresMissing, find_programs

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    kernel = f"{platform.system()} {platform.release().partition('-')[0]} on {platform.machine()}"
    try:
        postgres = _said(str(find_programs() / "postgres"), "--version").split()[-1]
    except (PostgresMissing, IndexError):
        postgres = "missing"
    programs = f"Python {platform.python_version()}, SQLite {apsw.sqlite_lib_version()}"
    found = f"{os.cpu_count()} cores, {memory:.0f} GB, {kernel}, {programs}, PostgreSQL {postgres}."
    return ["## Machine", "", found]


def _said(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def commit() -> str:
    """The commit that is verified."""
    changed = _said("git", "status", "--porcelain", "--", "src", "verify", "tests")
    name = _said("git", "rev-parse", "--short=12", "HEAD") or "unknown"
    return f"{name} and changes" if changed else name
