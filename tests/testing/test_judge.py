"""The verdicts of a crash test, from the calls that really executed."""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

from andon.testing.crash import judge, kills
from andon.testing.crash.kills import Kill
from andon.testing.crash.lines import Line, seen
from andon.testing.crash.trial import TrialOutcome

_calls = itertools.count()


def line(what: str, role: str = "effect", **facts: Any) -> Line:
    return Line(what=what, role=role, **{"name": "pay", "key": "k", "digest": "d", **facts})


def called(*, ends: bool = True, **facts: Any) -> list[Line]:
    """A call of an effect that returned, or that was cut off by the kill."""
    facts = {"call": str(next(_calls)), "kind": "irreversible", **facts}
    begun = [line("begun", **facts)]
    return [*begun, line("ended", **facts)] if ends else [*begun, Line(what="killed")]


def probed(verdict: str) -> Line:
    return line("ended", "probe", value=verdict)


def step(value: str = "1", *, stored: bool = True, **facts: Any) -> list[Line]:
    facts = {"name": "price", "key": ":0", "digest": "s", **facts}
    passed = (
        [Line(what="passed", point="step:stored", **facts)] if stored else [Line(what="killed")]
    )
    return [line("begun", "step", **facts), line("ended", "step", value=value, **facts), *passed]


def outcome(*lines: Line | Iterable[Line], state: str = "succeeded", **facts: Any) -> TrialOutcome:
    flat = [one for part in lines for one in ([part] if isinstance(part, Line) else part)]
    died = sum(one.what == "killed" for one in flat)
    return TrialOutcome(kills=(), died=died, state=state, lines=flat, **facts)


def findings(plain: TrialOutcome, trial: TrialOutcome) -> list[tuple[str, str]]:
    return [(one.about, one.name) for one in judge.judged(plain, trial, other=plain)]


ONCE = outcome(called())
KEYED: dict[str, Any] = {"kind": "idempotent", "keyed": True}


@pytest.mark.parametrize(
    "trial",
    [
        outcome(called()),
        outcome(called(ends=False), state="suspended", asked=["pay"]),
        outcome(called(ends=False), probed("did_not_happen"), called()),
        outcome(called(), Line(what="killed"), probed("happened")),
        outcome(called(**KEYED), Line(what="killed"), called(**KEYED)),
        outcome(called(kind="pure"), Line(what="killed"), called(kind="pure")),
        outcome(called(ends=False), line("ended", "undo"), called()),
        outcome(
            line("begun", call="x"), line("raised", call="x", certain=True), called()
        ),
    ],
    ids=["once", "asked", "not yet", "probed", "idempotent", "pure", "undone", "raised"],
)  # fmt: skip
def test_an_effect_that_happened_once_is_no_finding(trial: TrialOutcome) -> None:
    assert findings(ONCE, trial) == []


@pytest.mark.parametrize(
    ("trial", "why"),
    [
        (outcome(called(), called()), "it was executed 2 times with key 'k'"),
        (outcome(called(ends=False), called()), "it was executed 2 times with key 'k'"),
        (
            outcome(called(), Line(what="killed"), probed("did_not_happen"), called()),
            "its probe said did_not_happen for key 'k' after it had returned",
        ),
        (outcome(called(key="k1"), called(key="k2")), "its key is not stable: 'k1' and 'k2'"),
        (
            outcome(called(key="k1", ends=False), called(key="k2"), asked=["pay"]),
            "its key is not stable: 'k1' and 'k2'",
        ),
        (
            outcome(called(kind="idempotent"), called(kind="idempotent")),
            "it is declared idempotent and takes no key",
        ),
        (
            outcome(called(key="k1", **KEYED), called(key="k2", **KEYED)),
            "its key is not stable: 'k1' and 'k2'",
        ),
        (
            outcome(called(digest="d1"), called(digest="d2", key="k2")),
            "it was called with other arguments after the kill",
        ),
    ],
)  # fmt: skip
def test_an_effect_that_happened_twice_is_found_with_its_reason(
    trial: TrialOutcome, why: str
) -> None:
    [found] = judge.judged(ONCE, trial, other=ONCE)
    assert (found.about, found.name) == ("twice", "pay")
    assert found.why.startswith(why)
    assert found.do


def test_an_effect_that_its_probe_found_but_that_was_never_called_is_lost() -> None:
    trial = outcome(Line(what="killed"), probed("happened"))
    [found] = judge.judged(ONCE, trial, other=ONCE)
    assert (found.about, found.name) == ("lost", "pay")
    assert found.why == "its probe said happened for key 'k' before it was called"
    cut_off = outcome(called(ends=False), probed("happened"))
    assert findings(ONCE, cut_off) == []  # it may be true


def test_other_arguments_are_another_effect_unless_there_are_too_many() -> None:
    """An agent whose arguments differ from run to run is not accused of doubling an effect."""
    assert findings(outcome(called(digest="x")), outcome(called(digest="y"))) == []


def test_a_step_in_hand_may_be_executed_again_and_a_finished_one_may_not() -> None:
    plain = outcome(step())
    assert findings(plain, outcome(step(stored=False), step())) == []
    assert findings(plain, outcome(step(), Line(what="killed"), step(key="@x"))) == [
        ("again", "price")
    ]
    assert findings(plain, outcome(step(digest="other"))) == []
    assert findings(plain, outcome(step(stored=False), step(), step(key="@x"))) == []
    looks = [*step(place="r/:0"), Line(what="killed"), *step(place="r/:1")]
    assert findings(plain, outcome(*looks)) == []  # it looked once more than in the plain run
    assert judge.repeated(outcome(step(stored=False), step())) == {"price"}
    failed = [line("begun", "step", name="price"), line("raised", "step", name="price")]
    assert judge.repeated(outcome(failed, step(digest="d"))) == set()  # it was retried


def test_a_step_that_was_executed_once_is_not_reported_as_repeated() -> None:
    """Inside ctx.together there is no moment at which its result is stored alone."""
    begun = line("begun", "step", name="price", place="r/:0")
    held = [begun, line("ended", "step", name="price", place="r/:0")]
    assert judge.repeated(outcome(held, Line(what="killed"), called())) == set()
    assert judge.repeated(outcome(held, Line(what="killed"), held)) == {"price"}


def test_the_end_of_the_run_is_compared() -> None:
    plain = outcome(result=1)
    assert findings(plain, outcome(result=1)) == []
    assert findings(plain, outcome(result=2)) == [("result", "")]
    assert findings(plain, outcome(state="failed", error="KeyError: 'x'")) == [("ended", "")]
    assert findings(plain, outcome(state="stranded", error="Diverged: …")) == [("stranded", "")]
    assert findings(plain, outcome(state="hung")) == [("hung", "")]
    assert findings(plain, outcome(result=1, world="two")) == [("world", "")]


@pytest.mark.parametrize(
    ("trial", "why", "do"),
    [
        ([step(stored=False), step()], "executed twice: step price", "effect with a declared kind"),
        ([called(ends=False), probed("happened")], "its probe said happened", "the last thing"),
        (
            [called(ends=False), probed("did_not_happen"), called()],
            "its probe said did_not_happen, and it was executed again",
            "from the moment it is done",
        ),
        ([called(ends=False), line("ended", "undo"), called()], "undone", "let the undo take back"),
        (
            [called(ends=False, **KEYED), called(**KEYED)],
            "effect pay was executed 2 times with one key",
            "with one key",
        ),
        ([], "it is the code between them", "effect with a declared kind"),
    ],
)  # fmt: skip
def test_a_different_world_is_explained(trial: Any, why: str, do: str) -> None:
    plain = outcome(called(), world="a")
    [found] = judge.judged(plain, outcome(*trial, world="b"), other=plain)
    assert found.about == "world"
    assert why in found.why
    assert do in found.do


def test_a_different_world_is_explained_by_arguments_that_differed() -> None:
    """The plain runs agree about them, so the probe is not to blame."""
    chosen = outcome(called(digest="a", value='["a"]'), world="a")
    cut_off = called(digest="b", value='["b"]', ends=False)
    trial = outcome(cut_off, probed("happened"), world="b")
    [found] = judge.judged(chosen, trial, other=chosen)
    assert 'effect \'pay\' is called with ["a"] and with ["b"]: the agent\'s code' in found.why
    assert found.do == "decide only by the input and by what steps, effects and ctx answer"
    differs = outcome(called(digest="c"), world="a")
    [found] = judge.judged(chosen, trial, other=differs)
    assert "its probe said happened" in found.why


def test_a_different_world_is_explained_by_an_earlier_finding() -> None:
    plain = outcome(called(), world="a")
    trial = outcome(called(), Line(what="killed"), probed("did_not_happen"), called(), world="b")
    twice, world = judge.judged(plain, trial, other=plain)
    assert (world.why, world.do) == ("'a' without a kill, 'b' with it; see effect pay", twice.do)


def test_values_that_vary_by_themselves_are_not_compared_and_the_others_are() -> None:
    plain, trial = outcome(result=1, world="a"), outcome(result=2, world="b")
    for other, about in (
        (outcome(result=3, world="a"), ["world"]),
        (outcome(result=1, world="c"), ["result"]),
        (outcome(result=3, world="c"), []),
    ):
        assert [one.about for one in judge.judged(plain, trial, other=other)] == about
    assert judge.varies(plain, outcome(result=1, world="c")) == [
        "the check says 'a' and 'c', so it is not compared"
    ]


def test_a_step_that_gave_another_value_explains_another_result() -> None:
    plain = outcome(step("1"), result=1)
    [found] = judge.judged(
        plain, outcome(step("2", stored=False), step("3"), result=3), other=plain
    )
    assert found.why == "step 'price' gave 1 and, executed again, 2"


def test_differences_between_plain_runs_are_reported_by_kind() -> None:
    first = outcome(called(key="a"), step("1"), result=1)
    assert judge.varies(first, first) == []
    assert judge.varies(first, outcome(called(key="b"), step("2"), result=2)) == [
        "the result is 1 and 2, so it is not compared",
        "step 'price' gives another value each time",
        "the key of effect 'pay' is 'a' and 'b'",
    ]
    given = outcome(line("begun", "step", name="price", digest="x", value='["x"]'))
    other = outcome(line("begun", "step", name="price", digest="y", value='["y"]'))
    assert judge.varies(given, other) == ['step \'price\' is called with ["x"] and with ["y"]']


def test_two_runs_that_are_stranded_for_the_same_reason_do_not_differ() -> None:
    """Each with arguments of its own, which are shown where the calls are compared."""
    first, second = (
        outcome(state="stranded", error=f"Diverged: with arguments {digest}") for digest in "ab"
    )
    assert judge.varies(first, second) == []
    assert judge.varies(first, outcome()) == [
        "one run stranded Diverged: with arguments a, the other succeeded "
    ]


def begun(name: str, place: str) -> Line:
    return line("begun", "step", name=name, place=place, value="[]")


def test_calls_that_run_at_once_have_no_order_and_others_have() -> None:
    ab = outcome(begun("a", "r/:0"), begun("b", "r/:1"))
    assert judge.varies(ab, outcome(begun("b", "r/:1"), begun("a", "r/:0"))) == []
    assert judge.varies(ab, outcome(begun("b", "r/:0"), begun("a", "r/:1"))) == [
        "step 'a' is called at place r/:0 and at place r/:1",
        "step 'b' is called at place r/:1 and at place r/:0",
    ]
    assert judge.varies(ab, outcome(begun("b", "r/:1"))) == ["step 'a' is called 1 and 0 times"]


# ── the choice of kills ───────────────────────────────────────────────────────────────────────


def passed(point: str, name: str, nth: int) -> Line:
    return Line(what="passed", point=point, name=name, nth=nth)


def test_every_moment_is_a_kill_and_an_effect_has_moments_inside() -> None:
    lines = [
        passed("step:before", "price", 1),
        passed("effect:started", "pay", 1),
        line("ended", nth=1, awaits=5),
        line("ended", name="print", nth=1, seconds=1.0),
        line("ended", name="quick", nth=1, seconds=0.001),
        passed("named", "after-upload", 1),
    ]
    assert kills.all_kills(lines, kills.families("boundary,effect,inside,named")) == [
        Kill("step:before", "price"),
        Kill("effect:started", "pay"),
        *(Kill("inside", "pay", moment=moment) for moment in (1, 3, 5)),
        Kill("inside", "print", after=0.5),
        Kill("named", "after-upload"),
    ]
    assert kills.all_kills(lines, kills.families("effect")) == [Kill("effect:started", "pay")]


def test_of_too_many_kills_the_distinct_ones_are_kept() -> None:
    every = [Kill("step:before", "price", nth) for nth in range(1, 50)]
    every.insert(25, Kill("effect:executed", "pay"))
    assert kills.chosen(every, None) == every
    assert kills.chosen(every, 2) == [Kill("step:before", "price"), Kill("effect:executed", "pay")]
    assert len(kills.chosen(every, 10)) == 10


def test_the_last_activity_of_a_run_that_does_not_end_is_described() -> None:
    waiting = line("begun", "step", name="price", call="1")
    assert seen([]) == "has not begun"
    assert seen([waiting]) == "executes step 'price'"
    assert seen([waiting, Line(what="killed"), passed("attempt:loaded", "", 1)]) == (
        "came past attempt:loaded, and nothing since"
    )
    ended = line("ended", "step", name="price", call="1")
    stored = passed("step:stored", "price", 1)
    assert seen([waiting, ended, stored]) == "came past step:stored price, and nothing since"


def test_kills_are_described_in_words() -> None:
    assert str(Kill("effect:executed", "pay", 2)) == "effect:executed pay #2"
    assert str(Kill("inside", "pay", moment=3)) == "inside pay, at its await 3"
    assert str(Kill("inside", "pay", after=0.5)) == "inside pay, while it executes"
    assert str(Kill("attempt:loaded")) == "attempt:loaded"
