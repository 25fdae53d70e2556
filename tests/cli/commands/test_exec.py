"""`andon exec -- CMD`: any command as an agent that can be stopped, and proved to be."""

import os
import signal
import sys
from pathlib import Path

import pytest
from tests.cli.hosts import Host, gone
from tests.cli.terminal import until

from andon.host.latch import Latch

ESCAPES = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("escaped", "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
open("stays", "w").write(str(os.getpid()))
time.sleep(600)
"""


@pytest.fixture
def host(tmp_path: Path, store_url: str) -> Host:
    return Host(tmp_path, store_url)


@pytest.fixture
def here(tmp_path: Path, sqlite_url: str) -> Host:
    return Host(tmp_path, sqlite_url)


def python(text: str) -> list[str]:
    return ["--", sys.executable, "-c", text]


def evidence(host: Host, kind: str) -> list[str]:
    with host.store() as store:
        [stop] = [one for one in store.stops() if one.kind == kind]
        return [f"{row.stage}: {row.evidence}" for row in store.targets(stop.id)]


# ── output, exit code, log ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("no-such-program", "there is no such program in PATH"),
        ("./nowhere", "there is no such file"),
        ("agents.py:greet", "An agent in a file: andon run agents.py:greet"),
    ],
)
def test_a_missing_program_leaves_neither_run_nor_store(here: Host, program: str, why: str) -> None:
    done = here.run("exec", "--", program, code=127)
    assert f"cannot execute {program!r}" in done.stderr
    assert why in done.stderr
    assert "there is no database" in here.run("ps", code=1).stderr


def test_a_command_has_no_json_and_its_help_says_nothing_else(here: Host) -> None:
    assert "--json" not in here("exec", "--help")
    refused = here.run("exec", "--json", "--", "true", code=2).stderr
    assert "there is no --json; afterwards: andon show RUN --json" in refused


def test_output_input_and_exit_code_are_those_of_the_command(host: Host) -> None:
    words = ["exec", "--id", "r", "--name", "cat", "--label", "tenant=x", "--", "cat"]
    done = host.run(*words, input="hello\n")
    assert done.stdout == "hello\n"
    found = host.json("show", "r")
    assert (found["state"], found["result"]) == ("succeeded", {"exit": 0})
    assert (found["agent"], found["labels"]) == ("cat", {"tenant": "x"})
    assert found["input"] == {"argv": ["cat"]}
    assert [one["ending"] for one in found["attempts"]] == ["succeeded"]
    assert host("verify") != ""


def test_a_command_that_fails_is_a_failed_run(here: Host) -> None:
    here.run("exec", "--id", "r", "--", "sh", "-c", "exit 7", code=7)
    found = here.json("show", "r")
    assert found["state"] == "failed"
    assert found["error"]["message"] == "the command ended with exit code 7"
    assert found["error"]["exit"] == 7


def test_a_command_killed_from_outside_names_the_signal(here: Host) -> None:
    here.run("run", "--id", "r", "--", "sh", "-c", "kill -KILL $$", code=128 + 9)
    assert here.json("show", "r")["error"]["message"] == "the command ended with SIGKILL"


def test_the_command_gets_the_id_of_its_run(here: Host) -> None:
    done = here.run("exec", "--id", "r", "sh", "-c", "echo $ANDON_RUN")
    assert done.stdout == "r\n"


def test_the_log_of_the_command_is_kept(here: Host) -> None:
    here.run("run", "--id", "r", "--", "sh", "-c", "echo one; echo two >&2")
    assert sorted(here("logs", "r").splitlines()) == ["one", "two"]
    assert sorted(one["text"] for one in here.json("logs", "r")) == ["one", "two"]


def test_a_log_that_is_kept_elsewhere_is_named(here: Host, tmp_path: Path) -> None:
    here.run("run", "--id", "r", "--", "true")
    for path in here.home.glob("logs/r.log*"):
        path.unlink()
    assert "r.log" in here.run("logs", "r").stderr


def test_the_command_is_restarted_if_asked(here: Host) -> None:
    text = "test -e once || { touch once; exit 3; }; echo again"
    done = here.run("exec", "--id", "r", "--restart", "on-failure", "--", "sh", "-c", text)
    assert done.stdout == "again\n"
    assert here.json("show", "r")["state"] == "succeeded"


# ── stops ─────────────────────────────────────────────────────────────────────────────────────


def test_a_kill_reaches_an_escaped_process_and_is_proved(host: Host) -> None:
    with host.command("--id", "r", *python(ESCAPES)) as process:
        pids = [host.pid_in("stays"), host.pid_in("escaped")]
        host("kill", "r")
        host.becomes("r", "killed")
        for pid in pids:
            gone(pid)
        assert process.ends() == 128 + 9
    [line] = evidence(host, "kill")
    assert line.startswith("verified: its supervisor: ")
    assert line.endswith("nothing is left")


def test_a_pause_freezes_and_a_resume_thaws(host: Host) -> None:
    text = "echo $$ > pid; while read line; do echo $line >> heard; done"
    fifo = host.folder / "in"
    os.mkfifo(fifo)
    with host.command("--id", "r", "--", "sh", "-c", f"exec < in; {text}") as process:
        with fifo.open("w") as into:
            into.write("one\n")
            into.flush()
            until((host.folder / "heard").exists, "it has heard the first line")
            host("pause", "r")
            host.becomes("r", "paused")
            assert evidence(host, "pause")[0].startswith(
                "verified: its worker gave it back (frozen"
            )
            into.write("two\n")
            into.flush()
            assert host.state("r") == "paused"
            assert (host.folder / "heard").read_text() == "one\n"
            host("resume", "r")
            until(lambda: "two" in (host.folder / "heard").read_text(), "it goes on")
            assert host.becomes("r", "running").attempt == 2
        assert process.ends() == 0
    assert host.json("show", "r")["state"] == "succeeded"


def test_a_paused_run_can_be_killed(here: Host) -> None:
    with here.command("--id", "r", "--", "sh", "-c", "echo $$ > pid; sleep 600") as process:
        pid = here.pid_in("pid")
        here("pause", "r")
        here("kill", "r")
        [line] = evidence(here, "kill")
        assert line.startswith("verified: its supervisor: ")
        gone(pid)
        assert process.ends() == 128 + 9
    assert here.json("show", "r")["state"] == "killed"


def test_a_cancel_first_asks_the_command_to_end(host: Host) -> None:
    text = "trap 'echo bye > bye; exit 0' TERM; echo $$ > pid; while :; do sleep 0.05; done"
    with host.command("--id", "r", "--", "sh", "-c", text) as process:
        host.pid_in("pid")
        host("cancel", "r")
        assert process.ends() == 0
    assert (host.folder / "bye").read_text() == "bye\n"
    assert host.json("show", "r")["state"] == "cancelled"


def test_a_cancel_that_is_ignored_becomes_a_kill(host: Host) -> None:
    text = "trap '' TERM; echo $$ > pid; while :; do sleep 0.05; done"
    with host.command("--id", "r", "--", "sh", "-c", text) as process:
        pid = host.pid_in("pid")
        host("cancel", "r", "--within", "0.2")
        gone(pid)
        assert process.ends() == 128 + 9
    assert host.json("show", "r")["state"] == "cancelled"
    with host.store() as store:
        assert [one for one in store.events() if one.kind == "stop.overran"]


def test_a_stop_of_its_agent_or_tenant_stops_the_command_too(here: Host) -> None:
    words = ["--id", "r", "--name", "bot", "--label", "tenant=x"]
    with here.command(*words, "--", "sh", "-c", "echo $$ > pid; sleep 600") as process:
        here.pid_in("pid")
        here("kill", "--label", "tenant=x")
        assert process.ends() == 128 + 9
    assert here.json("show", "r")["state"] == "killed"


# ── refused before the start ──────────────────────────────────────────────────────────────────


def test_nothing_is_begun_on_a_host_that_is_halted(here: Host) -> None:
    Latch(str(here.home)).init()
    Latch(str(here.home)).pull(by="ana", why="unsure")
    said = here.error("run", "--id", "r", "--", "touch", "done", code=1)
    assert "this host is halted" in said
    assert "pulled by ana: unsure" in said
    assert "andon reauthorize" in said
    assert not (here.folder / "done").exists()


@pytest.mark.parametrize(
    ("order", "held"),
    [
        (("pause", "--agent", "touch"), "agent touch is paused"),
        (("kill", "--label", "tenant=x"), "label tenant=x is stopped by a kill"),
    ],
)
def test_nothing_is_begun_in_a_scope_that_a_latch_holds(
    host: Host, order: tuple[str, ...], held: str
) -> None:
    host.run("run", "--name", "touch", "--", "true")  # the agent is known by now
    host(*order, "--why", "unsure")
    words = ["run", "--id", "r", "--label", "tenant=x", "--", "touch", "done"]
    said = host.error(*words, code=1)
    assert held in said
    assert "tester: unsure" in said
    assert not (host.folder / "done").exists()
    assert host.run_of("r") is None


def test_nothing_is_begun_without_a_store(here: Host) -> None:
    away = {"ANDON_STORE": "postgresql://nobody@127.0.0.1:1/none"}
    said = here.error("run", "--", "touch", "done", code=1, env=away)
    assert "127.0.0.1" in said
    assert not (here.folder / "done").exists()


def test_nothing_is_begun_below_the_required_grade(here: Host) -> None:
    said = here.error("run", "--require", "kill=Z", "--", "touch", "done", code=2)
    assert "expected WHAT=GRADE" in said
    assert not (here.folder / "done").exists()


def test_a_run_that_is_over_is_not_begun_again(here: Host) -> None:
    here.run("run", "--id", "r", "--", "true")
    assert "is succeeded already" in here.error("run", "--id", "r", "--", "true", code=1)


def test_an_id_belongs_to_one_command_only(here: Host) -> None:
    with here.command("--id", "r", "--", "sh", "-c", "echo $$ > pid; sleep 600") as process:
        here.pid_in("pid")
        said = here.error("run", "--id", "r", "--", "true", code=1)
        assert "is running already" in said
        process.signal(signal.SIGTERM)
        process.ends()


def test_a_run_resumes_with_its_own_command_only(here: Host) -> None:
    with here.command(
        "--id", "r", "--name", "box", "--", "sh", "-c", "echo > began; sleep 600"
    ) as box:
        until((here.folder / "began").exists, "the command")
        here.run("kill", "r")
        box.ends()
    assert "next: andon show r" in here.run("resume", "r").stderr
    own = "andon exec --id r --name box -- sh -c 'echo > began; sleep 600'"
    assert own in here.run("show", "r").stderr
    for other in (("--name", "box", "--", "true"), ("--", "sh", "-c", "echo > began; sleep 600")):
        said = here.error("run", "--id", "r", *other, code=1)
        assert f"run r is another command's: {own}" in said


# ── deaths ────────────────────────────────────────────────────────────────────────────────────


def test_the_same_command_resumes_after_the_death_of_its_supervisor(host: Host) -> None:
    words = ["--id", "r", "--", "sh", "-c", "test -e again && exit 0; echo $$ > pid; sleep 600"]
    with host.command(*words) as process:
        pid = host.pid_in("pid")
        process.signal(signal.SIGKILL)
        process.ends()
        gone(pid)
    (host.folder / "again").touch()
    host.run("run", *words)
    found = host.json("show", "r")
    assert found["state"] == "succeeded"
    assert [one["ending"] for one in found["attempts"]] == ["interrupted", "succeeded"]


def test_the_death_of_the_control_process_changes_nothing(host: Host) -> None:
    text = "echo $$ > pid; while ! test -e done; do sleep 0.05; done; exit 4"
    with host.command("--id", "r", "--", "sh", "-c", text) as process:
        host.pid_in("pid")
        first = host.control_pid()
        os.kill(first, signal.SIGKILL)
        until(lambda: host.control_pid() not in (first, 0), "another control process")
        (host.folder / "done").touch()
        assert process.ends() == 4
    found = host.json("show", "r")
    assert found["error"]["exit"] == 4
    assert len(found["attempts"]) == 1


def test_a_supervisor_asked_to_leave_gives_the_run_back(here: Host) -> None:
    with here.command("--id", "r", "--", "sh", "-c", "echo $$ > pid; sleep 600") as process:
        pid = here.pid_in("pid")
        process.signal(signal.SIGTERM)
        process.ends()
        gone(pid)
    row = here.run_of("r")
    assert row is not None
    assert (row.state, row.worker) == ("queued", None)
