"""Every printed number is compared with a count made outside.

The agents below write a line into a file when an operation of theirs begins: the outside count.
Every command has to print the same about the same history, as text and as JSON.
"""

import contextlib
import signal
import time
import urllib.request
from pathlib import Path

import pytest
from tests.cli.terminal import Process, Terminal, until

AGENTS = """
import asyncio, os, pathlib
import andon

def witness(what):
    with open("witness.log", "a") as file:
        file.write(what + "\\n")

async def wait(ctx):
    witness(f"gate {ctx.run_id}")
    while not pathlib.Path(f"open-{ctx.run_id}").exists():
        await asyncio.sleep(0.01)

async def batch(ctx):
    witness(f"batch {ctx.run_id}")
    ctx.checkpoint((ctx.partial or 0) + 1)
    await wait(ctx)

@andon.agent
async def gated(ctx):
    await ctx.step(lambda: witness(f"first {ctx.run_id}"), name="first")
    await ctx.step(lambda: wait(ctx), name="gate")
    await ctx.step(lambda: witness(f"last {ctx.run_id}"), name="last")

@andon.agent
async def batched(ctx):
    await ctx.step(lambda: batch(ctx), name="batch")

async def never(ctx):
    witness(f"try {ctx.run_id}")
    raise ValueError("never")

@andon.effect_of(kind="idempotent")
async def pay(number, *, key):
    witness(f"pay {key}")

def large(run_id):
    witness(f"large {run_id}")
    return "x" * 200_000

@andon.agent
async def paying(ctx):
    if "CRASH_WITNESS" in os.environ:
        with open(os.environ["CRASH_WITNESS"], "a") as file:
            file.write("begin\\n")
    await ctx.step(lambda: large(ctx.run_id), name="large")
    for number in (1, 2):
        await ctx.effect(pay, number, key=f"{ctx.run_id}-{number}")

@andon.agent
async def failing(ctx):
    await ctx.step(lambda: witness(f"keyed {ctx.run_id}"), name="keyed", key="a/b")
    await ctx.step(lambda: never(ctx), name="never", retries=2)
"""


class Site:
    """A terminal, the agents above, and the lines that they write."""

    def __init__(self, andon: Terminal) -> None:
        self.andon, self.folder = andon, andon.folder
        (self.folder / "counted.py").write_text(AGENTS)
        (self.folder / "witness.log").touch()

    def count(self, *words: str) -> int:
        return self.lines().count(" ".join(words))

    def lines(self) -> list[str]:
        return (self.folder / "witness.log").read_text().splitlines()

    def start(self, agent: str, *run_ids: str) -> None:
        for run_id in run_ids:
            self.andon.start(agent, "--id", run_id)

    def reaches(self, what: str, *run_ids: str, times: int = 1) -> None:
        for run_id in run_ids:
            until(lambda r=run_id: self.count(what, r) >= times, f"{what} of {run_id}")  # type: ignore[misc]

    def open(self, *run_ids: str) -> None:
        for run_id in run_ids:
            (self.folder / f"open-{run_id}").touch()

    def ends(self, *run_ids: str) -> None:
        for run_id in run_ids:
            self.andon("wait", run_id)


@pytest.fixture
def site(andon: Terminal) -> Site:
    return Site(andon)


@pytest.fixture
def alone(local: Terminal) -> Site:
    return Site(local)


def drained(worker: Process) -> str:
    """The summary of runs that a draining worker prints at its end."""
    assert worker.ends() == 0
    [line] = [line for line in worker.lines if line.startswith("drained in")]
    return line.partition("): ")[2].strip()


# ── draining ──────────────────────────────────────────────────────────────────────────────────


def test_a_drain_does_not_count_runs_stopped_or_finished_before(site: Site) -> None:
    with site.andon.worker("counted.py") as worker:
        site.start("gated", "paused", "cancelled", "done")
        site.reaches("gate", "paused", "cancelled", "done")
        site.andon("pause", "paused", "--within", "0.1")
        site.andon("cancel", "cancelled", "--within", "0.1")
        site.open("done")
        site.ends("done")
        worker.signal(signal.SIGTERM)
        assert drained(worker) == "nothing was running"
    [deploy] = site.andon.json("deploys")
    assert [deploy[part] for part in ("runs", "times", "saved", "cut", "finished")] == [0] * 5


def test_a_drain_counts_each_run_in_hand_once(site: Site) -> None:
    with site.andon.worker("counted.py", "--grace", "2") as worker:
        site.start("gated", "before", "cut-1", "cut-2", "saved")
        site.reaches("gate", "before", "cut-1", "cut-2", "saved")
        site.open("before")
        site.ends("before")
        worker.signal(signal.SIGTERM)
        worker.says("SIGTERM: finishing 3 runs")
        site.open("saved")
        told = drained(worker)
    unfinished = [run for run in ("cut-1", "cut-2", "saved") if not site.count("last", run)]
    back = "nothing lost; unfinished runs are back in the queue: andon ps"
    assert unfinished == ["cut-1", "cut-2", "saved"]
    assert told == f"1 saved, 2 cut short, {back}"
    [deploy] = site.andon.json("deploys")
    assert [deploy[part] for part in ("runs", "times", "saved", "cut")] == [3, 3, 1, 2]
    assert "3 runs = 0 finished + 1 saved + 2 cut" in site.andon("deploys")


# ── deaths ────────────────────────────────────────────────────────────────────────────────────


def test_deploys_counts_runs_deaths_and_the_time_without_a_worker(site: Site) -> None:
    gaps = []
    for number in range(1, 4):
        with site.andon.worker("counted.py") as worker:
            if number == 1:
                site.start("gated", "one", "two")
            site.reaches("gate", "one", "two", times=number)
            gaps.append(time.monotonic())
            worker.signal(signal.SIGKILL)
            worker.ends()
        gaps.append(time.monotonic())
    with site.andon.worker("counted.py"):
        site.open("one", "two")
        site.ends("one", "two")
        [deploy] = site.andon.json("deploys")
        text = site.andon("deploys")
    deaths = site.count("gate", "one") + site.count("gate", "two") - 2
    assert deaths == 6
    assert [deploy[part] for part in ("runs", "times", "interrupted")] == [2, deaths, deaths]
    assert f"2 runs, {deaths} times in hand = 0 finished + 0 saved + {deaths}" in text
    assert "after its worker's last sign of life" in text
    shortest = min(end - begin for begin, end in zip(gaps[::2], gaps[1::2], strict=True))
    assert deploy["recovery_median"] >= shortest, "the time before somebody noticed counts too"
    assert (deploy["lost"], deploy["dead"]) == (0, 0)


def test_deploys_lists_the_run_that_was_given_up(alone: Site) -> None:
    alone.andon.environment["ANDON_INTERRUPTION_LIMIT"] = "2"
    for number in range(1, 4):  # the first time a step was finished
        with alone.andon.worker("counted.py") as worker:
            if number == 1:
                alone.start("gated", "doomed")
            alone.reaches("gate", "doomed", times=number)
            worker.signal(signal.SIGKILL)
            worker.ends()
    with alone.andon.worker("counted.py"):
        until(lambda: alone.andon.state("doomed") == "dead", "the burial")
    [deploy] = [one for one in alone.andon.json("deploys") if one["runs"]]
    assert (deploy["runs"], deploy["times"], deploy["dead"]) == (1, 3, 1)
    assert deploy["dead_runs"] == ["doomed"]
    assert "· 1 DEAD ·" in alone.andon("deploys")
    [dead] = alone.andon.json("dead", "list")
    assert (dead["attempts"], dead["interruptions"]) == (3, alone.count("gate", "doomed"))
    assert "died 2 times in a row in step 'gate'" in alone.andon("show", "doomed")


def test_deploys_times_a_death_observed_by_another_worker(site: Site) -> None:
    with site.andon.worker("counted.py") as worker:
        site.start("gated", "one", "two")
        site.reaches("gate", "one", "two")
        with site.andon.worker("counted.py") as other:
            until(lambda: _watches(other.process.pid, worker.process.pid), "a watch")
            began = time.monotonic()
            worker.signal(signal.SIGKILL)
            site.reaches("gate", "one", "two", times=2)
            took = time.monotonic() - began
            site.open("one", "two")
            site.ends("one", "two")
            [deploy] = site.andon.json("deploys")
    assert [deploy[part] for part in ("runs", "times", "resumed")] == [2, 2, 2]
    assert 0 < deploy["recovery_median"] <= deploy["recovery_worst"] <= took


def _watches(pid: int, other: int) -> bool:
    """Whether a process has a descriptor of the other one."""
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(OSError):
            if f"\nPid:\t{other}\n" in path.read_text():
                return True
    return False


def test_deploys_counts_the_runs_beside_one_that_was_killed(site: Site) -> None:
    with site.andon.worker("counted.py") as worker:
        site.start("gated", "killed", "beside-1", "beside-2")
        site.reaches("gate", "killed", "beside-1", "beside-2")
        site.andon("kill", "killed")
        worker.ends()
    [deploy] = site.andon.json("deploys")
    assert [deploy[part] for part in ("runs", "interrupted", "unresumed")] == [2, 2, 2]
    assert "2 runs = 0 finished + 0 saved + 2 interrupted" in site.andon("deploys")
    site.open("beside-1", "beside-2")
    with site.andon.worker("counted.py"):
        site.ends("beside-1", "beside-2")
    [deploy] = site.andon.json("deploys")
    assert [deploy[part] for part in ("runs", "resumed", "unresumed", "dead")] == [2, 2, 0, 0]


# ── executions of a step ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("agent", "name"), [("gated", "gate"), ("batched", "batch")])
def test_show_says_how_often_a_step_was_executed(alone: Site, agent: str, name: str) -> None:
    for number in range(1, 7):
        with alone.andon.worker("counted.py") as worker:
            if number == 1:
                alone.start(agent, "often")
            alone.reaches("gate", "often", times=number)
            worker.signal(signal.SIGKILL)
            worker.ends()
    with alone.andon.worker("counted.py"):
        alone.open("often")
        alone.ends("often")
    found = alone.andon.json("show", "often")
    [step] = [one for one in found["steps"] if one["name"] == name]
    executed = alone.count(name, "often")
    # The step that the first worker was executing when it died was never recorded.
    assert (step["attempts"], step["attempts_at_most"]) == (executed - 1, executed)
    text = alone.andon("show", "often")
    assert f"  {executed - 1}-{executed}  " in text
    assert f"... {len(found['attempts']) - 5} earlier ones (--json has them all)" in text
    for one in found["steps"]:
        if one["name"] in ("first", "last"):
            assert one["attempts"] == alone.count(one["name"], "often") == 1


def test_show_counts_the_tries_of_a_step_that_fails(site: Site) -> None:
    with site.andon.worker("counted.py"):
        site.start("failing", "fails")
        site.andon("wait", "fails", code=1)
    keyed, step = site.andon.json("show", "fails")["steps"]
    assert keyed["attempts"] == keyed["attempts_at_most"] == site.count("keyed", "fails") == 1
    assert step["attempts"] == step["attempts_at_most"] == site.count("try", "fails") == 3


# ── nothing to stop ───────────────────────────────────────────────────────────────────────────


def test_a_run_that_has_ended_is_not_stopped_and_proves_nothing(site: Site) -> None:
    with site.andon.worker("counted.py"):
        site.start("gated", "over")
        site.open("over")
        site.ends("over")
    for order in ("pause", "cancel", "kill"):
        told = site.andon(order, "over")
        assert "nothing to stop: run over (gated) had succeeded at" in told
        assert "STOPPED" not in told
    receipt = site.andon.json("kill", "over")
    assert (receipt["verdict"], receipt["proved"], receipt["targets"]) == ("nothing", False, [])
    listed = site.andon("receipts")
    assert listed.count("nothing to stop") == 4
    assert "proved" not in listed
    assert site.andon.state("over") == "succeeded"


def test_a_waiting_run_is_counted_as_stopped_once(site: Site) -> None:
    with site.andon.worker("counted.py"):
        pass
    site.start("gated", "one", "two")
    assert "STOPPED, proved  pause of run one" in site.andon("pause", "one")
    again = site.andon.json("pause", "one")
    assert (again["verdict"], again["waiting"]) == ("nothing", 0)
    told = site.andon("show", again["id"])
    assert "nothing to stop: run one (gated) was already paused" in told
    assert "2 runs that no worker executed: stopped too" in site.andon("cancel", "--all")
    listed = [line.split() for line in site.andon("receipts").splitlines()[1:]]
    assert [line[line.index("run") + 4 if "run" in line else 5] for line in listed] == [
        "2",
        "0",
        "1",
    ]
    # The state of the run after the request does not belong on the receipt.
    assert "cancelled" not in site.andon("show", again["id"]).splitlines()[0]


# ── totals ────────────────────────────────────────────────────────────────────────────────────


def test_every_command_counts_the_same_runs(site: Site) -> None:
    """Two of five execute, one has ended, one waits for an hour."""
    andon = site.andon
    with andon.worker("counted.py", "--concurrency", "2", "--health-port", "0") as worker:
        site.start("gated", "done")
        site.open("done")
        site.ends("done")
        andon.start("gated", "--id", "later", "--at", "+1h")
        site.start("gated", "r-1", "r-2", "r-3", "r-4", "r-5")
        until(lambda: len(_at_gate(site)) == 2, "two that execute")
        running, waiting, finished = _at_gate(site), 3, site.count("last", "done")
        states = [row["state"] for row in andon.json("ps")]
        assert states.count("running") == len(running) == 2
        assert states.count("succeeded") == finished == 1
        assert states.count("queued") == waiting + 1
        [one] = andon.json("workers")
        assert (one["in_hand"], one["concurrency"]) == (2, 2)
        [queue] = andon.json("queues")
        found = [queue[part] for part in ("waiting", "later", "running", "returned")]
        assert found == [waiting, 1, 2, 0]
        by_name = {one["agent"]: one for one in andon.json("versions")}
        assert by_name["gated"]["runs"] == {"queued": waiting + 1, "running": 2}
        assert len(by_name["gated"]["workers"]) == 1
        top = andon.json("top")
        assert top["runs"] == {"queued": waiting + 1, "running": 2}
        assert (top["workers"], top["listed"]) == ({"serving": 1}, 7)
        andon("limit", "agent:gated", "--at-most", "2")
        assert "2 of 2 running" in andon("limit")
        numbers = _metrics(worker)
        assert (numbers["andon_runs_in_hand"], numbers["andon_free_slots"]) == (2, 0)
        assert numbers['andon_queue_depth{queue="default"}'] == waiting
        assert numbers["andon_runs_finished_total"] == finished
        worker.signal(signal.SIGKILL)


def _at_gate(site: Site) -> set[str]:
    over = {line.split()[1] for line in site.lines() if line.startswith("last")}
    return {line.split()[1] for line in site.lines() if line.startswith("gate")} - over


def _metrics(worker: Process) -> dict[str, float]:
    [line] = [line for line in worker.lines if line.startswith("health: ")]
    address = line.split()[1].replace("0.0.0.0", "127.0.0.1").replace("readyz", "metrics")
    with urllib.request.urlopen(address) as answer:
        lines = answer.read().decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (one.rpartition(" ") for one in lines if not one.startswith("#"))
    }


def test_verify_counts_steps_effects_and_values(site: Site) -> None:
    with site.andon.worker("counted.py"):
        site.start("paying", "p-1", "p-2")
        site.ends("p-1", "p-2")
    found = site.andon.json("verify")
    # Both runs got the same large value: it is stored once. Each journal begins and ends.
    entries = {run: len(site.andon.json("show", run)["steps"]) for run in ("p-1", "p-2")}
    effects = sum(line.startswith("pay ") for line in site.lines())
    assert (found["runs"], found["effects"], found["blobs"]) == (2, effects, 1) == (2, 4, 1)
    assert set(entries.values()) == {site.count("large", "p-1")} == {1}
    assert found["entries"] == sum(
        site.andon.json("show", run)["journal"]["entries"] for run in ("p-1", "p-2")
    )
    assert site.andon("verify", "p-1").startswith("verified: 1 run, ")
    assert ", 2 effects, 1 blob" in site.andon("verify", "p-1")


def test_a_drain_counts_the_workers_that_it_ends_and_how_long_they_took(site: Site) -> None:
    with site.andon.worker("counted.py") as one, site.andon.worker("counted.py") as two:
        began = time.monotonic()
        told = site.andon.json("drain", "--all")
        took = time.monotonic() - began
        assert (one.ends(), two.ends()) == (0, 0)
    assert len(told["workers"]) == 2
    assert all(0 <= line["took_seconds"] <= took for line in told["workers"])
    kinds = [event["kind"] for event in site.andon.json("events")]
    for kind in ("worker.started", "worker.asked", "worker.draining", "worker.ended"):
        assert kinds.count(kind) == 2, kind


def test_crashtest_counts_its_kills(alone: Site) -> None:
    """Each trial executes the agent twice: until the kill, and after it."""
    environ = {"CRASH_WITNESS": str(alone.folder / "crash.log")}
    told = alone.andon(
        "crashtest", "counted.py:paying", "--points", "effect", "--timeout", "1m", env=environ
    )
    begun = (alone.folder / "crash.log").read_text().splitlines()
    killed = int(told.partition("killed ")[2].split()[0])
    undisturbed = 2
    assert len(begun) == 2 * killed + undisturbed
    assert f"killed {killed} times ({killed} effect)" in told
    assert "plain run: succeeded; 1 step, 2 effects" in told
