"""The report of a crash test, for people, programs and JUnit."""

from collections import Counter
from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import msgspec

from andon.core.text import plural
from andon.testing.crash.judge import Finding, in_short
from andon.testing.crash.kills import FAMILIES, Kill


class Tried(msgspec.Struct, kw_only=True):
    """One trial and its findings."""

    kills: tuple[Kill, ...]
    reached: bool
    state: str
    findings: list[Finding]
    asked: list[str]
    seconds: float

    def __str__(self) -> str:
        return ", then ".join(map(str, self.kills))


class Effect(msgspec.Struct, kw_only=True):
    """One effect of the agent, over all trials."""

    name: str
    kind: str
    plain: int  # how often it happened in the plain run
    worst: int  # how often it may have happened in the worst trial
    lost: int  # trials in which it did not happen although its probe said so
    asked: int  # trials in which a person would have been asked
    probed: str = ""  # the probe's answer then: said unknown, raised TimeoutError


class Report(msgspec.Struct, kw_only=True):
    """The findings of a crash test. `assert report.clean, report` prints them all."""

    agent: str
    state: str  # of the plain run
    error: str
    result: Any
    steps: int
    tried: list[Tried]
    untried: list[str]  # kills left out: the time was over, or `most` was reached
    varies: list[str]  # differences between the two plain runs
    repeated: list[str]  # steps executed again after a kill
    effects: list[Effect]
    strict: bool
    seconds: float

    @property
    def findings(self) -> list[tuple[Finding, list[Tried]]]:
        """Each finding once, with the trials that show it."""
        found: dict[tuple[str, str, str], tuple[Finding, list[Tried]]] = {}
        for trial in self.tried:
            for one in trial.findings:
                key = one.about, one.name, one.do
                found.setdefault(key, (one, []))[1].append(trial)
        return list(found.values())

    @property
    def asked(self) -> int:
        """The number of trials in which a person would be asked."""
        return sum(bool(trial.asked) for trial in self.tried)

    @property
    def clean(self) -> bool:
        if not any(trial.reached for trial in self.tried):
            return False  # no trial was killed, so nothing is shown
        return not self.findings and not (self.strict and self.asked)

    def __str__(self) -> str:
        return "\n".join(lines(self))


def how(report: Report) -> str:
    """Describe how the plain run ended."""
    return f"{report.state}: {in_short(report.error)}" if report.error else report.state


def document(report: Report) -> dict[str, Any]:
    """Convert the report to plain data, for programs."""
    built: dict[str, Any] = msgspec.to_builtins(report)
    built["tried"] = [{**msgspec.to_builtins(trial), "at": str(trial)} for trial in report.tried]
    built["clean"], built["asked"] = report.clean, report.asked
    built["findings"] = [
        {**msgspec.to_builtins(finding), "trials": [str(one) for one in trials]}
        for finding, trials in report.findings
    ]
    return built


def lines(report: Report) -> list[str]:
    """Return the findings and the summary as plain text."""
    found: list[str] = []
    for number, (finding, trials) in enumerate(report.findings, 1):
        more = f" and {len(trials) - 1} more" if len(trials) > 1 else ""
        found += [
            f"{number}. {finding.what}",
            f"   at   {trials[0]}{more}",
            f"   why  {finding.why}",
            f"   do   {finding.do}",
        ]
    found += asked_lines(report)
    found += [f"differs from run to run, also without a kill: {words}" for words in report.varies]
    if report.repeated:
        names = ", ".join(report.repeated)
        found.append(
            f"steps executed again after a kill: {names}; none of them may change the world"
        )
    found.append(summary(report))
    return found


_NOT_PROBED = ". To let andon find out: @andon.effect_of(probe=…), (undo=…) or (kind=…)"
_PROBED = (
    ": its probe {}. To let andon find out, let it return andon.happened(result) or "
    "andon.did_not_happen()"
)


def asked_lines(report: Report) -> list[str]:
    twice = {finding.name for finding, _ in report.findings}
    names = sorted({name for trial in report.tried for name in trial.asked} - twice)
    probed = {effect.name: effect.probed for effect in report.effects}
    return [
        f"asked: after a kill in effect {name!r} a person would be asked whether it happened"
        + (_PROBED.format(probed[name]) if probed.get(name) else _NOT_PROBED)
        for name in names
    ]


def summary(report: Report) -> str:
    families = Counter(trial.kills[0].family for trial in report.tried if trial.reached)
    counts = ", ".join(f"{families[name]} {name}" for name in FAMILIES if families[name])
    killed = sum(families.values())
    parts = [f"killed {plural(killed, 'time')}" + (f" ({counts})" if killed else "")]
    unreached = len(report.tried) - killed
    if unreached:
        parts.append(f"not reached: {plural(unreached, 'kill')}")
    if report.untried:
        parts.append(f"NOT tried: {plural(len(report.untried), 'kill')}")
    parts.append(plural(len(report.findings), "finding"))
    parts.append(f"{plural(report.asked, 'time')} asked")
    return f"{', '.join(parts)}, in {report.seconds:.1f} s: {verdict(report)}"


def verdict(report: Report) -> str:
    if not any(trial.reached for trial in report.tried):
        return "NOTHING SHOWN"
    if not report.clean:
        return "NOT crash-safe"
    return "clean" if not report.asked else "clean, but for questions to people"


def junit(report: Report) -> str:
    """Render the report as JUnit XML, one test case per kill."""
    cases = [_case(report, trial) for trial in report.tried]
    cases += [
        f"  <testcase classname={_attribute(report.agent)} name={_attribute(name)}>"
        '<skipped message="not tried"/></testcase>'
        for name in report.untried
    ]
    failures = sum(_fails(report, trial) for trial in report.tried)
    skipped = len(report.untried) + sum(not trial.reached for trial in report.tried)
    head = (
        f'<testsuite name="andon crashtest" tests="{len(cases)}" failures="{failures}" '
        f'errors="0" skipped="{skipped}" time="{report.seconds:.3f}">'
    )
    body = [f"<testsuites>\n{head}", *cases, "</testsuite>\n</testsuites>\n"]
    return '<?xml version="1.0" encoding="utf-8"?>\n' + "\n".join(body)


def _fails(report: Report, trial: Tried) -> bool:
    return bool(trial.findings) or (report.strict and bool(trial.asked))


def _case(report: Report, trial: Tried) -> str:
    head = (
        f"  <testcase classname={_attribute(report.agent)} name={_attribute(str(trial))} "
        f'time="{trial.seconds:.3f}">'
    )
    if not trial.reached:
        return f'{head}<skipped message="not reached"/></testcase>'
    if not _fails(report, trial):
        return f"{head}</testcase>"
    said: Sequence[str] = [
        f"{one.what}\nwhy: {one.why}\ndo: {one.do}" for one in trial.findings
    ] or [f"a person would be asked about {', '.join(trial.asked)}"]
    message = _attribute(said[0].partition("\n")[0])
    text = escape(_visible("\n\n".join(said)))
    return f"{head}<failure message={message}>{text}</failure></testcase>"


def _attribute(text: str) -> str:
    return quoteattr(_visible(text))


def _visible(text: str) -> str:
    """Replace control characters: XML forbids most of them, even escaped."""
    return "".join(one if one.isprintable() or one in "\n\t" else "?" for one in text)
