"""The crash test: kills a user's own agent at every boundary and inside every effect.

It executes two plain runs, without a kill, then one run per moment of the first. Everything happens
in scratch folders and scratch stores. The test counts the calls that really executed, not what
andon's tables say.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from andon.core.run import TERMINAL
from andon.errors import BadInput
from andon.runtime.agent import Agent
from andon.runtime.requests.start import bind
from andon.runtime.worker.embedded_latch import refuse_if_pulled
from andon.testing.crash import judge, kills, scratch
from andon.testing.crash.kills import Kill
from andon.testing.crash.lines import seen
from andon.testing.crash.report import Effect, Report, Tried
from andon.testing.crash.scratch import Hook
from andon.testing.crash.trial import Forker, Site, TrialOutcome

# A trial may take this many times as long as the plain run, and this much more.
PATIENCE, MORE_SECONDS = 5.0, 20.0
# A plain function is killed after a time, not at an instruction; it may end sooner the next time.
TRIES = 3


class Options(msgspec.Struct, kw_only=True):
    """Options of a crash test; see `andon crashtest`."""

    points: str = ",".join(kills.FAMILIES)
    most: int | None = None
    seconds: float = 300.0
    deep: bool = False
    strict: bool = False
    fails: bool = False
    store: str | None = None
    send: dict[str, Any] = {}
    before: Hook | str | None = None
    check: Hook | str | None = None
    keep: Path | str | None = None


class CrashTest:
    """A crash test in progress: `with CrashTest(…) as test:`"""

    def __init__(self, agent: Agent, given: dict[str, Any], options: Options) -> None:
        self.agent, self.given, self.options = agent, bind(agent.row, (), given), options
        self.points = kills.families(options.points)
        if options.most is not None and options.most < 1:
            raise BadInput(f"most={options.most}: expected at least one kill")
        self.end_at, self.began = inf, time.monotonic()
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> "CrashTest":
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Start the processes that fork workers."""
        refuse_if_pulled()
        with self._closing as closing:
            folder = closing.enter_context(scratch.folder(self.options.keep))
            environ = scratch.environment(folder)
            command = scratch.command(self.agent)
            forkers = tuple(Forker(command, environ) for _ in range(2))
            for forker in forkers:
                closing.callback(forker.close)
            self.site = Site(
                agent=self.agent,
                given=self.given,
                folder=folder,
                forkers=(forkers[0], forkers[1]),
                new_store=closing.enter_context(scratch.stores(self.options.store)),
                send=self.options.send,
                before=scratch.hook(self.options.before, "before"),
                check=scratch.hook(self.options.check, "check"),
            )
            self._closing = closing.pop_all()

    def close(self) -> None:
        self._closing.close()

    def plain(self) -> TrialOutcome:
        """Execute two runs without a kill; their differences are not the fault of a kill."""
        self.first = self._plain(other=False)
        self.second = self._plain(other=True)
        self.varies = judge.varies(self.first, self.second)
        self.patience = PATIENCE * max(self.first.seconds, self.second.seconds) + MORE_SECONDS
        return self.first

    def _plain(self, *, other: bool) -> TrialOutcome:
        until = min(self.end_at, time.monotonic() + self.options.seconds)
        outcome = self.site.trial(until=until, other=other)
        if outcome.state == "hung":
            found = f"waits for {outcome.waits}" if outcome.waits else seen(outcome.lines)
            raise BadInput(
                f"the plain run did not end in {outcome.seconds:.0f} s; it {found}. Give more "
                "time: --timeout, seconds=…"
            )
        if outcome.asked:
            names = ", ".join(outcome.asked)
            raise BadInput(
                f"the plain run did not end: effect {names} raised an error, and a person would be "
                "asked whether it happened. Test with outside services that work."
            )
        if outcome.waits:
            raise BadInput(
                f"the plain run did not end: it waits for {outcome.waits}. Asks are approved and "
                "times are moved; events have to be given: --send NAME=VALUE, send={name: value}"
            )
        if outcome.state in TERMINAL:
            self._refuse_unexpected(outcome)
        return outcome

    def _refuse_unexpected(self, outcome: TrialOutcome) -> None:
        """Refuse the wrong outcome: an agent that fails at its first line survives every kill."""
        if self.options.fails and outcome.succeeded:
            raise BadInput("the plain run succeeded: --fails expects one that fails")
        if not self.options.fails and not outcome.succeeded:
            raise BadInput(
                f"the plain run {outcome.state}: {outcome.error.rstrip('.')}. Its folder was "
                "empty: --before COMMAND, before=…, prepares the files that it reads. "
                "If it is meant to fail: "
                "--fails, fails=True"
            )

    def kills(self) -> list[Kill]:
        """Return the moments that the plain run passed."""
        found = kills.all_kills(self.first.lines, self.points)
        if not found:
            raise BadInput(f"the plain run reached none of the points {', '.join(self.points)}")
        return found

    def trial(self, *wanted: Kill) -> tuple[Tried, TrialOutcome]:
        outcome = self._killed(wanted)
        tries = 1
        while outcome.died < len(wanted) and any(one.after for one in wanted) and tries < TRIES:
            # The function was faster this time: kill another run earlier.
            wanted = tuple(msgspec.structs.replace(one, after=one.after / 4) for one in wanted)
            outcome, tries = self._killed(wanted), tries + 1
        reached = outcome.died == len(wanted)
        findings = judge.judged(self.first, outcome, other=self.second) if reached else []
        tried = Tried(
            kills=wanted,
            reached=reached,
            state=outcome.state,
            findings=findings,
            asked=outcome.asked if reached else [],
            seconds=outcome.seconds,
        )
        return tried, outcome

    def _killed(self, wanted: tuple[Kill, ...]) -> TrialOutcome:
        until = min(self.end_at, time.monotonic() + self.patience)
        return self.site.trial(*wanted, until=until)

    def run(
        self, tell: Callable[[int, int, Tried], None] = lambda done, total, tried: None
    ) -> Report:
        """Run the whole test; call `tell` after each trial."""
        self.end_at = time.monotonic() + self.options.seconds
        self.plain()
        every = self.kills()
        queue: list[tuple[Kill, ...]] = [(one,) for one in kills.chosen(every, self.options.most)]
        left = [str(one) for one in every if (one,) not in queue]
        tried: list[Tried] = []
        reached: list[TrialOutcome] = []
        while queue and time.monotonic() < self.end_at:
            wanted = queue.pop(0)
            one, outcome = self.trial(*wanted)
            if outcome.state == "hung" and time.monotonic() >= self.end_at:
                queue.insert(0, wanted)  # the test ran out of time, not the trial
                break
            tried.append(one)
            if one.reached:
                reached.append(outcome)
                if self.options.deep and len(wanted) == 1:
                    queue += self._second(wanted[0], outcome)
            tell(len(tried), len(tried) + len(queue), one)
        left += [", then ".join(map(str, one)) for one in queue]
        return self._report(tried, reached, left)

    def _second(self, first: Kill, outcome: TrialOutcome) -> Sequence[tuple[Kill, ...]]:
        """Pair the first kill with one of the next worker, at the first time of each moment."""
        ends = [place for place, line in enumerate(outcome.lines) if line.what == "killed"]
        later = kills.all_kills(outcome.lines[ends[-1] + 1 :], self.points)
        unlike = {(one.point, one.name): one for one in reversed(later)}
        seconds = [(first, one) for one in reversed(unlike.values())]
        return seconds if self.options.most is None else seconds[: self.options.most]

    def _report(
        self, tried: list[Tried], reached: Sequence[TrialOutcome], untried: list[str]
    ) -> Report:
        return Report(
            agent=self.agent.name,
            state=self.first.state,
            error=self.first.error,
            result=self.first.result,
            steps=judge.steps(self.first.lines),
            tried=tried,
            untried=untried,
            varies=self.varies,
            repeated=sorted({name for one in reached for name in judge.repeated(one)}),
            effects=_effects(self.first, tried, reached),
            strict=self.options.strict,
            seconds=time.monotonic() - self.began,
        )


def prepared(agent: Agent, /, *args: Any, **options_and_kwargs: Any) -> CrashTest:
    """Build a crash test of that agent from its arguments and the test's options."""
    if not isinstance(agent, Agent):
        raise BadInput(f"crashtest: expected an agent, found {agent!r}")
    names = options_and_kwargs.keys() & set(Options.__struct_fields__)
    takes = [parameter["name"] for parameter in agent.parameters["parameters"]][len(args) :]
    for name in names.intersection(takes):
        raise BadInput(
            f"crashtest: {name!r} is an option of the test and an argument of agent "
            f"{agent.name!r}: give that by its place, {name}=… is the option"
        )
    options = Options(**{name: options_and_kwargs.pop(name) for name in names})
    return CrashTest(agent, bind(agent.row, args, options_and_kwargs), options)


def crashtest(agent: Agent, /, *args: Any, **options_and_kwargs: Any) -> Report:
    """Run the agent, kill it everywhere, and report different results and repeated effects.

    Options: `points`, `most`, `seconds`, `deep`, `strict`, `fails`, `store`, `send`, `before`,
    `check` and `keep`, as those of `andon crashtest`; `before` and `check` may be functions, which
    are called with the folder that a run works in. All other keywords are the agent's.
    """
    with prepared(agent, *args, **options_and_kwargs) as test:
        return test.run()


def _effects(
    plain: TrialOutcome, tried: Sequence[Tried], reached: Sequence[TrialOutcome]
) -> list[Effect]:
    kinds = {line.name: line.kind for line in plain.lines if line.role == "effect"}
    before, counted = judge.times(plain.lines), [judge.times(one.lines) for one in reached]
    asked = Counter(name for one in tried for name in one.asked)
    lost = Counter(found.name for one in tried for found in one.findings if found.about == "lost")
    return [
        Effect(
            name=name,
            kind=kind,
            plain=before[name],
            worst=max([before[name], *(each.get(name, 0) for each in counted)]),
            lost=lost[name],
            asked=asked[name],
            probed=next(filter(None, (judge.probed(one, name) for one in reached)), ""),
        )
        for name, kind in sorted(kinds.items())
    ]
