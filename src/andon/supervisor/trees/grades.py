"""Grades of each kind of stop on this host, found by trying every mechanism for real.

    stop          A                     B                        C                   none
    kill          cgroup, or PID 1      pid namespace, own uid   walk                process group
    pause         cgroup.freeze         -                        SIGSTOP walk        cooperation
    parent death  PID 1, pid namespace  signal and closed net    signal, then lease  orphans

The mechanisms run on scratch processes. `python -m andon.supervisor.trees.grades` prints the grades
as JSON; it is a process of its own because only a single-threaded process may fork.
"""

import contextlib
import json
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from andon.host import proc, syscalls
from andon.supervisor.trees import trial
from andon.supervisor.trees.tree import Mechanism, TreeSpec, Unfit, linux_or_not, mechanisms
from andon.supervisor.trees.trial import Bait
from andon.supervisor.trees.uid import Uid

# How long a frozen process is watched for movement.
STILL_SECONDS = 0.03
# Used by the trial only. No user should have it; if the trial fails, its error says why.
SCRATCH_UID = 2_000_000_000


@dataclass(frozen=True)
class Grade:
    """The grade of one kind of stop on this host, with the evidence for it."""

    stop: str
    grade: str
    by: str
    found: str
    better: str = ""
    tried: dict[str, str] = field(default_factory=dict)


def probe() -> list[Grade]:
    """Try every mechanism and grade the results; takes about a second."""
    fit: dict[str, dict[str, Any]] = {}
    tried: dict[str, str] = {}
    for name, build in _named():
        try:
            fit[name] = trial.apart(partial(_perform, build))
            tried[name] = "works"
        except (OSError, Unfit) as error:
            tried[name] = str(error).removeprefix("Unfit: ")
    return [_kill(fit, tried), _pause(fit, tried), _parent_death(), *_not_enforced()]


def _named() -> list[tuple[str, Callable[[], Mechanism]]]:
    names = ("cgroup", "pid1", "pidns", "walk")
    found = list(zip(names, mechanisms(), strict=True))
    return [*found, ("uid", lambda: Uid(SCRATCH_UID))]


def _perform(build: Callable[[], Mechanism]) -> dict[str, Any]:
    """Freeze, thaw and kill a tree with one escaped process; runs in a scratch child."""
    mechanism = build()
    beats = mmap.mmap(-1, 4096)
    bait = Bait(mechanism.make(TreeSpec("trial", kind="command")), lambda into: _beat(into, beats))
    try:
        if bait.ready < 3:
            raise OSError("the scratch tree did not start")
        answer = _freeze(bait, beats)
        began = time.monotonic()
        bait.tree.finish(1.0)
        if not bait.gone(1.0):
            raise OSError("a scratch process that had left its group and its parents survived")
        return {**answer, "ms": (time.monotonic() - began) * 1000}
    finally:
        bait.close()
        mechanism.close()


def _beat(into: int, beats: mmap.mmap) -> None:
    os.write(into, b"r")
    # All three processes write to the same place, so any that still moves changes it.
    while True:
        beats[:8] = time.monotonic_ns().to_bytes(8, "little")
        time.sleep(0.001)


def _moves(beats: mmap.mmap, seconds: float) -> bool:
    before, end = beats[:8], time.monotonic() + seconds
    while time.monotonic() < end:
        if beats[:8] != before:
            return True
        time.sleep(0.001)
    return False


def _freeze(bait: Bait, beats: mmap.mmap) -> dict[str, Any]:
    began = time.monotonic()
    if not bait.tree.freeze():
        return {"pause": "it did not settle"}
    took = (time.monotonic() - began) * 1000
    if _moves(beats, STILL_SECONDS):
        return {"pause": "a frozen process moved"}
    if not bait.tree.thaw() or not _moves(beats, 1.0):
        return {"pause": "a thawed process did not move"}
    return {"pause": "", "frozen_ms": took}


_KILLS = {
    "cgroup": ("A", "one write ends a whole tree, escaped processes and fork storms included"),
    "pid1": ("A", "one call ends every process of the container"),
    "pidns": ("B", "a command dies with its pid namespace; a worker is killed by walking"),
    "uid": ("B", "everything of the agent's own user is ended, once a uid is given to it"),
    "walk": (
        "C",
        "processes are found one by one: a fork storm may take half a second",
    ),
}
_GET_CGROUP = (
    "give the supervisor a cgroup v2 subtree that it may write to (root, or systemd Delegate=yes), "
    "or make it PID 1 of a container"
)


def _kill(fit: dict[str, dict[str, Any]], tried: dict[str, str]) -> Grade:
    # "uid" is left out: it works only for children that are given a uid.
    for name in (one for one in ("cgroup", "pid1", "pidns", "walk") if one in fit):
        grade, means = _KILLS[name]
        found = f"by {name}: {means}; 3 scratch processes gone in {fit[name]['ms']:.1f} ms"
        return Grade("kill", grade, name, found, "" if grade == "A" else _GET_CGROUP, tried)
    found = "only the process group is killed: a process that calls setsid escapes"
    return Grade("kill", "none", "group", found, "run agents on Linux, " + _GET_CGROUP, tried)


def _pause(fit: dict[str, dict[str, Any]], tried: dict[str, str]) -> Grade:
    said = {name: one["pause"] or "works" for name, one in fit.items()}
    if said.get("cgroup") == "works":
        ms = fit["cgroup"]["frozen_ms"]
        found = f"by cgroup: the kernel freezes a whole tree; 3 scratch processes in {ms:.1f} ms"
        return Grade("pause", "A", "cgroup", found, "", {**tried, **said})
    for name in (one for one in ("pid1", "pidns", "uid", "walk") if said.get(one) == "works"):
        found = "by SIGSTOP, one by one: a process that is not stopped yet can wake the others"
        return Grade("pause", "C", name, found, _GET_CGROUP.partition(", or make")[0], said)
    found = "only agents that cooperate can be paused"
    return Grade("pause", "none", "", found, _GET_CGROUP, {**tried, **said})


_LIVED_ON = "lived on, until its lease ends or the next supervisor finds it"


def _parent_death() -> Grade:
    better = (
        "make the supervisor PID 1 of a container, or a systemd service "
        "(KillMode=control-group): then the kernel or systemd ends what it leaves"
    )
    if os.getpid() == 1:
        found = "the kernel ends everything when PID 1 dies"
        return Grade("parent death", "A", "pid1", found)
    try:
        seen = trial.apart(_orphan)
    except OSError as error:
        found = f"orphans outlive the supervisor: {error}"
        return Grade("parent death", "none", "", found, better)
    found = (
        f"a child died {seen['child_ms']:.1f} ms after its parent was killed; a grandchild "
        f"{'died too' if seen['grandchild_died'] else _LIVED_ON}"
    )
    holes = {
        "child": "died",
        "grandchild": "died" if seen["grandchild_died"] else "lived on",
        "child that changed its uid later": seen["after_setuid"],
    }
    return Grade("parent death", "C", "signal", found, better, holes)


def _orphan() -> dict[str, Any]:
    """Kill a scratch parent and see which processes die with it, the known holes included."""
    linux_or_not(become_reaper=True)
    child, grandchild, changed = os.pipe(), os.pipe(), os.pipe()
    ready = os.pipe()
    parent = os.fork()
    if parent == 0:
        signal.alarm(trial.TRIAL_SECONDS)
        _stay(child[1], ready[1], below=grandchild[1])
        if os.geteuid() == 0:
            _stay(changed[1], ready[1], uid=SCRATCH_UID)
        else:
            os.write(ready[1], b"r")
        _only()
        time.sleep(60)
    for _, into in (child, grandchild, changed, ready):
        os.close(into)
    for _ in range(3):
        if os.read(ready[0], 1) != b"r":
            raise OSError("the scratch processes did not start")
    began = time.monotonic()
    os.kill(parent, signal.SIGKILL)
    if not trial.closes(child[0], 1.0):
        raise OSError("the child of a killed parent lived on")
    answer = {"child_ms": (time.monotonic() - began) * 1000}
    grandchild_died = trial.closes(grandchild[0], 0.05)
    changed_died = trial.closes(changed[0], 0.02)
    for pid in proc.descendants([os.getpid()]):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    untried = "not tried: needs root" if os.geteuid() else ""
    after = untried or ("died" if changed_died else "lived on")
    return {**answer, "grandchild_died": grandchild_died, "after_setuid": after}


def _stay(hold: int, ready: int, *, below: int | None = None, uid: int | None = None) -> None:
    """Fork a child that asks for a parent-death signal and holds a pipe open while it lives."""
    if os.fork():
        return
    signal.alarm(trial.TRIAL_SECONDS)
    syscalls.die_with_parent()
    if below is not None and os.fork() == 0:
        signal.alarm(trial.TRIAL_SECONDS)
        os.write(ready, b"r")
        _only(below)
        time.sleep(60)
    if uid is not None:
        os.setresuid(uid, uid, uid)
    os.write(ready, b"r")
    _only(hold)
    time.sleep(60)
    os._exit(0)


def _only(*keep: int) -> None:
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in keep:
            with contextlib.suppress(OSError):
                os.close(fd)


def _not_enforced() -> list[Grade]:
    return [
        Grade(
            "network",
            "none",
            "",
            "not enforced here: bytes that were already written still leave after a kill",
            "keep agents behind a proxy that you can close",
        ),
        Grade(
            "keys",
            "none",
            "",
            "not enforced here: a kill does not revoke keys that an agent was given",
            "give agents short-lived keys, and revoke them after a halt",
        ),
    ]


if __name__ == "__main__":
    json.dump([asdict(one) for one in probe()], sys.stdout)
