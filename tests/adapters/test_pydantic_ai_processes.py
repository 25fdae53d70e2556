"""Processes with an agent of Pydantic AI are killed: every effect once, no request refused."""

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests import pages
from tests.adapters.buyers import FORMS, Order

from andon.testing import FakeModel, call

PROGRAM = Path(__file__).parent / "buyers.py"
WANTED: list[Any] = [call("charge", amount=10), call("mail", to="ann")]
SCRIPTS: dict[str, list[Any]] = {
    "serial": [*WANTED, "All done."],
    "parallel": [WANTED, "All done."],
}
MOMENTS = {
    "before intent": "step:stored",
    "after intent": "effect:started",
    "after effect": "effect:executed",
    "after result": "effect:confirmed",
    "before the end is written": "attempt:before-settle",
}


class Forker:
    """Forks processes that have imported everything already."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def live(self, order: Order) -> int:
        """Run one process to its end."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(order) + b"\n")
        process.stdin.flush()
        while "status" not in (said := json.loads(process.stdout.readline())):
            pass
        return int(said["status"])

    def close(self) -> None:
        self._process.communicate(timeout=30)


@pytest.fixture(scope="module")
def forker() -> Iterator[Forker]:
    found = Forker()
    yield found
    found.close()


# Each moment on both databases.
CASES = [
    (moment, tools, form)
    for (moment, tools), form in zip(
        itertools.product(MOMENTS, SCRIPTS), itertools.cycle(FORMS), strict=False
    )
]
STORES = {"serial": "sqlite_url", "parallel": "postgres_url"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("moment", "tools", "form"), CASES)
def test_a_run_continues_in_the_next_process_after_a_kill(
    forker: Forker,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    moment: str,
    tools: str,
    form: str,
) -> None:
    store_url = request.getfixturevalue(STORES[tools])
    with FakeModel(SCRIPTS[tools]) as fake:
        order = Order(url=fake.url, store=store_url, folder=str(tmp_path), form=form)
        order.faults = f"{MOMENTS[moment]}=kill"
        assert forker.live(order) == -9
        order.faults = ""
        assert forker.live(order) == 0
        answer = (tmp_path / "answer").read_bytes()
        if MOMENTS[moment] == "attempt:before-settle":
            assert forker.live(order) == 0
            assert (tmp_path / "answer").read_bytes() == answer, (
                "a finished run gives the same result again"
            )
    done = sorted(
        line.split(maxsplit=1)[1] for line in (tmp_path / "book").read_text().split("\n")[:-1]
    )
    assert done == ["charged 10", "mailed ann"]
    assert [request.status for request in fake.requests] == [200] * len(SCRIPTS[tools])
    parts = [part for message in json.loads(answer) for part in message["parts"]]
    told = sorted(part["content"] for part in parts if part["part_kind"] == "tool-return")
    assert told == ["charged 10: done", "mailed ann: done"]
    assert parts[-1]["content"] == "All done."


def test_the_example_pays_once(tmp_path: Path) -> None:
    line = [sys.executable, str(PROGRAM.parents[2] / "examples" / "pydantic_ai" / "buy.py")]
    assert subprocess.run([*line, "--crash"], cwd=tmp_path, check=False).returncode == -9
    done = subprocess.run(line, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout == "The invoice is paid.\n1 payment\n"


def test_the_diff_of_the_guide_matches_its_program() -> None:
    page = PROGRAM.parents[2] / "docs" / "guides" / "pydantic-ai.md"
    [diff] = [block.text for block in pages.blocks(page) if block.language == "diff"]
    [program] = [block.text for block in pages.blocks(page) if block.mark == "file: buy.py"]
    changed = [line[1:].strip() for line in diff.splitlines() if line.startswith("+")]
    assert 0 < len(changed) <= 5
    assert set(changed) <= {line.strip() for line in program.splitlines()}
