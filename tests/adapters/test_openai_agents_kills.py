"""A program on the OpenAI Agents SDK is killed at every moment, and goes on: nothing acts twice."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents")

from andon.testing import FakeModel, call

CHILD = Path(__file__).with_name("shop.py")
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
        """What it prints; None if it was killed."""
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
        lines = self.world.read_text().splitlines() if self.world.exists() else []
        return sorted(line.partition(" ")[2] for line in lines)

    def check(self, turns: int) -> None:
        """Everything was done once, and the model was never asked what it would refuse."""
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


MOMENTS = {
    "before the intent": "step:stored=kill",
    "after the intent": "effect:started=kill",
    "after the effect": "effect:executed=kill",
    "after the result": "effect:confirmed=kill",
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("form", ["serial", "parallel chat", "serial streamed"])
def test_killed_and_called_again_it_goes_on(shops: Any, moment: str, form: str) -> None:
    script = PARALLEL if "parallel" in form else SERIAL
    environ = {"STREAM": "1"} if "streamed" in form else {}
    shop = shops(script, FORM="chat" if "chat" in form else "responses", **environ)
    assert shop.run(ANDON_FAULTS=MOMENTS[moment]) is None
    assert shop.run() == {"output": "All done.", "waiting": []}
    shop.check(len(script))
    assert shop.run() == {"output": "All done.", "waiting": []}  # the recorded result
    shop.check(len(script))
