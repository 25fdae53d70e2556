"""A supervisor starts its children as configured, sees how they end, and answers for them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.supervisor.harness import SOURCES, Supervised, state_of, until

from andon.supervisor.__main__ import main, unmet
from andon.supervisor.trees.group import Group

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="another user needs root")


def python(own: Supervised, name: str, code: str, **more: Any) -> dict[str, Any]:
    argv = [sys.executable, "-S", "-E", "-c", code]
    return own.child(name, argv=argv, **{"kind": "command", "restart": "never", **more})


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise SystemExit(0)", 0),
        ("raise SystemExit(7)", 7),
        ("raise SystemExit(75)", 75),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("import os; os.kill(os.getpid(), 15)", 143),
    ],
)
def test_the_exit_code_is_that_of_the_command(
    supervised: Supervised, code: str, expected: int
) -> None:
    assert supervised.start(python(supervised, "it", code)).wait() == expected


@pytest.mark.parametrize(
    ("name", "expected", "why"),
    [
        ("no-such-program", 127, "there is no such program in PATH"),
        ("/no/such/program", 127, "there is no such file"),
        ("/etc/passwd", 126, "permission denied; make it executable: chmod +x"),
        ("/etc", 126, "it is a folder"),
    ],
)
def test_a_command_that_cannot_be_executed_is_reported(
    supervised: Supervised, name: str, expected: int, why: str
) -> None:
    own = supervised.start(
        supervised.child("it", argv=[name], kind="command", restart="never", log="tee")
    )
    assert own.wait() == expected
    assert f"cannot execute {name!r}: {why}" in own.said()


def test_a_child_inherits_only_what_is_meant_for_it(supervised: Supervised) -> None:
    code = """
import json, os, signal
print(json.dumps({
    "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd")),
    "env": dict(os.environ),
    "session": os.getsid(0) == os.getpid() or os.getsid(0),
    "blocked": [n for n in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    "ignored": [int(n) for n in signal.valid_signals()
                if n not in (signal.SIGPIPE, signal.SIGXFSZ)  # Python's own
                and signal.getsignal(n) == signal.SIG_IGN],
    "cwd": os.getcwd(),
}))
"""
    own = supervised
    own.start(python(own, "it", code, cwd="/usr", env={"GIVEN": "1"}, log="tee"))
    assert own.wait() == 0
    found = json.loads((own.folder / "stdout").read_text())
    assert found["fds"] in ([0, 1, 2, 3], [0, 1, 2, 3, 4]), "3: the folder that is being listed"
    assert set(found["env"]) - {"LC_CTYPE"} == {"PATH", "MARK", "READY", "GIVEN"}
    assert (found["blocked"], found["ignored"], found["cwd"]) == ([], [], "/usr")
    assert found["session"] is True


def test_a_child_ignores_and_blocks_no_signal(supervised: Supervised) -> None:
    """Ignored and blocked signals are inherited by every program, and Python ignores SIGPIPE."""
    argv = ["/bin/grep", "-E", "^Sig(Ign|Blk):", "/proc/self/status"]
    own = supervised
    own.start(own.child("it", argv=argv, kind="command", restart="never", log="tee"))
    assert own.wait() == 0
    lines = (own.folder / "stdout").read_text().split("\n")
    # The C library keeps 32 and 33 for itself; no program can block or unblock them.
    ours = ~(0b11 << 31)
    assert [int(line.split()[1], 16) & ours for line in lines if line] == [0, 0]


@root_only
def test_a_child_of_another_user_has_no_way_back(supervised: Supervised) -> None:
    argv = ["/bin/sh", "-c", "grep -E '^(Uid|Gid|Groups|CapPrm)' /proc/self/status"]
    own = supervised
    own.start(own.child("it", argv=argv, kind="command", restart="never", uid=65534, log="tee"))
    assert own.wait() == 0, own.said()
    found = dict(line.split(":", 1) for line in (own.folder / "stdout").read_text().splitlines())
    assert set(found["Uid"].split()) == {"65534"}
    assert "0" not in found["Gid"].split() + found["Groups"].split()
    assert int(found["CapPrm"], 16) == 0


@pytest.mark.parametrize("shape", ["cooperative", "stubborn", "escapes"])
def test_children_die_with_their_supervisor(supervised: Supervised, shape: str) -> None:
    own = supervised.start(supervised.child("one", shape), supervised.child("two", shape))
    own.is_ready("one", "two")
    roots = [own.state(name)["pid"] for name in ("one", "two")]
    own.send(signal.SIGKILL)
    until(lambda: all(state_of(pid) in ("", "Z") for pid in roots), "children gone")


def test_sigterm_drains_the_supervisor(supervised: Supervised) -> None:
    own = supervised.start(supervised.child("one", "cooperative"), supervised.child("two", "sleep"))
    own.is_ready("one", "two")
    own.send(signal.SIGTERM)
    assert own.wait() == 0
    assert own.marked() == []
    assert list((own.home / "run").iterdir()) == list((own.home / "state").iterdir()) == []
    assert "started again" not in own.said()


def test_a_drain_that_takes_too_long_ends_in_a_kill(supervised: Supervised) -> None:
    own = supervised
    own.start(own.with_control(), own.child("one", "stubborn"), settings={"grace_seconds": 0.3})
    own.is_ready("one")
    own.event("hello")
    own.send(signal.SIGTERM)
    assert own.wait() == 0
    assert own.event("overrun")["what"] == "drain of one"
    assert own.event("killed", child="one")["survivors"] == []
    assert own.event("ending")["code"] == 0
    assert own.marked() == []


def test_a_second_signal_does_not_wait(supervised: Supervised) -> None:
    own = supervised.start(supervised.child("one", "stubborn"), settings={"grace_seconds": 3600})
    own.is_ready("one")
    own.send(signal.SIGINT)
    own.says("children have 3600 s")
    own.send(signal.SIGINT)
    assert own.wait() == 0
    assert own.marked() == []


def test_a_worker_that_dies_is_started_again(supervised: Supervised) -> None:
    own = supervised
    own.start(own.with_control(), own.child("one", "sleep"))
    own.is_ready("one")
    first = own.state("one")["pid"]
    os.kill(first, signal.SIGKILL)
    told = own.event("exited", child="one")
    assert (told["pid"], told["signal"], told["asked"]) == (first, 9, False)
    own.is_ready("one", count=2)
    assert own.is_in("one", "running")["starts"] == 2


def test_processes_of_a_dead_worker_are_ended_before_its_restart(
    supervised: Supervised,
) -> None:
    own = supervised
    own.start(own.with_control(), own.child("one", "orphan", restart="never", kind="command"))
    told = own.event("exited", child="one")
    assert told["code"] == 5
    if own.event("started", child="one")["containment"]["by"] != "pidns":  # the kernel does it
        assert len(told["left"]) == 1
        assert own.event("killed", child="one")["why"] == "left behind"
    assert own.wait() == 5
    assert own.marked() == []


def test_a_crash_loop_ends_in_a_state_and_not_in_a_spin(supervised: Supervised) -> None:
    own = supervised
    own.start(
        own.with_control(),
        own.child("bad", "fails"),
        own.child("good", "sleep"),
        settings={"restart_limit": 2},
    )
    told = own.event("gave_up", child="bad")
    assert told["crashes"] == 3
    assert own.is_in("bad", "gave_up")["starts"] == 3
    assert own.state("good")["state"] == "running"


def test_a_supervisor_ends_when_all_children_were_given_up(supervised: Supervised) -> None:
    own = supervised.start(supervised.child("bad", "fails"), settings={"restart_limit": 1})
    assert own.wait() == 1
    own.says("gave up: ended 2 times")


def test_a_child_that_may_end_is_not_restarted(supervised: Supervised) -> None:
    one = python(supervised, "one", "", kind="worker", restart="on-failure")
    two = python(supervised, "two", "raise SystemExit(3)", kind="worker", restart="never")
    assert supervised.start(one, two).wait() == 0


@pytest.mark.parametrize("found", ["none", "C", "B", "A"])
@pytest.mark.parametrize("wanted", ["none", "C", "B", "A"])
def test_a_grade_is_met_by_itself_and_by_every_better_one(found: str, wanted: str) -> None:
    mechanism = Group()
    mechanism.grades = {**mechanism.grades, "kill": found}
    order = ["none", "C", "B", "A"]
    assert (unmet({"kill": wanted}, mechanism) == "") == (order.index(found) >= order.index(wanted))


def test_an_unreachable_grade_is_refused_before_anything_starts(
    supervised: Supervised,
) -> None:
    own = supervised.start(supervised.child("one", "sleep"))
    grades = own.status()["supervisor"]["grades"]
    own.send(signal.SIGTERM)
    own.wait()
    lacking = [name for name, grade in grades.items() if grade in ("B", "C", "none")]
    if not lacking:
        pytest.skip("this host has every grade")
    own.start(own.child("one", "sleep"), require={lacking[0]: "A"})
    assert own.wait() == 2
    found = grades[lacking[0]]
    own.says(f"not started: expected {lacking[0]} of grade A or better, found {found}")
    assert own.marked() == []


@pytest.mark.parametrize("require", [{"kill": "Z"}, {"luck": "A"}])
def test_a_grade_that_does_not_exist_is_refused(
    supervised: Supervised, require: dict[str, str]
) -> None:
    own = supervised.start(supervised.child("one", "sleep"), require=require)
    assert own.wait() == 2
    assert "expected one of kill, parent_death, pause" in own.said()


@pytest.mark.parametrize(
    "spec",
    [b"", b"{", b"[]", b"{}", b'{"home": "/x", "children": [{"name": "a"}]}',
     b'{"home": "/x", "children": [{"name": "a", "kind": "king", "argv": ["x"]}]}'],
)  # fmt: skip
def test_an_invalid_spec_is_refused(spec: bytes, tmp_path: Path) -> None:
    path = tmp_path / "spec"
    path.write_bytes(spec)
    assert main(["--spec-fd", str(os.open(path, os.O_RDONLY))]) == 2


def test_two_supervisors_share_a_home(
    supervised: Supervised, another: Callable[[], Supervised]
) -> None:
    own, other = supervised, another()
    own.start(own.child("one", "sleep"))
    other.start(other.child("one", "sleep"))
    own.is_ready("one")
    other.is_ready("one")
    assert own.status()["supervisor"]["id"] != other.status()["supervisor"]["id"]
    own.halt()
    other.says("HALTED")
    until(lambda: not other.marked(), "one latch for both")


def test_zombies_of_strangers_are_reaped(supervised: Supervised) -> None:
    """Orphans of a child become ours; a table full of zombies stops a host."""
    code = """
import os, time
for _ in range(300):
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.wait()
open(os.environ["READY"] + ".1", "w").close()
time.sleep(60)
"""
    own = supervised.start(python(supervised, "it", code))
    own.is_ready("it")

    def zombies() -> list[str]:
        children = Path(f"/proc/{own.pid}/task/{own.pid}/children").read_text().split()
        return [pid for pid in children if state_of(int(pid)) == "Z"]

    until(lambda: not zombies(), "no zombies")


PID_1 = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


@pytest.fixture
def first(supervised: Supervised) -> Supervised:
    """A supervisor that will be PID 1 of a container."""
    try:
        subprocess.run([*PID_1, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no pid namespace here: {error}")
    return supervised


def test_as_pid_1_it_passes_on_exit_codes_and_reaps_every_child(first: Supervised) -> None:
    code = """
import os
for _ in range(50):
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.wait()
raise SystemExit(41)
"""
    first.start(python(first, "it", code), before=PID_1)
    assert first.wait() == 41
    assert first.marked() == []


def test_as_pid_1_it_halts_and_drains(first: Supervised) -> None:
    own = first
    own.start(own.with_control(), own.child("one", "escapes"), before=PID_1)
    own.is_ready("one", count=2)
    own.event("hello")
    (own.home / "STOP").touch()
    receipt = own.event("halted")["receipt"]
    assert (receipt["proved"], receipt["processes"], receipt["pid"]) == (True, 2, 1)
    assert own.marked() == []
    (inside,) = Path(f"/proc/{own.pid}/task/{own.pid}/children").read_text().split()
    os.kill(int(inside), signal.SIGTERM)
    assert own.wait() == 0
    assert own.marked("CONTROL") == []


def test_as_pid_1_a_halt_spares_the_control_process_and_the_halting_command(
    first: Supervised,
) -> None:
    own = first
    no_cgroups = ["sh", "-c", 'mount -t tmpfs none /sys/fs/cgroup && exec "$@"', "sh"]
    own.start(own.with_control(), own.child("one", "escapes"), before=[*PID_1, *no_cgroups])
    own.is_ready("one", count=2)
    assert own.event("started", child="one")["containment"]["by"] == "pid1"
    control = own.marked("CONTROL")
    (inside,) = Path(f"/proc/{own.pid}/task/{own.pid}/children").read_text().split()
    enter = ["nsenter", "-t", inside, "--pid", "--mount"]
    halt = [sys.executable, "-m", "andon", "halt", "--json"]
    env = {**os.environ, "PYTHONPATH": SOURCES, "ANDON_HOME": str(own.home)}
    done = subprocess.run([*enter, *halt], cwd=own.folder, env=env, check=True, capture_output=True)
    receipt = json.loads(done.stdout)
    assert (receipt["proved"], receipt["processes"]) == (True, 2)
    assert (own.marked(), own.marked("CONTROL")) == ([], control)


def test_a_running_supervisor_has_loaded_nothing_but_python_and_its_own() -> None:
    code = """
import sys
sys.argv = ["x", "--check"]
import andon.supervisor.__main__ as entry
import andon.supervisor.trees.tree as tree
tree.mechanisms()
import andon.supervisor.trees.trial, andon.supervisor.trees.group
ours = {name for name in sys.modules if name.partition(".")[0] == "andon"}
top = {name.partition(".")[0] for name in sys.modules}
print(*sorted(name for name in ours if not name.startswith(("andon.core", "andon.supervisor"))))
print(*sorted(top - set(sys.stdlib_module_names) - {"andon", "__main__"}))
print(*sorted(top & {"asyncio", "threading", "multiprocessing", "subprocess", "logging", "ssl"}))
"""
    env = {"PYTHONPATH": os.environ.get("PYTHONPATH") or "src", "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], check=True, capture_output=True, text=True, env=env
    )
    ours, strangers, heavy = done.stdout.split("\n")[:3]
    assert set(ours.split()) == {
        "andon", "andon.errors", "andon.host", "andon.host.descriptors", "andon.host.home",
        "andon.host.ids", "andon.host.json_lines", "andon.host.latch", "andon.host.proc",
        "andon.host.syscalls", "andon.points",
    }  # fmt: skip
    assert strangers == ""
    assert heavy == ""
