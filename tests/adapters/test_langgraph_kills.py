"""LangChain agents are killed at every point: no tool acts twice, no conversation is refused."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.shop import Order, World
from tests.runtime.conftest import empty

from andon.store import open_store
from andon.testing import FakeModel, call
from andon.transcript import NOT_EXECUTED, UNKNOWN

PROGRAM = Path(__file__).parent / "shop.py"
SERIAL: list[Any] = [call("charge", amount=5), "All done.", "As I said."]
PARALLEL: list[Any] = [[call("charge", amount=5), call("charge", amount=6)], *SERIAL[1:]]
POINTS = [
    ("step:before", "model"),
    ("step:executed", "model"),
    ("step:stored", "model"),  # before LangGraph has saved the answer
    ("effect:started", "charge"),
    ("effect:executed", "charge"),
    ("effect:confirmed", "charge"),  # before LangGraph has saved the result
    ("attempt:before-settle", ""),
]

Play = Callable[..., int]


@pytest.fixture(scope="module")
def forker() -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The database that the test's parameters name."""
    if request.node.callspec.params["store"] == "sqlite":
        yield request.getfixturevalue("sqlite_url")
    else:
        found = request.getfixturevalue("shared_database")
        yield found
        empty(found)


@pytest.fixture
def play(forker: "subprocess.Popen[str]", url: str, tmp_path: Path) -> Play:
    """A function that executes a run in a process of its own and returns how that ended."""

    def play(fake: FakeModel, run: str, **more: Any) -> int:
        order = Order(url=url, run=run, folder=str(tmp_path), model=fake.url, **more)
        assert forker.stdin is not None
        assert forker.stdout is not None
        forker.stdin.write(json.dumps({f: getattr(order, f) for f in order.__struct_fields__}))
        forker.stdin.write("\n")
        forker.stdin.flush()
        begun = json.loads(forker.stdout.readline())
        ended = json.loads(forker.stdout.readline())
        assert ended["pid"] == begun["pid"]
        return int(ended["status"])

    return play


def all_accepted(fake: FakeModel) -> bool:
    return all(request.status == 200 for request in fake.requests)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dies", POINTS, ids="-".join)
@pytest.mark.parametrize(
    ("way", "form", "script", "store"),
    [("invoke", "chat", SERIAL, "sqlite"), ("ainvoke", "anthropic", PARALLEL, "postgres")],
    ids=["invoke", "ainvoke-parallel"],
)
def test_a_killed_run_continues_where_it_was_killed(
    play: Play,
    tmp_path: Path,
    dies: tuple[str, str],
    way: str,
    form: str,
    script: list[Any],
    store: str,
) -> None:
    with FakeModel(script) as fake:
        assert play(fake, "r", way=way, form=form, dies=dies) == -9
        assert play(fake, "r", way=way, form=form) == 0
        assert all_accepted(fake)
        # An answer that was stored is not requested again.
        assert len(fake.requests) == (3 if dies == ("step:executed", "model") else 2)
    wanted = ["charged 5"] if script is SERIAL else ["charged 5", "charged 6"]
    assert sorted(World(tmp_path).all) == wanted
    assert (tmp_path / "answer").read_text() == "All done."


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dies", POINTS[2:6], ids="-".join)
@pytest.mark.parametrize(
    ("way", "form", "store"),
    [("invoke", "anthropic", "postgres"), ("ainvoke", "responses", "sqlite")],
    ids=["invoke", "ainvoke"],
)
def test_a_new_message_on_the_thread_of_a_killed_run_is_accepted(
    play: Play, url: str, tmp_path: Path, dies: tuple[str, str], way: str, form: str, store: str
) -> None:
    with FakeModel(SERIAL) as fake:
        assert play(fake, "r1", way=way, form=form, dies=dies) == -9
        assert play(fake, "r2", way=way, form=form, said="and now?") == 0
        assert all_accepted(fake)
        told = json.dumps(fake.requests[-1].body)
    acted = dies[0] != "effect:started"
    assert World(tmp_path).all == (["charged 5"] if acted else [])
    known = dies[0] in ("step:stored", "effect:confirmed")  # the first: LangGraph never saw it
    assert ("charged 5" in told) == known
    assert (UNKNOWN[:60] in told) == (not known)  # its intent was written, so it may have happened
    assert NOT_EXECUTED not in told
    opened = open_store(url)
    assert opened.run("r1").state == "killed"  # no worker continues it beside the new one
    opened.close()


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("way", "store"), [("invoke", "sqlite"), ("ainvoke", "postgres")])
@pytest.mark.parametrize("moment", ["effect:started", "effect:executed", "effect:confirmed"])
def test_an_approved_tool_is_neither_called_nor_asked_about_again(
    play: Play, url: str, tmp_path: Path, way: str, store: str, moment: str
) -> None:
    with FakeModel(SERIAL) as fake:
        order: dict[str, Any] = {"way": way, "approve": ("charge",)}
        assert play(fake, "r", **order, dies=(moment, "charge")) == -9
        assert play(fake, "r", **order) == 0
        assert all_accepted(fake)
    assert World(tmp_path).all == ["charged 5"]
    assert (tmp_path / "answer").read_text() == "All done."
    opened = open_store(url)
    assert len(opened.asks("r", open_only=False)) == 1
    opened.close()


@pytest.mark.parametrize(("way", "store"), [("stream", "sqlite"), ("astream", "postgres")])
def test_a_killed_streaming_run_continues_where_it_was_killed(
    play: Play, tmp_path: Path, way: str, store: str
) -> None:
    with FakeModel(SERIAL) as fake:
        assert play(fake, "r", way=way, dies=("effect:executed", "charge")) == -9
        assert play(fake, "r", way=way) == 0
        assert all_accepted(fake)
    assert World(tmp_path).all == ["charged 5"]
    assert (tmp_path / "answer").read_text() == "All done."
