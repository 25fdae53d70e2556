"""The control process gets every event, may order anything, and is not needed for a stop."""

import os
import signal
import time
from pathlib import Path

from tests.supervisor.harness import Supervised, state_of, until

from andon.supervisor.api.control_channel import MOST_KEPT, ControlChannel
from andon.supervisor.poll import PollLoop


def test_the_control_process_first_gets_the_whole_state(supervised: Supervised) -> None:
    own = supervised
    own.start(own.with_control(), own.child("one", "sleep", run="r1"))
    hello = own.event("hello")
    assert hello["supervisor"]["pid"] == own.pid
    assert hello["supervisor"]["home"] == str(own.home)
    assert set(hello["supervisor"]["grades"]) == {"kill", "pause", "parent_death", "by"}
    assert hello["latch"]["pulled"] is False
    started = own.event("started", child="one")
    assert started["run"] == "r1"
    assert started["pid"] == own.state("one")["pid"]
    assert set(started["containment"]) == set(hello["supervisor"]["grades"])


def test_a_dead_control_process_is_replaced_without_effect_on_children(
    supervised: Supervised,
) -> None:
    own = supervised
    own.start(own.with_control(), own.child("one", "sleep"))
    own.is_ready("one")
    own.event("hello")
    (control,) = own.marked("CONTROL")
    worker = own.state("one")["pid"]
    os.kill(control, signal.SIGKILL)
    own.is_in("control", "resting")
    os.kill(worker, signal.SIGKILL)  # while no control process reads
    until(lambda: len(own.events("hello")) == 2, "greeted again")
    assert own.event("exited", child="one", pid=worker)
    order = [each["event"] for each in own.events()]
    assert order.index("exited") > [n for n, kind in enumerate(order) if kind == "hello"][-1]


def test_a_child_that_waits_starts_when_it_is_allowed(supervised: Supervised) -> None:
    own = supervised
    code = ["/bin/sh", "-c", "echo $LEAVE; exit 4"]
    own.start(
        own.with_control(),
        own.child("it", argv=code, kind="command", restart="never", wait=True, log="tee"),
    )
    own.event("hello")
    assert own.state("it")["state"] == "waiting"
    own.order(do="go", child="it", run="run-1", env={"LEAVE": "granted"})
    assert own.wait() == 4
    assert own.event("started", child="it")["run"] == "run-1"
    assert (own.folder / "stdout").read_text() == "granted\n"
    assert (own.home / "logs" / "run-1.log").read_text() == "granted\n"


def test_a_child_that_is_refused_never_starts(supervised: Supervised) -> None:
    own = supervised
    own.start(own.with_control(), own.child("it", "stubborn", kind="command", wait=True))
    own.order(do="refuse", child="it", why="agent crawler is held by maria")
    assert own.wait() == 1
    own.says("not started: agent crawler is held by maria")
    assert own.marked() == []


def test_permission_that_never_comes_is_a_refusal(supervised: Supervised) -> None:
    own = supervised
    own.start(
        own.with_control(),
        own.child("it", "stubborn", kind="command", wait=True),
        settings={"go_seconds": 0.2},
    )
    assert own.wait() == 1
    own.says("no permission to start within 0.2 s")


def test_a_kill_ends_the_tree_and_lists_its_processes(supervised: Supervised) -> None:
    own = supervised
    own.start(
        own.with_control(),
        own.child("command", "escapes", kind="command", restart="always"),
        own.child("worker", "stubborn"),
    )
    own.is_ready("command", count=2)
    own.is_ready("worker")
    own.order(do="kill", child="command", order="ord-1")
    told = own.event("killed", child="command")
    assert (told["order"], told["survivors"]) == ("ord-1", [])
    assert told["pids"] >= 2
    assert own.event("exited", child="command")["asked"] is True
    assert own.is_in("command", "ended"), "a command that was killed stays so"
    worker = own.state("worker")["pid"]
    own.order(do="kill", pid=worker, order="ord-2")
    assert own.event("killed", child="worker")["order"] == "ord-2"
    own.is_ready("worker", count=2)  # a worker is infrastructure
    again = own.is_in("worker", "running")["pid"]
    assert again != worker
    own.order(do="kill", child="worker", pid=worker, order="ord-3")
    assert "is another process by now" in own.event("answer", order="ord-3")["error"]
    assert own.state("worker")["pid"] == again


def test_a_kill_of_a_child_that_is_gone_is_proved_at_once(supervised: Supervised) -> None:
    own = supervised
    own.start(
        own.with_control(),
        own.child("it", "fails", kind="command", restart="never"),
        own.child("other", "sleep"),
    )
    own.is_in("it", "ended")
    own.order(do="kill", child="it", order="late")
    assert own.event("killed", child="it", order="late")["survivors"] == []
    own.order(do="kill", child="nobody", order="x")
    assert "no child 'nobody'; there are: control, it, other" in own.event("answer")["error"]


def test_a_child_is_frozen_and_thawed_with_all_its_descendants(supervised: Supervised) -> None:
    own = supervised
    own.start(
        own.with_control(),
        own.child("it", "escapes"),
        settings={"lost_contact": "continue"},
    )
    own.is_ready("it", count=2)
    own.order(do="freeze", child="it", order="ord-1")
    told = own.event("frozen", child="it")
    assert told["order"] == "ord-1"
    assert told["grade"] == own.status()["supervisor"]["grades"]["pause"]
    assert own.state("it")["state"] == "frozen"
    own.order(do="thaw", child="it", order="ord-2")
    own.event("thawed", child="it")
    own.order(do="freeze", child="it", order="ord-3")
    own.event("frozen", order="ord-3")
    own.halt()  # frozen ones die too
    assert own.marked() == []


def test_a_child_that_ignores_a_drain_is_ended(supervised: Supervised) -> None:
    own = supervised
    own.start(
        own.with_control(),
        own.child("good", "cooperative"),
        own.child("bad", "stubborn"),
        own.child("other", "sleep"),
    )
    own.is_ready("good", "bad", "other")
    own.order(do="term", child="good", order="o1", grace=60)
    assert own.event("exited", child="good")["code"] == 0
    own.order(do="term", child="bad", order="o2", grace=0.2)
    assert own.event("overrun")["what"] == "term of bad"
    assert own.event("killed", child="bad")["order"] == "o2"
    assert own.is_in("good", "ended")
    assert own.is_in("bad", "ended")


def test_lost_contact_stops_all_but_the_control_process(supervised: Supervised) -> None:
    own = supervised
    own.start(
        own.with_control(),
        own.child("worker", "escapes"),
        own.child("command", "stubborn", kind="command", restart="always"),
        settings={"lost_contact_seconds": 1.0},
    )
    own.is_ready("worker", count=2)
    own.is_ready("command")
    (own.folder / "silent").touch()
    told = own.event("lost_contact")
    assert told["did"] == ["worker", "command"]
    until(lambda: not own.marked(), "stopped")
    own.says("lost contact for 1 s; stopped: worker, command")
    assert own.is_in("worker", "held")
    (own.folder / "silent").unlink()
    own.is_in("worker", "running")
    assert own.state("command")["state"] == "ended"


def test_lost_contact_may_be_allowed(supervised: Supervised) -> None:
    own = supervised
    (own.folder / "silent").touch()
    own.start(
        own.with_control(),
        own.child("worker", "sleep"),
        settings={"lost_contact_seconds": 0.2, "lost_contact": "continue"},
    )
    own.is_ready("worker")
    until(lambda: own.status()["contact_seconds"] > 0.6, "long enough")
    assert own.state("worker")["state"] == "running"


def test_a_supervisor_that_was_suspended_itself_ends_no_child(supervised: Supervised) -> None:
    own = supervised
    own.start(
        own.with_control(),
        own.child("worker", "pings"),
        settings={"lost_contact_seconds": 1.2, "watchdog_seconds": 1.2},
    )
    worker = until(lambda: own.state("worker")["ping"] and own.state("worker")["pid"], "it pings")
    (own.folder / "silent").touch()
    os.kill(worker, signal.SIGSTOP)  # both, as on a host that sleeps
    until(lambda: state_of(worker) == "T")
    tick = own.state("worker")["ping"]["tick"]  # and its last message has been read
    own.send(signal.SIGSTOP)
    until(lambda: state_of(own.pid) == "T")
    began = time.monotonic()
    until(lambda: time.monotonic() - began > 2.5, "it was away for long")
    (own.folder / "silent").unlink()
    own.send(signal.SIGCONT)
    assert own.status()["lost_contact"] is False
    os.kill(worker, signal.SIGCONT)
    until(lambda: own.state("worker")["ping"]["tick"] > tick + 30, "it goes on for a while")
    assert own.state("worker")["starts"] == 1
    assert own.events("stalled") == []


def test_events_without_a_reader_are_kept_within_a_limit(tmp_path: Path) -> None:
    link = ControlChannel(PollLoop(), lambda _message: None)
    for number in range(MOST_KEPT + 5):
        link.send("x", n=number)
    assert link.missed == 5
    theirs = link.open()
    link.greet({"event": "hello"})
    with os.fdopen(theirs, "rb", buffering=0) as file:
        assert b'"hello", "missed": 5' in file.read(100)
    link.close()
