"""Workers are drained, killed while they drain, and replaced: nothing is lost or done twice."""

import signal
from collections import Counter
from functools import partial
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from tests.chaos import agents, laws, world
from tests.chaos.fleet import Process, Site, until
from tests.chaos.kill import make_tally, tally

from andon.cli.views import deploy_view
from andon.control import deploys
from andon.points import POINTS

DRAIN = [name for name in POINTS if name.startswith("drain:")]
UNDO = [name for name in POINTS if name.startswith("undo:")]
SETTINGS = {"poll_seconds": 0.1, "grace_seconds": 5.0}


def terminate(process: Process) -> int:
    """Send SIGTERM, and wait until the process has exited."""
    process.send(signal.SIGTERM)
    return process.wait()


# ── killed in the middle ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", DRAIN)
def test_a_process_killed_while_it_drains_loses_and_repeats_nothing(site: Site, name: str) -> None:
    make_tally(site)
    for number in range(3):
        site.start(agents.chaos, run=f"run-{number}")
    site.start(agents.held, run="held")
    worker = site.worker(
        settings={**SETTINGS, "grace_seconds": 0.3},
        faults=f"{name}=kill",
        environ={"CHAOS_STEP_SECONDS": "0.02"},
    )
    until(lambda: site.count("step", "held/step-1"), "the held step")
    until(lambda: len(world.lines(site.folder)) > 10, "some work")
    assert terminate(worker) == -signal.SIGKILL, site.errors[-3000:]
    site.set_flag("go")
    site.worker(settings=SETTINGS)
    site.finish()
    site.end()
    runs = [row.id for row in site.rows()]
    assert not laws.broken(site.store, site.folder, runs)
    assert {row.state for row in site.rows()} == {"succeeded"}


@pytest.mark.parametrize("name", UNDO)
@pytest.mark.parametrize("number", [1, 3])
def test_an_undo_interrupted_by_a_kill_is_completed_by_the_next_worker(
    site: Site, name: str, number: int
) -> None:
    if name == "undo:begun" and number > 1:
        number = 1
    site.start(agents.saga, run="saga")
    worker = site.worker(settings=SETTINGS, faults=f"{name}=kill@{number}")
    assert worker.wait() == -signal.SIGKILL
    last = site.worker(settings=SETTINGS)
    site.finish()
    last.kill()
    assert site.state("saga") == "failed"
    assert {row.state for row in site.store.ledger("saga")} == {"compensated"}
    check_undone(site, "saga")


def check_undone(site: Site, run: str) -> None:
    """Every booking was made once and is taken back, the last one first."""
    keys = [f"{run}/bookable-{number}" for number in range(3)]
    lines = [line.rpartition(" ")[0] for line in world.lines(site.folder)]
    assert [site.count("booked", key) for key in keys] == [1, 1, 1]
    assert not any(world.stands("booked", key, site.folder) for key in keys)
    undone = [line.removeprefix("undone ") for line in lines if line.startswith("undone ")]
    assert list(dict.fromkeys(undone)) == keys[::-1]
    assert max(Counter(undone).values()) <= 2, "only the undo in hand was done again"


# ── the partial value ─────────────────────────────────────────────────────────────────────────────


def test_a_step_that_is_cut_off_continues_from_its_partial_value(site: Site) -> None:
    first = site.worker(settings={**SETTINGS, "grace_seconds": 0.5})
    site.start(agents.author, 6, run="author")
    until(lambda: site.count("word", "author/2"), "the third word")
    second = site.worker(settings=SETTINGS)
    assert terminate(first) == 0, site.errors[-3000:]
    site.set_flag("go")
    site.finish()
    second.kill()
    assert laws.result(site.store, "author") == [0, 1, 2, 3, 4, 5]
    words = [key for _, key, _ in seen(site, "word")]
    assert words == [f"author/{number}" for number in range(6)], "no word was written twice"
    endings = [one.ending for one in site.store.attempts("author")]
    assert endings == ["cut", "succeeded"]


# ── a rollout ─────────────────────────────────────────────────────────────────────────────────────

ROUNDS, WORKERS, RUNS = 5, 3, 30
COUNTED = (
    "times",
    "finished",
    "saved",
    "cut",
    "untouched",
    "interrupted",
    "resumed",
    "unresumed",
    "lost",
    "doubled",
    "in_doubt",
    "in_hand",
    "overruns",
)


def test_a_rolling_restart_loses_nothing_doubles_nothing_and_serves_old_work_first(
    site: Site,
) -> None:
    settings = {"concurrency": 4, "poll_seconds": 0.1, "grace_seconds": 10.0}

    def worker() -> Process:
        return site.worker(settings=settings, environ={"CHAOS_STEP_SECONDS": "0.02"})

    def start(count: int) -> None:
        begun = len(site.rows())
        for number in range(begun, begun + count):
            agent = agents.chaos if number % 3 else agents.brief
            site.start(agent, run=f"run-{number:03}")

    make_tally(site)
    witness(site)
    start(RUNS)
    fleet = [worker() for _ in range(WORKERS)]
    codes = []
    for _ in range(ROUNDS):
        for place in range(WORKERS):
            until(partial(busy, site, fleet[place]), "work in hand")
            codes.append(terminate(fleet[place]))
            start(1)  # new work waits while old work is returned
            fleet[place] = worker()
    site.finish()
    site.end()
    rows = site.rows()
    assert codes == [0] * ROUNDS * WORKERS, site.errors[-3000:]
    assert Counter(row.state for row in rows) == {"succeeded": RUNS + ROUNDS * WORKERS}
    assert not laws.broken(site.store, site.folder, [row.id for row in rows])
    assert Counter(tally(site)) == {row.id: 1 for row in rows if row.agent == "chaos"}
    attempts = {row.id: site.store.attempts(row.id) for row in rows}
    endings = Counter(one.ending for found in attempts.values() for one in found)
    assert endings["returned"] + endings["cut"] > 0, "no run was ever returned"
    assert endings["interrupted"] == 0
    assert not overtaken(site, attempts)
    check_deploys_report(site)


def check_deploys_report(site: Site) -> None:
    """The report of `andon deploys` matches the world."""
    found = deploys.recent(site.store, 0.0, lease_seconds=10.0, most=ROUNDS * WORKERS)
    counted = Counter({name: sum(one[name] for one in found) for name in COUNTED})
    numbers: dict[str, set[int]] = {}
    for _, run, number in seen(site, "begun"):
        numbers.setdefault(run, set()).add(number)
    given_back = sum(max(found) - 1 for found in numbers.values())
    begun = sum(len(found) - 1 for found in numbers.values())
    assert counted["saved"] + counted["cut"] + counted["untouched"] == given_back
    assert counted["untouched"] >= given_back - begun, (
        "at least the runs whose code was never entered"
    )
    assert counted["times"] == counted["finished"] + given_back
    assert counted["resumed"] == given_back
    # The last line of a run is written before it is settled, and recorded as settled after that.
    # How many such runs there are is left to chance; tests/control/test_deploys.py has some for
    # certain.
    last = {key.partition("@")[0]: key for _, key, _ in seen(site, "ended")}
    ended = len(set(last.values()) & set(after_sigterm(site, "ended")))
    settled = len(after_sigterm(site, "settled")) - given_back
    assert ended <= counted["finished"] <= settled, counted
    check_different_runs(site, found)
    assert sum(one["state"] == "exited" for deploy in found for one in deploy["workers"]) == (
        ROUNDS * WORKERS
    )
    nothing = ("lost", "doubled", "unresumed", "interrupted", "in_doubt", "in_hand", "overruns")
    assert {name: counted[name] for name in nothing} == dict.fromkeys(nothing, 0)
    assert all(one["over"] for one in found)
    for one in found:
        assert "0 lost" in deploy_view.sentence(one)
        assert "0 doubled" in deploy_view.sentence(one)


def check_different_runs(site: Site, found: list[dict[str, Any]]) -> None:
    """A deploy counts each run once, however many of its workers returned it."""
    numbers = {row.id: str(row.pid) for row in site.store.fleet(0.0)}
    for one in found:
        gone = {numbers[worker["worker"]] for worker in one["workers"]}
        settled, over, ended = (
            {key for key in after_sigterm(site, what) if key.rpartition("@")[2] in gone}
            for what in ("settled", "over", "ended")
        )
        certain = (settled - over) | (settled & ended)
        least, most = (len({key.partition("@")[0] for key in keys}) for keys in (certain, settled))
        assert least <= one["runs"] <= most, one


def seen(site: Site, what: str) -> list[tuple[str, str, int]]:
    """The world's lines of a kind, in order."""
    found = [line.split() for line in world.lines(site.folder)]
    return [(word, key, int(number)) for word, key, number in found if word == what]


def after_sigterm(site: Site, what: str) -> list[str]:
    """The world's lines of a kind from processes that had already got SIGTERM."""
    told: set[str] = set()
    found = []
    for word, key, _ in (line.split() for line in world.lines(site.folder)):
        process = key.rpartition("@")[2]
        if word == "told":
            told.add(process)
        elif word == what and process in told:
            found.append(key)
    return found


def busy(site: Site, process: Process) -> bool:
    """Whether it has runs in hand; an idle worker has nothing to return."""
    ids = {row.id for row in site.incarnations(process)}
    left = site.open_runs()
    return not left or any(row.worker in ids for row in left)


def overtaken(site: Site, attempts: dict[str, list[Any]]) -> list[str]:
    """New runs that began while a returned run was still waiting."""
    if not site.url.startswith("sqlite"):
        with connect(site) as database:
            return [f"{new} before {run}" for new, run in database.execute(OVERTAKEN)]
    # One writer after the other: the times are in the order of the commits.
    first = {run: found[0].claimed_at for run, found in attempts.items()}
    return [
        f"{new} before {run}"
        for run, found in attempts.items()
        for one, following in pairwise(found)
        if one.ending in ("returned", "cut")
        for new, at in first.items()
        if one.ended_at < at < following.claimed_at
    ]


# Claims overlap on PostgreSQL, and a commit becomes visible some time after the times that it
# wrote. A claim could have taken any run that it saw waiting, unless a concurrent claim was about
# to: the claim that took the run in the end must have begun after this one was over. STABLE: with
# the snapshot of the claim's own statement.
WITNESS = """
ALTER TABLE andon.runs ADD COLUMN seen pg_snapshot;
ALTER TABLE andon.attempts
  ADD COLUMN seen pg_snapshot, ADD COLUMN claimed xid8, ADD COLUMN ended xid8;
CREATE FUNCTION see() RETURNS trigger STABLE LANGUAGE plpgsql AS $$
BEGIN NEW.seen := pg_current_snapshot(); RETURN NEW; END $$;
CREATE FUNCTION begin() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.claimed := pg_current_xact_id();
  NEW.seen := (SELECT seen FROM andon.runs WHERE id = NEW.run_id);
  RETURN NEW;
END $$;
CREATE FUNCTION finish() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN NEW.ended := pg_current_xact_id(); RETURN NEW; END $$;
CREATE TRIGGER see BEFORE UPDATE ON andon.runs FOR EACH ROW
  WHEN (OLD.state = 'queued' AND NEW.state = 'running') EXECUTE FUNCTION see();
CREATE TRIGGER begin BEFORE INSERT ON andon.attempts FOR EACH ROW EXECUTE FUNCTION begin();
CREATE TRIGGER finish BEFORE UPDATE ON andon.attempts FOR EACH ROW
  WHEN (OLD.ending IS NULL AND NEW.ending IS NOT NULL) EXECUTE FUNCTION finish();
"""
OVERTAKEN = """
SELECT new.run_id, old.run_id
  FROM andon.attempts new, andon.attempts old
  JOIN andon.attempts next ON next.run_id = old.run_id AND next.number = old.number + 1
 WHERE new.number = 1 AND old.ending IN ('returned', 'cut')
   AND pg_visible_in_snapshot(old.ended, new.seen)
   AND next.claimed <> new.claimed AND pg_visible_in_snapshot(new.claimed, next.seen)
"""


def witness(site: Site) -> None:
    """Have the database record what each claim saw."""
    if not site.url.startswith("sqlite"):
        with connect(site) as database:
            database.execute(WITNESS)


def connect(site: Site) -> psycopg.Connection[Any]:
    return psycopg.connect(site.url, autocommit=True)
