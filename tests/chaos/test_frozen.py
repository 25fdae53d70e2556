"""A worker that was frozen for longer than its lease has lost its runs, and stops acting on them.

An effect that it had started is not probed and not repeated, because the worker may still wake up
and act: a person is asked. When it wakes up it writes nothing, starts nothing, reports the loss,
and registers anew.

A known limit: a process that is stopped in the middle of an SQLite transaction holds the write
lock, and no other process can write until it continues or is killed. The others wait (and report
that after 20 s), so nothing is lost or doubled, but there is no takeover either. PostgreSQL ends
such a transaction after 10 s if the worker was waiting for nothing, and from version 17 on after 30
s (here 3 s) always.
"""

import pytest
from tests.chaos import agents, laws, world
from tests.chaos.fleet import Process, Site, until
from tests.chaos.freeze import (
    SETTINGS,
    freeze_at_random,
    frozen_in,
    has_new_incarnation,
    until_live,
)
from tests.chaos.test_drain import check_undone

from andon.points import POINTS


def assert_useful(site: Site, process: Process, others: list[Process]) -> None:
    for other in others:
        other.kill()
    site.start(agents.steady, 2, run="afterwards")
    until(lambda: site.state("afterwards") == "succeeded", "a run on the woken worker")
    assert process.status is None


@pytest.mark.parametrize("kind", ["probeable", "compensatable", "irreversible"])
def test_an_effect_that_a_frozen_worker_had_started_is_put_before_a_person(
    site: Site, kind: str
) -> None:
    frozen, run = frozen_in(site, agents.acting, kind, fault="effect:started=freeze")
    other = site.ready_worker(settings=SETTINGS)
    until(site.store.asks, "the ask")
    begun_anew = has_new_incarnation(site, frozen)
    frozen.thaw()
    until(begun_anew, "a new incarnation")
    assert "fenced" in site.errors
    key = f"{run}/{kind}-0"
    assert [site.count(what, key) for what in (kind, "probed", "undone")] == [0, 0, 0]
    site.finish()
    assert site.count(kind, key) == 1
    assert not laws.broken(site.store, site.folder, [run])
    assert_useful(site, frozen, [other])


def test_an_idempotent_effect_of_a_frozen_worker_is_executed_again_under_its_key(
    site: Site,
) -> None:
    frozen, run = frozen_in(site, agents.acting, "idempotent", fault="effect:executed=freeze")
    site.ready_worker(settings=SETTINGS)
    until(lambda: site.state(run) == "succeeded", "the run without a person")
    begun_anew = has_new_incarnation(site, frozen)
    frozen.thaw()
    until(begun_anew, "a new incarnation")
    assert not laws.broken(site.store, site.folder, [run])


def test_a_worker_that_is_frozen_inside_an_effect_completes_it_late_and_once(site: Site) -> None:
    """Nothing can prevent that late act; so no other worker may execute it, and a person waits."""
    site.set_flag("freeze-irreversible")
    frozen, run = frozen_in(site, agents.acting, "irreversible")
    site.clear_flag("freeze-irreversible")
    site.ready_worker(settings=SETTINGS)
    until(site.store.asks, "the ask")
    assert site.count("irreversible", f"{run}/irreversible-0") == 0
    frozen.thaw()
    until(lambda: site.count("irreversible", f"{run}/irreversible-0"), "the late effect")
    site.finish()
    assert not laws.broken(site.store, site.folder, [run])


def test_a_worker_frozen_at_any_point_is_replaced_and_registers_anew(site: Site) -> None:
    """One worker for each point, all frozen at once; one more that takes over from all of them."""
    frozen = [frozen_in(site, agents.tour, fault=f"{name}=freeze")[0] for name in agents.TOURED]
    started = [site.store.attempts(row.id) for row in site.rows()]
    other = site.ready_worker(settings=SETTINGS)
    site.finish()
    rows = site.rows()
    assert (
        sum(map(bool, started)) >= len(agents.TOURED) - 2
    )  # those frozen before their claim have none
    begun_anew = [has_new_incarnation(site, process) for process in frozen]
    before = {row.id: (row.head_seq, row.head_hash) for row in rows}
    for process in frozen:
        process.thaw()
    for process, begun in zip(frozen, begun_anew, strict=True):
        until_live(site, process, begun)
    assert before == {row.id: (row.head_seq, row.head_hash) for row in site.rows()}
    assert not laws.broken(site.store, site.folder, [row.id for row in rows])
    assert {row.state for row in rows} == {"succeeded"}
    assert_useful(site, frozen[-1], [other, *frozen[:-1]])


@pytest.mark.parametrize("name", [name for name in POINTS if name.startswith("undo:")])
def test_a_worker_frozen_while_it_undoes_does_not_undo_twice_when_it_wakes(
    site: Site, name: str
) -> None:
    frozen, run = frozen_in(site, agents.saga, fault=f"{name}=freeze")
    other = site.ready_worker(settings=SETTINGS)
    site.finish()
    undone = [line for line in world.lines(site.folder) if line.startswith("undone ")]
    begun_anew = has_new_incarnation(site, frozen)
    frozen.thaw()
    until_live(site, frozen, begun_anew)
    other.kill()
    assert undone == [line for line in world.lines(site.folder) if line.startswith("undone ")]
    check_undone(site, run)
    assert {row.state for row in site.store.ledger(run)} == {"compensated"}


def test_workers_frozen_at_random_double_nothing(site: Site) -> None:
    assert not freeze_at_random(site, seed=1, runs=30, freezes=2)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(2, 12))
def test_workers_frozen_at_random_many_times_double_nothing(site: Site, seed: int) -> None:
    assert not freeze_at_random(site, seed=seed, runs=150, freezes=10)
