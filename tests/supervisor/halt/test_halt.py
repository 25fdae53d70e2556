"""A halt ends everything, by every way to ask for it; and nothing starts again."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.supervisor.harness import Supervised, until

SHAPES = {"cooperative": 1, "stubborn": 1, "swallows": 1, "escapes": 2, "storm": 1}


def by_json(own: Supervised) -> None:
    own.ask({"do": "halt"})


def by_word(own: Supervised) -> None:
    with own.connect() as client:
        client.sendall(b"halt\n")
        client.recv(1)


def by_http(own: Supervised) -> None:
    status, found = own.http("POST", "/halt")
    assert status == 200
    assert found["receipt"]["proved"]


def by_http_with_reason(own: Supervised) -> None:
    _, found = own.http("POST", "/halt", json.dumps({"by": "maria", "why": "looks wrong"}))
    assert (found["receipt"]["by"], found["receipt"]["why"]) == ("maria", "looks wrong")


def by_http_that_never_ends(own: Supervised) -> None:
    with own.connect() as client:
        client.sendall(b"POST /halt HTTP/1.1\r\nContent-Length: 500\r\n\r\n{")
        client.recv(1)


def by_signal(own: Supervised) -> None:
    own.send(signal.SIGUSR1)


def by_file(own: Supervised) -> None:
    (own.home / "STOP").touch()


def by_control(own: Supervised) -> None:
    own.order(do="halt", by="maria", why="", order="rcp_control")


def by_missing_latch(own: Supervised) -> None:
    (own.home / "latch").unlink()


WAYS = [
    by_json,
    by_word,
    by_http,
    by_http_with_reason,
    by_http_that_never_ends,
    by_signal,
    by_file,
    by_control,
    by_missing_latch,
]


@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_of_any_shape_survives_a_halt(supervised: Supervised, shape: str) -> None:
    own = supervised.start(supervised.child("one", shape), supervised.child("two", shape))
    own.is_ready("one", "two", count=SHAPES[shape])
    assert own.marked()
    receipt = own.halt()
    assert own.marked() == []
    assert (receipt["proved"], receipt["survivors"], receipt["latched"]) == (True, [], True)
    assert receipt["processes"] >= 2 * SHAPES[shape]
    assert {each["child"] for each in receipt["children"]} == {"one", "two"}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_every_way_to_ask_for_a_halt_halts(
    supervised: Supervised, way: Callable[[Supervised], None]
) -> None:
    own = supervised
    own.start(own.with_control(), own.child("one", "stubborn"), own.child("two", "escapes"))
    own.is_ready("one", "two")
    own.event("hello")
    way(own)
    until(lambda: not own.marked(), "nothing left")
    told = own.event("halted")
    assert told["receipt"]["proved"]
    assert told["order"] == told["receipt"]["id"]
    assert len(own.marked("CONTROL")) == 1, "the control process lives to tell the store"
    assert own.status()["held"]


def test_a_second_pull_gets_the_same_receipt(supervised: Supervised) -> None:
    own = supervised.start(supervised.child("one", "stubborn"))
    own.is_ready("one")
    first = own.halt()
    assert own.halt() == first
    own.send(signal.SIGUSR1)
    (own.home / "STOP").touch()
    assert own.halt() == first
    assert own.http("POST", "/halt")[1]["receipt"] == first
    assert own.said().count("HALTED") == 1


def test_nothing_is_started_after_a_halt_until_it_is_lifted(supervised: Supervised) -> None:
    own = supervised
    own.start(
        own.with_control(),
        own.child("worker", "stubborn"),
        own.child("command", "stubborn", kind="command", restart="always"),
        own.child("waits", "stubborn", wait=True),
    )
    own.is_ready("worker", "command")
    receipt = own.halt()
    own.order(do="go", child="waits", run="r1")
    own.order(do="cleared", epoch=receipt["epoch"] - 1)
    own.event("answer", to="cleared")
    assert own.marked() == []
    assert own.is_in("worker", "held")["pid"] is None
    (own.home / "STOP").unlink()  # deleting it lifts nothing
    assert own.state("waits")["state"] == "held"
    own.order(do="cleared", epoch=receipt["epoch"], by="maria", why="looked at it")
    own.is_in("worker", "running")
    assert own.state("command")["state"] == "ended"
    own.says("the latch is lifted")


def test_a_new_pull_after_the_latch_was_lifted_is_a_new_halt(supervised: Supervised) -> None:
    own = supervised
    own.start(own.with_control(), own.child("worker", "stubborn"))
    own.is_ready("worker")
    first = own.halt()
    own.order(do="cleared", epoch=first["epoch"])
    own.is_in("worker", "running")
    second = own.halt()
    assert second["id"] != first["id"]
    assert second["epoch"] > first["epoch"]
    assert own.marked() == []


def test_a_supervisor_that_begins_under_a_pulled_latch_starts_nothing(
    supervised: Supervised, another: Callable[[], Supervised]
) -> None:
    own = supervised.start(supervised.child("one", "stubborn"))
    own.is_ready("one")
    own.halt()
    other = another()
    other.start(other.child("two", "stubborn"))
    assert other.is_in("two", "held")
    alone = another()
    alone.start(alone.child("three", "stubborn", kind="command", restart="never"))
    assert alone.wait() == 1
    alone.says("not started: the halt latch")
    assert other.marked() == alone.marked() == []


def test_a_latch_that_cannot_be_written_does_not_stop_the_halt(supervised: Supervised) -> None:
    own = supervised.start(supervised.child("one", "stubborn"))
    own.is_ready("one")
    path = own.home / "latch"
    path.unlink()
    path.mkdir()  # root may write anything but this
    (own.home / "STOP.ready").unlink(missing_ok=True)
    receipt = own.halt()
    assert own.marked() == []
    assert receipt["proved"]
    assert own.is_in("one", "held")


def test_a_pull_that_never_reached_the_disk_holds_until_a_person_lifts_it(
    supervised: Supervised,
) -> None:
    own = supervised
    own.start(own.with_control(), own.child("one", "stubborn"))
    own.is_ready("one")
    own.event("hello")
    away = own.home.rename(own.folder / "away")
    own.home.write_text("a file where the home was: nothing can be read or written")
    receipt = own.event("halted")["receipt"]
    assert own.marked() == []
    assert (receipt["proved"], receipt["latched"]) == (True, False)
    assert receipt["latch_error"]
    own.says("the latch could NOT be written")
    own.home.unlink()
    away.rename(own.home)  # with a latch that knows of no pull
    own.order(do="cleared", epoch=receipt["epoch"] - 1)
    own.event("answer", to="cleared")
    began = time.monotonic()
    until(lambda: time.monotonic() - began > 0.5, "it has looked at the latch some times")
    assert own.state("one")["state"] == "held"
    own.order(do="cleared", epoch=receipt["epoch"])
    own.is_in("one", "running")


@pytest.mark.parametrize("moment", ["halt:latched", "halt:killing", "halt:killed", "halt:verified"])
def test_a_supervisor_killed_in_the_middle_of_a_halt_leaves_nothing_that_starts(
    supervised: Supervised, another: Callable[[], Supervised], moment: str
) -> None:
    own = supervised
    own.start(own.child("one", "stubborn"), own.child("two", "stubborn"), faults=f"{moment}=kill")
    own.is_ready("one", "two")
    own.send(signal.SIGUSR1)
    assert own.wait() == -signal.SIGKILL
    until(lambda: not own.marked(), "children die with it")
    after = another()
    after.start(after.child("one", "stubborn"))
    assert after.is_in("one", "held")
    assert after.halt()["proved"]


def test_many_children_are_gone_at_once(supervised: Supervised, tmp_path: Path) -> None:
    own = supervised
    own.start(*(own.child(f"c{n}", "escapes") for n in range(12)))
    own.is_ready(*(f"c{n}" for n in range(12)), count=2)
    receipt = own.halt()
    assert own.marked() == []
    assert receipt["processes"] == 24


FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.mark.skipif(not os.access(FREEZER, os.W_OK), reason="needs a v1 freezer: it defies SIGKILL")
def test_a_process_that_cannot_be_killed_is_named_and_killed_again(supervised: Supervised) -> None:
    own = supervised
    own.start(own.with_control(), own.child("one", "stubborn"), settings={"halt_seconds": 0.3})
    own.is_ready("one")
    pid = own.state("one")["pid"]
    cell = FREEZER / f"andon-test-{pid}"
    cell.mkdir()
    try:
        (cell / "cgroup.procs").write_text(str(pid))
        (cell / "freezer.state").write_text("FROZEN")
        receipt = own.halt()
        assert (receipt["proved"], receipt["survivors"]) == (False, [pid])
        assert own.event("overrun")["what"] == "halt of one"
        assert own.event("halted")["receipt"]["proved"] is False
        assert own.halt()["id"] == receipt["id"]
        own.says("NOT PROVED")
        (cell / "freezer.state").write_text("THAWED")
        until(lambda: own.events("halted")[-1]["receipt"]["proved"], "hit again")
        assert own.marked() == []
        assert own.halt()["id"] == receipt["id"]
        assert own.is_in("one", "held")
    finally:
        (cell / "freezer.state").write_text("THAWED")
        until(lambda: _removed(cell))


@pytest.mark.skipif(not os.access(FREEZER, os.W_OK), reason="needs a v1 freezer: it defies SIGKILL")
def test_a_supervisor_that_leaves_survivors_exits_with_a_code_of_its_own(
    supervised: Supervised,
) -> None:
    own = supervised
    own.start(own.child("one", "stubborn"), settings={"halt_seconds": 0.3, "grace_seconds": 0.1})
    own.is_ready("one")
    pid = own.state("one")["pid"]
    cell = FREEZER / f"andon-test-{pid}"
    cell.mkdir()
    try:
        (cell / "cgroup.procs").write_text(str(pid))
        (cell / "freezer.state").write_text("FROZEN")
        own.halt()
        own.send(signal.SIGTERM)
        assert own.wait() == 3
    finally:
        (cell / "freezer.state").write_text("THAWED")
        until(lambda: _removed(cell))


def _removed(cell: Path) -> bool:
    try:
        cell.rmdir()
    except OSError:
        return False
    return True
