"""The control process: carries orders from the store to the supervisor, and results back."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.terminal import until
from tests.control_process.fake_supervisor import GRADES, FakeSupervisor
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
def fake(tmp_path: Path, store: Store, store_url: str) -> Iterator[FakeSupervisor]:
    """With a store that exists already."""
    found = FakeSupervisor(tmp_path / "home", store_url)
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
    store: Store, fake: FakeSupervisor, pid: int, name: str = "w", supervisor: str = ""
) -> dict[str, Any]:
    """A worker in that process, of that supervisor; returns the supervisor's description of it."""
    here, ticks = this_process(), start_ticks(pid)
    row = worker_row(name)
    named = {field: getattr(row, field) for field in row.__struct_fields__}
    named |= {"pid": pid, "start_ticks": ticks, "supervisor": supervisor or fake.name}
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


def test_a_worker_that_does_not_end_a_killed_run_is_killed_and_declared_dead(
    store: Store, fake: FakeSupervisor, sleeper: "subprocess.Popen[bytes]"
) -> None:
    child = worker(store, fake, sleeper.pid)
    fake.children = [child]
    fake.start()
    fake.expect("contact")
    start(store, "r")
    take(store)
    receipt = order(store, "kill", "run:r")
    fake.expect("kill", child="child-w", order=receipt)
    sleeper.kill()
    sleeper.wait()
    fake.contact()
    fake.contact()
    assert stop_of(store, receipt).closed_at is None  # only its supervisor can tell
    fake.send("exited", **exited(child))
    proved(store, receipt)
    [row] = store.targets(receipt)
    assert "its supervisor saw it end (SIGKILL, asked by kill)" in (row.evidence or "")


def test_a_worker_that_claims_to_have_ended_a_killed_run_is_still_killed(
    store: Store, fake: FakeSupervisor, sleeper: "subprocess.Popen[bytes]"
) -> None:
    child = worker(store, fake, sleeper.pid)
    fake.children = [child]
    fake.start()
    fake.expect("contact")
    start(store, "r")
    held: Held = take(store)
    receipt = order(store, "kill", "run:r")
    do(store, Ended(worker_id="w", run_id="r", fence=held.fence.counter))
    assert stages(store, receipt) == {"run:r": "fenced"}
    fake.expect("kill", child="child-w", order=receipt)
    sleeper.kill()
    sleeper.wait()
    fake.send("exited", **exited(child))
    proved(store, receipt)


def test_a_worker_that_is_to_be_spared_is_left_alone_and_that_proves_nothing(
    store: Store, fake: FakeSupervisor, sleeper: "subprocess.Popen[bytes]"
) -> None:
    fake.children = [worker(store, fake, sleeper.pid)]
    fake.start()
    fake.expect("contact")
    start(store, "r")
    held: Held = take(store)
    receipt = order(store, "kill", "run:r", spare=True)
    do(store, Ended(worker_id="w", run_id="r", fence=held.fence.counter))
    fake.contact()
    fake.contact()
    assert stages(store, receipt) == {"run:r": "unproved"}
    assert not [one for one in fake.received if one["do"] == "kill"]


def test_the_runs_of_a_worker_that_died_go_back_at_once(
    store: Store, fake: FakeSupervisor, sleeper: "subprocess.Popen[bytes]"
) -> None:
    child = worker(store, fake, sleeper.pid)
    fake.children = [child]
    fake.start()
    fake.expect("contact")
    start(store, "r")
    take(store)
    sleeper.kill()
    sleeper.wait()
    fake.send("exited", **exited(child, asked=False, by=""))
    until(lambda: getattr(store.run("r"), "state", "") == "queued", "it is back in the queue")
    [event] = [one for one in store.events() if one.kind == "worker.ended"]
    assert "its supervisor saw it end (SIGKILL)" in event.body


def test_a_worker_is_not_declared_dead_before_its_processes_are_gone(
    store: Store, fake: FakeSupervisor, sleeper: "subprocess.Popen[bytes]"
) -> None:
    dead = subprocess.Popen(["true"])
    child = worker(store, fake, sleeper.pid)
    dead.wait()
    fake.children = [child]
    fake.start()
    fake.expect("contact")
    start(store, "r")
    take(store)
    fake.send("exited", **exited(child, left=[sleeper.pid]))
    fake.contact()
    assert getattr(store.run("r"), "state", "") == "running"
    sleeper.kill()
    sleeper.wait()
    until(lambda: getattr(store.run("r"), "state", "") == "queued", "it is back in the queue")


def test_unreported_deaths_are_found(
    store: Store, fake: FakeSupervisor, sleeper: "subprocess.Popen[bytes]"
) -> None:
    worker(store, fake, sleeper.pid)
    start(store, "r")
    take(store)
    sleeper.kill()
    sleeper.wait()
    fake.start()
    until(lambda: getattr(store.run("r"), "state", "") == "queued", "it is back in the queue")


def test_a_dead_supervisor_of_this_host_is_dismissed_with_its_workers(
    store: Store, fake: FakeSupervisor, sleeper: "subprocess.Popen[bytes]"
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
    worker(store, fake, sleeper.pid, supervisor="dead")
    start(store, "r")
    take(store)
    sleeper.kill()
    sleeper.wait()
    fake.start()
    until(lambda: getattr(store.run("r"), "state", "") == "queued", "it is back in the queue")
    assert {one.id: one.state for one in store.supervisors(0.0)}["dead"] == "dead"


def test_orders_reach_workers_that_were_adopted(
    store: Store, fake: FakeSupervisor, sleeper: "subprocess.Popen[bytes]"
) -> None:
    fake.children = [worker(store, fake, sleeper.pid, supervisor="before")]
    fake.start()
    fake.expect("contact")
    start(store, "r")
    take(store)
    receipt = order(store, "kill", "run:r")
    fake.expect("kill", child="child-w", order=receipt)


def test_a_polite_order_becomes_hard_without_any_worker(
    store: Store, fake: FakeSupervisor, sleeper: "subprocess.Popen[bytes]"
) -> None:
    fake.children = [worker(store, fake, sleeper.pid)]
    fake.start()
    fake.expect("contact")
    start(store, "r")
    take(store)
    receipt = order(store, "cancel", "run:r", within=0.1)
    fake.expect("kill", child="child-w", order=receipt)


# ── halt ──────────────────────────────────────────────────────────────────────────────────────


def test_a_halt_in_the_store_is_carried_out_here_and_proved(
    store: Store, fake: FakeSupervisor
) -> None:
    fake.start()
    fake.expect("contact")
    receipt = order(store, "halt")
    told = fake.expect("halt", order=receipt)
    assert (told["by"], told["why"]) == ("ana", "unsure")
    fake.halted(receipt, via="the store")
    proved(store, receipt)
    assert json.loads(stop_of(store, receipt).body)[fake.name]["processes"] == 3


def test_a_host_that_comes_later_is_halted_too(store: Store, fake: FakeSupervisor) -> None:
    receipt = order(store, "halt")
    fake.start()
    fake.expect("halt", order=receipt)


def test_an_unproved_halt_is_reported_and_may_be_proved_later(
    store: Store, fake: FakeSupervisor
) -> None:
    fake.start()
    fake.expect("contact")
    receipt = order(store, "halt")
    fake.expect("halt", order=receipt)
    fake.halted(receipt, proved=False, survivors=[77])
    until(lambda: stages(store, receipt)[fake.target] == "unproved", "unproved")
    [row] = store.targets(receipt)
    assert "77" in (row.evidence or "")
    fake.halted(receipt)
    until(lambda: stages(store, receipt)[fake.target] == "verified", "verified")


def test_a_pull_here_halts_the_fleet(store: Store, fake: FakeSupervisor) -> None:
    fake.start()
    fake.expect("contact")
    fake.halted("rcp_here", via="STOP", by="bo")
    until(lambda: store.stop("rcp_here"), "the store knows of it")
    row = stop_of(store, "rcp_here")
    assert (row.kind, row.scope, row.via, row.by) == ("halt", "fleet", "STOP", "bo")
    proved(store, "rcp_here")


def test_the_supervisor_learns_the_state_of_its_pull_in_the_store(
    store: Store, fake: FakeSupervisor
) -> None:
    fake.start()
    fake.expect("contact")
    fake.latch.pull(order="rcp_here")
    first = fake.expect("fleet", order="rcp_here")["known"]
    assert (first["state"], first["over"], first["targets"]) == ("answered", False, 1)
    fake.halted("rcp_here")
    until(lambda: fake.last_received("fleet")["known"]["over"], "it is over")
    last = fake.last_received("fleet")["known"]
    assert (last["verified"], last["unproved"]) == (1, [])


def test_a_pull_while_the_store_is_away_is_written_when_it_answers(
    store: Store, fake: FakeSupervisor
) -> None:
    fake.latch.pull(by="bo", why="no network", order="rcp_here")
    fake.start()
    until(lambda: store.stop("rcp_here"), "the store knows of it")
    assert stop_of(store, "rcp_here").why == "no network"


def test_the_latch_here_is_lifted_when_a_person_lifted_this_halt_in_the_store(
    store: Store, fake: FakeSupervisor
) -> None:
    fake.start()
    fake.expect("contact")
    receipt = order(store, "halt")
    fake.expect("halt", order=receipt)
    fake.halted(receipt)
    proved(store, receipt)
    reauthorize(store, stop_of(store, receipt).epoch, by="cy", why="looked at it")
    said = fake.expect("cleared")
    assert (said["by"], said["why"]) == ("cy", "looked at it")
    assert not fake.latch.look().pulled


def test_a_pull_after_the_lift_is_a_new_halt(store: Store, fake: FakeSupervisor) -> None:
    receipt = order(store, "halt")
    reauthorize(store, stop_of(store, receipt).epoch)
    fake.latch.pull(by="bo", order=receipt)
    fake.start()
    until(store.latches, "a new halt holds the fleet")
    [latch] = store.latches()
    assert latch.id.startswith(f"{receipt}-")
    assert fake.latch.look().pulled


def test_two_hosts_that_are_pulled_at_once_are_one_halt(store: Store, fake: FakeSupervisor) -> None:
    first = order(store, "halt")
    fake.latch.pull(by="bo", order="rcp_other")
    fake.start()
    fake.expect("contact")
    fake.halted("rcp_other")
    fake.contact()
    assert [one.id for one in store.stops()] == [first]
    reauthorize(store, stop_of(store, first).epoch, by="cy", why="looked at it")
    fake.expect("cleared")
    assert not fake.latch.look().pulled


# ── crashes ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("point", ["attend:order", "attend:heard", "attend:reported"])
def test_the_receipt_is_true_whenever_the_control_process_dies(
    store: Store, fake: FakeSupervisor, point: str
) -> None:
    fake.start(ANDON_FAULTS=f"{point}=kill")
    fake.expect("contact")
    receipt = order(store, "halt")
    if point != "attend:order":
        fake.expect("halt", order=receipt)
        fake.halted(receipt)
    fake.dies()
    expected = "verified" if point == "attend:reported" else "fenced"
    assert stages(store, receipt)[fake.target] == expected
    fake.received.clear()
    fake.start()
    if point == "attend:order":
        fake.expect("halt", order=receipt)
        fake.halted(receipt)
    proved(store, receipt)
    assert fake.latch.look().pulled


def test_a_supervisor_that_ends_reports_its_end(store: Store, fake: FakeSupervisor) -> None:
    fake.start()
    fake.expect("contact")
    assert [one.id for one in store.supervisors()] == [fake.name]
    assert fake.end() == 0
    [row] = store.supervisors(0.0)
    assert (row.state, row.evidence) == ("gone", "it said so")


# ── stalls ────────────────────────────────────────────────────────────────────────────────────


def test_a_stall_is_shown_with_its_evidence(
    store: Store, fake: FakeSupervisor, sleeper: "subprocess.Popen[bytes]"
) -> None:
    fake.children = [worker(store, fake, sleeper.pid)]
    stack = fake.home / "stacks" / "x.txt"
    stack.write_text("line 1\nline 2\n")
    fake.start()
    fake.expect("contact")
    fake.send("stalled", child="child-w", pid=sleeper.pid, why="is silent", seconds=11.0,
              evidence=str(stack))  # fmt: skip
    found = until(lambda: store.workers()[0].stalled, "it is shown")
    said = json.loads(found)
    assert (said["why"], said["evidence"]) == ("is silent", str(stack))
    assert said["stack"] == ["line 1", "line 2"]


def test_a_stall_is_over_when_the_event_loop_runs_again(
    store: Store, fake: FakeSupervisor, sleeper: "subprocess.Popen[bytes]"
) -> None:
    fake.children = [worker(store, fake, sleeper.pid)]
    fake.start()
    fake.expect("contact")
    do(store, Beat(worker_id="w", lease_seconds=600, progress='{"tick": 7}'))
    fake.send("stalled", child="child-w", pid=sleeper.pid, why="is silent", seconds=11.0)
    until(lambda: store.workers()[0].stalled, "it is shown")
    do(store, Beat(worker_id="w", lease_seconds=600, progress='{"tick": 7}'))
    fake.contact()
    fake.contact()
    assert store.workers()[0].stalled
    do(store, Beat(worker_id="w", lease_seconds=600, progress='{"tick": 8}'))
    until(lambda: store.workers()[0].stalled is None, "it is over")


def test_a_step_beyond_its_limit_is_a_stall_and_ends_the_worker(
    store: Store, fake: FakeSupervisor, sleeper: "subprocess.Popen[bytes]"
) -> None:
    fake.settings["ANDON_STEP_SECONDS"] = "5"
    fake.children = [worker(store, fake, sleeper.pid)]
    fake.start()
    progress = json.dumps({"tick": 1, "runs": {"r": ["ask", 9.5], "q": ["ask", 1.0]}})
    do(store, Beat(worker_id="w", lease_seconds=600, progress=progress))
    fake.expect("kill", child="child-w", pid=sleeper.pid)
    said = json.loads(store.workers()[0].stalled or "{}")
    assert said["why"] == "run r is in step ask"
    assert Path(said["evidence"]).exists()
