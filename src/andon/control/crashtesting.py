"""`andon crashtest`: what is printed while an agent is killed everywhere, and after it."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from andon.control import loading, output
from andon.core.effect import Kind
from andon.errors import BadInput
from andon.runtime.agent import Agent
from andon.testing import crash
from andon.testing.crash import report as reports
from andon.testing.crash.report import Effect, Report, Tried

# Beside the bar there are its label, two numbers and the time that is left.
BAR_COLUMNS, BESIDE_BAR = 36, 36


def load(target: str) -> list[Agent]:
    """Its agents. A store that their import opens is none of the real ones."""
    with crash.scratch.importing():
        return loading.load(target)


def run(
    agents: list[Agent],
    given: dict[str, Any],
    options: dict[str, Any],
    *,
    junit: str | None,
    json: bool,
) -> int:
    """0 if nothing is wrong, 1 if something is."""
    if len(agents) != 1:
        names = ", ".join(sorted(agent.name for agent in agents))
        raise BadInput(f"expected one agent, found {len(agents)}: {names}. Say which: FILE:NAME")
    if junit is not None and not Path(junit).absolute().parent.is_dir():
        raise BadInput(f"--junit {junit}: there is no such folder")
    with (
        crash.CrashTest(agents[0], given, crash.Options(**options)) as test,
        _progress(json=json) as tell,
    ):
        report = test.run(tell)
    if junit is not None:
        Path(junit).write_text(reports.junit(report), "utf-8")
    if json:
        output.document(reports.document(report))
    else:
        _tell(report)
    return 0 if report.clean else 1


@contextlib.contextmanager
def _progress(*, json: bool) -> Iterator[Callable[[int, int, Tried], None]]:
    """A bar on a terminal; elsewhere a line for each trial that shows something."""
    if not sys.stderr.isatty() or json:
        yield lambda done, total, tried: _note(tried) if not json else None
        return
    with click.progressbar(
        length=1, label="killing", file=sys.stderr, show_pos=True, width=_width()
    ) as bar:

        def tell(done: int, total: int, tried: Tried) -> None:
            bar.length = total
            bar.update(done - bar.pos, None)

        yield tell


def _width() -> int:
    """So that the line with the bar fits: one that wraps cannot be written over."""
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except OSError:
        columns = 80
    return max(1, min(BAR_COLUMNS, columns - BESIDE_BAR))


def _note(tried: Tried) -> None:
    if tried.findings:
        what = "; ".join(dict.fromkeys(one.what for one in tried.findings))
        output.note(output.clean(f"killed at {tried}: {what}"))


def _tell(report: Report) -> None:
    output.say(
        f"plain run: {output.clean(reports.how(report))}; {output.plural(report.steps, 'step')}, "
        f"{output.plural(sum(effect.plain for effect in report.effects), 'effect')}"
    )
    if report.effects:
        output.say()
        rows = [
            (one.name, one.kind, str(one.plain), str(one.worst), _verdict(one))
            for one in report.effects
        ]
        output.table(("EFFECT", "KIND", "HAPPENS", "WORST", "AFTER A KILL"), rows)
    output.say()
    for line in str(report).split("\n"):
        output.say(output.clean(line))


def _verdict(effect: Effect) -> str:
    if effect.worst > effect.plain:
        return "TWICE"
    if effect.lost:
        return f"NEVER ({effect.lost})"
    if effect.asked:
        return f"a person is asked ({effect.asked})"
    if effect.kind == Kind.PURE:
        return "changes nothing"
    return "once" if effect.plain else "not at all"
