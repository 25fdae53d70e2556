"""`andon deploys` reports the outcome of every run, even if its worker left no report."""

import json
import signal
import sqlite3
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cli.terminal import Terminal, until
from tests.control.seeded_store import REPORT, SeededStore
from tests.store.parts import do

from andon.cli.views import deploy_view
from andon.control import deploys
from andon.control.changes import Patience
from andon.errors import BadInput
from andon.store import open_store
from andon.store.store import Depart, Drain


@pytest.fixture
def seeded(store_url: str) -> Iterator[SeededStore]:
    store = open_store(store_url)
    yield SeededStore(store)
    store.close()


def recent(seeded: SeededStore, **options: Any) -> list[dict[str, Any]]:
    return deploys.recent(seeded.store, seeded.store.now() - 3600, lease_seconds=10.0, **options)


def only(seeded: SeededStore) -> dict[str, Any]:
    [one] = recent(seeded)
    return one


def numbers(one: dict[str, Any], *names: str) -> list[Any]:
    return [one[name] for name in names]


# ── counting ──────────────────────────────────────────────────────────────────────────────────


def test_every_run_in_hand_is_one_part_of_the_sum(seeded: SeededStore) -> None:
    seeded.worker("old")
    seeded.worker("new")
    names = ("r1", "r2", "r3", "r4", "r5")
    seeded.start(*names)
    finished, saved, cut, untouched, waiting = seeded.take("old", *names)
    seeded.drain("old")
    seeded.end(finished)
    do(seeded.store, waiting.settle("suspended"))
    seeded.back(saved)
    seeded.back(cut, "cut")
    seeded.back(untouched, "untouched")
    seeded.leave("old")
    before = only(seeded)
    assert numbers(before, "runs", "finished", "saved", "cut", "untouched") == [5, 2, 1, 1, 1]
    assert numbers(before, "over", "resumed", "unresumed") == [False, 0, 3]
    seeded.take("new", "r2", "r3", "r4")
    after = only(seeded)
    assert numbers(after, "over", "resumed", "unresumed") == [True, 3, 0]
    assert 0 <= after["recovery_median"] <= after["recovery_worst"] < 60
    assert numbers(after, "lost", "doubled", "in_doubt", "interrupted") == [0, 0, 0, 0]
    text = deploy_view.sentence(after)
    assert "5 runs = 2 finished + 1 saved + 1 cut + 1 untouched" in text
    assert "3 resumed" in text
    assert "0 lost" in text
    assert "0 doubled" in text


def test_runs_finished_before_the_signal_are_not_counted(seeded: SeededStore) -> None:
    seeded.worker("old")
    seeded.start("before", "after")
    before, after = seeded.take("old", "before", "after")
    seeded.end(before)
    seeded.later()
    seeded.drain("old")
    seeded.end(after)
    seeded.leave("old")
    assert numbers(only(seeded), "runs", "finished", "different_runs") == [1, 1, 1]


def test_a_worker_killed_in_its_drain_is_reported_by_others(seeded: SeededStore) -> None:
    seeded.worker("old")
    seeded.worker("new")
    seeded.start("saved", "left")
    saved, _ = seeded.take("old", "saved", "left")
    seeded.drain("old", ago=40.0)
    seeded.back(saved)
    seeded.later()
    seeded.kill("old", witness="new")
    one = only(seeded)
    [line] = one["workers"]
    assert numbers(line, "state", "saved", "interrupted") == ["died", 1, 1]
    assert line["evidence"] == "its process ended"
    assert line["took_seconds"] >= 40
    assert line["overran"] == ["grace"], "no report is needed to see it"
    assert numbers(one, "runs", "interrupted", "unresumed", "overruns") == [2, 1, 2, 1]


def test_the_runs_of_a_worker_that_dies_silently_are_counted(seeded: SeededStore) -> None:
    seeded.worker("old")
    seeded.worker("new")
    seeded.start("done", "left")
    done, _ = seeded.take("old", "done", "left")
    seeded.end(done)
    seeded.kill("old", witness="new")
    one = only(seeded)
    assert numbers(one, "runs", "interrupted", "finished") == [1, 1, 0]
    assert one["workers"][0]["took_seconds"] is None
    seeded.take("new", "left")
    assert only(seeded)["over"]


@pytest.mark.parametrize("buried", [False, True], ids=["by-a-worker", "by-its-supervisor"])
def test_an_observed_death_counts_from_when_it_happened(
    seeded: SeededStore, *, buried: bool
) -> None:
    """Its processes are ended first, and its runs are taken back after that."""
    seeded.worker("old")
    seeded.worker("new")
    seeded.start("left")
    seeded.take("old", "left")
    seeded.kill("old", witness="new", ago=5.0, buried=buried)
    seeded.take("new", "left")
    assert 5.0 <= only(seeded)["recovery_median"] < 15.0


def test_a_run_that_is_given_back_twice_counts_once(seeded: SeededStore) -> None:
    for name in ("w1", "w2", "w3"):
        seeded.worker(name)
    seeded.start("r")
    for name in ("w1", "w2"):
        [held] = seeded.take(name, "r")
        seeded.drain(name)
        seeded.back(held)
        seeded.leave(name)
    seeded.take("w3", "r")
    assert numbers(only(seeded), "runs", "times", "saved", "resumed") == [1, 2, 2, 2]


def test_a_run_that_waits_for_a_dead_worker_is_not_resumed(seeded: SeededStore) -> None:
    seeded.worker("old", **here_but_gone())
    seeded.start("r")
    seeded.take("old", "r")
    seeded.drain("old")
    one = only(seeded)
    assert one["workers"][0]["state"] == "died"
    assert numbers(one, "over", "in_hand", "unresumed") == [False, 1, 1]


def here_but_gone() -> dict[str, Any]:
    """A worker of this machine whose process does not exist."""
    from andon.runtime.worker.peers import this_process

    mine = this_process()
    return {"boot": mine.boot, "namespace": mine.namespace, "pid": 2**22 + 1, "start_ticks": 1}


# ── workers and times ─────────────────────────────────────────────────────────────────────────


def test_versions_are_listed_before_and_after(seeded: SeededStore) -> None:
    seeded.worker("old", "1")
    seeded.start("r", "over")
    held, over = seeded.take("old", "r", "over")
    seeded.worker("new", "2")
    seeded.drain("old")
    seeded.end(over)
    seeded.back(held)
    seeded.leave("old")
    one = only(seeded)
    assert one["versions"] == {"agent": {"before": ["1"], "after": ["2"]}}
    assert one["kept_on_old_version"] == 1
    assert "agent 1 -> 2" in deploy_view.headline(one)
    assert "1 continue with the old version" in deploy_view.sentence(one)


def test_a_draining_worker_names_the_runs_that_delay_it(seeded: SeededStore) -> None:
    seeded.worker("old")
    seeded.worker("new")
    seeded.start("r")
    [held] = seeded.take("old", "r")
    do(
        seeded.store,
        held.append(of={"name": "plan", "state": "begun", "at": seeded.store.now() - 5}),
    )
    seeded.drain("old")
    one = only(seeded)
    [line] = one["workers"]
    assert numbers(line, "state", "in_hand", "why") == ["draining", 1, "SIGTERM"]
    [block] = line["blocked_by"]
    assert numbers(block, "run", "doing") == ["r", "step plan"]
    assert block["seconds"] >= 5
    assert [one["worker"] for one in one["serving"]] == ["new"]
    assert not one["over"]


def test_a_worker_that_ignores_a_drain_request_is_shown(seeded: SeededStore) -> None:
    seeded.worker("busy")
    seeded.ask("busy")
    assert numbers(only(seeded)["workers"][0], "state") == ["asked"]


def test_a_plain_function_left_to_the_end_of_its_process_is_no_death(seeded: SeededStore) -> None:
    seeded.worker("old")
    seeded.worker("new")
    do(seeded.store, Drain(worker_id="old", drain=json.dumps(REPORT)))
    seeded.kill("old", witness="new")
    assert only(seeded)["workers"][0]["state"] == "exited"


def test_a_program_that_ends_is_not_a_deploy(seeded: SeededStore) -> None:
    seeded.worker("program", agents="[]")
    seeded.leave("program")
    assert recent(seeded) == []


def test_an_unreadable_report_hides_no_other_row(seeded: SeededStore) -> None:
    seeded.worker("old")
    seeded.start("r")
    [held] = seeded.take("old", "r")
    seeded.drain("old")
    seeded.back(held)
    do(seeded.store, Depart(worker_id="old", drain='["no", "object"]'))
    assert numbers(only(seeded), "runs", "saved") == [1, 1]


def test_an_overrun_that_was_reported_is_counted(seeded: SeededStore) -> None:
    seeded.worker("old")
    seeded.drain("old")
    phases = [{"phase": "cleanup", "took": 9.0, "limit": 5.0, "overran": True}]
    seeded.leave("old", phases=phases, exit="overrun")
    one = only(seeded)
    assert one["overruns"] == 1
    assert one["workers"][0]["overran"] == ["cleanup"]


# ── violations ────────────────────────────────────────────────────────────────────────────────


def test_a_run_that_runs_nowhere_is_lost(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    seeded = SeededStore(store)
    seeded.worker("old")
    seeded.start("r")
    [held] = seeded.take("old", "r")
    seeded.drain("old")
    seeded.back(held)
    seeded.leave("old")
    assert only(seeded)["lost"] == 0
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as db:  # as no message can do
        db.execute("UPDATE andon_runs SET state = 'running', worker = 'old'")
        db.execute("UPDATE andon_workers SET ended_at = ended_at - 11")
    one = only(seeded)
    assert numbers(one, "lost", "lost_runs") == [1, ["r"]]
    assert deploys.failed([one], ["lost"]) == {"lost": 1}
    store.close()


def test_an_entry_that_is_twice_in_the_journal_counts_as_doubled(seeded: SeededStore) -> None:
    seeded.worker("old")
    seeded.worker("new")
    seeded.start("r")
    [held] = seeded.take("old", "r")
    seeded.effect(held, "confirmed")
    seeded.drain("old")
    seeded.back(held)
    seeded.leave("old")
    [again] = seeded.take("new", "r")
    seeded.effect(again, "confirmed")
    one = only(seeded)
    assert one["doubled"] == 1
    assert numbers(one["doubled_runs"][0], "run", "kind", "name", "spot") == [
        "r",
        "effect",
        "pay",
        "k",
    ]


def test_effects_in_doubt_are_counted_until_they_are_resolved(seeded: SeededStore) -> None:
    seeded.worker("old")
    seeded.worker("new")
    seeded.start("r")
    [held] = seeded.take("old", "r")
    seeded.effect(held, "started")
    seeded.drain("old")
    seeded.back(held, "cut")
    seeded.leave("old")
    assert only(seeded)["in_doubt"] == 1
    [again] = seeded.take("new", "r")
    seeded.effect(again, "confirmed")
    assert only(seeded)["in_doubt"] == 0


def test_obligations_with_a_deadline_are_registered_compensations(seeded: SeededStore) -> None:
    seeded.worker("old")
    seeded.worker("new")
    seeded.start("r")
    [held] = seeded.take("old", "r")
    seeded.effect(held, "confirmed", undo="shop:refund", undo_within=7200.0)
    seeded.drain("old")
    seeded.back(held)
    seeded.leave("old")
    one = only(seeded)
    assert numbers(one, "compensations_registered", "compensations_executed") == [1, 0]
    [again] = seeded.take("new", "r")
    append = again.append(
        of={"kind": "effect", "name": "pay", "key": "k", "state": "compensated"}
        | {"at": seeded.store.now()}
    )
    do(seeded.store, append)
    one = only(seeded)
    assert numbers(one, "compensations_registered", "compensations_executed") == [0, 1]


# ── failing a pipeline ────────────────────────────────────────────────────────────────────────


def test_only_the_requested_conditions_fail_the_pipeline(seeded: SeededStore) -> None:
    seeded.worker("old")
    seeded.start("r1", "r2")
    one, two = seeded.take("old", "r1", "r2")
    seeded.drain("old")
    seeded.back(one)
    seeded.back(two, "cut")
    seeded.leave("old")
    found = recent(seeded)
    assert deploys.failed(found, ["lost", "doubled"]) == {}
    assert deploys.failed(found, ["unresumed", "lost", "cut"]) == {"unresumed": 2, "cut": 1}
    assert "2 unresumed, 1 cut" in deploy_view.refuse(deploys.failed(found, ["unresumed", "cut"]))
    assert deploys.failed(found, list(deploys.FAILURES)) == {"unresumed": 2, "cut": 1}


def test_unknown_conditions_are_refused() -> None:
    assert deploys.failures_named("lost, in-doubt") == ["lost", "in_doubt"]
    for words in ("los", "", " , ", "lost,everything"):
        with pytest.raises(BadInput, match="expected some of lost,doubled,unresumed"):
            deploys.failures_named(words)


def test_the_command_fails_with_a_sentence(andon: Terminal, seeded: SeededStore) -> None:
    assert andon.run("deploys", "--fail-on", "lost").stderr.startswith("no worker has left lately")
    seeded.worker("old")
    seeded.start("r")
    [held] = seeded.take("old", "r")
    seeded.drain("old")
    seeded.back(held)
    seeded.leave("old")
    done = andon.run("deploys", "--fail-on", "unresumed", code=1)
    assert "fails by --fail-on: 1 unresumed" in done.stderr
    assert "1 run = 0 finished + 1 saved" in done.stdout
    assert "1 NOT resumed" in done.stdout
    [found] = andon.json("deploys", "--since", "1h")
    assert numbers(found, "saved", "unresumed", "over") == [1, 1, False]
    assert "expected some of" in andon.error("deploys", "--fail-on", "bad", code=2)
    assert "expected 10s" in andon.error("deploys", "--since", "soon", code=2)


# ── watching real processes ───────────────────────────────────────────────────────────────────


def test_a_rolling_restart_is_followed_to_its_end(andon: Terminal) -> None:
    marker = andon.folder / "marker"
    with andon.worker("agents.py", "--grace", "1") as first:
        run_id = andon.start("stuck", f"marker={marker}")
        until(marker.exists, "the step")
        marker.unlink()
        with andon.worker(), andon.process("deploys", "watch", "--settle", "0") as watch:
            watch.says("no worker is leaving")
            first.signal(signal.SIGTERM)
            assert first.ends() == 0
            assert watch.ends() == 0
            assert "resumed elsewhere 1 of 1" in watch.text
            found = andon.json("deploys", "watch", "--settle", "0", "--fail-on", "lost,doubled")
            assert andon.json("show", run_id)["attempt"] == 2
    assert numbers(found, "over", "runs", "resumed", "unresumed") == [True, 1, 1, 0]
    assert found["saved"] + found["cut"] == 1


def test_a_watch_that_sees_no_deploy_exits_with_3(andon: Terminal) -> None:
    with andon.worker():
        done = andon.run("deploys", "watch", "--timeout", "0.1", code=3)
        assert "no worker left within 0.1 s" in done.stderr
        assert andon.json("deploys", "watch", "--timeout", "0", code=3) is None


def test_a_deploy_whose_runs_are_not_resumed_is_not_over(
    andon: Terminal, seeded: SeededStore
) -> None:
    seeded.worker("old")
    seeded.start("r")
    [held] = seeded.take("old", "r")
    seeded.drain("old")
    seeded.back(held)
    seeded.leave("old")
    watch = ("deploys", "watch", "--settle", "0", "--timeout", "0")
    assert "was not over" in andon.run(*watch, code=3).stderr
    done = andon.run(*watch, "--fail-on", "unresumed", code=1)
    assert "1 unresumed" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr, "no animation where nobody looks"


def test_ctrl_c_ends_the_watch_and_says_so(local: Terminal) -> None:
    with local.worker(), local.process("deploys", "watch") as watch:
        watch.says("no worker is leaving")
        watch.signal(signal.SIGINT)
        assert watch.ends() == 130
        assert "the deploy continues" in watch.text


def test_a_settling_time_is_waited_for(seeded: SeededStore) -> None:
    seeded.worker("old")
    seeded.drain("old")
    seeded.leave("old")
    looks: list[Any] = []
    began = time.monotonic()
    one, over = deploys.watch(
        seeded.store,
        patience=Patience(0.0, lambda error: None),
        timeout=0.2,
        settle_seconds=3600.0,
        lease_seconds=10.0,
        on_look=looks.append,
    )
    assert not over
    assert one is not None
    assert one["over"], "it is, but somebody else might still be told to go"
    assert time.monotonic() - began >= 0.2
    assert looks
