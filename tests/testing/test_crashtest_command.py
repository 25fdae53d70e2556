"""`andon crashtest`: exit codes, JSON, JUnit and printed report; it leaves nothing behind."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from tests.testing import crash_agents

from andon.cli import app, progress
from andon.cli.views import crashtest_view
from andon.testing.crash.judge import Finding
from andon.testing.crash.report import Tried

AGENTS = crash_agents.__file__


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = app.run(["crashtest", *words])
    printed, said = capsys.readouterr()
    return code, printed, said


def test_findings_are_printed_and_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    junit = tmp_path / "found.xml"
    code, printed, said = run(
        capsys, f"{AGENTS}:liar", "--points", "effect:executed", "--junit", str(junit)
    )
    assert code == 1
    assert "trust   probeable   1        2      TWICE" in printed
    assert "   why  its probe said did_not_happen for key 't' after it had returned" in printed
    assert "killed 2 times (2 effect), 2 findings, 0 times asked" in printed
    assert "NOT crash-safe" in printed
    assert "killed at effect:executed trust: effect 'trust' happened more often" in said
    suite = ElementTree.parse(junit).getroot()[0]
    assert (suite.attrib["tests"], suite.attrib["failures"]) == ("2", "2")
    assert [case.attrib["name"] for case in suite] == [
        "effect:executed trust",
        "effect:executed forget",
    ]
    assert "probe" in (suite[0][0].text or "")


def test_an_effect_that_is_lost_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed, _ = run(capsys, f"{AGENTS}:dreamer", "--points", "effect:started")
    assert code == 1
    assert "pay     probeable  1        1      NEVER (1)" in printed
    assert "effect 'pay' did not happen, and the run went on as if it had" in printed


def test_a_correct_agent_exits_0_and_json_is_one_document(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, printed, said = run(
        capsys, f"{AGENTS}:plain", "name=z", "--points", "inside", "--json", "--deep", "--most", "1"
    )
    assert (code, said) == (0, "")
    found = json.loads(printed)
    assert (found["clean"], found["result"], found["findings"]) == (True, "Z", [])
    assert found["tried"][0]["at"] == "inside pay, at its await 1"
    assert len(found["untried"]) == 1


def test_a_question_to_a_person_is_a_finding_only_with_strict(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    agent = tmp_path / "asks.py"
    agent.write_text(
        "import andon\ndef act(): pass\n@andon.agent\nasync def asks(ctx): await ctx.effect(act)\n"
    )
    words = (f"{agent}", "--points", "effect:started")
    code, printed, _ = run(capsys, *words)
    assert code == 0
    assert "a person is asked (1)" in printed
    assert "asked: after a kill in effect 'act' a person would be asked" in printed
    assert "clean, but for questions to people" in printed
    assert run(capsys, *words, "--strict")[0] == 1


@pytest.mark.parametrize("early", [True, False], ids=["by its import", "by its code"])
def test_a_store_that_the_agent_opens_by_itself_is_that_of_the_test(
    tmp_path: Path, early: bool
) -> None:
    agent, real = tmp_path / "opens.py", tmp_path / "real.db"
    agent.write_text(
        "import andon, threading\n"
        "from andon.settings import load\n"
        "from andon.store import open_store\nfrom andon.store.messages import rows\n"
        f"opened = open_store(load({{}}).store) if {early} else None\n"
        "if opened:\n"
        "    threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "def look():\n"
        "    store = opened or open_store(load({}).store)\n"
        "    return [row.id for row in store.runs(rows.Filter())]\n"
        "@andon.agent\n"
        "async def asks(ctx): return await ctx.step(look) == [ctx.run_id]\n"
    )
    words = ["andon", "crashtest", str(agent), "--points", "step:executed", "--json"]
    environ = {**os.environ, "ANDON_STORE": f"sqlite:///{real}"}
    done = subprocess.run([sys.executable, "-m", *words], env=environ, stdout=-1, check=True)
    assert json.loads(done.stdout)["result"] is True
    assert not real.exists()


STRANGE = 'a/b:c#1 \x01\x85\ufffe\u202e]]>"<&'


def test_names_and_keys_may_have_any_characters(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    agent, junit = tmp_path / "strange.py", tmp_path / "found.xml"
    agent.write_text(
        "import andon\ndef act(): pass\n@andon.agent\n"
        f"async def asks(ctx): await ctx.effect(act, name={STRANGE!r}, key={STRANGE!r})\n"
    )
    words = (str(agent), "--points", "effect:started", "--strict", "--json", "--junit", str(junit))
    code, printed, _ = run(capsys, *words)
    assert code == 1
    [effect] = json.loads(printed)["effects"]
    assert (effect["name"], effect["asked"]) == (STRANGE, 1)
    [case] = ElementTree.parse(junit).getroot()[0]
    assert case.attrib["name"].startswith("effect:started a/b:c#1")
    assert "a person would be asked about a/b:c#1" in (case[0].text or "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((AGENTS,), "expected one agent, found"),
        ((f"{AGENTS}:plain", "--points", "nowhere"), "'nowhere' is not one"),
        ((f"{AGENTS}:plain", "--seconds", "soon"), "expected 10s"),
        ((f"{AGENTS}:plain", "--send", "go"), "expected name=value"),
        ((f"{AGENTS}:tour",), "missing argument 'name'"),
        ((f"{AGENTS}:plain", "--junit", "/nowhere/x.xml"), "there is no such folder"),
    ],
)
def test_bad_input_exits_2(capsys: pytest.CaptureFixture[str], words: Any, said: str) -> None:
    code, _, error = run(capsys, *words)
    assert code == 2
    assert said in error


def test_a_terminal_shows_a_progress_line_below_the_findings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "LEAST_SECONDS", 0.0)
    found = Finding(about="effect", name="pay", what="it happened twice", why="", do="")
    tried = Tried(kills=(), reached=True, state="", findings=[], asked=[], seconds=0)
    line = progress.ProgressLine(shown=True)
    crashtest_view._show_trial(line, 1, 3, tried)
    crashtest_view._show_trial(line, 2, 3, msgspec.structs.replace(tried, findings=[found]))
    line.clear()
    drawn = terminal.getvalue()
    assert "1 of 3  kills" in drawn
    assert "it happened twice\n" in drawn
    assert drawn.index("it happened twice") < drawn.index("2 of 3  kills")


THREADS = """
import threading, andon
threading.Thread(target=threading.Event().wait, daemon=True).start()


async def one():
    return 1


@andon.agent
async def threaded(ctx):
    return await ctx.step(one)
"""


def test_an_agent_whose_import_starts_threads_is_imported_in_each_process(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A forked process would inherit locks that no thread releases."""
    (tmp_path / "threaded.py").write_text(THREADS)
    words = (str(tmp_path / "threaded.py"), "--points", "step:executed", "--json")
    code, printed, _ = run(capsys, *words)
    assert code == 0
    assert json.loads(printed)["tried"][0]["reached"] is True


QUEUE = """
import andon
from . import prices


@andon.agent
async def packed(ctx):
    return await ctx.step(prices.one)
"""


def test_agents_whose_modules_shadow_python_modules_are_found(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every process andon is imported before the user's folder is searched."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "parcels").mkdir()
    (tmp_path / "parcels" / "__init__.py").touch()
    (tmp_path / "parcels" / "prices.py").write_text("async def one(): return 1\n")
    (tmp_path / "parcels" / "queue.py").write_text(QUEUE)
    (tmp_path / "queue.py").write_text("raise SystemExit('not yours')\n")
    code, printed, said = run(capsys, "parcels.queue", "--points", "step:executed", "--json")
    assert code == 0, said
    assert json.loads(printed)["result"] == 1


ENDLESS = """
import pathlib, subprocess, andon


def endless(marker):
    child = subprocess.Popen(["sleep", "600"])
    alone = subprocess.Popen(["sleep", "600"], start_new_session=True)
    pathlib.Path(marker).write_text(f"{child.pid} {alone.pid}")
    child.wait()


@andon.agent
async def never(ctx, marker):
    await ctx.step(endless, marker)
"""


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in "ZX"


def descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [found for child in map(int, children) for found in (child, *descendants(child))]


DAEMON = """
import pathlib, subprocess, andon

quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
server = subprocess.Popen(["cat"], stdin=subprocess.PIPE, **quiet)  # for all that import it


def serve(folder):
    assert pathlib.Path(f"/proc/{server.pid}").exists()
    child = subprocess.Popen(["sh", "-c", "sleep 600 & wait"], start_new_session=True, **quiet)
    with pathlib.Path(folder, "pids").open("a") as pids:
        pids.write(f"{child.pid} {server.pid}\\n")


@andon.agent
async def serves(ctx, folder):
    await ctx.step(serve, folder)
"""


def test_processes_started_by_an_agent_end_with_its_worker(tmp_path: Path) -> None:
    """Also in a session of their own; a process that its file starts lives for all workers."""
    (tmp_path / "serves.py").write_text(DAEMON)
    command = [sys.executable, "-P", "-m", "andon", "crashtest", "serves.py", f"folder={tmp_path}"]
    with (tmp_path / "said").open("w") as said:
        done = subprocess.run(command, check=False, cwd=tmp_path, stdout=said, stderr=said)
    assert done.returncode == 0, (tmp_path / "said").read_text()
    lines = (tmp_path / "pids").read_text().splitlines()
    pids = {int(word) for line in lines for word in line.split()}
    assert len(lines) > 4
    assert [pid for pid in pids if alive(pid)] == []


def test_ctrl_c_leaves_no_process_running_and_no_folder(tmp_path: Path) -> None:
    (tmp_path / "never.py").write_text(ENDLESS)
    (tmp_path / "queue.py").write_text("raise SystemExit('not yours')\n")
    marker = tmp_path / "marker"
    environ = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "andon", "crashtest", "never.py", f"marker={marker}"],
        cwd=tmp_path,
        env=environ,
        stderr=subprocess.PIPE,
    ) as command:
        end = time.monotonic() + 60
        while not (marker.exists() and marker.read_text()):
            assert command.poll() is None, command.stderr and command.stderr.read()
            assert time.monotonic() < end
            time.sleep(0.01)
        family = [*descendants(command.pid), *map(int, marker.read_text().split())]
        assert len(family) >= 4
        command.send_signal(signal.SIGINT)
        assert command.wait(60) == 130
    while left := [pid for pid in family if alive(pid)]:
        assert time.monotonic() < end, left
        time.sleep(0.01)
    assert list((tmp_path / "tmp").iterdir()) == []
