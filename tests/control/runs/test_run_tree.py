"""Children are listed below the run that started them, and do not clutter the list of runs."""

from collections.abc import Iterator

import pytest
from tests.cli.terminal import Terminal, until

FAMILY = """
import asyncio
import andon

@andon.agent
async def inner(ctx, n):
    return (await ctx.ask(f"inner {n}?")).decision

@andon.agent
async def outer(ctx, n):
    return await ctx.child(inner, n=n)

@andon.agent
async def head(ctx, n=2):
    await asyncio.gather(*[ctx.child(outer, n=i, key=f"k{i}") for i in range(n)])
"""


@pytest.fixture
def family(andon: Terminal) -> Terminal:
    (andon.folder / "family.py").write_text(FAMILY)
    with andon.worker("family.py"):
        andon.start("head", "n=7", "--id", "many-1")
        andon.start("head", "n=2", "--id", "few-1")
        until(
            lambda: [row["state"] for row in andon.json("ps")].count("suspended") == 20,
            "everybody waits",
        )
    return andon


def test_ps_shows_children_below_their_parent_under_short_names(family: Terminal) -> None:
    lines = family("ps").splitlines()
    below = [line.split("  ")[0] for line in lines[lines.index(next(_of(lines, "few-1"))) :]]
    assert sorted(below[1:5]) == ["", "", "└ outer/k0", "└ outer/k1"]
    assert next(_of(lines, "few-1")).endswith("waits for 2 runs that it has started")


def _of(lines: list[str], run: str) -> Iterator[str]:
    return (line for line in lines if line.startswith(run))


def test_children_beyond_a_few_are_counted_with_their_questions(family: Terminal) -> None:
    lines = family("ps").splitlines()
    [line] = [line for line in lines if "more" in line]
    assert "└ 2 more, 2 asks" in line
    assert line.endswith("andon show many-1")
    assert len(family.json("ps")) == 20, "programs get them all"


def test_a_prefix_and_last_mean_the_run_and_not_its_children(family: Terminal) -> None:
    for words, run in (("many", "many-1"), ("few-1", "few-1"), ("@last", "few-1")):
        assert family.json("show", words)["id"] == run
    child = family.json("show", "few-1~@child/outer/k1")
    assert child["parent_id"] == "few-1"
    assert family.json("show", "few-1~@child/outer/k1~")["agent"] == "inner"
    said = family.error("show", "few-1~", code=4)
    assert "ambiguous id" in said
