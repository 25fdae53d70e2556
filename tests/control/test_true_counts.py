"""Every number that is printed, compared with what was counted outside.

The agents below write a line into a file when something of them begins: the outside count. What
each command prints about the same history, as text and as JSON, must say the same.
"""

import signal
import time

import pytest
from tests.control.terminal import Process, Terminal, until

AGENTS = """
import asyncio, pathlib
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
    """What a worker that was told to go says at its end about its runs."""
    assert worker.ends() == 0
    [line] = [line for line in worker.lines if line.startswith("drained in")]
    return line.partition("): ")[2].strip()


# ── draining ──────────────────────────────────────────────────────────────────────────────────


def test_a_drain_does_not_count_what_was_stopped_or_finished_before(site: Site) -> None:
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


def test_deploys_tells_of_the_run_that_was_given_up(alone: Site) -> None:
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
    # What the first worker was executing when it died, nobody has written down.
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
