"""Workers are killed with SIGKILL at random: every run ends, nothing happens twice."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.chaos import agents, laws
from tests.chaos.fleet import Forker, Site
from tests.chaos.kill import kill_test
from tests.chaos.laws import Evidence

from andon.store import open_store


def test_runs_survive_workers_that_are_killed_at_random(site: Site) -> None:
    report = kill_test(site, runs=50, workers=3, every=0.2)
    assert not report.broken
    assert report.states == {"succeeded": 50}
    assert report.kills >= 10
    assert report.interrupted >= 1
    print(report)  # noqa: T201 (shown by -rP)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(2, 22))
def test_runs_survive_many_random_kills(site: Site, seed: int) -> None:
    # Workers that live this briefly finish nothing: no run may be declared dead for that.
    settings = {"lease_seconds": 5.0, "interruption_limit": 1000}
    report = kill_test(
        site,
        runs=100,
        workers=2 + seed % 3,
        every=(0.05, 0.1, 0.2, 0.4)[seed % 4],
        seed=seed,
        settings=settings,
        limit_seconds=300,
    )
    assert not report.broken
    assert report.interrupted >= 1


# ── the checker itself: a check that cannot fail proves nothing ───────────────────────────────────


@pytest.fixture
def lying_workers(sqlite_url: str, tmp_path: Path) -> Iterator[Site]:
    """Workers whose probe always says that the effect did not happen."""
    forker, store = Forker({"CHAOS_LIES": "1"}), open_store(sqlite_url)
    site = Site(forker, store, sqlite_url, tmp_path / "world")
    yield site
    site.end()
    store.close()
    forker.close()


def test_the_checker_notices_a_probe_that_lies(lying_workers: Site) -> None:
    """Canary: the same check must fail when the world breaks its word."""
    lying_workers.start(agents.acting, "probeable", run="liar")
    lying_workers.worker(faults="effect:executed=kill").wait()
    lying_workers.worker()
    lying_workers.finish()
    broken = laws.broken(lying_workers.store, lying_workers.folder, ["liar"])
    assert any("probeable" in wrong and "happened twice" in wrong for wrong in broken)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """A run that was killed once and is in order."""
    folder = tmp_path_factory.mktemp("healthy")
    url = f"sqlite:///{folder}/andon.db"
    forker, store = Forker(), open_store(url)
    site = Site(forker, store, url, folder / "world")
    try:
        site.start(agents.tour, run="tour")
        site.worker(faults="effect:executed=kill@3").wait()
        site.worker()
        site.finish()
        found = laws.evidence(store, "tour", site.folder)
    finally:
        site.end()
        store.close()
        forker.close()
    assert laws.check(found) == []
    return found


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("step", "executed 2 times"),
        ("idempotent", "happened twice"),
        ("probeable", "happened twice"),
        ("compensatable", "happened twice"),
        ("irreversible", "happened twice"),
    ],
)
def test_the_checker_notices_a_doubled_line(healthy: Evidence, what: str, words: str) -> None:
    doubled = [line for line in healthy.lines if line[0] == what][-1]
    found = Evidence(**{**vars(healthy), "lines": [*healthy.lines, doubled]})
    assert any(words in wrong for wrong in laws.check(found))


def test_the_checker_notices_a_step_executed_after_its_end(healthy: Evidence) -> None:
    _, key, attempt = next(line for line in healthy.lines if line[0] == "step")
    found = Evidence(**{**vars(healthy), "lines": [*healthy.lines, ("step", key, attempt + 1)]})
    assert any("after it was finished" in wrong for wrong in laws.check(found))


def test_the_checker_notices_a_confirmed_effect_that_never_happened(healthy: Evidence) -> None:
    lines = [line for line in healthy.lines if line[0] != "irreversible"]
    found = Evidence(**{**vars(healthy), "lines": lines})
    assert any("is confirmed, but" in wrong for wrong in laws.check(found))


def test_the_checker_notices_a_changed_journal(healthy: Evidence) -> None:
    entries = list(healthy.entries)
    entries[3] = msgspec.structs.replace(entries[3], body='"changed"')
    found = Evidence(**{**vars(healthy), "entries": entries})
    assert any("does not match its hash" in wrong for wrong in laws.check(found))


def test_the_checker_notices_a_ledger_that_differs(healthy: Evidence) -> None:
    found = Evidence(**{**vars(healthy), "ledger": healthy.ledger[:-1]})
    assert any("in the ledger" in wrong for wrong in laws.check(found))
