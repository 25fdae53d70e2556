"""docs/kill-matrix.md: the outcome of every cell, with andon and without."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from verify import report
from verify.cells import THEN, TOOLS, Found
from verify.drivers.shop import MOMENTS

commit = report.commit

ABOUT = """\
An agent with two tools is killed with SIGKILL around one of them, and goes on in another process. Real libraries talk to a server on this machine that refuses the same
requests as the providers ([`andon.testing.FakeModel`](guides/testing-your-agent.md)). A cell is a moment × the first or the second of two tools, or the second of two at once × *resume* or a *new message* of the person instead × the wire
format × the store. It is judged from outside: by a file that the tools write to and fsync, by the 400s of the server, and by whether the last answer has the receipts of the actions that really happened."""  # noqa: E501
MEANT = """\
**Doubled**: effects that happened a second time. **In doubt**: a person was asked about the effect, and answered by the tools' file: afterwards it is there once. In a framework, after a new message, the model is told instead that the outcome is unknown, and says so: the effect is not repeated, and after a kill between intent and effect it stays undone. With andon the first run also continues after a new message. **400**: requests that the provider refuses.
**Wrong**: cells whose last answer is missing, or does not say what happened."""  # noqa: E501
KILLED = """\
**before intent**: the model has answered, and nothing is written about the tool. **after intent**: andon has written that the tool begins (without andon: the same moment, nothing is written). **after effect**: the tool
has acted, and not returned. **after result**: it has returned; with andon, its result is durable. **before checkpoint**: the framework, or the program, is about to save. With parallel tools the other
one is done by then, and saved if the program saves each result; before the intent, neither has begun."""  # noqa: E501
SAID = {
    "loop": "The loop without a framework",
    "loop_by_message": "The same loop, saved after every message",
    "loop_by_program": "The same loop, with tools that act through programs",
    "langgraph": "LangGraph",
    "openai_agents": "OpenAI Agents",
    "pydantic_ai": "Pydantic AI",
}
COLUMNS = ("", "cells", "doubled", "in doubt", "400", "wrong", "all well")


def page(found: Sequence[Found], drivers: dict[str, Any], commit: str, seconds: float) -> str:
    made = f"Written by `make matrix` on {datetime.now(UTC):%Y-%m-%d}, from commit {commit}"
    parts = [
        "# Killed at every moment, with andon and without",
        "",
        f"{made}, in {seconds / 60:.0f} minutes.",
        "",
        ABOUT,
        "",
        table(found),
        "",
        MEANT,
        "",
    ]
    for name, driver in drivers.items():
        parts += _of_driver(name, driver, [one for one in found if one.cell.driver == name])
    parts += ["## The moments", "", KILLED, "", *_wrong(found)]
    parts += ["## Again", "", AGAIN]
    return "\n".join(parts).rstrip() + "\n"


AGAIN = """\
`make matrix` runs all of it; `python verify/matrix.py --only langgraph --verbose` prints the outcome of each cell of one framework. A part of it is in `make test`
(`tests/verify/test_matrix.py`) and in `make verify`, whose canaries break the intent, the plan and the ledger to see it turn red."""  # noqa: E501


def table(found: Sequence[Found]) -> str:
    """A row for each driver and side."""
    rows = [_cells(COLUMNS), "|---|" + "--:|" * (len(COLUMNS) - 1)]
    for name, said in SAID.items():
        for andon in (False, True):
            mine = [one for one in found if (one.cell.driver, one.cell.andon) == (name, andon)]
            if mine:
                side = f"**{said}, with andon**" if andon else said
                rows.append(_cells([side, *_numbers(mine)]))
    return "\n".join(rows)


def _numbers(found: Sequence[Found]) -> list[str]:
    well = sum(not one.wrong for one in found)
    return [
        f"{len(found)}",
        f"{sum(one.doubled for one in found)}",
        f"{sum(one.asked for one in found)}",
        f"{sum(one.refused for one in found)}",
        f"{sum(bool(one.answer) for one in found)}",
        "all" if well == len(found) else f"{well}",
    ]


def _of_driver(name: str, driver: Any, found: Sequence[Found]) -> list[str]:
    versions = ", ".join(f"{one} {version(one)}" for one in driver.PACKAGES)
    forms = ", ".join(driver.FORMS)
    lines = [f"## {SAID[name]}", "", f"{versions}; {forms}.", ""]
    sides = [andon for andon in (False, True) if any(one.cell.andon is andon for one in found)]
    head = ["killed", "tools", "then"]
    head += ["with andon" if andon else "without" for andon in sides]
    lines += [_cells(head), "|---" * len(head) + "|"]
    for moment in MOMENTS:
        for tools in TOOLS:
            for then in THEN:
                where = (moment, tools, then)
                here = [one for one in found if _place(one) == where]
                said = [_said([one for one in here if one.cell.andon is andon]) for andon in sides]
                lines.append(_cells([*where, *said]))
    return [*lines, ""]


def _place(one: Found) -> tuple[str, str, str]:
    return one.cell.moment, one.cell.tools, one.cell.then


def _said(found: Sequence[Found]) -> str:
    """The outcome of each format and store at one moment."""
    said = []
    for what, count in (
        ("doubled", sum(one.doubled for one in found)),
        ("400", sum(one.refused for one in found)),
        ("in doubt", sum(one.asked for one in found)),
        ("wrong", sum(bool(one.answer) for one in found)),
    ):
        if count:
            said.append(f"{count} {what}")
    well = sum(not one.wrong for one in found)
    return f"{well} of {len(found)} well" + (f": {', '.join(said)}" if said else "")


def _wrong(found: Sequence[Found]) -> list[str]:
    wrong = [what for one in found if one.cell.andon for what in one.wrong]
    return ["## RED", "", *(f"- {what}" for what in wrong), ""] if wrong else []


def _cells(found: Iterable[str]) -> str:
    return f"| {' | '.join(found)} |"
