"""`andon halt` stops everything, even if parts are broken, and says what it cannot know."""

import json
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.cli.terminal import until
from tests.supervisor.halt.supervisors import (
    ESCAPES,
    alive,
    below,
    environment,
    fake,
    halted,
    receipt,
    supervisor,
    unreachable,
)

from andon.host import home as homes
from andon.host import proc
from andon.host.latch import Latch
from andon.supervisor.halt import command


def written(home: Path) -> str:
    return "".join(path.read_text() for path in (home / "state").glob("*.json"))


def pulled(home: Path) -> bool:
    return Latch(str(home)).read().pulled


# ── imports ───────────────────────────────────────────────────────────────────────────────────


def test_nothing_but_the_standard_library_is_imported_before_the_first_order(home: Path) -> None:
    code = (
        "import sys\n"
        "sys.argv = ['andon', 'halt', '--wait', '0']\n"
        "import andon.__main__ as command, andon.points as points\n"
        "def sent(name):\n"
        "    if name == 'halt:sent':\n"
        "        tops = {one.partition('.')[0] for one in sys.modules}\n"
        "        andons = {one for one in sys.modules if one.startswith('andon')}\n"
        "        print(sorted(tops - sys.stdlib_module_names), sorted(andons), flush=True)\n"
        "points.point = sent\n"
        "command.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(home), cwd=home.parent,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    tops, andons = done.stdout.splitlines()[0].split("] [")
    assert set(tops.strip("[").replace("'", "").split(", ")) <= {
        "andon",
        "_distutils_hack",
        "__main__",
    }
    outside = ("andon.store", "andon.control", "andon.runtime", "andon.settings")
    assert not [name for name in outside if name in andons]


# ── arguments ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "typed",
    [["--nonsense"], ["now"], ["--wait", "soon"], ["--wait"], ["-h", "--no"], ["--why"], ["", "="]],
)
def test_no_argument_keeps_the_halt_from_happening(home: Path, typed: list[str]) -> None:
    done = halted(home, *typed)
    assert pulled(home)
    assert "Everything was halted anyway" in done.stderr


def test_help_halts_nothing(home: Path) -> None:
    assert "andon reauthorize" in halted(home, "--help").stdout
    assert not pulled(home)


def test_arguments_are_taken_literally() -> None:
    asked = command.parsed(["--why=a=b", "--by", "ana", "--json", "--wait", "2.5"])
    assert (asked.why, asked.by, asked.json, asked.wait) == ("a=b", "ana", True, 2.5)


def test_a_reason_cannot_steer_the_terminal(home: Path) -> None:
    found = halted(home, "--why", "x\x1b[2Jy", "--bad\x1b[2J")
    assert "\x1b" not in found.stdout + found.stderr


# ── nothing is running ────────────────────────────────────────────────────────────────────────


def test_with_nothing_running_and_no_store_it_is_proved(home: Path) -> None:
    text = halted(home).stdout
    assert "nothing was running here" in text
    assert "EVERYTHING STOPPED, proved" in text
    assert pulled(home)


def test_a_second_halt_is_the_same_order_with_the_same_receipt(home: Path) -> None:
    first, second = receipt(home, "--why", "odd"), receipt(home, "--by", "bo")
    assert (first["again"], second["again"]) == (False, True)
    assert second["receipt"] == first["receipt"]
    assert (second["by"], second["why"]) == ("ana", "odd")


def test_a_store_that_does_not_answer_is_reported_and_the_rest_is_done(home: Path) -> None:
    found = receipt(home, "--wait", "3", code=3, env={"ANDON_STORE": unreachable()})
    assert found["latch"]["written"]
    assert found["store"]["state"] == "unknown"
    [sentence] = found["unknown"]
    assert sentence.startswith("other hosts UNKNOWN: the store did not answer")
    assert sentence.endswith("they stop by themselves within lost_contact_seconds")
    assert "secret" not in json.dumps(found)


def test_halt_needs_no_home_variable_and_no_terminal(home: Path, tmp_path: Path) -> None:
    env = environment(home)
    del env["HOME"]
    done = subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -m andon halt <&- >&- 2>&-'],
        env=env, cwd=tmp_path, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0
    assert pulled(home)
    assert (home / "latch").read_text().count("\n") == (home / "latch").read_text().count("{")


def test_halt_works_in_a_deleted_working_directory(home: Path, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    done = subprocess.run(
        ["sh", "-c", f'rmdir "$PWD" && exec "{sys.executable}" -m andon halt'],
        env=environment(home), cwd=tmp_path / "gone", check=False, timeout=60,
        capture_output=True, text=True,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert pulled(home)


@pytest.mark.parametrize("part", ["_look_around", "_order_host", "_order_other_hosts", "_pull"])
def test_a_defect_in_one_part_does_not_disable_the_others(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, part: str
) -> None:
    def fail(self: object, *_: object) -> None:
        raise AttributeError("a defect")

    monkeypatch.chdir(tmp_path)
    if part == "_pull":
        monkeypatch.setattr(Latch, "pull", fail)
    else:
        monkeypatch.setattr(command.HaltCommand, part, fail)
    with supervisor(home, ESCAPES, processes=5) as own:
        before = below(own.pid)
        found = command.halt(wait=20)
        until(lambda: not alive(before), "their end")
    assert not found["proved"]
    assert "a defect" in "".join(found["unknown"])


def test_files_of_an_agent_do_not_shadow_the_standard_library(home: Path, tmp_path: Path) -> None:
    for name in ("json", "signal", "select", "socket", "threading", "queue", "dataclasses"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not mine')")
    found = receipt(home, cwd=tmp_path)
    assert (found["proved"], found["store"]["state"]) == (True, "none")


@pytest.mark.parametrize("moment", ["halt:pulled", "halt:sent"])
def test_killed_at_any_point_the_latch_holds(home: Path, moment: str) -> None:
    halted(home, code=-signal.SIGKILL, env={"ANDON_FAULTS": f"{moment}=kill"})
    assert pulled(home)


# ── a supervisor ──────────────────────────────────────────────────────────────────────────────


def test_a_supervisor_ends_everything_it_owns_and_proves_it(home: Path) -> None:
    with supervisor(home, ESCAPES, ESCAPES, processes=10) as own:
        before = below(own.pid)
        found = receipt(home)
        assert not alive(before)
        [one] = found["supervisors"]
        assert (one["proved"], one["processes"]) == (True, len(before))
        assert one["receipt"]["id"] == found["receipt"]


def test_the_store_is_away_and_everything_here_is_proved(home: Path) -> None:
    with supervisor(home, ESCAPES, processes=5) as own:
        before = below(own.pid)
        env = {"ANDON_STORE": unreachable()}
        text = halted(home, "--wait", "2", code=3, env=env).stdout
        assert not alive(before)
        assert f"{len(before)} of {len(before)} processes gone" in text
        assert "other hosts UNKNOWN" in text


def test_a_slow_disk_delays_no_order_and_is_waited_for(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    waited, looks = threading.Event(), list[None]()
    pull, poll = Latch.pull, select.poll

    def late(self: Latch, *words: str) -> Any:
        assert waited.wait(20)
        return pull(self, *words)

    def polling() -> Any:  # all orders are out, and every process was checked long ago
        looks.append(None)
        if len(looks) == 100:
            waited.set()
        return poll()

    monkeypatch.setenv("ANDON_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "LATCH_SECONDS", 0.0)
    monkeypatch.setattr(Latch, "pull", late)
    monkeypatch.setattr(select, "poll", polling)
    assert command.halt()["latch"]["written"]
    assert pulled(home)


def test_a_latch_that_cannot_be_written_is_reported_and_the_rest_is_done(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with supervisor(home, ESCAPES, processes=5) as own:
        before = below(own.pid)
        monkeypatch.setenv("ANDON_HOME", str(home))
        monkeypatch.setattr(Latch, "_append", lambda self, verdict: "the disk: gone")
        monkeypatch.setattr(Latch, "_write_stop", lambda self, new: "the disk: gone")
        monkeypatch.chdir(home.parent)
        found = command.halt("odd", "ana", wait=20)
        assert not alive(before)
        assert not found["proved"]
        assert found["unknown"] == [
            "the latch could not be written (the disk: gone): what starts later is not stopped"
        ]


def test_a_frozen_supervisor_does_not_protect_its_children(home: Path) -> None:
    with supervisor(home, ESCAPES, ESCAPES, processes=10) as own:
        before = below(own.pid)
        own.send_signal(signal.SIGSTOP)
        found = receipt(home)
        assert not alive(before)
        assert own.wait(60) == -signal.SIGKILL
        [one] = found["supervisors"]
        assert (one["proved"], one["processes"]) == (True, len(before))
        assert one["how"] == "it did not answer: this command ended what it owned"


def test_processes_that_a_dead_supervisor_left_are_ended(home: Path) -> None:
    """Escaped processes have another parent by now; their marks or cgroup identify their owner."""
    with supervisor(home, ESCAPES, processes=5) as own:
        before = below(own.pid)
        until(lambda: any(f" {pid}," in written(home) for pid, _ in before), "what it owns")
        own.kill()
        own.wait()
        found = receipt(home)
        assert not alive(before)
        assert found["proved"]
        again = receipt(home)
        assert (again["proved"], again["processes"]) == (True, 0)


def test_a_supervisor_whose_shell_is_gone_is_found_and_stopped(home: Path, tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "if os.fork():\n    os._exit(0)\n"
        "os.setsid()\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'andon.supervisor', '--spec-fd', '0'])\n"
    )
    argv = ["sh", "-c", ESCAPES]
    child = {"name": "c", "kind": "command", "argv": argv, "env": dict(os.environ), "log": False}
    spec = json.dumps({"home": str(home), "children": [child]})
    subprocess.run(
        [sys.executable, "-c", script], input=spec, text=True, check=True,
        env=environment(home), stderr=subprocess.DEVNULL,
    )  # fmt: skip
    [entry] = until(lambda: homes.live(str(home)), "the supervisor")
    until(lambda: len(below(entry.pid)) == 5, "its processes")
    before = below(entry.pid)
    assert receipt(home)["proved"]
    assert not alive(before)


@pytest.mark.parametrize(
    "answer",
    [b"nonsense\n", b"\xff" * 40_000, b'{"receipt": 7}\n[1]\n', b"[" * 50_000 + b"\n", b""],
    ids=["nonsense", "huge", "wrong", "deep", "silent"],
)
def test_an_invalid_answer_counts_as_silence(home: Path, answer: bytes) -> None:
    with fake(home, answer, times=100 if len(answer) == 40_000 else 1) as process:
        found = receipt(home)
        assert process.wait(60) == -signal.SIGKILL
        assert "did not answer" in found["supervisors"][0]["how"]


def test_a_receipt_with_survivors_is_not_proved(home: Path) -> None:
    said = {"receipt": {"processes": 2, "survivors": [4], "proved": False}}
    with fake(home, json.dumps(said).encode() + b"\n"):
        found = receipt(home, code=3)
        assert found["unknown"][0].endswith("still alive: 4")


def test_a_receipt_that_claims_proof_in_spite_of_survivors_is_not_believed(home: Path) -> None:
    said = {"receipt": {"processes": 2, "survivors": [4], "proved": True}}
    with fake(home, json.dumps(said).encode() + b"\n"):
        assert not receipt(home, code=3)["proved"]


def test_a_process_with_a_dead_ones_number_is_not_touched(home: Path) -> None:
    innocent = subprocess.Popen(["sleep", "900"])
    try:
        entry = homes.this_process("old", "worker")._replace(pid=innocent.pid, start_ticks=1)
        homes.make(str(home))
        homes.register(str(home), entry)
        homes.register(str(home), entry._replace(id="older", kind="supervisor"))
        assert receipt(home)["proved"]
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


def test_a_signal_goes_to_exactly_that_process(home: Path) -> None:
    innocent = subprocess.Popen(["sleep", "900"])
    try:
        ticks = proc.start_ticks(innocent.pid)
        assert ticks
        assert not proc.send(innocent.pid, ticks + 1, signal.SIGKILL)
        assert innocent.poll() is None
        assert proc.send(innocent.pid, ticks, signal.SIGKILL)
        assert innocent.wait(60) == -signal.SIGKILL
        assert not proc.send(innocent.pid, ticks, signal.SIGKILL)
    finally:
        innocent.kill()
        innocent.wait()


def test_a_control_process_that_keeps_dying_delays_nothing(home: Path) -> None:
    with supervisor(home, ESCAPES, processes=5, control=["false"]) as own:
        until(lambda: len(below(own.pid)) >= 5, "its processes")
        before = below(own.pid)
        assert receipt(home)["supervisors"][0]["proved"]
        assert not alive(before)


def test_process_numbers_of_another_boot_are_ignored(home: Path) -> None:
    innocent = subprocess.Popen(["sleep", "900"])
    try:
        homes.make(str(home))
        number = {"pid": innocent.pid, "start_ticks": proc.start_ticks(innocent.pid)}
        state = {"id": "old", "pid": 2, "start_ticks": 3, "boot": "another", "children": [number]}
        (home / "state" / "old.json").write_text(json.dumps(state))
        assert receipt(home)["proved"]
        assert innocent.poll() is None
        (home / "state" / "old.json").write_text(json.dumps(state | {"boot": proc.boot_id()}))
        assert receipt(home)["processes"] == 1
        assert innocent.wait(60) == -signal.SIGKILL
    finally:
        innocent.kill()
        innocent.wait()


def test_two_supervisors_are_both_stopped(home: Path) -> None:
    with (
        supervisor(home, ESCAPES, processes=5) as one,
        supervisor(home, "exec sleep 900", processes=1) as two,
    ):
        before = below(one.pid) + below(two.pid)
        found = receipt(home)
        assert [owner["proved"] for owner in found["supervisors"]] == [True, True]
        assert found["processes"] == len(before)
        assert not alive(before)


# ── from a program ────────────────────────────────────────────────────────────────────────────


def test_a_program_can_halt_and_gets_the_receipt(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import andon

    monkeypatch.chdir(tmp_path)
    with supervisor(home, ESCAPES, processes=5) as own:
        before = below(own.pid)
        found = andon.halt(why="it felt wrong", by="bo")
        assert not alive(before)
    assert (found["proved"], found["by"], found["why"]) == (True, "bo", "it felt wrong")
    assert json.loads(json.dumps(found)) == found
    assert Latch(str(home)).read().order == found["receipt"]
