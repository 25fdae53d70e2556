"""A program on the OpenAI Agents SDK is killed at each moment and continues: no tool acts twice."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from andon.runtime.requests import requests
from andon.testing import FakeModel, call

CHILD = Path(__file__).with_name("openai_shop.py")
EXAMPLE = Path(__file__).parents[2] / "examples/openai_agents/trip.py"
SERIAL: list[Any] = [call("charge", eur=10), call("mail", to="ann"), "All done."]
PARALLEL: list[Any] = [[call("charge", eur=10), call("mail", to="ann")], "All done."]
DONE = ["charged 10", "mailed ann"]


class Shop:
    """The program, the world it acts in, and the model it asks."""

    def __init__(
        self, program: Any, folder: Path, store_url: str, script: Any, **environ: str
    ) -> None:
        self.program, self.world, self.model = program, folder / "world", FakeModel(script)
        self.environ = {
            "ANDON_STORE": store_url,
            "ANDON_HOME": os.environ["ANDON_HOME"],
            "WORLD": str(self.world),
            "MODEL": self.model.url,
            "FORM": "responses",
            **environ,
        }

    def run(self, message: str = "buy", run_id: str = "o-1", **environ: str) -> Any:
        """The output of the program; None if it was killed."""
        told = {"argv": [run_id, message], "environ": {**self.environ, **environ}}
        print(json.dumps(told), file=self.program.stdin, flush=True)
        said = ""
        while not (line := self.program.stdout.readline()).startswith("ended "):
            assert line, "the program is gone"
            said += line
        code = int(line.split()[1])
        if code == -signal.SIGKILL:
            return None
        assert code == 0, said
        return json.loads(said.splitlines()[-1])

    @property
    def done(self) -> list[str]:
        return sorted(line.partition(" ")[2] for line in self.lines)

    @property
    def lines(self) -> list[str]:
        return self.world.read_text().splitlines() if self.world.exists() else []

    def check(self, turns: int) -> None:
        """Every act happened once, and the model never got a request that it refuses."""
        assert self.done == DONE
        assert [one.error for one in self.model.requests if one.status != 200] == []
        asked = [one.turn for one in self.model.requests]
        assert asked == list(range(turns))


@pytest.fixture(scope="session")
def program() -> Iterator[Any]:
    line = [sys.executable, "-W", "error", str(CHILD)]
    with subprocess.Popen(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def shops(program: Any, tmp_path: Path, store_url: str) -> Iterator[Any]:
    opened: list[Shop] = []

    def opening(script: Any, **environ: str) -> Shop:
        shop = Shop(program, tmp_path, store_url, script, **environ)
        shop.model.__enter__()
        opened.append(shop)
        return shop

    yield opening
    for shop in opened:
        shop.model.__exit__(None, None, None)


TOLD = {
    "before the intent": "Not executed",
    "after the intent": "Outcome unknown",
    "after the effect": "Outcome unknown",
    "after the result": "charged 10: done",
}
MOMENTS = {
    "before the intent": "step:stored=kill",
    "after the intent": "effect:started=kill",
    "after the effect": "effect:executed=kill",
    "after the result": "effect:confirmed=kill",
}


def on(store: str, *cases: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    return [(store, *case) for case in cases]


def stores(names: str, *cases: list[tuple[Any, ...]]) -> pytest.MarkDecorator:
    """The whole matrix on SQLite, and a part of it on PostgreSQL: the code is the same."""
    every = [case for part in cases for case in part]
    return pytest.mark.parametrize(f"store_url, {names}", every, indirect=["store_url"])


@pytest.mark.sampled(3)
@stores(
    "form, moment",
    on("sqlite", *itertools.product(["serial", "parallel chat"], MOMENTS)),
    on("sqlite", *itertools.product(["serial streamed"], list(MOMENTS)[1::2])),
    on("postgres", *itertools.product(["serial", "parallel chat streamed"], list(MOMENTS)[1:3])),
)
def test_a_killed_program_continues_when_it_is_called_again(
    shops: Any, form: str, moment: str
) -> None:
    script = PARALLEL if "parallel" in form else SERIAL
    environ = {"STREAM": "1"} if "streamed" in form else {}
    shop = shops(script, FORM="chat" if "chat" in form else "responses", **environ)
    assert shop.run(ANDON_FAULTS=MOMENTS[moment]) is None
    assert shop.run() == {"output": "All done.", "waiting": []}
    shop.check(len(script))
    assert shop.run() == {"output": "All done.", "waiting": []}  # the recorded result
    shop.check(len(script))


def by_instructions(**scripts: Any) -> Any:
    """A model that follows a script for each agent, known by its instructions."""
    return lambda request: scripts[request.body["instructions"].strip(".").lower()][request.turn]


AGENTS: dict[str, Any] = {
    "handoff": [call("transfer_to_shop"), *SERIAL],
    "tool": by_instructions(
        boss=[[call("shop", input="sell"), call("mail", to="ann")], "All done."],
        sell=[call("charge", eur=10), "Sold."],
    ),
    "guard": by_instructions(guard=["Harmless."], sell=SERIAL),
    "mcp": PARALLEL,
}


@pytest.mark.sampled(3)
@stores(
    "kind, moment",
    on("sqlite", *itertools.product(AGENTS, ["effect:confirmed=kill", "step:stored=kill@2"])),
    on("postgres", ("tool", "step:stored=kill@2")),
)
def test_agents_inside_agents_continue_after_a_kill(shops: Any, kind: str, moment: str) -> None:
    shop = shops(AGENTS[kind], AGENT=kind)
    assert shop.run(ANDON_FAULTS=moment) is None
    assert shop.run() == {"output": "All done.", "waiting": []}
    assert shop.done == DONE
    asked = [(one.body["instructions"], one.turn) for one in shop.model.requests]
    assert len(asked) == len(set(asked))  # nothing was requested twice


@pytest.mark.sampled(3)
@stores(
    "kind, nth",
    on("sqlite", *itertools.product(["SESSION"], range(1, 7))),
    on("sqlite", *itertools.product(["SQLITE"], (1, 3, 6))),
    on("postgres", ("SESSION", 3)),
)
def test_a_conversation_contains_every_item_once_after_a_kill(
    shops: Any, tmp_path: Path, kind: str, nth: int
) -> None:
    where = "s" if kind == "SESSION" else str(tmp_path / "sessions.db")
    shop = shops([*SERIAL, "You are welcome."], **{kind: where})
    assert shop.run(ANDON_FAULTS=f"effect:executed=kill@{nth}") is None
    assert shop.run()["output"] == "All done."
    assert shop.run("Thanks.", "o-2")["output"] == "You are welcome."
    shop.check(4)
    shown = [one.get("type") or one["role"] for one in shop.model.requests[-1].body["input"]]
    call_and_result = ["function_call", "function_call_output"]
    assert shown == ["user", *call_and_result, *call_and_result, "message", "user"]


@pytest.mark.sampled(3)
@stores(
    "form, moment",
    on("sqlite", *itertools.product(["serial", "parallel"], MOMENTS)),
    on("postgres", ("serial", "after the effect")),
)
def test_a_new_message_after_a_kill_shows_the_results_of_finished_calls(
    shops: Any, store: Any, form: str, moment: str
) -> None:
    shop = shops([(SERIAL if form == "serial" else PARALLEL)[0], "I see."], SESSION="s")
    point = MOMENTS[moment].replace("kill", "kill@2")  # the first is about the conversation
    assert shop.run(ANDON_FAULTS=point) is None
    before = shop.done
    assert shop.run("Are you there?", "o-2")["output"] == "I see."
    assert shop.done == before
    assert [one.error for one in shop.model.requests if one.status != 200] == []
    shown = shop.model.requests[-1].body["input"]
    results = {one["call_id"]: one["output"] for one in shown if "output" in one}
    assert len(results) == len([one for one in shown if one.get("type") == "function_call"])
    for key, text in results.items():
        acted = any(line.startswith(key) for line in shop.lines)
        assert not (acted and "not executed" in text), (key, text)
        assert not (not acted and "done" in text), (key, text)
    if form == "serial":
        assert TOLD[moment] in next(iter(results.values()))
    assert requests.find(store, "o-1").state == "killed"  # no worker continues it as well


@stores("stream", on("sqlite", ("",), ("STREAM",)), on("postgres", ("",)))
def test_an_approved_call_acts_once(shops: Any, tmp_path: Path, stream: str) -> None:
    streamed = {stream: "1"} if stream else {}
    shop = shops(SERIAL, STATE=str(tmp_path / "state"), APPROVE="yes", **streamed)
    assert shop.run() == {"output": None, "waiting": ["charge"]}
    assert shop.run(ANDON_FAULTS="effect:executed=kill") is None
    assert shop.run() == {"output": "All done.", "waiting": []}
    assert shop.run() == {"output": "All done.", "waiting": []}
    shop.check(3)


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_rejected_call_does_not_act(shops: Any, tmp_path: Path) -> None:
    shop = shops(SERIAL, STATE=str(tmp_path / "state"), APPROVE="no")
    assert shop.run() == {"output": None, "waiting": ["charge"]}
    assert shop.run() == {"output": "All done.", "waiting": []}
    assert shop.done == ["mailed ann"]


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_person_approves_a_call_through_andon(shops: Any, store: Any) -> None:
    shop = shops(SERIAL, APPROVE="yes")
    assert shop.run() == {"output": None, "waiting": ["charge"]}
    assert requests.find(store, "o-1").state == "suspended"
    requests.answer(store, "o-1", "approve", by="ann")
    assert shop.run() == {"output": "All done.", "waiting": []}
    shop.check(3)


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_call_without_a_probe_is_put_before_a_person(shops: Any, store: Any) -> None:
    shop = shops([call("book", what="a flight"), "All done."])
    assert shop.run(ANDON_FAULTS="effect:executed=kill") is None
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(shop.run)
        while not store.asks("o-1"):
            time.sleep(0.01)
        requests.answer(store, "o-1", "happened", "booked a flight: done")
        assert running.result() == {"output": "All done.", "waiting": []}
    assert shop.done == ["booked a flight"]


def test_the_example_books_once() -> None:
    line = [sys.executable, str(EXAMPLE)]
    printed = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True).stdout
    assert printed.splitlines()[0] == "The first process ended with -9."
    assert printed.splitlines()[1] == "Booking: A room and a train to Oslo."
    assert printed.splitlines()[-1] == "hotel in Oslo, train to Oslo"
