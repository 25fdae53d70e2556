"""`andon work`: the agents it serves, its start and its end."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from tests.cli.terminal import Terminal, until

from andon.runtime.requests import requests
from andon.store import open_store
from andon.store.messages.stops import Order


def marked(folder: Path) -> Path:
    """A file that a step creates when it is executing."""
    return folder / "marker"


def test_the_first_line_names_the_agents_served(andon: Terminal) -> None:
    with andon.worker("agents.py:greet", "agents.py:listener", "--concurrency", "3") as worker:
        [line] = worker.lines
        assert "agents greet 1, listener 2.1, concurrency 3" in line
        assert andon.url.split("@")[-1].removeprefix("sqlite:///") in line


def test_with_json_the_facts_are_on_stdout(local: Terminal) -> None:
    with local.process("work", "agents.py:greet", "--json", stdout=subprocess.PIPE) as worker:
        assert worker.process.stdout is not None
        facts = json.loads(worker.process.stdout.readline())
    assert facts["agents"] == [{"name": "greet", "version": "1"}]
    assert set(facts) == {"worker", "store", "agents", "concurrency"}


HANGS = """
import time, andon
andon.cleanup(time.sleep, 600)

@andon.agent
async def other(ctx): ...
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_asked_to_leave_returns_its_runs(
    andon: Terminal, number: signal.Signals
) -> None:
    marker = marked(andon.folder)
    with andon.worker("agents.py", "--grace", "1") as worker:
        run_id = andon.start("stuck", f"marker={marker}")
        until(marker.exists, "the step")
        worker.signal(number)
        assert worker.ends() == 0
    assert "finishing 1 run" in worker.text
    found = andon.json("show", run_id)
    assert found["state"] in ("queued", "stranded"), "nobody is left to take it"
    assert [attempt["ending"] for attempt in found["attempts"]] == ["cut"]
    assert [step["state"] for step in found["steps"]] == ["done"]
    assert found["interruptions"] == 0


def test_the_second_signal_does_not_wait_for_steps(local: Terminal) -> None:
    marker = marked(local.folder)
    with local.worker("agents.py", "--grace", "600") as worker:
        run_id = local.start("stuck", f"marker={marker}")
        until(marker.exists, "the step")
        worker.signal(signal.SIGTERM)
        worker.says("finishing 1 run")
        until(lambda: local.json("workers")[0]["draining_at"], "the drain")
        worker.signal(signal.SIGTERM)
        assert worker.ends() == 0
    assert [one["ending"] for one in local.json("show", run_id)["attempts"]] == ["cut"]


def test_the_third_signal_ends_the_worker_at_once(local: Terminal) -> None:
    marker = marked(local.folder)
    (local.folder / "hangs.py").write_text(HANGS)
    with local.worker("agents.py", "hangs.py", "--grace", "600") as worker:
        local.start("stuck", f"marker={marker}")
        until(marker.exists, "the step")
        for words in ("finishing 1 run", "cutting the steps off now", "once more: exiting at once"):
            worker.signal(signal.SIGTERM)
            worker.says(words)
            local("version")  # two signals at the same instant are one order
        assert worker.ends() == 128 + signal.SIGTERM


def test_two_signals_at_the_same_instant_are_one_order(local: Terminal) -> None:
    """As `timeout` sends them: to the process, and to its group."""
    marker = marked(local.folder)
    with local.worker("agents.py", "--grace", "600") as worker:
        local.start("stuck", f"marker={marker}")
        until(marker.exists, "the step")
        os.kill(worker.process.pid, signal.SIGSTOP)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
            worker.signal(number)
        worker.says("finishing 1 run")
        until(lambda: local.json("workers")[0]["draining_at"], "the drain")
        assert "cutting the steps off now" not in worker.text


def test_a_plain_step_that_does_not_end_cannot_keep_the_worker(local: Terminal) -> None:
    marker = marked(local.folder)
    with local.worker("agents.py", "--grace", "1") as worker:
        run_id = local.start("stuck", f"marker={marker}", "plain=true")
        until(marker.exists, "the step")
        worker.signal(signal.SIGTERM)
        assert worker.ends() == 0
    assert "did not end in time" in worker.text
    assert local.state(run_id) in ("queued", "stranded"), "nobody is left to take it"


@pytest.mark.parametrize("plain", ["false", "true"])
def test_a_worker_that_is_halted_says_why_and_ends_with_1(andon: Terminal, plain: str) -> None:
    marker = marked(andon.folder)
    with andon.worker("agents.py", "--grace", "600") as worker:
        run_id = andon.start("stuck", f"marker={marker}", f"plain={plain}")
        until(marker.exists, "the step")
        store = open_store(andon.url)
        order = Order(id="rcp_1", kind="halt", scope="fleet", by="ana", why="unsure")
        requests.write(store, order)
        assert worker.ends() == 1
    assert "everything is halted by ana: unsure (rcp_1)" in worker.text
    assert "back in the queue" not in worker.text
    stages = {row.target.partition(":")[0]: row.stage for row in store.targets("rcp_1")}
    row, said = store.run(run_id), "unproved" if plain == "false" else "fenced"
    store.close()
    assert row is not None
    assert row.state == "killed"
    assert stages == {"run": said, "worker": said}, "its word is no proof, and nobody looked"


def test_the_run_of_a_killed_worker_resumes_elsewhere(andon: Terminal) -> None:
    marker = marked(andon.folder)
    with andon.worker() as first:
        run_id = andon.start("stuck", f"marker={marker}")
        until(marker.exists, "the step")
        assert "after step plan" in andon("ps")
        marker.unlink()
        first.signal(signal.SIGKILL)
        first.ends()
        assert "its worker is gone, and no running worker serves stuck (version 1)" in andon("ps")
        assert "andon work FILE" in andon.run("show", run_id).stderr
        with andon.worker():
            until(marker.exists, "the step, elsewhere")
            found = andon.json("show", run_id)
    assert found["attempt"] == 2
    assert [attempt["ending"] for attempt in found["attempts"]] == ["interrupted", None]
    assert found["steps"][0]["attempts"] == 1, "a finished step is not executed again"


def test_verbose_has_a_line_for_each_settled_run(local: Terminal) -> None:
    with local.worker("agents.py", "-v") as worker:
        run_id = local.start("greet")
        worker.says(f"run {run_id}: succeeded")


def test_a_file_imports_its_neighbours_from_anywhere(local: Terminal) -> None:
    inside = local.folder / "inside"
    inside.mkdir()
    (inside / "words.py").write_text("WORD = 'neighbour'\n")
    (inside / "mine.py").write_text(
        "import andon, sys, words\n"
        "assert sys.modules[__name__].words is words and __name__ == 'mine'\n"
        "@andon.agent\nasync def neighbour(ctx): return words.WORD\n"
    )
    with local.worker("inside/mine.py"):
        run_id = local.start("neighbour")
        assert local("wait", run_id, "--timeout", "30") == '"neighbour"\n'


def test_a_module_is_served_by_its_name(local: Terminal) -> None:
    package = local.folder / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "inner.py").write_text("import andon\n@andon.agent\nasync def deep(ctx): ...\n")
    with local.worker("package.inner") as worker:
        assert "agents deep 1" in worker.text


@pytest.mark.parametrize("name", ["queue", "json", "secrets", "click"])
def test_an_agents_file_named_like_a_library_does_no_harm(local: Terminal, name: str) -> None:
    local.folder.joinpath("inside").mkdir()
    local.folder.joinpath(f"inside/{name}.py").write_text(
        "import andon\n@andon.agent\nasync def unlucky(ctx): return 1\n"
    )
    with local.worker(f"inside/{name}.py"):
        run_id = local.start("unlucky")
        assert local("wait", run_id, "--timeout", "30") == "1\n"


def test_one_agent_is_chosen_by_variable_or_by_name(local: Terminal) -> None:
    (local.folder / "two.py").write_text(
        "import andon\n"
        "@andon.agent(name='x.one')\nasync def first(ctx): ...\n"
        "@andon.agent\nasync def second(ctx): ...\n"
    )
    for target in ("two.py:first", "two.py:x.one", "two:first"):
        with local.worker(target) as worker:
            assert "agents x.one 1," in worker.text
    message = local.error("work", "two.py:third", code=4)
    assert "no agent 'third'" in message
    assert "second, x.one" in message


BROKEN = {
    "syntax": ("def f(:\n", "SyntaxError: invalid syntax", "def f(:"),
    "name": ("import andon\n\nx = nowhere\n", "NameError: name 'nowhere'", "x = nowhere"),
    "import": ("import no_such_library\n", "pip install no_such_library", "import no_such_library"),
    "exit": ("import sys\nsys.exit(3)\n", "if __name__ == '__main__':", "sys.exit(3)"),
    "decorator": (
        "import andon\n@andon.agent\nasync def f(): ...\n",
        "(ctx, …)",
        "line 2: agent 'f'",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_shown_with_its_own_frames(local: Terminal, case: str) -> None:
    text, message, line = BROKEN[case]
    (local.folder / "broken.py").write_text(text)
    done = local.run("work", "broken.py", code=1)
    assert message in done.stderr
    assert line in done.stderr
    assert "broken.py could not be imported" in done.stderr.splitlines()[-1]
    assert "importlib" not in done.stderr
    assert "andon/control" not in done.stderr
    assert not Path(local.url.removeprefix("sqlite:///")).exists()


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nowhere.py", "there is no such file"),
        ("nowhere", "there is no module"),
        ("no.where", "there is no module"),
        (".", "there is no module"),
        ("./", "found a folder"),
        ("agents.py:", "expected FILE or MODULE"),
        (":greet", "expected FILE or MODULE"),
        ("notes.txt", "ending in .py"),
        ("empty.py", "found none"),
        ("twice.py", "two agents are called 'same'"),
    ],
)
def test_an_agent_that_cannot_be_served_is_refused(
    local: Terminal, target: str, words: str
) -> None:
    (local.folder / "notes.txt").touch()
    (local.folder / "empty.py").write_text("def agent(ctx): ...\n")
    (local.folder / "twice.py").write_text(
        "import andon\n"
        "@andon.agent(name='same')\nasync def one(ctx): ...\n"
        "@andon.agent(name='same')\nasync def two(ctx): ...\n"
    )
    assert words in local.error("work", target, code=2)


def test_a_changed_agent_needs_a_new_version(andon: Terminal) -> None:
    with andon.worker("agents.py:greet"):
        pass
    (andon.folder / "other.py").write_text(
        "import andon\n@andon.agent\nasync def greet(ctx, x): ...\n"
    )
    assert "new version" in andon.error("work", "other.py", code=1)


def test_two_workers_started_at_the_same_instant_make_one_store(andon: Terminal) -> None:
    with andon.process("work", "agents.py") as one, andon.process("work", "agents.py") as two:
        one.says("is ready")
        two.says("is ready")
        run_id = andon.start("greet")
        assert andon("wait", run_id, "--timeout", "30") == '"hello world"\n'


def test_invalid_numbers_are_refused(local: Terminal) -> None:
    assert "more than 0" in local.error("work", "agents.py", "--concurrency", "0", code=2)
    assert "a whole number" in local.error("work", "agents.py", "--concurrency", "many", code=2)
    assert "more than 0" in local.error("work", "agents.py", "--lease", "0", code=2)
    assert "expected 10s" in local.error("work", "agents.py", "--lease", "-1", code=2)
