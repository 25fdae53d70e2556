"""Kill and freeze with cgroup v2: one write also reaches processes that escaped their parents.

    <own cgroup>/andon-<supervisor>/fleet/<child>/<sub>     killed by a halt
                                   /apart/<child>           spared by a halt

The child joins before it execs and cannot leave by accident: a process forked in a cgroup stays in
it. A process with root's rights can leave on purpose; run it under its own uid. Files are opened in
advance, so that a kill needs neither memory nor a new descriptor. No controllers are needed, so a
hybrid mount or a delegated subtree is enough. Grade A.
"""

import contextlib
import errno
import os
import re
import select
import signal
import time
from pathlib import Path
from typing import Any

from andon.host import proc
from andon.supervisor.trees.tree import (
    SETTLE_SECONDS,
    Grades,
    Mechanism,
    Tree,
    TreeSpec,
    Unfit,
    living,
    send,
    spec_of,
)
from andon.supervisor.trees.walk import Walk, WalkTree

# Processes that left both their cgroup and their parents are rare, so one scan for them may be this
# old: fifty trees that die together share it.
LOOK_SECONDS = 0.005
# The name of a supervisor's own cgroup.
HOUSE = re.compile(r"andon-(?P<pid>\d+)-(?P<ticks>\d+)-(?P<namespace>\d+)")
GRADES = {"kill": "A", "pause": "A", "parent_death": "C", "by": "cgroup"}


def own_folder() -> Path:
    """Return the cgroup of this process in the v2 hierarchy, wherever that is mounted."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        mine = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError as error:
        raise Unfit(f"no cgroups: {error}") from None
    own = next((line[3:] for line in mine if line.startswith("0::")), "")
    for line in mounts:
        before, _, after = line.partition(" - ")
        if after.split()[0] == "cgroup2":
            root, at = before.split()[3:5]
            # A container may mount only a part of the hierarchy.
            inside = own[len(root) :] if root != "/" and own.startswith(root) else own
            at = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), at)
            return Path(at + inside.rstrip("/"))
    raise Unfit("cgroup v2 is not mounted")


def _safe(name: str) -> str:
    """Return a folder name without dots, which cannot clash with a cgroup interface file."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:100] or "_"


def _namespace() -> str:
    """Return the number of our pid namespace; in others our pid means another process."""
    return "".join(filter(str.isdigit, proc.pid_namespace())) or "0"


def remove(path: Path) -> None:
    """Remove a cgroup and those below it; the kernel refuses to remove one that is in use."""
    for folder, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def sweep(above: Path) -> None:
    """Remove the empty cgroups of supervisors that were killed."""
    with contextlib.suppress(OSError):
        for path in above.iterdir():
            found = HOUSE.fullmatch(path.name)
            if found is None or found["namespace"] != _namespace():
                continue
            if proc.start_ticks(int(found["pid"])) != int(found["ticks"]):
                remove(path)


def _numbers(fd: int) -> list[int]:
    """Read all of cgroup.procs, from its start and however long it is."""
    text = b""
    try:
        os.lseek(fd, 0, os.SEEK_SET)
        while part := os.read(fd, 65536):
            text += part
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise
    return [int(one) for one in text.split()]


class CgroupFolder:
    """One cgroup and the open descriptors of its files."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path = path
        if create:
            path.mkdir(exist_ok=True)
        self._fds: dict[str, int] = {}
        self._killed = False
        try:
            for file, flags, needed in (
                ("cgroup.procs", os.O_RDWR, True),
                ("cgroup.events", os.O_RDONLY, True),
                ("cgroup.kill", os.O_WRONLY, False),
                ("cgroup.freeze", os.O_RDWR, False),
            ):
                try:
                    self._fds[file] = os.open(path / file, flags | os.O_CLOEXEC)
                except FileNotFoundError:
                    if needed:
                        raise
        except OSError:
            self.close()
            raise
        # Whether this kernel can kill a whole cgroup with one write (5.14 and later).
        self.one_write = "cgroup.kill" in self._fds

    def join(self) -> None:
        os.write(self._fds["cgroup.procs"], b"0")

    def _events(self) -> bytes:
        """Read `populated` and `frozen`; this also re-arms the descriptor for the next change."""
        try:
            return os.pread(self._fds["cgroup.events"], 4096, 0)
        except OSError as error:
            # The cgroup was removed, so no process can be in it.
            if error.errno == errno.ENODEV:
                return b"populated 0\nfrozen 0\n"
            raise

    def populated(self) -> bool:
        """Whether any process is in it. Kept cheap: it is asked often while the tree dies."""
        return b"populated 1" in self._events()

    def pids(self) -> list[int]:
        """List the processes in it and below, without those of another namespace (pid 0)."""
        found = set(_numbers(self._fds["cgroup.procs"]))
        with contextlib.suppress(OSError):
            # The link count is 2 for the folder itself, plus one for each subfolder.
            if os.stat(self.path).st_nlink > 2:
                for folder, _, _ in os.walk(self.path):
                    found.update(
                        int(one) for one in Path(folder, "cgroup.procs").read_text().split()
                    )
        return sorted(found - {0})

    def kill(self) -> None:
        """Kill with one write; before kernel 5.14, signal each process while all are frozen.

        A frozen process cannot fork, so none escapes the signals.
        """
        if self._write("cgroup.kill", b"1"):
            if self._killed:
                self._kill_headless()
            self._killed = True
            return
        self._write("cgroup.freeze", b"1")
        send(self.pids(), signal.SIGKILL)
        self._write("cgroup.freeze", b"0")

    def _kill_headless(self) -> None:
        """Signal processes whose main thread has ended: `cgroup.kill` reaches that thread alone.

        The kernel counts the kill as delivered, so only a signal to the whole process ends them.
        Only from the second kill on: at the first there are as many candidates as processes.
        """
        for pid in self.pids():
            found = proc.stat(pid)
            if found is not None and found.state == "Z" and found.threads > 1 and self._has(pid):
                proc.send(pid, found.start_ticks, signal.SIGKILL)

    def _has(self, pid: int) -> bool:
        """Whether the pid is still in this cgroup; it may belong to another process by now."""
        return f"/{self.path.name}/" in f"{proc.cgroup(pid)}/"

    def set_frozen(self, frozen: bool) -> bool:
        """Freeze or thaw, and wait until the kernel confirms it, at most `SETTLE_SECONDS`."""
        wanted = b"1" if frozen else b"0"
        if not self._write("cgroup.freeze", wanted):
            return False
        poller = select.poll()
        poller.register(self._fds["cgroup.events"], select.POLLPRI)
        end = time.monotonic() + SETTLE_SECONDS
        while True:
            events = self._events()
            # The kernel never reports an empty cgroup as frozen.
            if b"frozen " + wanted in events or b"populated 0" in events:
                return True
            left = end - time.monotonic()
            if left <= 0:
                return False
            poller.poll(min(left, 0.05) * 1000)

    def _write(self, file: str, text: bytes) -> bool:
        if file not in self._fds:
            return False
        try:
            os.write(self._fds[file], text)
        except OSError as error:
            # The cgroup was removed, so no process can be in it.
            return error.errno == errno.ENODEV
        return True

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def remove(self) -> bool:
        """Remove it and those below, except where processes remain; whether it is gone."""
        self.close()
        remove(self.path)
        return not self.path.exists()


class CgroupTree(WalkTree):
    """A cgroup, plus the processes outside it that carry its mark."""

    inherited = False

    def __init__(self, walk: Walk, spec: TreeSpec, folder: CgroupFolder, grades: Grades) -> None:
        super().__init__(walk, spec)
        self.folder, self.grades = folder, grades
        self.sure = folder.one_write
        parts = reversed(folder.path.parts)
        self._house = next((part for part in parts if HOUSE.fullmatch(part)), "")

    def _join(self) -> None:
        self.folder.join()

    def pids(self) -> list[int]:
        return self.folder.pids() if self._populated() else self._outside()

    def empty(self) -> bool:
        return not self._populated() and not self._outside()

    def _populated(self) -> bool:
        return self.folder.populated()

    def _outside(self) -> list[int]:
        """List processes that left the cgroup: the child or orphans. Asked when it is empty."""
        orphans = self._walk.orphans_of(self, everywhere=self._adopted, age=LOOK_SECONDS)
        found = living([*self._root(), *orphans])
        # A process in another of our cgroups belongs to that one, whatever its mark says.
        return sorted(pid for pid in found if self._house not in proc.cgroup(pid).split("/"))

    def kill(self) -> None:
        self.folder.kill()
        if not self._populated():
            send(self._outside(), signal.SIGKILL)

    def freeze(self) -> bool:
        return self.folder.set_frozen(True)

    def thaw(self) -> bool:
        return self.folder.set_frozen(False)

    def close(self) -> None:
        super().close()
        self.folder.remove()
        if self.inherited:
            # The folders of a dead supervisor are removed with its last tree.
            for above in list(self.folder.path.parents)[:2]:
                with contextlib.suppress(OSError):
                    above.rmdir()

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "cgroup": str(self.folder.path)}


class Cgroup(Mechanism):
    """Puts each child into a cgroup below this process's own."""

    def __init__(self, want_uid: int | None = None) -> None:
        me = os.getpid()
        # When PID 1 dies the kernel kills everything else.
        self.grades = {**GRADES, "parent_death": "A"} if me == 1 else GRADES
        self.uid = want_uid
        above = own_folder()
        self.path = above / f"andon-{me}-{proc.start_ticks(me)}-{_namespace()}"
        self._walk = Walk()
        self.trees = self._walk.trees  # those that are not closed
        self.path.mkdir(exist_ok=True)
        sweep(above)
        self._fleet = CgroupFolder(self.path / "fleet")
        self._apart = self.path / "apart"

    def _tree(self, spec: TreeSpec) -> Tree:
        if isinstance(spec.parent, CgroupTree):
            above = spec.parent.folder.path
        else:
            above = self._apart if spec.apart else self._fleet.path
        above.mkdir(exist_ok=True)
        path = above / _safe(spec.name)
        # The previous child of this name may still be dying: give the new one its own folder.
        turn = 0
        while path.exists():
            turn += 1
            path = above / f"{_safe(spec.name)}-{turn}"
        try:
            folder = CgroupFolder(path)
        except OSError:
            # No cgroup could be made: fall back to a walk, whose lower grade the child records.
            return self._walk.make(spec)
        return CgroupTree(self._walk, spec, folder, self.grades)

    def restore(self, described: dict[str, Any]) -> Tree:
        path = Path(str(described.get("cgroup") or ""))
        try:
            folder = CgroupFolder(path, create=False)
        except OSError:
            # The cgroup is gone or never existed: its processes are found by their mark.
            return self._walk.restore(described)
        tree = CgroupTree(self._walk, spec_of(described), folder, self.grades)
        tree.recall(described)
        tree.inherited = self.path not in path.parents
        return tree

    def kill_all(self) -> bool:
        self._fleet.kill()
        for tree in self._walk.trees:
            # Trees outside our fleet cgroup: without one of their own, or in a dead supervisor's.
            if not tree.apart and (not isinstance(tree, CgroupTree) or tree.inherited):
                tree.kill()
        return True

    def close(self) -> None:
        self._fleet.close()
        remove(self.path)
