"""`andon deploys` tells what became of every run, also when nobody was left to report it."""

import json
import signal
import sqlite3
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cli.terminal import Terminal, until
from tests.control.yard import REPORT, Yard
from tests.store.parts import do

from andon.cli.views import deploy_view
from andon.control import deploys
from andon.control.changes import Patience
from andon.errors import BadInput
from andon.store import open_store
from andon.store.store import Depart, Drain


@pytest.fixture
def yard(store_url: str) -> Iterator[Yard]:
    store = open_store(store_url)
    yield Yard(store)
    store.close()


def told(yard: Yard, **options: Any) -> list[dict[str, Any]]:
    return deploys.recent(yard.store, yard.store.now() - 3600, lease_seconds=10.0, **options)


def only(yard: Yard) -> dict[str, Any]:
    [one] = told(yard)
    return one


def numbers(one: dict[str, Any], *names: str) -> list[Any]:
    return [one[name] for name in names]


# ── counting ──────────────────────────────────────────────────────────────────────────────────


def test_every_run_in_hand_is_one_part_of_the_sum(yard: Yard) -> None:
    yard.worker("old")
    yard.worker("new")
    names = ("r1", "r2", "r3", "r4", "r5")
    yard.start(*names)
    finished, saved, cut, untouched, waiting = yard.take("old", *names)
    yard.tell("old")
    yard.end(finished)
    do(yard.store, waiting.settle("suspended"))
    yard.back(saved)
    yard.back(cut, "cut")
    yard.back(untouched, "untouched")
    yard.leave("old")
    before = only(yard)
    assert numbers(before, "runs", "finished", "saved", "cut", "untouched") == [5, 2, 1, 1, 1]
    assert numbers(before, "over", "resumed", "unresumed") == [False, 0, 3]
    yard.take("new", "r2", "r3", "r4")
    after = only(yard)
    assert numbers(after, "over", "resumed", "unresumed") == [True, 3, 0]
    assert 0 <= after["recovery_median"] <= after["recovery_worst"] < 60
    assert numbers(after, "lost", "doubled", "in_doubt", "interrupted") == [0, 0, 0, 0]
    text = deploy_view.sentence(after)
    assert "5 runs = 2 finished + 1 saved + 1 cut + 1 untouched" in text
    assert "3 resumed" in text
    assert "0 lost" in text
    assert "0 doubled" in text


def test_what_was_finished_before_the_signal_is_no_part_of_it(yard: Yard) -> None:
    yard.worker("old")
    yard.start("before", "after")
    before, after = yard.take("old", "before", "after")
    yard.end(before)
    yard.later()
    yard.tell("old")
    yard.end(after)
    yard.leave("old")
    assert numbers(only(yard), "runs", "finished", "different_runs") == [1, 1, 1]


def test_a_worker_that_is_killed_in_its_drain_is_told_by_others(yard: Yard) -> None:
    yard.worker("old")
    yard.worker("new")
    yard.start("saved", "left")
    saved, _ = yard.take("old", "saved", "left")
    yard.tell("old", ago=40.0)
    yard.back(saved)
    yard.later()
    yard.kill("old", witness="new")
    one = only(yard)
    [line] = one["workers"]
    assert numbers(line, "state", "saved", "interrupted") == ["died", 1, 1]
    assert line["evidence"] == "its process ended"
    assert line["took_seconds"] >= 40
    assert line["overran"] == ["grace"], "no report is needed to see it"
    assert numbers(one, "runs", "interrupted", "unresumed", "overruns") == [2, 1, 2, 1]


def test_a_worker_that_dies_without_a_word_left_what_it_had(yard: Yard) -> None:
    yard.worker("old")
    yard.worker("new")
    yard.start("done", "left")
    done, _ = yard.take("old", "done", "left")
    yard.end(done)
    yard.kill("old", witness="new")
    one = only(yard)
    assert numbers(one, "runs", "interrupted", "finished") == [1, 1, 0]
    assert one["workers"][0]["took_seconds"] is None
    yard.take("new", "left")
    assert only(yard)["over"]


@pytest.mark.parametrize("buried", [False, True], ids=["by-a-worker", "by-its-supervisor"])
def test_a_death_that_was_seen_counts_from_when_it_was(yard: Yard, *, buried: bool) -> None:
    """What it had started is ended first, and its runs are taken back after that."""
    yard.worker("old")
    yard.worker("new")
    yard.start("left")
    yard.take("old", "left")
    yard.kill("old", witness="new", ago=5.0, buried=buried)
    yard.take("new", "left")
    assert 5.0 <= only(yard)["recovery_median"] < 15.0


def test_a_run_that_is_given_back_twice_is_one_run(yard: Yard) -> None:
    for name in ("w1", "w2", "w3"):
        yard.worker(name)
    yard.start("r")
    for name in ("w1", "w2"):
        [held] = yard.take(name, "r")
        yard.tell(name)
        yard.back(held)
        yard.leave(name)
    yard.take("w3", "r")
    assert numbers(only(yard), "runs", "times", "saved", "resumed") == [1, 2, 2, 2]


def test_what_waits_for_a_dead_worker_is_not_resumed(yard: Yard) -> None:
    yard.worker("old", **here_but_gone())
    yard.start("r")
    yard.take("old", "r")
    yard.tell("old")
    one = only(yard)
    assert one["workers"][0]["state"] == "died"
    assert numbers(one, "over", "in_hand", "unresumed") == [False, 1, 1]


def here_but_gone() -> dict[str, Any]:
    """A worker of this machine whose process does not exist."""
    from andon.runtime.worker.peers import this_process

    mine = this_process()
    return {"boot": mine.boot, "namespace": mine.namespace, "pid": 2**22 + 1, "start_ticks": 1}


# ── who and when ──────────────────────────────────────────────────────────────────────────────


def test_versions_are_told_before_and_after(yard: Yard) -> None:
    yard.worker("old", "1")
    yard.start("r", "over")
    held, over = yard.take("old", "r", "over")
    yard.worker("new", "2")
    yard.tell("old")
    yard.end(over)
    yard.back(held)
    yard.leave("old")
    one = only(yard)
    assert one["versions"] == {"agent": {"before": ["1"], "after": ["2"]}}
    assert one["kept_on_old_version"] == 1
    assert "agent 1 -> 2" in deploy_view.headline(one)
    assert "1 continue with the old version" in deploy_view.sentence(one)


def test_a_draining_worker_says_what_holds_it_up(yard: Yard) -> None:
    yard.worker("old")
    yard.worker("new")
    yard.start("r")
    [held] = yard.take("old", "r")
    do(yard.store, held.append(of={"name": "plan", "state": "begun", "at": yard.store.now() - 5}))
    yard.tell("old")
    one = only(yard)
    [line] = one["workers"]
    assert numbers(line, "state", "in_hand", "why") == ["draining", 1, "SIGTERM"]
    [block] = line["blocked_by"]
    assert numbers(block, "run", "doing") == ["r", "step plan"]
    assert block["seconds"] >= 5
    assert [one["worker"] for one in one["serving"]] == ["new"]
    assert not one["over"]


def test_a_worker_that_is_asked_and_does_not_hear_is_shown(yard: Yard) -> None:
    yard.worker("deaf")
    yard.ask("deaf")
    assert numbers(only(yard)["workers"][0], "state") == ["asked"]


def test_a_plain_function_left_to_the_end_of_its_process_is_no_death(yard: Yard) -> None:
    yard.worker("old")
    yard.worker("new")
    do(yard.store, Drain(worker_id="old", drain=json.dumps(REPORT)))
    yard.kill("old", witness="new")
    assert only(yard)["workers"][0]["state"] == "exited"


def test_a_program_that_ends_is_no_deploy(yard: Yard) -> None:
    yard.worker("program", agents="[]")
    yard.leave("program")
    assert told(yard) == []


def test_a_report_that_nobody_can_read_hides_nothing(yard: Yard) -> None:
    yard.worker("old")
    yard.start("r")
    [held] = yard.take("old", "r")
    yard.tell("old")
    yard.back(held)
    do(yard.store, Depart(worker_id="old", drain='["no", "object"]'))
    assert numbers(only(yard), "runs", "saved") == [1, 1]


def test_an_overrun_that_was_reported_is_counted(yard: Yard) -> None:
    yard.worker("old")
    yard.tell("old")
    phases = [{"phase": "cleanup", "took": 9.0, "limit": 5.0, "overran": True}]
    yard.leave("old", phases=phases, exit="overrun")
    one = only(yard)
    assert one["overruns"] == 1
    assert one["workers"][0]["overran"] == ["cleanup"]


# ── what must not happen ──────────────────────────────────────────────────────────────────────


def test_a_run_that_runs_nowhere_is_lost(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    yard = Yard(store)
    yard.worker("old")
    yard.start("r")
    [held] = yard.take("old", "r")
    yard.tell("old")
    yard.back(held)
    yard.leave("old")
    assert only(yard)["lost"] == 0
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as db:  # as no message can do
        db.execute("UPDATE andon_runs SET state = 'running', worker = 'old'")
        db.execute("UPDATE andon_workers SET ended_at = ended_at - 11")
    one = only(yard)
    assert numbers(one, "lost", "lost_runs") == [1, ["r"]]
    assert deploys.failed([one], ["lost"]) == {"lost": 1}
    store.close()


def test_what_the_journal_has_twice_is_doubled(yard: Yard) -> None:
    yard.worker("old")
    yard.worker("new")
    yard.start("r")
    [held] = yard.take("old", "r")
    yard.effect(held, "confirmed")
    yard.tell("old")
    yard.back(held)
    yard.leave("old")
    [again] = yard.take("new", "r")
    yard.effect(again, "confirmed")
    one = only(yard)
    assert one["doubled"] == 1
    assert numbers(one["doubled_runs"][0], "run", "kind", "name", "spot") == [
        "r",
        "effect",
        "pay",
        "k",
    ]


def test_effects_that_hang_in_the_air_are_counted_until_they_are_resolved(yard: Yard) -> None:
    yard.worker("old")
    yard.worker("new")
    yard.start("r")
    [held] = yard.take("old", "r")
    yard.effect(held, "started")
    yard.tell("old")
    yard.back(held, "cut")
    yard.leave("old")
    assert only(yard)["in_doubt"] == 1
    [again] = yard.take("new", "r")
    yard.effect(again, "confirmed")
    assert only(yard)["in_doubt"] == 0


def test_obligations_with_a_deadline_are_registered_compensations(yard: Yard) -> None:
    yard.worker("old")
    yard.worker("new")
    yard.start("r")
    [held] = yard.take("old", "r")
    yard.effect(held, "confirmed", undo="shop:refund", undo_within=7200.0)
    yard.tell("old")
    yard.back(held)
    yard.leave("old")
    one = only(yard)
    assert numbers(one, "compensations_registered", "compensations_executed") == [1, 0]
    [again] = yard.take("new", "r")
    append = again.append(
        of={"kind": "effect", "name": "pay", "key": "k", "state": "compensated"}
        | {"at": yard.store.now()}
    )
    do(yard.store, append)
    one = only(yard)
    assert numbers(one, "compensations_registered", "compensations_executed") == [0, 1]


# ── failing a pipeline ────────────────────────────────────────────────────────────────────────


def test_only_what_was_asked_for_fails(yard: Yard) -> None:
    yard.worker("old")
    yard.start("r1", "r2")
    one, two = yard.take("old", "r1", "r2")
    yard.tell("old")
    yard.back(one)
    yard.back(two, "cut")
    yard.leave("old")
    found = told(yard)
    assert deploys.failed(found, ["lost", "doubled"]) == {}
    assert deploys.failed(found, ["unresumed", "lost", "cut"]) == {"unresumed": 2, "cut": 1}
    assert "2 unresumed, 1 cut" in deploy_view.refuse(deploys.failed(found, ["unresumed", "cut"]))
    assert deploys.failed(found, list(deploys.FAILURES)) == {"unresumed": 2, "cut": 1}


def test_words_that_mean_nothing_are_refused() -> None:
    assert deploys.failures_named("lost, in-doubt") == ["lost", "in_doubt"]
    for words in ("los", "", " , ", "lost,everything"):
        with pytest.raises(BadInput, match="expected some of lost,doubled,unresumed"):
            deploys.failures_named(words)


def test_the_command_fails_with_a_sentence(andon: Terminal, yard: Yard) -> None:
    assert andon.run("deploys", "--fail-on", "lost").stderr.startswith("no worker has left lately")
    yard.worker("old")
    yard.start("r")
    [held] = yard.take("old", "r")
    yard.tell("old")
    yard.back(held)
    yard.leave("old")
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


def test_a_watch_in_vain_is_not_in_time(andon: Terminal) -> None:
    with andon.worker():
        done = andon.run("deploys", "watch", "--timeout", "0.1", code=3)
        assert "no worker left within 0.1 s" in done.stderr
        assert andon.json("deploys", "watch", "--timeout", "0", code=3) is None


def test_a_deploy_that_nobody_resumes_is_not_over(andon: Terminal, yard: Yard) -> None:
    yard.worker("old")
    yard.start("r")
    [held] = yard.take("old", "r")
    yard.tell("old")
    yard.back(held)
    yard.leave("old")
    watch = ("deploys", "watch", "--settle", "0", "--timeout", "0")
    assert "was not over" in andon.run(*watch, code=3).stderr
    done = andon.run(*watch, "--fail-on", "unresumed", code=1)
    assert "1 unresumed" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr, "no animation where nobody looks"


def test_ctrl_c_ends_the_watching_and_says_so(local: Terminal) -> None:
    with local.worker(), local.process("deploys", "watch") as watch:
        watch.says("no worker is leaving")
        watch.signal(signal.SIGINT)
        assert watch.ends() == 130
        assert "the deploy continues" in watch.text


def test_a_settling_time_is_waited_for(yard: Yard) -> None:
    yard.worker("old")
    yard.tell("old")
    yard.leave("old")
    looks: list[Any] = []
    began = time.monotonic()
    one, over = deploys.watch(
        yard.store,
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
