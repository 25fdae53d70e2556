"""`andon crashtest`: prints progress while an agent is killed everywhere, and the report."""

import json
from pathlib import Path
from typing import Any

from andon.cli import loader, output, progress
from andon.cli.app import print_answer, wants_json
from andon.cli.colour import tinted
from andon.cli.progress import ProgressLine
from andon.cli.table import column, hang, table
from andon.control.runs.run_input import read
from andon.core.effect import EffectKind
from andon.core.text import clean, plural
from andon.errors import BadInput
from andon.runtime.agent import Agent
from andon.testing import crash
from andon.testing.crash import report as reports
from andon.testing.crash.report import Effect, Report, Tried


def load(target: str) -> list[Agent]:
    """Load the agents; a store that their import opens is a scratch store."""
    with crash.scratch.importing():
        return loader.load(target)


def run(
    agents: list[Agent],
    given: dict[str, Any],
    options: dict[str, Any],
    junit: str | None,
) -> int:
    """Run the crash test; return 0 if it finds nothing wrong, else 1."""
    agent = loader.only(agents)
    if junit is not None and not Path(junit).absolute().parent.is_dir():
        raise BadInput(f"--junit {junit}: there is no such folder")
    given = read(given, json.loads(agent.row.types), output.note)
    with (
        crash.CrashTest(agent, given, crash.Options(**options)) as test,
        progress.line(json=wants_json()) as line,
    ):
        line.show("runs without a kill first")
        report = test.run(lambda *trial: None if wants_json() else _show_trial(line, *trial))
    if junit is not None:
        Path(junit).write_text(reports.junit(report), "utf-8")
    print_answer(reports.document(report), lambda _: _print_report(report))
    return 0 if report.clean else 1


def _show_trial(line: ProgressLine, done: int, total: int, tried: Tried) -> None:
    """Count the trial; print a permanent line if it found something."""
    if tried.findings:
        what = "; ".join(dict.fromkeys(one.what for one in tried.findings))
        line.note(clean(f"killed at {tried}: {what}"))
    line.show(f"kills; the last one at {tried}", done, total)


def _print_report(report: Report) -> None:
    output.say(
        f"plain run: {clean(reports.how(report))}; {plural(report.steps, 'step')}, "
        f"{plural(sum(effect.plain for effect in report.effects), 'effect')}"
    )
    if report.effects:
        output.say()
        table(EFFECTS, report.effects)
    output.say()
    for line in str(report).split("\n"):
        hang(line[: len(line) - len(line.lstrip())], clean(line.lstrip()))


def _verdict(effect: Effect) -> str:
    if effect.worst > effect.plain:
        return tinted("TWICE", "wrong")
    if effect.lost:
        return tinted(f"NEVER ({effect.lost})", "wrong")
    if effect.asked:
        return f"a person is asked ({effect.asked})"
    if effect.kind == EffectKind.PURE:
        return "changes nothing"
    return "once" if effect.plain else "not at all"


EFFECTS = (
    column("EFFECT", of=lambda effect: effect.name, least=12),
    column("KIND", 1, lambda effect: effect.kind),
    column("HAPPENS", 3, lambda effect: effect.plain),
    column("WORST", 2, lambda effect: effect.worst),
    column("AFTER A KILL", of=_verdict),
)
