"""`andon pause`, `cancel`, `kill` and `resume`, and the output about stopped runs."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.terminal import Terminal, until
from tests.control.stop_scenario import StopScenario
from tests.store.parts import do, new_run

from andon.control.stop import target
from andon.control.stop.proof import StopProof
from andon.core.stop import StopKind
from andon.errors import Refused
from andon.runtime.client import Client
from andon.store import open_store
from andon.store.messages.stops import Ended, Escalate, StallReport, WorkerGone
from andon.store.store import Settle, Start

GATED = """
import asyncio, pathlib
import andon


async def look(gate):
    await asyncio.sleep(0.02)
    return pathlib.Path(gate).exists()


@andon.agent
async def gated(ctx, gate):
    count = 1
    while not await ctx.step(look, gate):
        count += 1
    return count
"""
WAITS = json.dumps([{"kind": "event", "name": "go"}])
EARLY = re.compile(r"\b(cancelled|killed|paused|STOPPED)\b")


class _Any:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


ANY: Any = _Any()


@pytest.fixture
def seeded(store_url: str) -> Iterator[StopScenario]:
    store = open_store(store_url)
    yield StopScenario(store)
    store.close()


@pytest.fixture
def small(sqlite_url: str) -> Iterator[StopScenario]:
    store = open_store(sqlite_url)
    yield StopScenario(store)
    store.close()


def state(seeded: StopScenario, run: str = "r") -> tuple[str, bool]:
    row = seeded.store.run(run)
    assert row is not None
    return row.state, row.stop is not None


# ── proved and unproved stops ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["pause", "cancel", "kill"])
def test_a_run_is_not_called_stopped_before_it_is_proved(
    andon: Terminal, seeded: StopScenario, kind: str
) -> None:
    held = seeded.begin()
    done = andon.run(kind, "r", "--wait", "0.1", "--why", "unsure", code=3)
    assert "NOT PROVED after 100 ms" in done.stdout
    assert not EARLY.search(done.stdout + done.stderr)
    assert andon.json("ps")[0]["state"] == "stopping"
    assert f"{kind} by tester: unsure" in andon("show", "r")
    if kind == "kill":
        do(seeded.store, Ended(worker_id="w", run_id="r", fence=held.fence.counter))
        [receipt] = andon.json("receipts")
        assert not EARLY.search(andon("show", receipt["id"])), "its word does not prove a kill"
        do(seeded.store, WorkerGone(worker_id="w", evidence="seen from its host", ordered=True))
    else:
        seeded.back(held)
    [receipt] = andon.json("receipts")
    page = andon("show", receipt["id"])
    assert "STOPPED, proved" in page
    became = {"pause": "paused", "cancel": "cancelled", "kill": "killed"}[kind]
    assert f"now {became}" in page
    assert andon.json("ps")[0]["state"] == became


def test_a_stop_on_another_host_names_the_end_of_the_lease(
    andon: Terminal, seeded: StopScenario
) -> None:
    held = seeded.begin()
    seeded.effect(held, "started")
    text = andon("kill", "r", "--wait", "0.1", code=3)
    assert "done:      fenced: its writes are refused from now on" in text
    assert "worker w, process 48213 on node-c: it cannot be seen from here" in text
    assert "can still: finish what it had begun: effect pay k; its lease ends at" in text
    found = andon.json("kill", "r", "--no-wait", code=3)
    assert (found["verdict"], found["proved"]) == ("stopping", False)
    [row] = found["targets"]
    assert row["process"]["lease_until"] > found["now"]
    assert "on node-c: andon kill r" in andon.run("kill", "r", "--no-wait", code=3).stderr


def test_a_polite_order_becomes_hard_while_the_command_waits(
    andon: Terminal, seeded: StopScenario
) -> None:
    seeded.begin()
    done = andon.run("cancel", "r", "--within", "0.1", "--wait", "1", code=3)
    assert "asked to stop; 100 ms for the step in hand" in done.stderr
    assert "fenced after" in done.stderr
    assert state(seeded) == ("killed", True)


@pytest.mark.parametrize("within", ["nan", "inf"])
def test_a_window_has_an_end(local: Terminal, small: StopScenario, within: str) -> None:
    small.begin()
    assert "expected 10s" in local.error("pause", "r", "--within", within, code=2)
    assert state(small) == ("running", False)


def test_the_same_order_again_has_the_same_receipt(andon: Terminal, seeded: StopScenario) -> None:
    seeded.begin()
    one, two = (andon.json("kill", "r", "--no-wait", code=3)["id"] for _ in range(2))
    assert one == two


@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_success_is_not_overwritten_and_is_reported(
    andon: Terminal, seeded: StopScenario, meanwhile: bool
) -> None:
    held = seeded.begin()
    settle = Settle(run_id="r", fence=held.fence, state="succeeded", ending="succeeded")
    if meanwhile:
        andon("cancel", "r", "--no-wait", code=3)
        do(seeded.store, settle)
        [receipt] = andon.json("receipts")
        text = andon("show", receipt["id"])
    else:
        do(seeded.store, settle)
        text = andon("cancel", "r")
    assert "nothing to stop: run r (agent) had succeeded at" in text
    assert "STOPPED" not in text
    assert state(seeded) == ("succeeded", False)


def test_a_run_that_is_not_executing_is_stopped_at_once(
    andon: Terminal, seeded: StopScenario
) -> None:
    seeded.worker("w")
    seeded.start("r")
    text = andon("cancel", "r")
    assert "STOPPED, proved  cancel of run r (agent)" in text
    assert "no worker executed it; now cancelled" in text


def test_a_run_that_owes_an_undo_is_not_called_cancelled(
    andon: Terminal, seeded: StopScenario
) -> None:
    held = seeded.begin()
    seeded.effect(held, "confirmed", kind="compensatable", undo="m:f", undo_within=60.0)
    seeded.back(held)
    text = andon("cancel", "r")
    assert "now queued, to undo what it did" in text
    assert "cancelled" not in text


def test_children_are_reached_when_their_parent_is_over(
    andon: Terminal, seeded: StopScenario
) -> None:
    held = seeded.begin("p")
    do(seeded.store, held.append(spawn=new_run("c", parent_id="p", root_id="p")))
    do(seeded.store, held.settle("succeeded"))
    text = andon("kill", "p")
    assert "STOPPED, proved  kill of run p (agent)" in text
    assert (state(seeded, "p"), state(seeded, "c")) == (("succeeded", False), ("killed", False))


# ── real workers ──────────────────────────────────────────────────────────────────────────────


def test_a_paused_run_resumes_where_it_was(andon: Terminal, tmp_path: Path) -> None:
    (andon.folder / "gated.py").write_text(GATED)
    gate = tmp_path / "gate"
    with andon.worker("gated.py"):
        run_id = andon.start("gated", f"gate={gate}")
        until(lambda: len(andon.json("show", run_id)["steps"]) > 3, "a few steps")
        text = andon("pause", run_id)
        assert re.search(r"acknowledged .+: its worker gave it back \(\w+\); now paused", text)
        assert andon.state(run_id) == "paused"
        gate.touch()
        andon("resume", run_id, "--why", "it is fine")
        [event] = [one for one in andon.json("events") if one["kind"] == "stop.resumed"]
        assert (event["about"]["by"], event["about"]["why"]) == ("tester", "it is fine")
        count = int(andon("wait", run_id, "--timeout", "30"))
        steps = andon.json("show", run_id)["steps"]
    assert [step["attempts"] for step in steps] == [1] * count


def test_a_cancelled_run_does_not_resume(andon: Terminal, tmp_path: Path) -> None:
    (andon.folder / "gated.py").write_text(GATED)
    with andon.worker("gated.py"):
        run_id = andon.start("gated", f"gate={tmp_path / 'never'}")
        until(lambda: andon.state(run_id) == "running", "the run")
        assert "now cancelled" in andon("cancel", "gated")
    assert andon.state(run_id) == "cancelled"
    assert "cannot resume while cancelled" in andon.error("resume", run_id, code=1)


# ── processes of this host ────────────────────────────────────────────────────────────────────


def test_a_frozen_worker_is_ended_by_the_command(andon: Terminal, tmp_path: Path) -> None:
    with andon.worker() as worker:
        marks = [tmp_path / name for name in ("one", "two")]
        one, two = (andon.start("stuck", f"marker={mark}") for mark in marks)
        until(lambda: all(mark.exists() for mark in marks), "both runs being executed")
        worker.signal(signal.SIGSTOP)
        done = andon.run("kill", one, "--why", "it hangs")
        assert worker.ends() == -signal.SIGKILL
    assert f"back to the queue: {two}" in done.stderr
    assert "STOPPED, proved  kill of run" in done.stdout
    assert "its process is gone: SIGKILL by andon kill, process" in done.stdout
    assert andon.state(one) == "killed"
    other = andon.json("show", two)
    assert other["attempts"][0]["ending"] == "returned", "it was not the cause of that death"
    assert other["interruptions"] == 0


@pytest.mark.parametrize("owned", [False, True])
def test_only_a_worker_without_a_supervisor_is_ended_by_the_command(
    local: Terminal, small: StopScenario, owned: bool
) -> None:
    small.supervisor("s")
    with small.process("w", supervisor="s" if owned else None) as process:
        small.start("r")
        small.take("w", "r")
        local("kill", "r", "--wait", "1", code=3 if owned else 0)
        assert (process.poll() is None) == owned
    assert state(small) == ("killed", owned)


def test_a_supervisor_that_is_gone_protects_nothing(local: Terminal, small: StopScenario) -> None:
    small.supervisor("s", ticks=1)
    with small.process("w", supervisor="s") as process:
        small.start("r")
        small.take("w", "r")
        local("kill", "r")
        assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize(("kind", "alone"), [("pause", True), ("kill", False)])
def test_a_worker_that_proved_its_stop_during_a_slow_command_is_spared(
    small: StopScenario, monkeypatch: pytest.MonkeyPatch, kind: str, alone: bool
) -> None:
    """The machine is busy: a second passes between two questions of the command."""
    with small.process("w") as process:
        small.start("r")
        [held] = small.take("w", "r")
        row = target.find_order(small.store, small.order(kind, "run", "r", within=0.0))
        do(small.store, Escalate())
        now = small.store.now

        def slow() -> float:
            do(small.store, Ended(worker_id="w", run_id="r", fence=held.fence.counter))
            return now() + 1

        monkeypatch.setattr(small.store, "now", slow)
        assert StopProof(small.store, row, lambda _: None).look()
        assert (process.poll() is None) == alone
    assert state(small) == ({"pause": "paused", "kill": "killed"}[kind], False)


def test_a_process_with_a_reused_number_is_left_alone(local: Terminal, small: StopScenario) -> None:
    with small.process("w", start_ticks=1) as process:
        small.start("r")
        small.take("w", "r")
        text = local("kill", "r")
        assert process.poll() is None
    assert "process gone, seen by its start time" in text


@pytest.mark.parametrize("kind", ["pause", "cancel"])
def test_the_last_step_of_a_worker_that_is_gone_is_not_waited_for(
    local: Terminal, small: StopScenario, kind: str
) -> None:
    """No worker is left to notice: the command does, long before its hour is over."""
    with small.process("w") as process:
        small.start("r")
        small.take("w", "r")
        process.kill()
        process.wait()
        text = local(kind, "r", "--within", "3600")
    assert "its process is gone: process gone, seen by its start time" in text
    assert state(small) == ({"pause": "paused", "cancel": "cancelled"}[kind], False)


def test_a_worker_that_fell_silent_is_ended_and_proved(
    local: Terminal, small: StopScenario
) -> None:
    with small.process("w") as process:
        small.start("r")
        small.take("w", "r")
        small.order("kill", "run", "r", id="rcp_1")
        small.worker("other")
        small.kill_silently("w", "other")
        assert local.json("show", "rcp_1")["verdict"] == "unproved"
        assert "NOT PROVED" in local("show", "rcp_1")
        assert process.poll() is None
        text = local("kill", "r")
        assert process.wait() == -signal.SIGKILL
    assert "STOPPED, proved" in local("show", "rcp_1")
    assert "kill of run r (agent): what an earlier order had left is ended" in text


def test_an_unproved_stop_is_not_proved_by_asking_again(
    local: Terminal, small: StopScenario
) -> None:
    small.begin()
    small.order("kill", "run", "r", id="rcp_1")
    small.worker("other")
    small.kill_silently("w", "other")
    for words in (("r",), ("--agent", "agent")):
        text = local("kill", *words, "--wait", "0.1", code=3)
        assert "NOT PROVED" in text
        assert "whether its process is gone is unknown" in text


# ── the target of an order ────────────────────────────────────────────────────────────────────


def test_without_a_name_the_only_running_run_is_the_target(
    andon: Terminal, seeded: StopScenario
) -> None:
    assert "nothing is running" in andon.error("kill", code=4)
    seeded.begin("a", "w1")
    assert andon.json("kill", "--no-wait", code=3)["name"] == "a"
    seeded.begin("b", "w2")
    seeded.begin("c", "w3")
    text = andon.error("pause", code=2)
    assert all(word in text for word in ("b  agent", "c  agent", "andon halt"))
    assert state(seeded, "b") == ("running", False)


def test_a_run_is_named_by_its_agent_if_that_has_only_one(
    local: Terminal, small: StopScenario
) -> None:
    small.worker("w")
    small.start("r1")
    assert local.json("pause", "agent")["name"] == "r1"
    small.start("r2")
    assert "ambiguous name; matches: r2, r1" in local.error("pause", "agent", code=4)
    assert local.json("kill", "@last")["name"] == "r2"
    assert "Running now: nothing" in local.error("kill", "nobody", code=4)
    assert "there is no agent 'nobody'" in local.error("kill", "--agent", "nobody", code=4)


@pytest.mark.parametrize(
    "words",
    [("r", "--all"), ("--agent", "agent", "--label", "a=b"), ("--label", "x")]
    + [("--within", odd) for odd in ("-1", "nan", "inf")]
    + [("--wait", odd) for odd in ("-1", "nan", "inf")],
)
def test_an_unclear_order_is_refused_and_nothing_is_stopped(
    local: Terminal, small: StopScenario, words: tuple[str, ...]
) -> None:
    small.worker("w")
    small.start("r")
    local.error("pause", *words, code=2)
    assert small.store.stops() == []


def test_an_agent_is_cancelled_by_one_order(andon: Terminal, seeded: StopScenario) -> None:
    seeded.worker("w")
    seeded.start("a", "b", "c")
    [held] = seeded.take("w", "a")
    andon("cancel", "--agent", "agent", "--no-wait", code=3)
    seeded.back(held)
    [receipt] = andon.json("receipts")
    assert (receipt["proved"], receipt["waiting"]) == (True, 2)
    assert receipt["latch"] is None
    assert {row["state"] for row in andon.json("ps")} == {"cancelled"}


ODD = ["te=nant", "-x", "a b'\"c", "ünï\N{RIGHT-TO-LEFT OVERRIDE}code", "*"]


@pytest.mark.parametrize("odd", ODD)
def test_labels_with_odd_characters_are_stopped_and_resumed(
    local: Terminal, small: StopScenario, odd: str
) -> None:
    small.worker("w")
    do(small.store, Start(run=new_run("r", labels=json.dumps({"who": odd}))))
    do(small.store, Start(run=new_run("q", labels=json.dumps({"who": "else"}))))
    text = local("pause", "--label", f"who={odd}", "--why", f"\x1b[31m{odd}")
    assert "\x1b" not in text
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in text
    assert (state(small)[0], state(small, "q")[0]) == ("paused", "queued")
    assert local("resume", "--label", f"who={odd}") == "resumed: 1 run\n"
    assert state(small)[0] == "queued"


# ── the output ────────────────────────────────────────────────────────────────────────────────


def test_a_waiting_run_in_a_held_scope_is_not_shown_as_queued(
    andon: Terminal, seeded: StopScenario
) -> None:
    seeded.worker("w")
    seeded.order("pause", "agent", "agent")
    seeded.start("r")
    [line] = andon.json("ps")
    assert (line["state"], line["held_by"]) == ("paused", "rcp_pauseagentagent")
    assert andon.json("ps", "--state", "paused") == [line | {"age_seconds": ANY}]
    assert andon.json("ps", "--state", "queued") == []
    page = andon.run("show", "r")
    assert "agent agent is paused by bo: fire" in page.stdout
    assert "next: andon resume --agent agent" in page.stderr
    seeded.order("kill")
    [line] = andon.json("ps", "--state", "killed")
    assert (line["state"], line["held_by"]) == ("killed", "rcp_killfleet")
    assert "andon reauthorize" in andon.run("show", "r").stderr


def test_starting_a_run_in_a_held_scope_prints_a_warning(local: Terminal) -> None:
    with local.worker():
        local("pause", "--agent", "greet", "--why", "odd")
        done = local.run("start", "greet", "--id", "r")
    assert done.stdout == "r\n"
    assert "the run waits: agent greet is paused by tester: odd" in done.stderr
    assert "To lift it: andon resume --agent greet" in done.stderr


def test_a_sleeping_run_in_a_held_scope_is_not_shown_with_a_wake_time(
    local: Terminal, small: StopScenario
) -> None:
    held = small.begin()
    do(small.store, held.settle("suspended", waits=WAITS))
    assert [line["state"] for line in local.json("ps")] == ["suspended"]
    small.order("halt")
    [line] = local.json("ps", "--state", "killed")
    assert line["held_by"] == "rcp_haltfleet"
    assert "stopped by a halt by bo: fire" in line["doing"]
    assert "go" in line["doing"]
    assert local.json("ps", "--state", "suspended") == []
    assert "next: andon reauthorize" in local.run("show", "r").stderr


def test_a_run_whose_worker_makes_no_progress_is_stalled(
    andon: Terminal, seeded: StopScenario
) -> None:
    seeded.begin()
    do(
        seeded.store,
        StallReport(worker_id="w", stalled='{"why": "silent for 10 s", "seconds": 10}'),
    )
    [line] = andon.json("ps", "--state", "stalled")
    assert line["stalled"]["why"] == "silent for 10 s"
    assert "its worker is stalled: silent for 10 s" in andon("ps")
    assert "stalled  w: silent for 10 s; seconds 10" in andon("workers")


def test_wait_says_why_a_run_makes_no_progress(andon: Terminal, seeded: StopScenario) -> None:
    held = seeded.begin()
    seeded.order("pause", "run", "r")
    assert (
        "is stopping: pause by bo: fire" in andon.run("wait", "r", "--timeout", "0", code=3).stderr
    )
    seeded.back(held)
    paused = andon.run("wait", "r", "--timeout", "0", code=3).stderr
    assert "run r is paused by bo: fire" in paused
    assert "andon resume r" in paused
    seeded.order("kill", "run", "r")
    killed = andon.run("wait", "r", code=1).stderr
    assert "run r was killed by bo: fire" in killed
    assert "andon resume r" in killed


def test_ctrl_c_ends_the_waiting_and_not_the_stop(local: Terminal, small: StopScenario) -> None:
    small.begin()
    with local.process("kill", "r", "--wait", "60") as process:
        process.says("fenced after")
        process.signal(signal.SIGINT)
        assert process.ends() == 130
        assert "the stop continues: andon show rcp_" in process.text
    assert state(small) == ("killed", True)


def test_an_interrupted_wait_for_json_still_prints_the_receipt(
    local: Terminal, small: StopScenario
) -> None:
    small.begin()
    with local.process("kill", "r", "--wait", "60", "--json", stdout=subprocess.PIPE) as process:
        until(small.store.stops, "the order")
        process.signal(signal.SIGINT)
        assert process.process.stdout is not None
        found = json.loads(process.process.stdout.read())
        assert process.ends() == 130
    assert (found["id"], found["proved"]) == (small.store.stops()[0].id, False)


@pytest.mark.parametrize("closed", ["2>&1 | head -n 1", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_closed_pipe_does_not_delay_the_kill(
    local: Terminal, small: StopScenario, closed: str
) -> None:
    with small.process("w") as process:
        do(small.store, Start(run=new_run("r")))
        small.take("w", "r")
        line = f"{sys.executable} -m andon kill r {closed}"
        subprocess.run(line, shell=True, cwd=local.folder, env=local.environment, check=False)
        assert process.wait(60) == -signal.SIGKILL
    assert state(small) == ("killed", False)


def test_a_closed_terminal_is_no_defect(local: Terminal, small: StopScenario) -> None:
    small.worker("w")
    small.start("r")
    line = f"{sys.executable} -m andon ps >&-"
    done = subprocess.run(
        line, shell=True, cwd=local.folder, env=local.environment, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_text_of_agents_and_people_cannot_move_the_cursor(
    local: Terminal, small: StopScenario
) -> None:
    hostile = "x\x1b[2J\n  proved    everything\r"
    small.worker("w")
    do(small.store, Start(run=new_run("r", agent=hostile)))
    done = local.run("kill", "r", "--why", hostile, "--by", hostile)
    for text in (done.stdout, done.stderr, local("receipts"), local("ps", "--old")):
        assert "\x1b" not in text
        assert "\r" not in text
        assert "\n  proved    everything" not in text


# ── resuming ──────────────────────────────────────────────────────────────────────────────────


def test_a_killed_run_is_resumed_with_its_children(andon: Terminal, seeded: StopScenario) -> None:
    held = seeded.begin("p")
    do(seeded.store, held.append(spawn=new_run("c", parent_id="p", root_id="p")))
    andon("kill", "p", "--no-wait", code=3)
    refused = andon.error("resume", "p", code=1)
    assert "run p is being stopped, and that is not proved yet: andon show rcp_" in refused
    do(seeded.store, WorkerGone(worker_id="w", evidence="seen from its host", ordered=True))
    assert andon("resume", "p") == "resumed: p, it was killed\n"
    assert (state(seeded, "p"), state(seeded, "c")) == (("queued", False), ("queued", False))


@pytest.mark.parametrize(
    ("kind", "lift"),
    [("pause", "andon resume --agent agent"), ("kill", "andon reauthorize --agent agent")],
)
def test_a_held_run_is_not_resumed_alone(
    local: Terminal, small: StopScenario, kind: str, lift: str
) -> None:
    small.worker("w")
    small.start("r")
    small.order(kind, "agent", "agent")
    assert lift in local.error("resume", "r", code=1)
    assert f"next: {lift}" in local.run("show", "r").stderr
    assert state(small)[0] == {"pause": "paused", "kill": "killed"}[kind]


def test_a_child_is_not_resumed_under_the_latch_of_its_parent(
    local: Terminal, small: StopScenario
) -> None:
    small.worker("w")
    small.start("r")
    do(small.store, Start(run=new_run("c", agent="other", parent_id="r", root_id="r")))
    small.order("kill", "agent", "agent")
    told = local.error("resume", "c", code=1)
    assert "andon reauthorize --agent agent" in told

    async def program() -> None:
        async with Client(local.url) as client:
            await client.resume("c", by="ann", why="it is fine")

    with pytest.raises(Refused) as refused:
        asyncio.run(program())
    assert told == f"andon: {refused.value}\n"
    assert state(small, "c")[0] == "killed"


def test_everything_is_resumed_but_some(local: Terminal, small: StopScenario) -> None:
    small.worker("w")
    small.start("r")
    do(small.store, Start(run=new_run("o", agent="other")))
    local("pause", "r")
    local("pause", "o")
    assert local("resume", "--all", "--except", "other") == "resumed: 1 run\n"
    assert (state(small, "r")[0], state(small, "o")[0]) == ("queued", "paused")
    assert "say which runs" in local.error("resume", code=2)


def test_resuming_a_scope_names_the_stops_it_lifts(local: Terminal, small: StopScenario) -> None:
    small.worker("w")
    small.start("r")
    receipt = small.order("pause")
    done = local.run("resume", "--all")
    assert done.stdout == "nothing to resume\n"
    assert "next:" not in done.stderr
    assert f"lifted: the pause of everything ({receipt}); waiting runs continue" in done.stderr
    assert not small.store.latches()


def test_resuming_a_scope_names_the_stops_that_stay(local: Terminal, small: StopScenario) -> None:
    small.begin()
    small.order("kill", "run", "r")
    small.order("kill", "label", "a", value="b")
    done = local.run("resume", "--agent", "agent")
    assert "not resumed: r is being stopped; its stop is not proved yet" in done.stderr
    assert "still held: label a=b is stopped by a kill by bo: fire" in done.stderr


def test_an_order_carries_the_name_of_its_sender_if_known(small: StopScenario) -> None:
    small.worker("w")
    small.start("r")
    whom = target.StopTarget(scope="run", name="r")
    order = target.build_order(StopKind.PAUSE, whom, within=1.0, by="", why="", via="a test")
    row = target.give(small.store, order)
    assert (row.by, row.why, row.via, row.within) == ("", "", "a test", 1.0)
