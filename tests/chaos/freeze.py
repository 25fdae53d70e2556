"""Workers that are frozen for longer than their lease, and the fate of their runs."""

import random
import time
from collections.abc import Callable
from typing import Any

import apsw
from tests.chaos import agents, laws
from tests.chaos.fleet import Process, Site, until
from tests.chaos.kill import make_tally

SETTINGS = {"lease_seconds": 1.0, "poll_seconds": 0.1}


def frozen_in(site: Site, agent: Any, *args: Any, fault: str = "") -> tuple[Process, str]:
    """Freeze a worker in a run, at a point or inside an effect; returns the worker and the run."""
    run = site.start(agent, *args, run=f"{fault.replace(':', '-') or 'run'}-0")
    process = site.worker(settings=SETTINGS, faults=fault)
    until_frozen(process, fault)
    assert not holds_the_write_lock(site), "the known limit; tests/chaos/worker.py keeps out of it"
    return process, run


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


def has_new_incarnation(site: Site, process: Process) -> Callable[[], bool]:
    old = {row.id for row in site.incarnations(process)}
    return lambda: any(
        row.state == "live" and row.id not in old for row in site.incarnations(process)
    )


def until_live(site: Site, process: Process, begun_anew: Callable[[], bool]) -> None:
    """Wait for a new incarnation; a worker that was frozen before it registered registers now."""

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
        answer_asks_if_no_worker_is_silent(site)

    def over() -> bool:
        answer_asks_if_no_worker_is_silent(site)
        return not site.open_runs()

    until(over, f"the end of all runs\n{site.errors[-3000:]}")
    assert all(process.status is None for process in fleet)
    return laws.broken(site.store, site.folder, [row.id for row in site.rows()])


def answer_asks_if_no_worker_is_silent(site: Site) -> None:
    """Plays a careful person: one that answers only if no silent worker could still act."""
    if all(row.state != "silent" for row in site.store.workers()):
        site.answer_open_asks()
