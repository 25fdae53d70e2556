"""The crash test: a user's own agent, killed at every boundary and inside every effect.

Twice a run that nobody kills, then one for each moment of it. Everything happens in scratch folders
and scratch stores; what is counted is what really executed, not what andon's tables say.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from andon.errors import AndonError, BadInput
from andon.runtime.agent import Agent
from andon.runtime.starting import bind
from andon.testing.crash import judge, kills
from andon.testing.crash.kills import Kill
from andon.testing.crash.report import Effect, Report, Tried
from andon.testing.crash.trial import Forker, Outcome, Site

DEFAULT_POINTS = ",".join(kills.FAMILIES)
DEFAULT_SECONDS = 300.0
# A trial may take so many times as long as the plain run, and so much more.
PATIENCE, MORE_SECONDS = 5.0, 20.0

Hook = Callable[[Path], object]


class CrashTest:
    """A crash test that is under way: `with CrashTest(…) as test:`"""

    def __init__(
        self,
        agent: Agent,
        given: dict[str, Any],
        *,
        points: str = DEFAULT_POINTS,
        most: int | None = None,
        seconds: float = DEFAULT_SECONDS,
        deep: bool = False,
        strict: bool = False,
        store: str | None = None,
        send: dict[str, Any] | None = None,
        before: Hook | str | None = None,
        check: Hook | str | None = None,
        keep: Path | str | None = None,
    ) -> None:
        self.agent, self.given = agent, bind(agent.row, (), given)
        self.points, self.most, self.deep, self.strict = kills.families(points), most, deep, strict
        self.end_at = time.monotonic() + seconds
        self.began = time.monotonic()
        self._store, self._send, self._keep = store, send or {}, keep
        self._before, self._check = _hook(before, "before"), _hook(check, "check")
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> "CrashTest":
        with self._closing as closing:
            folder = closing.enter_context(_folder(self._keep))
            environ = _environment(folder)
            target = _target(self.agent)
            forkers = tuple(Forker(target, environ) for _ in range(2))
            for forker in forkers:
                closing.callback(forker.close)
            self.site = Site(
                agent=self.agent,
                given=self.given,
                folder=folder,
                forkers=(forkers[0], forkers[1]),
                new_store=_stores(self._store),
                send=self._send,
                before=self._before,
                check=self._check,
            )
            self._closing = closing.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    # ── runs ──────────────────────────────────────────────────────────────────────────────────

    def plain(self) -> Outcome:
        """The run that nobody kills, twice: what differs by itself is told apart."""
        self.first = self._plain(other=False)
        self.second = self._plain(other=True)
        self.varies = judge.varies(self.first, self.second)
        same = (self.first.result, self.first.world) == (self.second.result, self.second.world)
        self.compare = same
        self.patience = PATIENCE * max(self.first.seconds, self.second.seconds) + MORE_SECONDS
        return self.first

    def _plain(self, *, other: bool) -> Outcome:
        outcome = self.site.trial(until=self.end_at, other=other)
        if outcome.state == "hung":
            raise BadInput("the plain run did not end in the time of the test: give more --seconds")
        if outcome.asked:
            names = ", ".join(outcome.asked)
            raise BadInput(
                f"the plain run did not end: effect {names} raised an error, and a person would be "
                "asked whether it happened. Test with an outside that works."
            )
        if outcome.waits:
            raise BadInput(
                f"the plain run did not end: it waits for {outcome.waits}. Asks are approved and "
                "times are moved; events have to be given: --send NAME=VALUE, send={name: value}"
            )
        return outcome

    def kills(self) -> list[Kill]:
        """Where the plain run came past."""
        return kills.all_kills(self.first.lines, self.points)

    def trial(self, *wanted: Kill) -> tuple[Tried, Outcome]:
        until = min(self.end_at, time.monotonic() + self.patience)
        outcome = self.site.trial(*wanted, until=until)
        reached = outcome.died == len(wanted)
        findings = judge.judged(self.first, outcome, compare=self.compare) if reached else []
        tried = Tried(
            kills=wanted,
            reached=reached,
            state=outcome.state,
            findings=findings,
            asked=outcome.asked if reached else [],
            seconds=outcome.seconds,
        )
        return tried, outcome

    # ── all of it ─────────────────────────────────────────────────────────────────────────────

    def run(self, tell: Callable[[int, int, Tried], None] = lambda done, total, tried: None) -> Report:
        """Everything; `tell` hears of each trial."""
        self.plain()
        every = self.kills()
        queue: list[tuple[Kill, ...]] = [(one,) for one in kills.chosen(every, self.most)]
        left = [str(one) for one in every if (one,) not in queue]
        tried: list[Tried] = []
        outcomes: list[Outcome] = []
        while queue and time.monotonic() < self.end_at:
            wanted = queue.pop(0)
            one, outcome = self.trial(*wanted)
            tried.append(one)
            outcomes.append(outcome)
            if self.deep and len(wanted) == 1 and one.reached:
                queue += self._second(wanted[0], outcome)
            tell(len(tried), len(tried) + len(queue), one)
        left += [", then ".join(map(str, one)) for one in queue]
        return self._report(tried, outcomes, left)

    def _second(self, first: Kill, outcome: Outcome) -> list[tuple[Kill, ...]]:
        """The worker that goes on is killed as well, at the first time of each moment."""
        ends = [place for place, line in enumerate(outcome.lines) if line.what == "killed"]
        later = kills.all_kills(outcome.lines[ends[-1] + 1 :], self.points)
        unlike = {(one.point, one.name): one for one in reversed(later)}
        seconds = [(first, one) for one in reversed(unlike.values())]
        return seconds if self.most is None else seconds[: self.most]

    def _report(
        self, tried: list[Tried], outcomes: Sequence[Outcome], untried: list[str]
    ) -> Report:
        reached = [one for one, trial in zip(outcomes, tried, strict=True) if trial.reached]
        return Report(
            agent=self.agent.name,
            state=self.first.state,
            result=self.first.result,
            steps=sum(line.point == "step:stored" for line in self.first.lines),
            tried=tried,
            untried=untried,
            varies=self.varies,
            repeated=sorted({name for one in reached for name in judge.repeated(one)}),
            effects=_effects(self.first, reached),
            strict=self.strict,
            seconds=time.monotonic() - self.began,
        )


def crashtest(
    agent: Agent,
    /,
    *args: Any,
    points: str = DEFAULT_POINTS,
    most: int | None = None,
    seconds: float = DEFAULT_SECONDS,
    deep: bool = False,
    strict: bool = False,
    store: str | None = None,
    send: dict[str, Any] | None = None,
    before: Hook | str | None = None,
    check: Hook | str | None = None,
    keep: Path | str | None = None,
    **kwargs: Any,
) -> Report:
    """Run the agent, kill it everywhere, and report: the same result? what happened twice, and why?

    `before` is called with the empty folder that a run works in, `check` with the same folder after
    the run: what it answers must be the same with and without a kill.
    """
    test = CrashTest(
        agent,
        bind(agent.row, args, kwargs),
        points=points,
        most=most,
        seconds=seconds,
        deep=deep,
        strict=strict,
        store=store,
        send=send,
        before=before,
        check=check,
        keep=keep,
    )
    with test:
        return test.run()


# ── what a trial needs ────────────────────────────────────────────────────────────────────────


def _effects(plain: Outcome, trials: Sequence[Outcome]) -> list[Effect]:
    kinds = {line.name: line.kind for line in plain.lines if line.role == "effect"}
    before, counted = judge.times(plain.lines), [judge.times(one.lines) for one in trials]
    asked = Counter(name for one in trials for name in one.asked)
    return [
        Effect(
            name=name,
            kind=kind,
            plain=before[name],
            worst=max([before[name], *(each.get(name, 0) for each in counted)]),
            asked=asked[name],
        )
        for name, kind in sorted(kinds.items())
    ]


def _target(agent: Agent) -> str:
    """How another process finds the agent: in its file, by its name."""
    code = getattr(agent.function, "__code__", None)
    if code is None or not Path(code.co_filename).is_file() or code.co_flags & 0x10:
        raise BadInput(
            f"agent {agent.name!r}: expected one at the top level of a file, so that the processes "
            "of the test can import it"
        )
    return f"{code.co_filename}:{agent.name}"


def _environment(folder: Path) -> dict[str, str]:
    """Nothing of the real home and store, and the same imports as here."""
    own = {name: text for name, text in os.environ.items() if not name.startswith("ANDON_")}
    path = os.pathsep.join(dict.fromkeys(part for part in sys.path if part))
    return {**own, "PYTHONPATH": path, "ANDON_HOME": str(folder / "home")}


@contextlib.contextmanager
def _folder(keep: Path | str | None) -> Iterator[Path]:
    if keep is None:
        folder = Path(tempfile.mkdtemp(prefix="andon-crashtest-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    folder = Path(keep).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise BadInput(f"{folder}: expected a folder that is empty or not there")
    yield folder


def _stores(url: str | None) -> Callable[[Path], str]:
    if url is None:
        return lambda folder: f"sqlite:///{folder}/andon.db"
    if not url.startswith(("postgresql://", "postgres://")):
        raise BadInput(
            f"store {url!r}: expected postgresql://… of a scratch database. Without it, each run "
            "has an SQLite file of its own"
        )
    _refuse_used(url)

    def anew(folder: Path) -> str:
        _execute(url, "DROP SCHEMA IF EXISTS andon CASCADE")
        return url

    return anew


def _refuse_used(url: str) -> None:
    """It will be emptied, again and again."""
    found = _execute(url, "SELECT count(*) FROM pg_namespace WHERE nspname = 'andon'")
    if found and found[0][0]:
        raise BadInput(
            "store: expected a scratch database without a schema `andon`, found one. It would be "
            "emptied for each run: give an empty database, or drop the schema yourself"
        )


def _execute(url: str, sql: Any) -> list[Any]:
    import psycopg

    try:
        with psycopg.connect(url, autocommit=True) as db:
            found = db.execute(sql)
            return found.fetchall() if found.description else []
    except psycopg.OperationalError as error:
        raise AndonError(f"the scratch database does not answer: {error}") from error


def _hook(given: Hook | str | None, what: str) -> Hook | None:
    """A function, or a command for the shell."""
    if not isinstance(given, str):
        return given

    def command(folder: Path) -> str:
        environ = {**os.environ, "OLDPWD": str(Path.cwd())}
        done = subprocess.run(  # noqa: S602 (it is what the user typed)
            given, shell=True, cwd=folder, env=environ, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise BadInput(f"--{what} {given!r} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout.strip()

    return command
