"""Lists that are cut for a terminal: the rows and the number of those left out make the whole.

As in test_true_counts.py, the agents write a line for everything that they do: the outside count.
"""

import re
from pathlib import Path

import pytest
from tests.cli.terminal import Terminal, until
from tests.control.stop.test_reauthorization import SAID
from tests.control.stop_scenario import StopScenario

from andon.store import open_store

STEPS, EFFECTS, CHILDREN, IN_HAND = 23, 22, 24, 26
AGENTS = f"""
import andon

def witness(what):
    with open("witness.log", "a") as file:
        file.write(what + "\\n")

async def give_back(result, number, *, key):
    witness("undo")

@andon.effect_of(kind="compensatable", undo=give_back)
async def pay(number, *, key):
    witness("pay")

@andon.agent
async def child(ctx):
    witness("child")
    await ctx.event("never")

@andon.agent
async def parent(ctx):
    for number in range({STEPS}):
        await ctx.step(lambda: witness("step"), name="step")
    for number in range({EFFECTS}):
        await ctx.effect(pay, number, key=str(number))
    for number in range({CHILDREN}):
        await ctx.child(child, wait=False)
    witness("waits")
    await ctx.event("never")
"""


@pytest.fixture
def site(andon: Terminal) -> Terminal:
    (andon.folder / "agents.py").write_text(AGENTS)
    return andon


def witnessed(folder: Path, what: str) -> int:
    file = folder / "witness.log"
    return file.read_text().splitlines().count(what) if file.exists() else 0


def listed(text: str, heading: str, row: str) -> int:
    """Count the rows of one list on a page, with those that the page says it left out."""
    [_, found] = re.split(rf"^{heading}.*$", text, flags=re.MULTILINE)
    part = found.split("\n\n")[0]
    left = re.findall(r"\.\.\. ([\d,]+) (?:more|earlier)", part)
    return len(re.findall(row, part, re.MULTILINE)) + sum(int(one) for one in left)


def test_rows_and_those_left_out_make_the_whole(site: Terminal) -> None:
    with site.worker():
        site.start("parent", "--id", "r")
        until(lambda: witnessed(site.folder, "waits") == 1, "the end of the work")
        until(lambda: witnessed(site.folder, "child") == CHILDREN, "the children")
        until(
            lambda: len(site.json("ps", "--state", "suspended")) > CHILDREN, "all to be suspended"
        )
        page = site("show", "r")
        assert listed(page, "steps:", r"^  step ") == witnessed(site.folder, "step") == STEPS
        assert listed(page, "effects:", r"^  pay ") == witnessed(site.folder, "pay") == EFFECTS
        assert listed(page, "children", r"^  \S+ +child ") == CHILDREN
        assert f"steps: {STEPS} done" in page
        assert f"effects: {EFFECTS} confirmed" in page
        assert len(site.json("ps", "--obligations")) == EFFECTS
        receipt = site("pause", "--agent", "child")
        assert f"{CHILDREN} runs that no worker executed: stopped too" in receipt
        site("cancel", "r")
        until(lambda: site.state("r") == "cancelled", "the run to be cancelled")
    assert witnessed(site.folder, "undo") == EFFECTS
    assert site.json("ps", "--obligations") == []


def test_reauthorize_counts_what_stays_stopped_and_what_is_in_doubt(local: Terminal) -> None:
    store = open_store(local.url)
    scenario = StopScenario(store)
    for number in range(IN_HAND):
        scenario.effect(scenario.begin(f"r{number:02}", f"w{number}"), "started")
    scenario.start("waits")
    scenario.order("halt")
    store.close()
    [row] = [line for line in local("receipts").splitlines() if line.startswith("rcp_haltfleet")]
    assert f" {2 * IN_HAND} " in row, "its runs and their workers"
    text = local("reauthorize", *SAID)
    assert f"{IN_HAND + 1} runs stopped until resumed: agent {IN_HAND + 1}" in text
    shown = re.findall(r"in doubt  effect pay k of run r\d\d", text)
    [left] = re.findall(r"in doubt  and (\d+) more", text)
    assert len(shown) + int(left) == IN_HAND
