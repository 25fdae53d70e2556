"""The command that verifies: nothing is green by omission."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from verify import canaries, report, verify
from verify.canaries import CANARIES, NotPlanted, Tried
from verify.layer import Effort, Outcome, Say
from verify.planted import Canary

ROOT = Path(__file__).parent.parent.parent
GREEN = Outcome("model", "freeze 3", 3, 10)
CAUGHT = Tried("fence-not-checked", "model", True, "", ["it happened twice"])
MISSED = Tried("fence-not-checked", "model", False, "nothing was found")
EFFORT = Effort("ci", 0.1)


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Runs the command with layers and canaries of the test; returns its exit code and its page."""
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(verify, "ROOT", tmp_path)

    def run(outcome: Outcome | Exception, *tried: Tried, only: str = "") -> tuple[int, str]:
        def layer(effort: Effort, say: Say) -> Outcome:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        monkeypatch.setattr(verify, "LAYERS", ("model",))
        monkeypatch.setattr(verify, "find", lambda name: layer)
        monkeypatch.setattr(canaries, "try_all", lambda layers, say: list(tried))
        code = verify.main(["--only", only] if only else [])
        page = tmp_path / "docs" / "verification.md"
        return code, page.read_text() if page.exists() else ""

    return run


Ask = Callable[..., tuple[int, str]]


def test_a_run_is_green_only_if_all_is_found_and_nothing_is_wrong(ask: Ask) -> None:
    code, page = ask(GREEN, CAUGHT)
    assert code == 0
    assert f"| model | {report.does('model')} | 3 | 10 | 0 | 1 of 1 | 0 |" in page
    assert "- **model**: freeze 3" in page
    assert "**Green.**" in page
    assert "RED" not in page
    assert report.commit() in page


def test_a_terminal_shows_the_table_and_the_violations() -> None:
    wrong = Outcome("model", "freeze 3", 3, 1234, violations=["seed 7: paid twice"], seconds=2)
    head, row, *rest = report.screen([wrong], [CAUGHT, MISSED]).splitlines()
    assert head.split("  ")[0] == "layer"
    assert row.split() == ["model", "3", "1,234", "1", "1", "of", "2", "2"]
    assert rest == [
        "",
        "model: violation: seed 7: paid twice",
        "missed: fence-not-checked (model): nothing was found",
    ]


def test_a_violation_is_red(ask: Ask) -> None:
    wrong = Outcome("model", "freeze 3", 3, 10, violations=["seed 7: paid twice"])
    code, page = ask(wrong, CAUGHT)
    assert code == 1
    assert "| **RED** model |" in page
    assert "seed 7: paid twice" in page


def test_a_guard_that_is_not_met_is_red(ask: Ask) -> None:
    code, page = ask(Outcome("model", "", 0, 10, guards=["no freeze struck"]), CAUGHT)
    assert code == 1
    assert "guard not met: no freeze struck" in page


def test_a_canary_that_was_not_caught_is_red(ask: Ask) -> None:
    code, page = ask(GREEN, CAUGHT, MISSED)
    assert code == 1
    assert f"| **RED** model | {report.does('model')} | 3 | 10 | 0 | 1 of 2 | 0 |" in page
    assert "| fence-not-checked | model | **NO** | nothing was found |" in page


def test_a_layer_that_fails_by_itself_is_red(ask: Ask) -> None:
    code, page = ask(RuntimeError("no room"))
    assert code == 1
    assert "the layer itself failed: RuntimeError: no room" in page


def test_a_layer_that_does_not_exist_is_red() -> None:
    outcome = verify.checked("nonexistent", EFFORT, print)
    assert outcome.guards == ["missing: there is no verify/nonexistent.py"]
    assert report.is_red([outcome], [])


def test_a_run_of_some_layers_writes_no_page(ask: Ask) -> None:
    code, page = ask(GREEN, only="model")
    assert (code, page) == (0, "")


@pytest.mark.parametrize("partly", [["--effort", "ci"], ["--seed", "7"], ["--until-red"]])
def test_a_run_of_less_than_everything_writes_no_page(
    ask: Ask, partly: list[str], tmp_path: Path
) -> None:
    ask(GREEN, CAUGHT)
    page = tmp_path / "docs" / "verification.md"
    page.write_text("of everything")
    assert verify.main(partly) == 0
    assert page.read_text() == "of everything"


def test_an_unknown_layer_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        verify.main(["--only", "mdoel"])
    assert "expected model, simulation" in capsys.readouterr().err


# ── canaries ──────────────────────────────────────────────────────────────────────────────────


def test_there_are_enough_canaries_and_each_layer_has_one() -> None:
    assert len(CANARIES) >= 12
    assert len({canary.name for canary in CANARIES}) == len(CANARIES)
    assert {canary.layer for canary in CANARIES} == set(verify.LAYERS)


@pytest.mark.parametrize("canary", CANARIES, ids=lambda canary: canary.name)
def test_every_canary_can_still_be_planted(canary: Canary, tmp_path: Path) -> None:
    (tmp_path / canary.file).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "src" / "andon" / canary.file, tmp_path / canary.file)
    canaries.plant(canary, tmp_path)
    changed = (tmp_path / canary.file).read_text()
    assert changed != (ROOT / "src" / "andon" / canary.file).read_text()
    if canary.file.endswith(".py"):
        compile(changed, canary.file, "exec")


def test_a_canary_whose_text_is_gone_is_red() -> None:
    lost = Canary("lost", "model", "core/effect.py", "no such text", "other")
    tried = canaries.try_one(lost, lambda _: None)
    assert not tried.caught
    assert "0 times in core/effect.py, expected once" in tried.why


def test_a_canary_whose_text_is_there_twice_is_not_planted(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    with pytest.raises(NotPlanted, match="2 times"):
        canaries.plant(Canary("two", "model", "a.py", "x = 1", "x = 2"), tmp_path)


def test_a_canary_that_merely_breaks_the_program_is_not_caught() -> None:
    broken = Canary(
        "broken", "model", "core/effect.py", "class EffectKind(StrEnum):", "class EffectKind(Oops):"
    )
    tried = canaries.try_one(broken, lambda _: None)
    assert not tried.caught
    assert "NameError" in tried.why


def test_a_canary_in_which_nothing_works_is_not_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its layer is red, and so is a run without faults."""
    monkeypatch.setattr(canaries, "_run", lambda canary, _: Tried(canary.name, "", True, ""))
    line = "            result = await call()\n"
    broken = Canary(
        "broken", "brains", "runtime/operations/steps.py", line, "            result = None\n"
    )
    tried = canaries.try_one(broken, lambda _: None)
    assert not tried.caught
    assert tried.why == "it merely breaks: run-0: wrong"


def test_a_canary_without_its_layer_is_red() -> None:
    tried = canaries.try_all([], lambda _: None)
    assert {one.caught for one in tried} == {False}


def test_a_planted_bug_is_caught_by_the_layer_that_runs_against_the_copy() -> None:
    tried = canaries.try_one(canaries.named("takeover-without-certainty"), lambda _: None)
    assert tried.caught
    assert "happens twice" in tried.violations[0]


def test_the_findings_can_be_read_by_programs(ask: Ask, tmp_path: Path) -> None:
    ask(GREEN)
    file = tmp_path / "found.json"
    verify.main(["--only", "model", "--json", str(file)])
    assert json.loads(file.read_text())["layers"][0]["runs"] == 10
