"""A scratch supervisor with one tree of a given shape; prints what it saw as JSON.

    python -m tests.supervisor.scratch_tree ACTION MECHANISM SHAPE [WORK]

A process of its own, because a supervisor has one thread and pytest does not. Every process of the
tree holds a pipe open: the end of the pipe is the kernel's word that all of them are gone. Whatever
goes wrong, every process ends by itself after LIFE seconds.
"""

import contextlib
import json
import mmap
import os
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from andon.host import proc, syscalls
from andon.supervisor.children.child import Child
from andon.supervisor.halt.kill import TreeKill
from andon.supervisor.spec import ChildSpec
from andon.supervisor.trees import tree
from andon.supervisor.trees.tree import Mechanism, Tree, TreeSpec

LIFE = 8
MEMBERS = 12
# Of this test only, also while others run at the same time.
UID = 70_000 + os.getpid()

Work = Callable[[int], None]


# ── shapes ────────────────────────────────────────────────────────────────────────────────────


class Bad:
    """A tree of processes that ignore every polite signal."""

    def __init__(self, owner: Tree, shape: str, work: str = "sleep", n: int = MEMBERS) -> None:
        self.tree, self.n = owner, n
        self.beats = mmap.mmap(-1, 8 * 4096)
        self.out, self.into = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                owner.enter()
                os.close(self.out)
                _live()
                getattr(self, shape)(getattr(self, f"_{work}"))
            finally:
                os._exit(9)
        os.close(self.into)
        owner.started(self.pid)
        self.members = self._read_members()

    def _read_members(self) -> set[int]:
        text, end = b"", time.monotonic() + 5
        while text.count(b"\n") < self.n and time.monotonic() < end:
            if select.select([self.out], [], [], 0.1)[0]:
                text += os.read(self.out, 4096)
        assert text.count(b"\n") >= self.n, text
        return {int(line) for line in text.split()}

    def flat(self, work: Work) -> None:
        for place in range(1, self.n):
            _fork(lambda place=place: work(place))  # type: ignore[misc]
        work(0)

    def chain(self, work: Work) -> None:
        for place in range(1, self.n):
            if os.fork():
                work(place)
            _live()
        work(0)

    def escape(self, work: Work) -> None:
        for place in range(1, self.n):
            middle = os.fork()
            if middle == 0:
                os.setsid()
                _fork(lambda place=place: work(place))  # type: ignore[misc]
                os._exit(0)
            os.waitpid(middle, 0)
        work(0)

    def headless(self, work: Work) -> None:
        """The main thread of each has ended, and another one works."""
        for place in range(1, self.n):
            _fork(lambda place=place: self._behead(work, place))  # type: ignore[misc]
        self._behead(work, 0)

    def _behead(self, work: Work, place: int) -> None:
        threading.Thread(target=work, args=(place,)).start()
        syscalls.exit_thread()

    def storm(self, work: Work) -> None:
        """Lineages that replace themselves all the time: each pid lives for a few milliseconds."""
        end = time.monotonic() + LIFE / 2
        for place in range(1, self.n):
            _fork(lambda place=place: self._replace(place, end))  # type: ignore[misc]
        work(0)

    def _replace(self, place: int, end: float) -> None:
        os.setsid()
        self._ready()
        while time.monotonic() < end:
            self._beat(place)
            time.sleep(0.003)
            if os.fork():
                os._exit(0)

    # ── their work ── ───────────

    def _ready(self) -> None:
        os.write(self.into, b"%d\n" % os.getpid())

    def _beat(self, place: int) -> None:
        at = 8 * place
        self.beats[at : at + 8] = time.monotonic_ns().to_bytes(8, "little")

    def beat(self) -> bytes:
        return self.beats[: 8 * self.n]

    def _sleep(self, place: int) -> None:
        self._ready()
        while True:
            self._beat(place)
            time.sleep(0.002)

    def _busy(self, place: int) -> None:
        self._ready()
        while True:
            self._beat(place)

    def _memory(self, place: int) -> None:
        mine = bytearray(8_000_000)
        mine[::4096] = b"x" * len(mine[::4096])
        self._sleep(place)

    # ── observation from outside ──

    def gone(self, seconds: float = 5.0) -> bool:
        end = time.monotonic() + seconds
        while select.select([self.out], [], [], max(0.0, end - time.monotonic()))[0]:
            if not os.read(self.out, 4096):
                return True
        return False

    def moves(self, seconds: float) -> bool:
        """Whether any process of it executes within that time."""
        before, end = self.beat(), time.monotonic() + seconds
        while time.monotonic() < end:
            if self.beat() != before:
                return True
            time.sleep(0.001)
        return False


def _live() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.alarm(LIFE)


def _fork(then: Callable[[], None]) -> None:
    if os.fork() == 0:
        try:
            _live()
            then()
        finally:
            os._exit(9)


def reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


# ── actions ───────────────────────────────────────────────────────────────────────────────────


def build(name: str) -> Mechanism:
    for make in tree.mechanisms(UID if name.endswith("uid") else None):
        with contextlib.suppress(tree.Unfit, OSError):
            found = make()
            if found.grades["by"] == name.removesuffix("+uid"):
                return found
            found.close()
    raise SystemExit(f"no mechanism {name} here")


def kill(mechanism: Mechanism, shape: str, work: str) -> dict[str, Any]:
    owner = mechanism.make(TreeSpec("one", kind="command"))
    bad = Bad(owner, shape, work)
    seen = owner.pids()
    survivors = owner.finish(5.0)
    return {
        "seen": len(seen),
        "missed": sorted(bad.members - set(seen)),
        "survivors": survivors,
        "gone": bad.gone(),
        "empty": owner.empty(),
        "pids": owner.pids(),
    }


def halt(mechanism: Mechanism, shape: str, work: str) -> dict[str, Any]:
    """As a supervisor does it: round by round, until none is left."""
    owner = mechanism.make(TreeSpec("one", kind="command"))
    bad = Bad(owner, shape, work)
    child = Child(ChildSpec("one", "worker", ["x"], {}), state="running", tree=owner)
    killing = TreeKill([child], lambda _: None, seconds=LIFE / 3)  # a storm ends after half of it
    killing.hit(mechanism.kill_all)
    while not killing.rounds() and time.monotonic() < killing.deadline:
        reap()
    return {"survivors": killing.survivors, "gone": bad.gone(0.2)}


def kill_all(mechanism: Mechanism, shape: str, work: str) -> dict[str, Any]:
    bad = [Bad(mechanism.make(TreeSpec(f"n{n}", kind="command")), shape, work) for n in range(3)]
    control = Bad(mechanism.make(TreeSpec("control", apart=True)), "escape", n=2)
    end = time.monotonic() + 5
    while mechanism.kill_all() and time.monotonic() < end:
        if all(one.tree.empty() for one in bad):
            break
        reap()
    answer = {"gone": [one.gone(0.2) for one in bad], "spared": len(control.tree.pids())}
    control.tree.finish(2.0)
    return answer


def kill_one(mechanism: Mechanism, shape: str, work: str) -> dict[str, Any]:
    first = Bad(mechanism.make(TreeSpec("same/../name", kind="command")), shape, work)
    second = Bad(mechanism.make(TreeSpec("same/../name", kind="command")), shape, work)
    first.tree.finish(5.0)
    answer = {"gone": first.gone(), "other_moves": second.moves(1.0)}
    second.tree.finish(5.0)
    return answer


def nested(mechanism: Mechanism, shape: str, work: str) -> dict[str, Any]:
    outer = mechanism.make(TreeSpec("outer"))
    above = Bad(outer, shape, work)
    below = Bad(mechanism.make(TreeSpec("inner", parent=outer)), shape, work)
    seen = len(outer.pids())
    survivors = outer.finish(5.0)
    answer = {"seen": seen, "survivors": survivors, "gone": [above.gone(), below.gone()]}
    below.tree.finish(1.0)
    return answer


def freeze(mechanism: Mechanism, shape: str, work: str) -> dict[str, Any]:
    owner = mechanism.make(TreeSpec("one", kind="command"))
    bad = Bad(owner, shape, work)
    before = bad.moves(1.0)
    frozen = owner.freeze()
    stands_still = not bad.moves(0.05)
    thawed = owner.thaw()
    after = bad.moves(1.0)
    owner.freeze()
    survivors = owner.finish(5.0)
    return {
        "seen": [before, frozen, stands_still, thawed, after],
        "killed_frozen": survivors == [] and bad.gone(),
    }


def abandoned(mechanism: Mechanism, shape: str, work: str) -> dict[str, Any]:
    out, into = os.pipe()
    first = os.fork()
    if first == 0:
        mine = build("cgroup")
        mine.make(TreeSpec("one"))
        os.write(into, str(getattr(mine, "path", "")).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    path = Path(os.read(out, 4096).decode())
    os.waitpid(first, 0)
    left = path.exists()
    build("cgroup").make(TreeSpec("two")).close()
    return {"left": left, "swept": not path.exists(), "own_is_there": _exists(mechanism)}


def forgotten(mechanism: Mechanism, shape: str, work: str) -> dict[str, Any]:
    """The same, when the cgroup is no longer known."""
    return orphaned(mechanism, shape, work, without="cgroup")


def orphaned(mechanism: Mechanism, shape: str, work: str, *, without: str = "") -> dict[str, Any]:
    """The supervisor itself is killed; another one gets the first one's records."""
    mechanism.close()
    out, into = os.pipe()
    first = os.fork()
    if first == 0:
        mine = build(sys.argv[2])
        bad = Bad(mine.make(TreeSpec("one", kind="command")), shape, work)
        os.write(into, json.dumps(bad.tree.describe()).encode() + b"\n")
        time.sleep(LIFE)
        os._exit(9)
    os.close(into)
    described = json.loads(os.read(out, 65536))
    described.pop(without, None)
    root, ticks = described["pid"], described["start_ticks"]
    mine = build(sys.argv[2])
    restored = mine.restore(described)
    before = len(restored.pids())
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    end = time.monotonic() + 2
    while proc.alive(root, ticks) and time.monotonic() < end:
        time.sleep(0.001)
    left = restored.pids()
    answer = {
        "before": before,
        "root_died": not proc.alive(root, ticks),
        "left": len(left),
        "survivors": restored.finish(5.0),
        "alive": sorted(pid for pid in left if proc.alive(pid)),
    }
    restored.close()
    mine.close()
    return answer


def left(mechanism: Mechanism, shape: str, work: str) -> dict[str, Any]:
    """A process with root's rights leaves its cgroup, and then its parents."""
    owner = mechanism.make(TreeSpec("one", kind="command"))
    bad = _Leaving(owner, "escape", "leave")
    seen = owner.pids()
    survivors = owner.finish(5.0)
    return {"seen": len(seen), "survivors": survivors, "gone": bad.gone(), "empty": owner.empty()}


class _Leaving(Bad):
    def _leave(self, place: int) -> None:
        folder = Path(str(self.tree.describe()["cgroup"]))
        if place == 1:
            (folder.parents[2] / "cgroup.procs").write_text("0")
        self._sleep(place)


def stray(mechanism: Mechanism, shape: str, work: str) -> dict[str, Any]:
    """A process without its mark still belongs to its cgroup, and not to another tree."""
    first, second = mechanism.make(TreeSpec("first")), mechanism.make(TreeSpec("second"))
    other = Bad(first, "flat", n=2)
    bad = _Unmarked(second, "escape", "unmark")
    other.tree.finish(5.0)
    answer = {"of_first": first.pids(), "of_second": len(second.pids()), "moves": bad.moves(1.0)}
    bad.tree.finish(5.0)
    return {**answer, "gone": bad.gone()}


class _Unmarked(Bad):
    def _unmark(self, place: int) -> None:
        resource.setrlimit(resource.RLIMIT_MSGQUEUE, (12_345, 12_345))
        self._sleep(place)


def free(mechanism: Mechanism, shape: str, work: str) -> dict[str, Any]:
    """The ways in which a child under a uid of its own can act on its supervisor: none."""
    owner = mechanism.make(TreeSpec("one", kind="command"))
    above = Path(str(owner.describe().get("cgroup", "/"))).parent
    me, (out, into) = os.getpid(), os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(LIFE)
        owner.enter()
        found: dict[str, Any] = {"own": os.getresuid() == (UID,) * 3, "groups": os.getgroups()}
        for what, act in (
            ("signal", lambda: os.kill(me, 0)),
            ("root", lambda: os.setuid(0)),
            ("leave", lambda: (above / "cgroup.procs").write_text("0")),
            ("memory", lambda: Path(f"/proc/{me}/environ").read_bytes()),
        ):
            try:
                act()
                found[what] = "could"
            except OSError as error:
                found[what] = type(error).__name__
        os.write(into, json.dumps(found).encode())
        os._exit(0)
    owner.started(pid)
    answer = json.loads(os.read(out, 4096))
    owner.finish(1.0)
    return dict(answer)


def ends(mechanism: Mechanism, shape: str, work: str) -> dict[str, Any]:
    """How a command of one process ended, as its supervisor sees it."""
    found = []
    for end in ("os._exit(0)", "os._exit(137)", "os.kill(os.getpid(), 9)", "os.abort()"):
        owner = mechanism.make(TreeSpec("t", kind="command"))
        pid = os.fork()
        if pid == 0:
            try:
                owner.enter()
                exec(end)
            finally:
                os._exit(99)
        owner.started(pid)
        found.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    return {"found": found}


def main() -> None:
    action, name, shape = sys.argv[1:4]
    work = sys.argv[4] if len(sys.argv) > 4 else "sleep"
    signal.alarm(30)
    syscalls.die_with_parent()
    mechanism = build(name)
    try:
        answer = globals()[action](mechanism, shape, work)
    finally:
        for one in list(mechanism.trees):  # type: ignore[attr-defined]
            one.finish(1.0)
            one.close()
        mechanism.close()
    answer["left_behind"] = _exists(mechanism)
    sys.stdout.write(json.dumps(answer))


def _exists(mechanism: Mechanism) -> bool:
    path = getattr(mechanism, "path", None)
    return path is not None and path.exists()


if __name__ == "__main__":
    main()
