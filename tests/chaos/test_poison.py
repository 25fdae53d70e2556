"""A run that kills its workers is buried; runs that only share a worker with it are not."""

import json
import time

from tests.chaos import agents, laws
from tests.chaos.fleet import Process, Site, until

SETTINGS = {"interruption_limit": 3, "poll_seconds": 0.1}


def keep_workers_alive(
    site: Site, *, workers: int = 1, limit_seconds: float = 60.0, step: float = 0
) -> int:
    """Keep so many workers alive, as a supervisor would, until every run has ended."""
    environ = {"CHAOS_STEP_SECONDS": str(step)}
    fleet: list[Process] = []
    deaths, end = 0, time.monotonic() + limit_seconds
    while site.open_runs():
        assert time.monotonic() < end, [f"{row.id} {row.state}" for row in site.open_runs()]
        dead = [process for process in fleet if process.status is not None]
        assert {process.status for process in dead} <= {-9}, site.errors[-4000:]
        deaths += len(dead)
        fleet = [process for process in fleet if process not in dead]
        while len(fleet) < workers:
            fleet.append(site.worker(settings=SETTINGS, environ=environ))
        time.sleep(0.01)
    return deaths


def test_a_run_that_kills_its_worker_again_and_again_is_buried(site: Site) -> None:
    site.start(agents.poison, run="poison")
    assert keep_workers_alive(site) == 4  # the first time it had finished a step before
    row = site.store.run("poison")
    assert row.state == "dead"
    assert "'deadly'" in json.loads(row.error)["message"]
    assert (row.failures, row.interruptions) == (0, 4)
    assert not laws.broken(site.store, site.folder, ["poison"])


def test_the_other_runs_of_the_fleet_finish(site: Site) -> None:
    site.start(agents.poison, run="poison")
    for number in range(10):
        site.start(agents.steady, 5, run=f"run-{number}")
    keep_workers_alive(site, workers=2)
    assert site.state("poison") == "dead"
    assert [site.state(f"run-{number}") for number in range(10)] == ["succeeded"] * 10
    assert not laws.broken(site.store, site.folder, [row.id for row in site.rows()])


def test_runs_with_long_steps_are_not_buried_with_the_one_that_kills_their_worker(
    site: Site,
) -> None:
    """Their steps take longer than the poisonous run lets a worker live."""
    site.start(agents.poison, run="poison")
    for number in range(5):
        site.start(agents.steady, 2, run=f"run-{number}")
    keep_workers_alive(site, step=0.3)
    assert site.state("poison") == "dead"
    assert [site.state(f"run-{number}") for number in range(5)] == ["succeeded"] * 5


def test_a_step_whose_checkpoint_moves_is_not_buried(site: Site) -> None:
    """It is killed more often than its limit allows, and each time it had progressed further."""
    site.start(agents.batch, 8, run="batch")
    for number in range(1, 9):
        worker = site.worker(settings=SETTINGS)
        until(lambda n=number: _kept(site, "batch") == [str(n)])  # type: ignore[misc]
        worker.kill()
    site.worker(settings=SETTINGS)
    until(lambda: not site.open_runs())
    row = site.store.run("batch")
    assert (row.state, row.interruptions) == ("succeeded", 8)
    assert laws.result(site.store, "batch") == 8


def test_a_step_that_kills_its_worker_at_the_same_checkpoint_is_buried(site: Site) -> None:
    site.start(agents.stuck, run="stuck")
    for number in range(1, 5):  # the first time its checkpoint was a new one
        worker = site.worker(settings=SETTINGS)
        until(lambda n=number: _is_stuck(site, n))  # type: ignore[misc]
        worker.kill()
    site.worker(settings=SETTINGS)
    until(lambda: not site.open_runs())
    row = site.store.run("stuck")
    assert (row.state, row.interruptions) == ("dead", 4)
    message = json.loads(row.error)["message"]
    assert "died 4 times in a row in step 'stick'" in message
    assert "andon dead redrive stuck" in message


def _kept(site: Site, run_id: str) -> list[str]:
    return list(site.store.load(run_id).checkpoints.values())


def _is_stuck(site: Site, attempt: int) -> bool:
    row = site.store.run("stuck")
    begun = attempt == 1 or row.step == "stick"
    return row.attempt == attempt and begun and bool(_kept(site, "stuck"))


def test_interruptions_do_not_use_up_the_retries_of_the_user(site: Site) -> None:
    site.start(agents.fragile, run="fragile")
    keep_workers_alive(site)
    row = site.store.run("fragile")
    assert row.state == "succeeded"
    assert (row.failures, row.interruptions) == (1, 3)
    assert laws.result(site.store, "fragile") == [0, 2, 4]


def test_a_run_that_makes_progress_is_never_buried(site: Site) -> None:
    site.start(agents.climber, 8, run="climber")
    assert keep_workers_alive(site) == 8
    row = site.store.run("climber")
    assert (row.state, row.interruptions) == ("succeeded", 8)
    assert not laws.broken(site.store, site.folder, ["climber"])
