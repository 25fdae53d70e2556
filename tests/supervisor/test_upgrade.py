"""A supervisor replaces its own code without losing a child or a file."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.supervisor.harness import Supervised, state_of, until


def by_signal(own: Supervised) -> None:
    own.send(signal.SIGUSR2)


def by_socket(own: Supervised) -> None:
    assert own.ask({"do": "upgrade"})["upgrading"]["pid"] == own.pid


@pytest.mark.parametrize("way", [by_signal, by_socket], ids=lambda way: way.__name__)
def test_an_upgrade_keeps_children_and_their_output(
    supervised: Supervised, way: Callable[[Supervised], None]
) -> None:
    own = supervised
    wait = "touch $READY.1; while [ ! -e $READY.go ]; do sleep 0.02; done"
    code = f"echo before; {wait}; echo after; exit 41"
    own.start(
        own.with_control(),
        own.child("it", argv=["/bin/sh", "-c", code], kind="command", restart="never", log="tee"),
    )
    own.is_ready("it")
    before = own.state("it")
    way(own)
    own.says("upgraded in place")
    after = own.state("it")
    assert (after["pid"], after["starts"], after["state"]) == (before["pid"], 1, "running")
    until(lambda: len(own.events("hello")) == 2, "told again")
    (own.folder / "ready-it.go").touch()
    assert own.wait() == 41, "an exit code is not lost"
    assert own.event("exited", child="it")["code"] == 41
    assert (own.folder / "stdout").read_text() == "before\nafter\n"


def test_an_upgraded_supervisor_keeps_all_its_abilities(supervised: Supervised) -> None:
    own = supervised
    own.start(
        own.with_control(),
        own.child("pings", "pings"),
        own.child("escapes", "escapes"),
        settings={"watchdog_seconds": 1.0, "grace_seconds": 0.5},
    )
    own.is_ready("pings", "escapes")
    for number in (1, 2, 3):
        own.ask({"do": "upgrade"})
        own.says("upgraded in place", count=number)
    pid = own.state("pings")["pid"]
    os.kill(pid, signal.SIGSTOP)
    assert own.event("stalled", child="pings")["pid"] == pid
    own.is_ready("pings", count=2)
    receipt = own.halt()
    assert own.marked() == []
    own.ask({"do": "upgrade"})
    own.says("upgraded in place", count=4)
    assert own.halt() == receipt
    own.order(do="cleared", epoch=own.status()["latch"]["epoch"])
    own.is_in("pings", "running")
    own.send(signal.SIGTERM)
    assert own.wait() == 0
    assert own.marked() == []


def test_signals_that_arrive_during_an_upgrade_are_handled(supervised: Supervised) -> None:
    own = supervised.start(supervised.child("one", "stubborn"))
    own.is_ready("one")
    own.send(signal.SIGUSR2)
    own.says("the new code takes over")
    own.send(signal.SIGUSR1)
    own.says("HALTED")
    assert own.marked() == []


def test_a_halt_during_the_trial_of_new_code_takes_precedence(supervised: Supervised) -> None:
    own = supervised.start(supervised.child("one", "stubborn"))
    own.is_ready("one")
    own.send(signal.SIGUSR2)
    probe = until(lambda: _trial_of(own.pid), "the new code is tried")
    own.send(signal.SIGSTOP)
    until(lambda: state_of(probe) == "Z", "it loads, and nobody has noticed yet")
    own.send(signal.SIGUSR1)
    own.send(signal.SIGCONT)
    own.says("HALTED")
    assert own.marked() == []
    assert own.halt()["proved"]


def _trial_of(pid: int) -> int:
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            if b"--check" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
        except OSError:
            continue
    return 0


def test_code_that_does_not_load_is_not_upgraded_to(supervised: Supervised, tmp_path: Path) -> None:
    own = supervised
    broken = tmp_path / "site"
    broken.mkdir()
    own.start(own.child("one", "stubborn"), path=[str(broken)])
    own.is_ready("one")
    (broken / "sitecustomize.py").write_text("import os; os._exit(9)")
    assert "the new code does not load (exit code 9)" in own.ask({"do": "upgrade"})["error"]
    assert own.state("one")["state"] == "running"
    assert own.halt()["proved"]
