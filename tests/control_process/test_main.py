"""The control process: what the store wants reaches the supervisor, and what it did the store."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.terminal import until
from tests.control_process.wired import GRADES, Wired
from tests.store.parts import Held, agent_row, do, start, take, worker_row
from tests.store.sql.test_stops import order, reauthorize

from andon.core.stop import verdict
from andon.host.proc import start_ticks
from andon.runtime.worker.peers import this_process
from andon.store import open_store
from andon.store.messages.stops import Ended, Enlist, StopRow, SupervisorRow
from andon.store.store import Beat, Register, Store, WorkerRow


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    store = open_store(store_url)
    yield store
    store.close()


@pytest.fixture
def wired(tmp_path: Path, store: Store, store_url: str) -> Iterator[Wired]:
    """With a store that is there already."""
    found = Wired(tmp_path / "home", store_url)
    yield found
    found.close()


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that could be a worker."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def worker(
    store: Store, wired: Wired, pid: int, name: str = "w", supervisor: str = ""
) -> dict[str, Any]:
    """A worker in that process, of that supervisor; answers how a supervisor describes it."""
    here, ticks = this_process(), start_ticks(pid)
    row = worker_row(name)
    named = {field: getattr(row, field) for field in row.__struct_fields__}
    named |= {"pid": pid, "start_ticks": ticks, "supervisor": supervisor or wired.name}
    named |= {"host": here.host, "boot": here.boot, "namespace": here.namespace}
    message = Register(worker=WorkerRow(**named), agents=(agent_row(),), lease_seconds=600)
    do(store, message)
    child = {"child": f"child-{name}", "kind": "worker", "pid": pid, "start_ticks": ticks}
    return child | {"state": "running", "containment": GRADES}


def exited(child: dict[str, Any], **words: Any) -> dict[str, Any]:
    return {**child, "code": None, "signal": 9, "left": [], "asked": True, "by": "kill"} | words


def stop_of(store: Store, stop_id: str) -> StopRow:
    row = store.stop(stop_id)
    assert row is not None
    return row


def stages(store: Store, stop_id: str) -> dict[str, str]:
    return {row.target: row.stage for row in store.targets(stop_id)}


def proved(store: Store, stop_id: str) -> None:
    until(lambda: stop_of(store, stop_id).closed_at is not None, f"closed: {stop_id}")
    assert verdict(stages(store, stop_id).values()) == "proved", stages(store, stop_id)


# ── orders about runs ─────────────────────────────────────────────────────────────────────────


def test_a_worker_that_does_not_end_a_killed_run_is_killed_and_buried(
    store: Store, wired: Wired, sleeper: "subprocess.Popen[bytes]"
) -> None:
    child = worker(store, wired, sleeper.pid)
    wired.children = [child]
    wired.start()
    wired.told("contact")
    start(store, "r")
    take(store)
    receipt = order(store, "kill", "run:r")
    wired.told("kill", child="child-w", order=receipt)
    sleeper.kill()
    sleeper.wait()
    wired.contact()
    wired.contact()
    assert stop_of(store, receipt).closed_at is None  # it is its supervisor that knows how
    wired.say("exited", **exited(child))
    proved(store, receipt)
    [row] = store.targets(receipt)
    assert "its supervisor saw it end (SIGKILL, asked by kill)" in (row.evidence or "")


def test_a_worker_that_says_it_has_ended_a_killed_run_is_killed_all_the_same(
    store: Store, wired: Wired, sleeper: "subprocess.Popen[bytes]"
) -> None:
    child = worker(store, wired, sleeper.pid)
    wired.children = [child]
    wired.start()
    wired.told("contact")
    start(store, "r")
    held: Held = take(store)
    receipt = order(store, "kill", "run:r")
    do(store, Ended(worker_id="w", run_id="r", fence=held.fence.counter))
    assert stages(store, receipt) == {"run:r": "fenced"}
    wired.told("kill", child="child-w", order=receipt)
    sleeper.kill()
    sleeper.wait()
    wired.say("exited", **exited(child))
    proved(store, receipt)


def test_a_worker_that_is_to_be_spared_is_left_alone_and_that_proves_nothing(
    store: Store, wired: Wired, sleeper: "subprocess.Popen[bytes]"
) -> None:
    wired.children = [worker(store, wired, sleeper.pid)]
    wired.start()
    wired.told("contact")
    start(store, "r")
    held: Held = take(store)
    receipt = order(store, "kill", "run:r", spare=True)
    do(store, Ended(worker_id="w", run_id="r", fence=held.fence.counter))
    wired.contact()
    wired.contact()
    assert stages(store, receipt) == {"run:r": "unproved"}
    assert not [one for one in wired.heard if one["do"] == "kill"]


def test_the_runs_of_a_worker_that_died_go_back_at_once(
    store: Store, wired: Wired, sleeper: "subprocess.Popen[bytes]"
) -> None:
    child = worker(store, wired, sleeper.pid)
    wired.children = [child]
    wired.start()
    wired.told("contact")
    start(store, "r")
    take(store)
    sleeper.kill()
    sleeper.wait()
    wired.say("exited", **exited(child, asked=False, by=""))
    until(lambda: getattr(store.run("r"), "state", "") == "queued", "it is back in the queue")
    [event] = [one for one in store.events() if one.kind == "worker.ended"]
    assert "its supervisor saw it end (SIGKILL)" in event.body


def test_a_worker_is_not_buried_before_what_it_left_is_gone(
    store: Store, wired: Wired, sleeper: "subprocess.Popen[bytes]"
) -> None:
    dead = subprocess.Popen(["true"])
    child = worker(store, wired, sleeper.pid)
    dead.wait()
    wired.children = [child]
    wired.start()
    wired.told("contact")
    start(store, "r")
    take(store)
    wired.say("exited", **exited(child, left=[sleeper.pid]))
    wired.contact()
    assert getattr(store.run("r"), "state", "") == "running"
    sleeper.kill()
    sleeper.wait()
    until(lambda: getattr(store.run("r"), "state", "") == "queued", "it is back in the queue")


def test_deaths_that_nobody_heard_of_are_found(
    store: Store, wired: Wired, sleeper: "subprocess.Popen[bytes]"
) -> None:
    worker(store, wired, sleeper.pid)
    start(store, "r")
    take(store)
    sleeper.kill()
    sleeper.wait()
    wired.start()
    until(lambda: getattr(store.run("r"), "state", "") == "queued", "it is back in the queue")


def test_a_supervisor_of_this_host_that_died_is_dismissed_with_what_it_had(
    store: Store, wired: Wired, sleeper: "subprocess.Popen[bytes]"
) -> None:
    here, ticks = this_process(), start_ticks(sleeper.pid)
    dead = SupervisorRow(
        id="dead",
        host=here.host,
        boot=here.boot,
        namespace=here.namespace,
        pid=sleeper.pid,
        start_ticks=ticks,
        home="/h",
    )
    do(store, Enlist(supervisor=dead, lease_seconds=600))
    worker(store, wired, sleeper.pid, supervisor="dead")
    start(store, "r")
    take(store)
    sleeper.kill()
    sleeper.wait()
    wired.start()
    until(lambda: getattr(store.run("r"), "state", "") == "queued", "it is back in the queue")
    assert {one.id: one.state for one in store.supervisors(0.0)}["dead"] == "dead"


def test_orders_reach_workers_that_were_adopted(
    store: Store, wired: Wired, sleeper: "subprocess.Popen[bytes]"
) -> None:
    wired.children = [worker(store, wired, sleeper.pid, supervisor="before")]
    wired.start()
    wired.told("contact")
    start(store, "r")
    take(store)
    receipt = order(store, "kill", "run:r")
    wired.told("kill", child="child-w", order=receipt)


def test_a_polite_order_becomes_hard_without_any_worker(
    store: Store, wired: Wired, sleeper: "subprocess.Popen[bytes]"
) -> None:
    wired.children = [worker(store, wired, sleeper.pid)]
    wired.start()
    wired.told("contact")
    start(store, "r")
    take(store)
    receipt = order(store, "cancel", "run:r", within=0.1)
    wired.told("kill", child="child-w", order=receipt)


# ── halt ──────────────────────────────────────────────────────────────────────────────────────


def test_a_halt_in_the_store_is_carried_out_here_and_proved(store: Store, wired: Wired) -> None:
    wired.start()
    wired.told("contact")
    receipt = order(store, "halt")
    told = wired.told("halt", order=receipt)
    assert (told["by"], told["why"]) == ("ana", "unsure")
    wired.halted(receipt, via="the store")
    proved(store, receipt)
    assert json.loads(stop_of(store, receipt).body)[wired.name]["processes"] == 3


def test_a_host_that_comes_later_is_halted_too(store: Store, wired: Wired) -> None:
    receipt = order(store, "halt")
    wired.start()
    wired.told("halt", order=receipt)


def test_what_could_not_be_proved_is_said_and_may_be_proved_later(
    store: Store, wired: Wired
) -> None:
    wired.start()
    wired.told("contact")
    receipt = order(store, "halt")
    wired.told("halt", order=receipt)
    wired.halted(receipt, proved=False, survivors=[77])
    until(lambda: stages(store, receipt)[wired.target] == "unproved", "unproved")
    [row] = store.targets(receipt)
    assert "77" in (row.evidence or "")
    wired.halted(receipt)
    until(lambda: stages(store, receipt)[wired.target] == "verified", "verified")


def test_a_pull_here_halts_the_fleet(store: Store, wired: Wired) -> None:
    wired.start()
    wired.told("contact")
    wired.halted("rcp_here", via="STOP", by="bo")
    until(lambda: store.stop("rcp_here"), "the store knows of it")
    row = stop_of(store, "rcp_here")
    assert (row.kind, row.scope, row.via, row.by) == ("halt", "fleet", "STOP", "bo")
    proved(store, "rcp_here")


def test_the_supervisor_hears_how_its_pull_stands_in_the_store(store: Store, wired: Wired) -> None:
    wired.start()
    wired.told("contact")
    wired.latch.pull(order="rcp_here")
    first = wired.told("fleet", order="rcp_here")["known"]
    assert (first["state"], first["over"], first["targets"]) == ("answered", False, 1)
    wired.halted("rcp_here")
    until(lambda: wired.heard_last("fleet")["known"]["over"], "it is over")
    last = wired.heard_last("fleet")["known"]
    assert (last["verified"], last["unproved"]) == (1, [])


def test_a_pull_while_the_store_is_away_is_written_when_it_answers(
    store: Store, wired: Wired
) -> None:
    wired.latch.pull(by="bo", why="no network", order="rcp_here")
    wired.start()
    until(lambda: store.stop("rcp_here"), "the store knows of it")
    assert stop_of(store, "rcp_here").why == "no network"


def test_the_store_lifts_the_latch_here_when_a_person_lifted_this_very_halt(
    store: Store, wired: Wired
) -> None:
    wired.start()
    wired.told("contact")
    receipt = order(store, "halt")
    wired.told("halt", order=receipt)
    wired.halted(receipt)
    proved(store, receipt)
    reauthorize(store, stop_of(store, receipt).epoch, by="cy", why="looked at it")
    said = wired.told("cleared")
    assert (said["by"], said["why"]) == ("cy", "looked at it")
    assert not wired.latch.look().pulled


def test_a_pull_that_came_after_the_lifting_is_a_new_halt(store: Store, wired: Wired) -> None:
    receipt = order(store, "halt")
    reauthorize(store, stop_of(store, receipt).epoch)
    wired.latch.pull(by="bo", order=receipt)
    wired.start()
    until(store.latches, "a new halt holds the fleet")
    [latch] = store.latches()
    assert latch.id.startswith(f"{receipt}-")
    assert wired.latch.look().pulled


def test_two_hosts_that_are_pulled_at_once_are_one_halt(store: Store, wired: Wired) -> None:
    first = order(store, "halt")
    wired.latch.pull(by="bo", order="rcp_other")
    wired.start()
    wired.told("contact")
    wired.halted("rcp_other")
    wired.contact()
    assert [one.id for one in store.stops()] == [first]
    reauthorize(store, stop_of(store, first).epoch, by="cy", why="looked at it")
    wired.told("cleared")
    assert not wired.latch.look().pulled


# ── crashes ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("point", ["attend:order", "attend:heard", "attend:reported"])
def test_whenever_the_control_process_dies_the_receipt_tells_the_truth(
    store: Store, wired: Wired, point: str
) -> None:
    wired.start(ANDON_FAULTS=f"{point}=kill")
    wired.told("contact")
    receipt = order(store, "halt")
    if point != "attend:order":
        wired.told("halt", order=receipt)
        wired.halted(receipt)
    wired.dies()
    expected = "verified" if point == "attend:reported" else "fenced"
    assert stages(store, receipt)[wired.target] == expected
    wired.heard.clear()
    wired.start()
    if point == "attend:order":
        wired.told("halt", order=receipt)
        wired.halted(receipt)
    proved(store, receipt)
    assert wired.latch.look().pulled


def test_a_supervisor_that_ends_says_so(store: Store, wired: Wired) -> None:
    wired.start()
    wired.told("contact")
    assert [one.id for one in store.supervisors()] == [wired.name]
    assert wired.end() == 0
    [row] = store.supervisors(0.0)
    assert (row.state, row.evidence) == ("gone", "it said so")


# ── stalls ────────────────────────────────────────────────────────────────────────────────────


def test_a_stall_is_shown_with_its_evidence(
    store: Store, wired: Wired, sleeper: "subprocess.Popen[bytes]"
) -> None:
    wired.children = [worker(store, wired, sleeper.pid)]
    stack = wired.home / "stacks" / "x.txt"
    stack.write_text("line 1\nline 2\n")
    wired.start()
    wired.told("contact")
    wired.say("stalled", child="child-w", pid=sleeper.pid, why="is silent", seconds=11.0,
              evidence=str(stack))  # fmt: skip
    found = until(lambda: store.workers()[0].stalled, "it is shown")
    said = json.loads(found)
    assert (said["why"], said["evidence"]) == ("is silent", str(stack))
    assert said["stack"] == ["line 1", "line 2"]


def test_a_stall_is_over_when_the_event_loop_turns_again(
    store: Store, wired: Wired, sleeper: "subprocess.Popen[bytes]"
) -> None:
    wired.children = [worker(store, wired, sleeper.pid)]
    wired.start()
    wired.told("contact")
    do(store, Beat(worker_id="w", lease_seconds=600, progress='{"tick": 7}'))
    wired.say("stalled", child="child-w", pid=sleeper.pid, why="is silent", seconds=11.0)
    until(lambda: store.workers()[0].stalled, "it is shown")
    do(store, Beat(worker_id="w", lease_seconds=600, progress='{"tick": 7}'))
    wired.contact()
    wired.contact()
    assert store.workers()[0].stalled
    do(store, Beat(worker_id="w", lease_seconds=600, progress='{"tick": 8}'))
    until(lambda: store.workers()[0].stalled is None, "it is over")


def test_a_step_beyond_its_limit_is_a_stall_and_ends_the_worker(
    store: Store, wired: Wired, sleeper: "subprocess.Popen[bytes]"
) -> None:
    wired.settings["ANDON_STEP_SECONDS"] = "5"
    wired.children = [worker(store, wired, sleeper.pid)]
    wired.start()
    progress = json.dumps({"tick": 1, "runs": {"r": ["ask", 9.5], "q": ["ask", 1.0]}})
    do(store, Beat(worker_id="w", lease_seconds=600, progress=progress))
    wired.told("kill", child="child-w", pid=sleeper.pid)
    said = json.loads(store.workers()[0].stalled or "{}")
    assert said["why"] == "run r is in step ask"
    assert Path(said["evidence"]).exists()
