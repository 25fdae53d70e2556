"""The verdict on a trial: compares its calls with those of a plain run, which had no kill.

Pure: lines and outcomes in, findings out.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from andon.core.effect import EffectKind
from andon.core.run import State
from andon.testing.crash.lines import Line, seen
from andon.testing.crash.trial import TrialOutcome

_DIGEST = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{24}\b")


class Finding(msgspec.Struct, frozen=True):
    """A defect, its reason, and the change that fixes it."""

    about: str  # twice, lost, again, stranded, result, ended, world or hung
    name: str  # of the effect or step; empty if it is about the run
    what: str
    why: str
    do: str


class _Standing:
    """How often an effect with one key may have happened, judging by its function's calls."""

    def __init__(self) -> None:
        self.times = 0
        self.open: set[str] = set()  # calls without a known end
        self.begun = self.lied = self.invented = False
        self.cut_off = ""  # how a call that was cut off was resolved
        self.kind, self.keyed, self.digest = "", False, ""

    def take(self, line: Line) -> None:
        match line.role, line.what:
            case "effect", "begun":
                self.times, self.begun = self.times + 1, True
                self.open.add(line.call)
                self.kind, self.keyed, self.digest = line.kind, line.keyed, line.digest
            case "effect", "ended":
                self.open.discard(line.call)
            case "effect", "raised" if line.certain:
                self.open.discard(line.call)
                self.times -= 1
            case "probe", "ended" if line.value == "did_not_happen":
                if self.open:
                    self.cut_off = "did_not_happen"
                self.times -= len(self.open)
                self.open.clear()
                self.lied = self.lied or self.times > 0
            case "probe", "ended" if line.value == "happened":
                self.invented = self.invented or not self.begun
                if self.open:
                    self.cut_off = "happened"
            case "undo", "ended":
                self.cut_off = "undone"
                self.times = 0
                self.open.clear()
            case _:
                pass

    @property
    def happened(self) -> int:
        if self.kind == EffectKind.PURE:
            return 0
        # The provider knows the key, but only if the function sends it.
        once = self.kind == EffectKind.IDEMPOTENT and self.keyed
        return min(self.times, 1) if once else self.times


def standings(lines: Iterable[Line]) -> dict[str, dict[str, _Standing]]:
    """Collect the standings by effect, then by key."""
    found: dict[str, dict[str, _Standing]] = defaultdict(lambda: defaultdict(_Standing))
    for line in lines:
        if line.role in ("effect", "probe", "undo"):
            found[line.name][line.key].take(line)
    return found


def times(lines: Iterable[Line]) -> dict[str, int]:
    """Return how often each effect may have happened."""
    return {
        name: sum(one.happened for one in keys.values()) for name, keys in standings(lines).items()
    }


def judged(plain: TrialOutcome, trial: TrialOutcome, *, other: TrialOutcome) -> list[Finding]:
    """Return the findings of a trial.

    `other` is a second plain run: a value that differs there as well is not compared.
    """
    known = [*_twice(plain, trial), *_lost(trial)]
    found = [*known, *_again(plain, trial)]
    match trial.state:
        case "hung":
            what = "the run did not end in time after the kill"
            why = f"after {trial.seconds:.0f} s it {seen(trial.lines)}"
            found.append(Finding("hung", "", what, why, MORE_TIME))
        case State.STRANDED:
            found.append(_stranded(trial))
        case _ if trial.asked:
            pass  # a person would be asked: the run has not ended
        case state if state != plain.state:
            found.append(_ended(plain, trial))
        case _:
            found += _differs(plain, trial, other, known)
    return found


FORGOTTEN = (
    "the agent's code decides by something outside of steps, or by what only the process that was "
    "killed had in memory"
)
DECIDE = "decide only by the input and by what steps, effects and ctx answer"
MORE_TIME = (
    "give the test more time (--timeout, seconds=…), or look for what waits for the "
    "worker that was killed"
)
PROBE = "let the probe look for the key itself, where the effect leaves it"


def _twice(plain: TrialOutcome, trial: TrialOutcome) -> list[Finding]:
    expected, found = standings(plain.lines), []
    for name, keys in standings(trial.lines).items():
        before, after = _by_digest(expected.get(name, {})), _by_digest(keys)
        more = list(after - before)
        # Arguments that the plain run did not have are another effect, unless there are too many.
        if any(digest in before for digest in more) or after.total() > before.total():
            found.append(_explained(name, keys, more))
    return found


def _by_digest(keys: Mapping[str, _Standing]) -> Counter[str]:
    found = Counter[str]()
    for one in keys.values():
        found[one.digest] += one.happened
    return found


def _explained(name: str, keys: dict[str, _Standing], more: list[str]) -> Finding:
    what = f"effect {name!r} happened more often than without a kill"
    doubled = [(key, one) for key, one in keys.items() if one.digest in more and one.happened]
    alike: dict[str, list[str]] = defaultdict(list)
    for key, one in doubled:
        alike[one.digest].append(repr(key))
    shown = next((" and ".join(found[-2:]) for found in alike.values() if len(found) > 1), "")
    match next((pair for pair in doubled if pair[1].happened > 1), None):
        case key, one if one.lied:
            why = f"its probe said did_not_happen for key {key!r} after it had returned"
            do = PROBE
        case _, one if one.kind == EffectKind.IDEMPOTENT:
            why = "it is declared idempotent and takes no key"
            why += ": its provider cannot know the second one"
            do = f"give {name} a parameter `key` and send it as the provider's idempotency key"
        case key, one:
            why = f"it was executed {one.times} times with key {key!r}"
            do = "declare what it is: @andon.effect_of(probe=…), (undo=…) or (kind=…)"
        case None if shown:
            why = f"its key is not stable: {shown} for the same arguments"
            do = "derive the key from the input, or take it from ctx.uuid(), which is journaled"
        case None:
            why = "it was called with other arguments after the kill"
            do = "take what the arguments are made of from the input or from steps"
    return Finding("twice", name, what, why, do)


def _lost(trial: TrialOutcome) -> list[Finding]:
    """Find effects whose probe said that they happened although they were never called."""
    invented = {
        name: key
        for name, keys in standings(trial.lines).items()
        for key, one in keys.items()
        if one.invented
    }
    what = "effect {!r} did not happen, and the run went on as if it had"
    why = "its probe said happened for key {!r} before it was called"
    return [
        Finding("lost", name, what.format(name), why.format(key), PROBE)
        for name, key in invented.items()
    ]


def probed(trial: TrialOutcome, name: str) -> str:
    """Say why the probe did not spare a person the question: `its probe …`."""
    ends = [line for line in trial.lines if (line.role, line.name) == ("probe", name)]
    if name not in trial.asked or not ends:
        return ""
    last = ends[-1]
    return f"raised {last.error}" if last.what == "raised" else f"said {last.value}"


def _again(plain: TrialOutcome, trial: TrialOutcome) -> list[Finding]:
    """Find steps executed again though stored: their code asked for them by another key."""
    more = (_stored(trial.lines) - _stored(plain.lines)).keys()
    end = max((n for n, line in enumerate(trial.lines) if line.what == "killed"), default=0)
    # A step without a key has a place; if the code asks for another there, the run is stranded.
    earlier, later = _stored(trial.lines[:end]), _stored(trial.lines[end:])
    return [
        Finding(
            "again",
            name,
            f"step {name!r} was finished, and was executed again after the kill",
            "its key is not stable",
            "derive the key from the input, or leave it out",
        )
        for name in sorted(more & earlier.keys() & later.keys())
    ]


def steps(lines: Sequence[Line]) -> int:
    """Count the steps that ended; of a transaction only that it is stored is recorded."""
    seen_ = {(line.name, line.digest) for line in lines if line.role == "step"}
    stored = [line for line in lines if line.point == "step:stored"]
    return len(_ended_steps(lines)) + sum((line.name, line.digest) not in seen_ for line in stored)


def _ended_steps(lines: Iterable[Line]) -> list[Line]:
    return [line for line in lines if (line.role, line.what) == ("step", "ended")]


def _stored(lines: Sequence[Line]) -> Counter[str]:
    """Count how often steps with keys of their own were stored."""
    return Counter(line.name for line in lines if line.point == "step:stored" and not line.place)


def repeated(outcome: TrialOutcome) -> set[str]:
    """Return steps executed again because their worker died before storing their result."""
    open_: set[tuple[str, str]] = set()
    lost: set[tuple[str, str]] = set()
    found: set[str] = set()
    for line in outcome.lines:
        one = line.name, line.place or line.digest  # not the key: it may have changed
        if line.what == "killed":
            lost |= open_
            open_.clear()
        elif (line.role, line.what) == ("step", "begun"):
            open_.add(one)
            found |= {line.name} if one in lost else set()
        elif (line.role, line.what) == ("step", "raised") or line.point == "step:stored":
            open_.discard(one)
    return found


def _stranded(trial: TrialOutcome) -> Finding:
    return Finding(
        "stranded",
        "",
        "the run was stranded: its code asked for something other than its journal has",
        in_short(trial.error),
        "use ctx.now(), ctx.random() or ctx.uuid(), or do it in a step: time, random, uuid, the "
        "order of a set and what is read from outside differ when the code is replayed",
    )


def in_short(error: str) -> str:
    text = error.partition(". Nothing was executed")[0]
    text = text.removeprefix("Diverged: ").partition("run crashtest: ")[2] or text
    return _DIGEST.sub(r"\1…", text)


def _ended(plain: TrialOutcome, trial: TrialOutcome) -> Finding:
    how = f"{trial.state}: {trial.error or trial.waits}".rstrip(": ")
    return Finding(
        "ended",
        "",
        f"the run ended differently: {plain.state} without a kill, and now {how}",
        _changed(plain, trial) or FORGOTTEN,
        f"{DECIDE}; and look at what the run finds outside when it is gone on with",
    )


def _differs(
    plain: TrialOutcome, trial: TrialOutcome, other: TrialOutcome, known: Sequence[Finding]
) -> list[Finding]:
    """Compare results and checks; `known` are findings that may already explain a difference."""
    found, both = [], "{} without a kill, {} with it"
    if trial.result != plain.result == other.result:
        what = "the result differs: " + both.format(_shown(plain.result), _shown(trial.result))
        why = _changed(plain, trial) or _otherwise(plain, trial, other) or FORGOTTEN
        found.append(Finding("result", "", what, why, DECIDE))
    if trial.world != plain.world == other.world:
        what = "--check printed something different after a kill"
        why, do = _suspect(plain, trial, other, known)
        why = both.format(_shown(plain.world), _shown(trial.world)) + f"; {why}"
        found.append(Finding("world", "", what, why, do))
    return found


def _suspect(
    plain: TrialOutcome, trial: TrialOutcome, other: TrialOutcome, known: Sequence[Finding]
) -> tuple[str, str]:
    """Return the likely cause of a changed world, and what to do about it."""
    if known:
        return f"see effect {known[0].name}", known[0].do
    otherwise = _otherwise(plain, trial, other)
    if otherwise:
        return otherwise, DECIDE
    for name, keys in standings(trial.lines).items():
        for one in keys.values():
            if one.cut_off:
                why, do = _CUT_OFF[one.cut_off]
                return f"effect {name} was cut off, {why}", do
            if one.times > 1:
                why = f"effect {name} was executed {one.times} times with one key"
                return why, "an effect must be what it is declared: with one key it happens once"
    names = ", ".join(sorted(repeated(trial)))
    why = "no step and no effect was executed twice: it is the code between them"
    do = "put code that changes the outside world into an effect with a declared kind"
    return f"executed twice: step {names}" if names else why, do


# How a call without a known end was resolved, and what must then be wrong.
_CUT_OFF = {
    "happened": (
        "and its probe said happened",
        "let the probe look for the last thing that the effect does, and do that in one move",
    ),
    "did_not_happen": (
        "its probe said did_not_happen, and it was executed again",
        "let the probe find what the effect has done from the moment it is done",
    ),
    "undone": (
        "undone, and executed again",
        "let the undo take back all that the effect does, also a part of it",
    ),
}


def _otherwise(plain: TrialOutcome, trial: TrialOutcome, other: TrialOutcome) -> str:
    """Describe a call that differs from the plain runs, which agree about it."""
    calls, theirs, others = _calls(plain), _calls(trial), _calls(other)
    for (role, name), ours in calls.items():
        there = theirs.get((role, name), {})
        only, instead = _without(ours, there), _without(there, ours)
        if only and instead and ours.keys() == others.get((role, name), {}).keys():
            return f"{role} {name!r} is called {_both(only[0], instead[0])}: {FORGOTTEN}"
    return ""


def _changed(plain: TrialOutcome, trial: TrialOutcome) -> str:
    """Describe steps whose value differs between executions, of this trial or the plain run."""
    values: dict[tuple[str, str], list[str]] = defaultdict(list)
    for line in _ended_steps([*plain.lines, *trial.lines]):
        known = values[line.name, line.digest]
        if line.value not in known:
            known.append(line.value)
    return "; ".join(
        f"step {name!r} gave {known[0]} and, executed again, {known[1]}"
        for (name, _), known in values.items()
        if len(known) > 1
    )


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return repr(text) if isinstance(value, str) and len(text) < 120 else text[:120]


def varies(first: TrialOutcome, second: TrialOutcome) -> list[str]:
    """Return the differences between two plain runs of the same input."""
    found = []
    stranded = first.state == second.state == State.STRANDED  # the differences below explain it
    if not stranded and (first.state, first.error) != (second.state, second.error):
        found.append(
            f"one run {first.state} {first.error}, the other {second.state} {second.error}"
        )
    for what, one, other in (
        ("the result is", first.result, second.result),
        ("the check says", first.world, second.world),
    ):
        if one != other:
            found.append(f"{what} {_shown(one)} and {_shown(other)}, so it is not compared")
    found += [f"step {name!r} gives another value each time" for name in _unsteady(first, second)]
    found += _other_calls(first, second)
    for name, keys in standings(first.lines).items():
        others = standings(second.lines).get(name, {})
        ours, theirs = sorted(keys.keys() - others.keys()), sorted(others.keys() - keys.keys())
        if ours and theirs:
            found.append(f"the key of effect {name!r} is {ours[0]!r} and {theirs[0]!r}")
    return found


def _other_calls(first: TrialOutcome, second: TrialOutcome) -> list[str]:
    """Return steps and effects whose calls differ, regardless of order: some run concurrently."""
    ours, theirs = _calls(first), _calls(second)
    found = []
    for role, name in dict.fromkeys((*ours, *theirs)):
        one, other = ours.get((role, name), {}), theirs.get((role, name), {})
        only, instead = _without(one, other), _without(other, one)
        if only and instead:
            found.append(f"{role} {name!r} is called {_both(only[0], instead[0])}")
        elif only or instead:
            found.append(f"{role} {name!r} is called {len(one)} and {len(other)} times")
    return found


def _both(one: Line, other: Line) -> str:
    if one.value == other.value:
        return f"at place {one.place} and at place {other.place}"
    return f"with {one.value} and with {other.value}"


_Calls = dict[tuple[str, str], Line]  # by place (empty if it has a key) and arguments


def _calls(outcome: TrialOutcome) -> dict[tuple[str, str], _Calls]:
    found: dict[tuple[str, str], _Calls] = defaultdict(dict)
    for line in outcome.lines:
        if line.what == "begun" and line.role in ("step", "effect"):
            found[line.role, line.name].setdefault((line.place, line.digest), line)
    return found


def _without(calls: _Calls, others: _Calls) -> list[Line]:
    return [line for key, line in sorted(calls.items()) if key not in others]


def _unsteady(first: TrialOutcome, second: TrialOutcome) -> Sequence[str]:
    ours, theirs = (
        Counter((line.name, line.digest, line.value) for line in _ended_steps(one.lines))
        for one in (first, second)
    )
    asked = {(name, digest) for name, digest, _ in theirs - ours}
    return sorted({name for name, digest, _ in ours - theirs if (name, digest) in asked})
