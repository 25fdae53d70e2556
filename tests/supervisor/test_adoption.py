"""The next supervisor in a home takes over from one that died."""

import json
import os
import signal
from collections.abc import Callable

from tests.supervisor.harness import Supervised, state_of, until


def orphaned(own: Supervised, name: str = "one", shape: str = "survives") -> int:
    """A child that outlived its supervisor."""
    own.start(own.with_control(), own.child(name, shape))
    own.is_ready(name)
    pid = int(own.state(name)["pid"])
    own.send(signal.SIGKILL)
    own.wait()
    until(lambda: not own.marked("CONTROL"), "the control process dies with it")
    assert pid in own.marked()
    return pid


def test_a_child_that_outlived_its_supervisor_is_adopted_and_can_be_ended(
    supervised: Supervised, another: Callable[[], Supervised]
) -> None:
    pid = orphaned(supervised)
    next_one = another()
    next_one.start(next_one.with_control(), next_one.child("one", "sleep"))
    told = next_one.event("started", child="one")
    assert (told["pid"], told["adopted"]) == (pid, True)
    found = next_one.state("one")
    assert (found["state"], found["adopted"]) == ("running", True)
    receipt = next_one.halt()
    assert receipt["processes"] == 1
    assert supervised.marked() == []


def test_the_end_of_an_adopted_child_is_seen_and_followed_by_a_start(
    supervised: Supervised, another: Callable[[], Supervised]
) -> None:
    pid = orphaned(supervised)
    next_one = another()
    next_one.start(next_one.with_control(), next_one.child("one", "sleep"))
    next_one.event("started", pid=pid)
    os.kill(pid, signal.SIGKILL)
    told = next_one.event("exited", pid=pid)
    assert (told["code"], told["signal"]) == (None, None), "nobody knows"
    next_one.is_ready("one")
    assert next_one.state("one")["adopted"] is False


def test_an_orphan_of_an_unknown_name_is_adopted_beside_the_others(
    supervised: Supervised, another: Callable[[], Supervised]
) -> None:
    pid = orphaned(supervised)
    next_one = another()
    next_one.start(next_one.child("two", "sleep"))
    next_one.is_ready("two")
    found = [each for each in next_one.status()["children"] if each["pid"] == pid]
    assert found[0]["child"].startswith("one~s")
    assert next_one.halt()["proved"]
    assert supervised.marked() == []


def test_a_process_that_escaped_a_dead_child_is_found_and_ended(
    supervised: Supervised, another: Callable[[], Supervised]
) -> None:
    own = supervised
    own.start(own.child("one", "escapes"))
    own.is_ready("one", count=2)
    root = own.state("one")["pid"]
    own.send(signal.SIGKILL)
    own.wait()
    until(lambda: state_of(root) in ("", "Z"))
    assert len(own.marked()) == 1, "the one that escaped"
    next_one = another()
    next_one.start(next_one.child("one", "sleep"))
    next_one.says("left behind by supervisor")
    until(lambda: not own.marked(), "ended")
    next_one.is_ready("one")


def test_a_process_with_a_reused_pid_is_not_touched(
    supervised: Supervised, another: Callable[[], Supervised]
) -> None:
    pid = orphaned(supervised)
    (path,) = (supervised.home / "state").glob("*.json")
    state = json.loads(path.read_text())
    for each in state["children"]:
        each["start_ticks"] += 1
        each["tree"]["start_ticks"] += 1
        each["tree"].update({"mark": 12345, "cgroup": "/sys/fs/cgroup/nowhere/at/all"})
    path.write_text(json.dumps(state))
    next_one = another()
    next_one.start(next_one.child("one", "sleep"))
    next_one.is_ready("one")
    assert next_one.state("one")["pid"] != pid
    assert next_one.halt()["processes"] == 1
    assert supervised.marked() == [pid]


def test_unreadable_state_does_not_prevent_a_start(supervised: Supervised) -> None:
    own = supervised
    (own.home / "state").mkdir(parents=True)
    for name, content in {"a": "", "b": "{", "c": "[]", "d": '{"id": 5}', "e": "[" * 9999}.items():
        (own.home / "state" / f"{name}.json").write_text(content)
    dead = {"id": "sdead", "pid": 4194304, "children": [{}, {"pid": "x"}, None, {"tree": {}}]}
    (own.home / "state" / "f.json").write_text(json.dumps(dead))
    own.start(own.child("one", "sleep"))
    own.is_ready("one")


def test_a_live_supervisor_keeps_its_children(
    supervised: Supervised, another: Callable[[], Supervised]
) -> None:
    own = supervised.start(supervised.child("one", "survives"))
    own.is_ready("one")
    other = another()
    other.start(other.child("one", "sleep"))
    other.is_ready("one")
    assert other.state("one")["adopted"] is False
    assert own.state("one")["state"] == "running"
