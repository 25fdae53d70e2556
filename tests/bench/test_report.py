"""The report of the benchmark: figures, ratios, verdicts, the page and its plots."""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree

import pytest
from bench.peers.environments import Missing
from bench.peers.side import Side
from bench.rounds import Measuring
from bench.systems import BY_KEY, SYSTEMS, System, chosen_systems
from bench.verdicts import (
    Results,
    Sample,
    against_raw,
    ahead,
    best_peer,
    figure,
    judge,
    median_of_rounds,
)
from bench.workloads import (
    TARGETS,
    W1,
    W2,
    W3,
    W4,
    W5,
    WORKLOADS,
    Ask,
    Column,
    Workload,
    chosen_workloads,
)

from bench import page, plots, readme

STEP, RATE = W1.columns[0], W2.columns[0]
OURS = ("andon-sqlite", "andon-postgres")


def results(*samples: Sample, peers: tuple[str, ...] = ("dbos-sqlite", "restate")) -> Results:
    return Results(list(samples), peers=frozenset(peers))


def step(system: str, *seconds: float, raw: float = 100e-6, round_: int = 0) -> list[Sample]:
    return [Sample("W1", system, round_, {"step": one}, {"step": raw}) for one in seconds]


def rate(system: str, value: float, raw: float = 50_000) -> Sample:
    return Sample("W2", system, 0, {"rate": value}, {"rate": raw})


def verdict(found: Results, text: str) -> str:
    target = next(one for one in TARGETS if text in one.text)
    workload = next(one for one in WORKLOADS if one.name == target.workload)
    return judge(found, target, workload).verdict


def story(found: Results, **changes: object) -> page.Story:
    told = page.Story(
        results=found,
        workloads=list(WORKLOADS),
        systems=list(SYSTEMS),
        versions={"andon-sqlite": {"andon": "0.1.0"}},
        machine={"cores": "2"},
        commit="0123456789ab",
        on="2026-11-16",
        load="0.3 before, 1.9 after",
        minutes=41.2,
        quick=False,
    )
    return replace(told, **changes)  # type: ignore[arg-type]


def test_a_figure_is_the_median_of_round_medians() -> None:
    # One noisy round with many samples must not outvote the others.
    noisy = [(0, 90.0), (0, 91.0), (0, 92.0), (0, 93.0), (0, 94.0)]
    assert median_of_rounds([(1, 10.0), (2, 11.0), *noisy]) == 11.0
    assert median_of_rounds([]) is None


def test_a_ratio_is_taken_within_a_block() -> None:
    # A machine that is ten times slower for a while affects both sides.
    quiet, loud = step("andon-sqlite", 150e-6), step("andon-sqlite", 1500e-6, raw=1e-3, round_=1)
    found = results(*quiet, *loud, *step("andon-sqlite", 200e-6, round_=2))
    assert against_raw(found, "W1", "andon-sqlite", STEP) == pytest.approx(1.5)


def test_the_best_peer_is_the_quickest_that_counts() -> None:
    found = results(
        *step("dbos-sqlite", 5e-3),
        *step("restate", 2e-3),
        *step("temporal-local", 1e-3),  # promises less: shown, not counted
        *step("raw-sqlite", 1e-4),
        *step("andon-sqlite", 5e-4),
    )
    assert best_peer(found, "W1", STEP) == ("restate", 2e-3)
    assert ahead(found, "W1", "andon-sqlite", STEP) == pytest.approx(4)
    assert ahead(found, "W1", "dbos-sqlite", STEP) == pytest.approx(0.4)


def test_the_best_peer_of_a_rate_has_the_most() -> None:
    found = results(rate("dbos-sqlite", 100), rate("restate", 1000), rate("andon-sqlite", 9000))
    assert best_peer(found, "W2", RATE) == ("restate", 1000)
    assert ahead(found, "W2", "andon-sqlite", RATE) == pytest.approx(9)


def test_a_target_is_met_only_on_every_store() -> None:
    good = step("andon-sqlite", 149e-6)
    assert verdict(results(*good, *step("andon-postgres", 149e-6)), "raw commit") == "met"
    assert verdict(results(*good, *step("andon-postgres", 151e-6)), "raw commit") == "missed"
    assert verdict(results(*good, *step("dbos-sqlite", 1)), "3 × faster") == "met"


def test_a_target_without_measurements_is_not_met() -> None:
    assert verdict(results(), "raw commit") == "not measured"
    assert verdict(results(*step("andon-sqlite", 1e-6)), "3 × faster") == "not measured"  # no peer
    half = results(*step("andon-sqlite", 149e-6))
    half.absent["W1", "andon-postgres"] = "its server did not start"
    assert verdict(half, "raw commit") == "not measured"


def test_more_is_better_for_rates() -> None:
    peers = rate("restate", 1000)
    assert verdict(results(peers, *(rate(one, 10_000) for one in OURS)), "10 ×") == "met"
    assert verdict(results(peers, *(rate(one, 9_999) for one in OURS)), "10 ×") == "missed"


def test_less_than_excludes_equality() -> None:
    def resumed(seconds: float) -> Results:
        return results(Sample("W4", "andon-sqlite", 0, {"resumed": seconds}))

    assert verdict(resumed(0.0999), "less than 0.1 s") == "met"
    assert verdict(resumed(0.1), "less than 0.1 s") == "missed"


def test_one_repeated_effect_in_many_rounds_is_reported() -> None:
    def killed(number: int, repeated: int) -> Sample:
        return Sample("W4", "andon-sqlite", number, {"repeated": repeated})

    clean = [killed(number, 0) for number in range(9)]
    assert verdict(results(*clean), "no action repeated") == "met"
    assert verdict(results(*clean, killed(9, 1)), "no action repeated") == "missed"


def test_one_round_that_lost_its_partial_value_is_reported() -> None:
    def left(number: int, word: str) -> Sample:
        return Sample("W5", "andon-sqlite", number, {"exit": 1.0, "in flight": word})

    kept = [left(number, "kept and resumed") for number in range(2)]
    assert verdict(results(*kept), "partial value") == "met"
    mixed = results(*kept, left(2, "lost"))
    assert verdict(mixed, "partial value") == "missed"
    column = next(one for one in W5.columns if one.measure == "in flight")
    assert figure(mixed, "W5", "andon-sqlite", column) == (
        "kept and resumed (2 of 3), lost (1 of 3)"
    )


def test_the_worst_value_is_taken_over_all_rounds() -> None:
    worst = next(one for one in W4.columns if one.measure == "worst")
    samples = [Sample("W4", "restate", number, {"worst": 0.1 * number}) for number in range(4)]
    assert figure(results(*samples), "W4", "restate", worst) == pytest.approx(0.3)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: f"{target.workload} {target.text}")
def test_every_target_is_about_a_column(target: object) -> None:
    assert verdict(results(), target.text) == "not measured"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.000312, "µs", "312 µs"),
        (0.0042, "ms", "4.20 ms"),
        (12345.6, "/s", "12,346"),
        (2048, "KB", "2.00 KB"),
        (1.499, "×", "1.50×"),
        (float("inf"), "ms", "goes on"),
        ("lost", "word", "lost"),
        (None, "s", "–"),
        (0, "count", "0"),
    ],
)
def test_numbers_are_printed_readably(value: object, unit: str, text: str) -> None:
    assert page.shown(value, unit) == text


def test_the_page_names_its_sources_and_the_missed_targets() -> None:
    found = results(
        *step("andon-sqlite", 149e-6),
        *step("andon-postgres", 200e-6),
        *step("dbos-sqlite", 5e-3),
        *step("raw-sqlite", 1e-4),
    )
    found.absent["W1", "restate"] = "npm is not installed"
    text = page.page(story(found))
    assert "`0123456789ab`" in text
    assert "0.3 before, 1.9 after" in text
    assert "sqlite 1.49×, postgres 2.00× | **missed** |" in text
    assert "W1: ≥ 3 × faster than the best peer | sqlite 33.6×, postgres 25.0× | met |" in text
    assert "| andon on SQLite | 149 µs | 1.49× | 0.03× |" in text
    assert "| DBOS on SQLite | 5,000 µs | 50.0× | best peer |" in text
    assert "[1] Restate: npm is not installed" in text
    assert "## W2" not in text  # it was not measured
    assert "quick run" not in text
    assert "**A quick run**" in page.page(story(found, quick=True))


def test_a_quick_run_says_so_in_every_table() -> None:
    found = results(*step("andon-sqlite", 149e-6), rate("andon-sqlite", 5))
    text = page.tables(story(found, quick=True))
    tables = [part.splitlines()[0] for part in text.split("\n\n") if part.startswith(("W", "targ"))]
    assert len(tables) == 3
    assert all("quick" in table for table in tables)


def test_a_plot_is_a_small_picture_with_the_best_first() -> None:
    found = results(
        *step("andon-sqlite", 149e-6), *step("dbos-sqlite", 5e-3), *step("raw-sqlite", 1e-4)
    )
    text = plots.plot(story(found), W1)
    picture = ElementTree.fromstring(text)
    labels = [node.text for node in picture.iter() if node.get("text-anchor") == "end"]
    assert labels == ["raw SQLite", "andon on SQLite", "DBOS on SQLite"]
    widths = [float(node.get("width") or 0) for node in picture.iter() if node.get("y")]
    bars = [width for width in widths if width]
    assert bars == sorted(bars)
    assert len(text) < 10_000
    assert plots.plot(story(found), W2) == ""


def test_the_readme_block_has_every_line_and_replaces_the_old_one() -> None:
    found = results(*step("andon-sqlite", 149e-6), *step("andon-postgres", 200e-6))
    new = readme.block(story(found))
    assert "| one durable step, 1 KB result, against a raw durable commit | 1.49× | 2.00× |" in new
    text = readme.replaced(f"above\n{readme.BEGIN}old -->\nold\n{readme.END}\nbelow", new)
    assert text == f"above\n{new}\nbelow"
    with pytest.raises(ValueError, match="no block"):
        readme.replaced("nothing", new)
    root = Path(__file__).parent.parent.parent
    readme.replaced((root / "README.md").read_text("utf-8"), new)  # the block is there


class Broken(System):
    def open(self, folder: Path, postgres: str) -> Side:
        raise Missing("the registry said `no`\nand more")


def test_a_system_that_cannot_be_installed_is_a_row_that_says_why() -> None:
    broken = Broken(*BY_KEY["dbos-sqlite"])
    measuring = Measuring(None, [broken], [W1, W2], quick=True)  # type: ignore[arg-type]
    measuring._in_turn(0, broken, [W1, W2])
    why = "could not be measured here: `the registry said 'no' and more`"
    assert measuring.results.absent == {("W1", "dbos-sqlite"): why, ("W2", "dbos-sqlite"): why}
    assert f"[1] DBOS on SQLite: {why}" in page.tables(story(measuring.results))


class Unused:
    versions: ClassVar[dict[str, str]] = {}


class Scripted:
    """A driver with prepared answers."""

    def __init__(self, **answers: dict[str, Any]) -> None:
        self.answers, self.asked = answers, list[str]()

    def ask(self, **request: Any) -> None:
        self.asked.append(request["ask"])

    def answer(self, _within: float) -> dict[str, Any]:
        return self.answers[self.asked[-1]]


def test_a_missing_feature_does_not_cost_a_system_its_other_rows() -> None:
    system = BY_KEY["langgraph-sqlite"]
    measuring = Measuring(None, [system], [W3], quick=True)  # type: ignore[arg-type]
    limit = Scripted(latency={"answer": {"start": 1e-3}}, short={"answer": {"rate": 10_000}})
    side = Scripted(latency={"absent": "it has no queue"}, short={"answer": {"rate": 100}})
    measuring._limits["raw-sqlite"] = limit  # type: ignore[assignment]
    for number in range(2):
        assert measuring._applies(W3, system)
        measuring._measure(number, system, W3, side)  # type: ignore[arg-type]
    assert limit.asked == side.asked == ["latency", "short"] * 2
    assert [one.values for one in measuring.results.of("W3", system.key)] == [{"rate": 100}] * 2
    assert len(measuring.results.of("W3", "raw-sqlite")) == 2
    [_, row], [note] = page.table(story(measuring.results, systems=[system]), W3)
    assert row == ("LangGraph on SQLite [1]", "–", "–", "–", "–", "100", "0.01×", "best peer")
    assert note == "[1] LangGraph on SQLite: it has no queue"


def test_a_round_that_would_end_too_late_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    measuring = Measuring(None, [], [W1, W3], quick=True)  # type: ignore[arg-type]
    begun = list[list[str]]()

    def spend(_number: int, due: list[Workload]) -> None:
        begun.append([one.name for one in due])
        measuring._took.update({one.name: 50.0 for one in due})

    monkeypatch.setattr(measuring, "_round", spend)
    monkeypatch.setattr(measuring, "_opened", lambda _: contextlib.nullcontext(Unused()))
    measuring.carry_out(5, minutes=1)  # W3 would take 50 s of them, and so would W1
    assert begun == [["W1", "W3"]]
    begun.clear()
    measuring.carry_out(5, minutes=2)
    assert begun == [["W1", "W3"]] * W3.rounds + [["W1"]] * (W1.rounds - W3.rounds)


def test_sizes_are_smaller_for_peers_and_when_it_is_quick() -> None:
    ask = Ask("crowd", {"runs": 100, "steps": 50}, {"steps": 5}, {"steps": 10})
    assert ask.given(peer=False, quick=False) == {"runs": 100, "steps": 50}
    assert ask.given(peer=True, quick=False) == {"runs": 100, "steps": 10}
    assert ask.given(peer=True, quick=True) == {"runs": 100, "steps": 5}


def test_only_known_systems_are_chosen_and_limits_are_always_there() -> None:
    names = [one.key for one in chosen_systems("andon-sqlite, dbos")]
    assert names == ["raw-sqlite", "raw-postgres", "andon-sqlite", "dbos-sqlite", "dbos-postgres"]
    assert chosen_systems("") == list(SYSTEMS)
    assert [one.name for one in chosen_workloads("w3,W1")] == ["W1", "W3"]
    with pytest.raises(ValueError, match="found W12"):
        chosen_workloads("W12")
    with pytest.raises(ValueError, match=r"expected some of raw, andon.*; found airflow"):
        chosen_systems("airflow")


def test_columns_of_a_workload_have_names_of_their_own() -> None:
    def names(columns: tuple[Column, ...]) -> list[str]:
        return [one.measure for one in columns]

    assert all(len(set(names(one.columns))) == len(one.columns) for one in WORKLOADS)
