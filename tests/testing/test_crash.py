"""The crash test finds the defect of a wrong agent, and nothing in a correct one."""

import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from tests.testing import crash_agents

from andon.errors import AndonError, BadInput, Refused
from andon.store import open_store
from andon.testing import FakeModel, call, crashtest
from andon.testing.crash import prepared
from andon.testing.crash.kills import Kill
from andon.testing.crash.report import Report, junit


def shown(report: Report) -> list[tuple[str, str]]:
    return [(finding.about, finding.name) for finding, _ in report.findings]


def test_a_correct_agent_survives_every_kill(tmp_path: Path) -> None:
    """Every moment of it is reached, each once."""
    kept = tmp_path / "kept"
    report = crashtest(crash_agents.tour, "n", check="cat world.txt", keep=kept, seconds=120)
    assert report.clean, report
    assert report.result == ["N", "pay-n", "send-n"]
    assert (report.asked, report.untried, report.varies) == (0, [], [])
    assert [str(trial) for trial in report.tried if not trial.reached] == []
    assert {trial.kills[0].family for trial in report.tried} == {
        "boundary",
        "effect",
        "inside",
        "named",
    }
    inside = [str(trial) for trial in report.tried if trial.kills[0].family == "inside"]
    assert inside == [
        "inside pay, at its await 1",
        "inside pay, at its await 2",
        "inside send, while it executes",
    ]
    assert len({str(trial) for trial in report.tried}) == len(report.tried)
    assert {one.name: (one.plain, one.worst) for one in report.effects} == {
        "pay": (1, 1),
        "send": (1, 1),
    }
    assert report.repeated == ["think"]
    assert (kept / "0001" / "work" / "world.txt").read_text() == "pay-n\nsend-n\n"


def test_the_crash_test_fulfils_every_wait_of_a_run_at_once() -> None:
    """Days pass, a person approves, an event is sent, a child ends; with a kill and without."""
    points = "wait:registered,attempt:suspended"
    report = crashtest(crash_agents.waiter, send={"go": "went"}, points=points, seconds=120)
    assert report.clean, report
    assert report.result == ["approve", "went", "CHILD"]
    assert len(report.tried) == 8
    assert all(trial.reached for trial in report.tried)


def test_an_agent_with_a_model_executes_each_tool_call_once(fake_model: FakeModel) -> None:
    """The conversation is never refused, and the same call has the same id after a kill."""
    fake_model.script = [[call("pay", amount=1), call("pay", amount=2)], "Paid."]
    report = crashtest(
        crash_agents.talker, points="step:executed,effect:executed", check="sort world.txt"
    )
    assert report.clean, report
    assert report.result == "Paid."
    assert [effect.worst for effect in report.effects] == [2]
    assert {request.status for request in fake_model.requests} == {200}


def test_a_doubled_effect_is_found_with_its_reason() -> None:
    report = crashtest(crash_agents.liar, points="effect:executed")
    assert shown(report) == [("twice", "trust"), ("twice", "forget")]
    whys = [finding.why for finding, _ in report.findings]
    assert whys[0] == "its probe said did_not_happen for key 't' after it had returned"
    assert whys[1].startswith("it is declared idempotent and takes no key")
    assert {one.name: (one.plain, one.worst) for one in report.effects} == {
        "trust": (1, 2),
        "forget": (1, 2),
    }


def test_a_different_result_is_found_with_the_step_that_caused_it() -> None:
    report = crashtest(crash_agents.gambler, points="step:executed")
    [(finding, _)] = report.findings
    assert finding.about == "result"
    assert finding.why == "step 'roll' gave 1 and, executed again, 2"


def test_a_check_that_fails_after_a_kill_is_a_finding_and_does_not_end_the_test() -> None:
    def one_line(folder: Path) -> None:
        assert (folder / "world.txt").read_text() == "rolled\n"

    lines = "test $(wc -l < world.txt) = 1 || { echo many; exit 3; }"
    for check, said in ((lines, "'ended with 3: many'"), (one_line, '"AssertionError: assert')):
        report = crashtest(crash_agents.gambler, points="boundary", check=check)
        world = [finding for finding, _ in report.findings if finding.about == "world"]
        assert f"'' without a kill, {said}" in world[0].why
        assert "executed twice: step roll" in world[0].why


def test_a_check_is_not_run_where_it_fails_and_a_person_would_be_asked() -> None:
    """The effect did not happen, so its file is missing."""
    report = crashtest(crash_agents.helpless, points="effect:started", check="cat world.txt")
    assert report.clean, report
    assert report.asked == 4


def test_the_report_says_why_a_probe_did_not_decide() -> None:
    report = crashtest(crash_agents.helpless, points="effect:started")
    assert [effect.probed for effect in report.effects] == [
        "said unknown",
        "raised TimeoutError",
        "said true, which is no verdict and counts as unknown",
        "",
    ]
    said = str(report).splitlines()
    assert "effect 'b' a person would be asked whether it happened: its probe raised" in said[1]
    assert "To let andon find out: @andon.effect_of(probe=…)" in said[3]


def test_an_agent_that_fails_without_a_kill_is_refused() -> None:
    """It would survive every kill, and prove nothing."""
    with pytest.raises(BadInput, match=r"the plain run failed: FileNotFoundError.*--before"):
        crashtest(crash_agents.broken)
    report = crashtest(crash_agents.broken, fails=True, points="effect")
    assert (report.clean, report.state) == (True, "failed")
    with pytest.raises(BadInput, match="the plain run succeeded: --fails expects"):
        crashtest(crash_agents.plain, fails=True)


def test_a_step_that_shares_a_commit_is_counted_and_not_reported_as_repeated() -> None:
    report = crashtest(crash_agents.hasty, points="effect:executed")
    assert report.clean, report
    assert (report.steps, report.repeated) == (1, [])


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_a_transaction_has_boundaries_and_a_doubled_one_is_found(
    request: pytest.FixtureRequest, store: str
) -> None:
    """It is killed around its single commit, which cannot be cut in two."""
    url = None if store == "sqlite" else request.getfixturevalue("postgres_url")
    report = crashtest(crash_agents.bookkeeper, store=url)
    assert report.clean, report
    assert report.steps == 1
    assert {"step:before enter", "step:stored enter"} < {str(trial) for trial in report.tried}
    report = crashtest(crash_agents.bookkeeper, steady=False, points="step:stored", store=url)
    assert shown(report) == [("again", "enter")]


def test_a_run_that_does_not_end_after_the_kill_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("andon.testing.crash.MORE_SECONDS", 0.2)
    monkeypatch.setattr("andon.testing.crash.PATIENCE", 1.0)
    report = crashtest(crash_agents.stuck, points="step:executed")
    assert shown(report) == [("hung", "")]
    [(finding, _)] = report.findings
    assert finding.why.endswith("it executes step 'waits'")


def test_with_deep_the_recovering_worker_is_killed_as_well() -> None:
    report = crashtest(crash_agents.plain, points="effect", deep=True)
    assert report.clean, report
    twice = [str(trial) for trial in report.tried if len(trial.kills) == 2]
    assert "effect:executed pay, then effect:probed pay" in twice
    assert "effect:started pay, then effect:executed pay" in twice


def test_the_report_counts_the_kills_that_were_not_tried() -> None:
    report = crashtest(crash_agents.plain, most=2)
    assert len(report.tried) == 2
    assert len(report.untried) > 5
    assert f"NOT tried: {len(report.untried)} kills" in str(report)


def test_kills_for_which_there_was_no_time_are_untried() -> None:
    with prepared(crash_agents.plain) as test:
        report = test.run(lambda done, total, tried: setattr(test, "end_at", 0.0))
    assert len(report.tried) == 1
    assert report.untried


def test_a_trial_that_the_end_of_the_test_cuts_off_is_no_finding() -> None:
    with prepared(crash_agents.stuck, points="step:before,step:executed") as test:
        report = test.run(lambda *_: setattr(test, "end_at", time.monotonic() + 0.3))
    assert (report.findings, report.untried) == ([], ["step:executed waits"])


def test_a_test_in_which_nothing_was_killed_is_not_clean() -> None:
    with prepared(crash_agents.plain, points="effect:started") as test:
        test.plain()
        tried, outcome = test.trial(Kill("effect:started", "nobody"))
        report = test._report([tried], [outcome], [])
    assert (report.findings, report.clean) == ([], False)
    assert "not reached: 1 kill," in str(report)
    suite = ElementTree.fromstring(junit(report))[0]
    assert (suite.attrib["tests"], suite.attrib["skipped"]) == ("1", "1")
    assert suite[0][0].attrib == {"message": "not reached"}  # it has not passed


def test_the_crash_test_works_on_postgresql(postgres_url: str) -> None:
    report = crashtest(crash_agents.plain, most=4, points="effect", store=postgres_url)
    assert report.clean, report
    assert all(trial.reached for trial in report.tried)
    open_store(postgres_url).close()  # it was left as it was found
    with pytest.raises(BadInput, match="without a schema"):
        crashtest(crash_agents.plain, store=postgres_url)


@pytest.mark.parametrize(
    ("agent", "options", "said"),
    [
        (crash_agents.lonely, {}, "it waits for event 'never'"),
        (
            crash_agents.plain,
            {"points": "effekt"},
            "'effekt' is not one; expected some of boundary",
        ),
        (
            crash_agents.plain,
            {"points": "undo:started"},
            "reached none of the points undo:started",
        ),
        (crash_agents.plain, {"most": 0}, "expected at least one kill"),
        (crash_agents.plain, {"points": " , "}, "expected some of boundary, effect, inside, named"),
        (crash_agents.plain, {"store": "sqlite:///x.db"}, "of a scratch database"),
        (crash_agents.plain, {"nmae": 1}, "did you mean 'name'"),
        (crash_agents.plain, {"before": "exit 3"}, "--before 'exit 3' ended with 3"),
        (crash_agents.plain, {"check": "echo no; false"}, "ended with 1: no. It has to end with 0"),
        (crash_agents.plain, {"check": "sleep 987 & wait"}, "did not end in 1 s"),
        (crash_agents.plain, {"keep": Path(__file__).parent}, "a folder that is empty"),
        (crash_agents.inspector, {"check": "x"}, "an option of the test and an argument of agent"),
        (print, {}, "expected an agent"),
    ],
)
def test_an_impossible_crash_test_is_refused(
    monkeypatch: pytest.MonkeyPatch, agent: Any, options: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr("andon.testing.crash.scratch.HOOK_SECONDS", 1.0)
    with pytest.raises(BadInput, match=said):
        crashtest(agent, **options)


def test_an_argument_with_the_name_of_an_option_is_passed_by_position() -> None:
    report = crashtest(crash_agents.inspector, "roof", depth=2, check="echo fine")
    assert (report.clean, report.result) == (True, "roof 2")


def test_a_worker_that_ends_by_itself_is_told_apart_from_a_kill() -> None:
    with pytest.raises(AndonError, match=r"ended by itself \(signal 9\).*It said:\nnothing"):
        crashtest(crash_agents.quitter)


def test_a_check_may_print_any_bytes() -> None:
    report = crashtest(crash_agents.plain, name="z", most=1, check=r"printf '\377\001'")
    assert report.clean, report


def test_the_configured_store_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANDON_STORE", f"sqlite:///{tmp_path}/real.db")
    store = open_store(f"sqlite:///{tmp_path}/real.db")
    assert crashtest(crash_agents.plain, most=1, points="effect").clean
    assert store.workers() == []
    store.close()


def test_a_halt_refuses_crash_tests_too(home: Path) -> None:
    home.mkdir()
    (home / "STOP").touch()
    with pytest.raises(Refused, match="halt"):
        crashtest(crash_agents.plain)
