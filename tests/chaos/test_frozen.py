"""A worker that was stopped for longer than its lease has lost its runs, and behaves so.

What it had started is not probed and not repeated, because it may still wake up and act: a person
is asked. When it wakes up it writes nothing, starts nothing, says so, and begins anew.

A known limit: a process that is stopped in the middle of an SQLite transaction holds the write
lock, and nobody can write until it goes on or is killed. Others wait (and say so after 20 s), so
nothing is lost or doubled, but nobody takes over either. PostgreSQL ends such a transaction after
10 s if the worker was waiting for nothing, and from version 17 on after 30 s (here 3 s) always.
"""

import random
import time
from collections.abc import Callable
from typing import Any

import apsw
import pytest
from tests.chaos import agents, laws, world
from tests.chaos.fleet import Process, Site, until
from tests.chaos.kill import make_tally
from tests.chaos.test_drain import check_undone

from andon.points import POINTS

SETTINGS = {"lease_seconds": 1.0, "poll_seconds": 0.1}


def frozen_in(site: Site, agent: Any, *args: Any, fault: str = "") -> tuple[Process, str]:
    """A worker that stopped itself in a run, at a point or inside an effect; and the run."""
    for number in range(20):
        run = site.start(agent, *args, run=f"{fault.replace(':', '-') or 'run'}-{number}")
        process = site.worker(settings=SETTINGS, faults=fault)
        until_frozen(process, fault)
        if not holds_the_write_lock(site):
            return process, run
        process.kill()  # the known limit; not what is meant here
    raise AssertionError("stopped inside a transaction every time")


def until_frozen(process: Process, where: str) -> None:
    until(lambda: process.frozen, f"SIGSTOP {where}")


def holds_the_write_lock(site: Site) -> bool:
    """Whether a thread of the stopped process was inside an SQLite transaction."""
    if not site.url.startswith("sqlite"):
        return False
    db = apsw.Connection(str(site.store.path))
    db.set_busy_timeout(500)
    try:
        db.execute("BEGIN IMMEDIATE")
    except apsw.BusyError:
        return True
    finally:
        db.close()
    return False


def has_begun_anew(site: Site, process: Process) -> Callable[[], bool]:
    old = {row.id for row in site.incarnations(process)}
    return lambda: any(
        row.state == "live" and row.id not in old for row in site.incarnations(process)
    )


def assert_useful(site: Site, process: Process, others: list[Process]) -> None:
    for other in others:
        other.kill()
    site.start(agents.steady, 2, run="afterwards")
    until(lambda: site.state("afterwards") == "succeeded", "a run on the woken worker")
    assert process.status is None


@pytest.mark.parametrize("kind", ["probeable", "compensatable", "irreversible"])
def test_an_effect_that_a_frozen_worker_had_started_is_asked_about(site: Site, kind: str) -> None:
    frozen, run = frozen_in(site, agents.acting, kind, fault="effect:started=freeze")
    other = site.ready_worker(settings=SETTINGS)
    until(site.store.asks, "the ask")
    begun_anew = has_begun_anew(site, frozen)
    frozen.thaw()
    until(begun_anew, "a new incarnation")
    assert "fenced" in site.errors
    key = f"{run}/{kind}-0"
    assert [site.count(what, key) for what in (kind, "probed", "undone")] == [0, 0, 0]
    site.finish()
    assert site.count(kind, key) == 1
    assert not laws.broken(site.store, site.folder, [run])
    assert_useful(site, frozen, [other])


def test_an_idempotent_effect_of_a_frozen_worker_is_done_again_under_its_key(site: Site) -> None:
    frozen, run = frozen_in(site, agents.acting, "idempotent", fault="effect:executed=freeze")
    site.ready_worker(settings=SETTINGS)
    until(lambda: site.state(run) == "succeeded", "the run without a person")
    begun_anew = has_begun_anew(site, frozen)
    frozen.thaw()
    until(begun_anew, "a new incarnation")
    assert not laws.broken(site.store, site.folder, [run])


def test_a_worker_that_is_frozen_inside_an_effect_does_it_late_and_once(site: Site) -> None:
    """Nobody can keep it from that; so nobody else may do it, and a person waits for its end."""
    site.sign("freeze-irreversible")
    frozen, run = frozen_in(site, agents.acting, "irreversible")
    site.unsign("freeze-irreversible")
    site.ready_worker(settings=SETTINGS)
    until(site.store.asks, "the ask")
    assert site.count("irreversible", f"{run}/irreversible-0") == 0
    frozen.thaw()
    until(lambda: site.count("irreversible", f"{run}/irreversible-0"), "the late effect")
    site.finish()
    assert not laws.broken(site.store, site.folder, [run])


def test_a_worker_frozen_at_any_point_is_replaced_and_begins_anew(site: Site) -> None:
    """One worker for each point, all frozen at once; one more that takes over from all of them."""
    frozen = [frozen_in(site, agents.tour, fault=f"{name}=freeze")[0] for name in agents.TOURED]
    started = [site.store.attempts(row.id) for row in site.rows()]
    other = site.ready_worker(settings=SETTINGS)
    site.finish()
    rows = site.rows()
    assert (
        sum(map(bool, started)) >= len(agents.TOURED) - 2
    )  # those frozen before their claim have none
    begun_anew = [has_begun_anew(site, process) for process in frozen]
    before = {row.id: (row.head_seq, row.head_hash) for row in rows}
    for process in frozen:
        process.thaw()
    for process, begun in zip(frozen, begun_anew, strict=True):
        _until_live(site, process, begun)
    assert before == {row.id: (row.head_seq, row.head_hash) for row in site.rows()}
    assert not laws.broken(site.store, site.folder, [row.id for row in rows])
    assert {row.state for row in rows} == {"succeeded"}
    assert_useful(site, frozen[-1], [other, *frozen[:-1]])


@pytest.mark.parametrize("name", [name for name in POINTS if name.startswith("undo:")])
def test_a_worker_frozen_while_it_undoes_does_not_undo_once_more_when_it_wakes(
    site: Site, name: str
) -> None:
    frozen, run = frozen_in(site, agents.saga, fault=f"{name}=freeze")
    other = site.ready_worker(settings=SETTINGS)
    site.finish()
    undone = [line for line in world.lines(site.folder) if line.startswith("undone ")]
    begun_anew = has_begun_anew(site, frozen)
    frozen.thaw()
    _until_live(site, frozen, begun_anew)
    other.kill()
    assert undone == [line for line in world.lines(site.folder) if line.startswith("undone ")]
    check_undone(site, run)
    assert {row.state for row in site.store.ledger(run)} == {"compensated"}


def _until_live(site: Site, process: Process, begun_anew: Callable[[], bool]) -> None:
    """One that was frozen before it registered was not known to anybody, and registers now."""

    def live() -> bool:
        rows = [row for row in site.incarnations(process) if row.state == "live"]
        return begun_anew() or (bool(rows) and not process.frozen)

    until(live, "a new incarnation")


def freeze_at_random(site: Site, seed: int, runs: int, freezes: int) -> Any:
    make_tally(site)
    chance = random.Random(seed)
    for number in range(runs):
        site.start(agents.chaos, run=f"run-{number}")
    fleet = [site.ready_worker(settings=SETTINGS) for _ in range(3)]
    for _ in range(freezes):
        time.sleep(chance.uniform(0.05, 0.3))
        victim = chance.choice(fleet)
        victim.freeze()
        time.sleep(1.5 * SETTINGS["lease_seconds"])
        victim.thaw()
        answer_when_nobody_sleeps(site)

    def over() -> bool:
        answer_when_nobody_sleeps(site)
        return not site.open_runs()

    until(over, f"the end of all runs\n{site.errors[-3000:]}")
    assert all(process.status is None for process in fleet)
    return laws.broken(site.store, site.folder, [row.id for row in site.rows()])


def answer_when_nobody_sleeps(site: Site) -> None:
    """A prudent person makes sure that the worker which may still act is gone, or says so."""
    if all(row.state != "silent" for row in site.store.workers()):
        site.be_the_person()


def test_workers_frozen_at_random_double_nothing(site: Site) -> None:
    assert not freeze_at_random(site, seed=1, runs=30, freezes=2)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(2, 12))
def test_workers_frozen_at_random_many_times_double_nothing(site: Site, seed: int) -> None:
    assert not freeze_at_random(site, seed=seed, runs=150, freezes=10)
