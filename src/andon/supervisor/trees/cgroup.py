"""Kill and freeze by cgroup v2: one write reaches everything, also what escaped its parents.

    <own cgroup>/andon-<supervisor>/fleet/<child>/<sub>     what a halt ends
                                   /apart/<child>           what it spares

The child joins before it execs and never leaves by accident: who is born in a cgroup stays in it.
A process with root's rights can leave on purpose; run it under its own uid. Files are opened ahead,
so that a kill needs neither memory nor a descriptor. Controllers are not needed, so a hybrid mount
and a delegated subtree do. Grade A.
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
from andon.supervisor.trees.tree import SETTLE_SECONDS, Grades, Mechanism, Tree, Unfit, living, send
from andon.supervisor.trees.walk import Walk, WalkTree

# Who left its cgroup and its parents is a rarity: fifty trees that die together share one look.
LOOK_SECONDS = 0.005
# What the cgroup of a supervisor is called.
HOUSE = re.compile(r"andon-(?P<pid>\d+)-(?P<ticks>\d+)-(?P<namespace>\d+)")
GRADES = {"kill": "A", "pause": "A", "parent_death": "C", "by": "cgroup"}


def own_folder() -> Path:
    """The cgroup of this process in the v2 hierarchy, wherever that is mounted."""
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
            # In a container only a part of the hierarchy may be mounted.
            inside = own[len(root) :] if root != "/" and own.startswith(root) else own
            return Path(_unescaped(at) + inside.rstrip("/"))
    raise Unfit("cgroup v2 is not mounted")


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _safe(name: str) -> str:
    """A name for a folder; without a dot it is no interface file."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:100] or "_"


def _namespace() -> str:
    """The number of our pid namespace: elsewhere our pid means another process."""
    return "".join(filter(str.isdigit, proc.pid_namespace())) or "0"


def remove(path: Path) -> None:
    """A cgroup and all below it, as far as nobody is in there: the kernel refuses the rest."""
    for folder, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def sweep(above: Path) -> None:
    """What supervisors that were killed have left, if nobody lives in it any more."""
    with contextlib.suppress(OSError):
        for path in above.iterdir():
            found = HOUSE.fullmatch(path.name)
            if found is None or found["namespace"] != _namespace():
                continue
            if proc.start_ticks(int(found["pid"])) != int(found["ticks"]):
                remove(path)


def _numbers(fd: int) -> list[int]:
    """All of cgroup.procs, however long; the file is read from its start each time."""
    text = b""
    try:
        os.lseek(fd, 0, os.SEEK_SET)
        while part := os.read(fd, 65536):
            text += part
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise
    return [int(one) for one in text.split()]


class Folder:
    """One cgroup, its files held open."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path = path
        if create:
            path.mkdir(exist_ok=True)
        self._fds: dict[str, int] = {}
        self._struck = False
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

    def join(self) -> None:
        os.write(self._fds["cgroup.procs"], b"0")

    def events(self) -> dict[str, str]:
        """`populated` and `frozen`; reading also arms the descriptor for the next change."""
        try:
            text = os.pread(self._fds["cgroup.events"], 4096, 0).decode()
        except OSError as error:
            # Removed: nothing can be in it.
            if error.errno == errno.ENODEV:
                return {"populated": "0", "frozen": "0"}
            raise
        return dict(line.split() for line in text.splitlines())

    def populated(self) -> bool:
        """Asked often while it dies."""
        try:
            return b"populated 1" in os.pread(self._fds["cgroup.events"], 4096, 0)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return False
            raise

    @property
    def one_write(self) -> bool:
        """Whether this kernel kills a cgroup as a whole."""
        return "cgroup.kill" in self._fds

    def fileno(self) -> int:
        return self._fds["cgroup.events"]

    def pids(self) -> list[int]:
        """In it and in every cgroup below. A pid of 0 is a process of another namespace."""
        found = set(_numbers(self._fds["cgroup.procs"]))
        with contextlib.suppress(OSError):
            # A folder counts itself, the one above and those below.
            if os.stat(self.path).st_nlink > 2:
                for folder, _, _ in os.walk(self.path):
                    found.update(
                        int(one) for one in Path(folder, "cgroup.procs").read_text().split()
                    )
        return sorted(found - {0})

    def kill(self) -> None:
        """One write; on a kernel before 5.14 one signal each, while frozen so that none forks."""
        if self._write("cgroup.kill", b"1"):
            if self._struck:
                self._kill_headless()
            self._struck = True
            return
        self._write("cgroup.freeze", b"1")
        send(self.pids(), signal.SIGKILL)
        self._write("cgroup.freeze", b"0")

    def _kill_headless(self) -> None:
        """Processes whose main thread has ended: the write reaches that thread alone.

        The kernel has counted it as delivered, so only a signal to the whole process ends them.
        Looked for from the second blow on: on the first there are as many as there are processes.
        """
        for pid in self.pids():
            found = proc.stat(pid)
            if found is not None and found.state == "Z" and found.threads > 1 and self._has(pid):
                proc.send(pid, found.start_ticks, signal.SIGKILL)

    def _has(self, pid: int) -> bool:
        """Whether that number is still in it: it may be another process by now."""
        return f"/{self.path.name}/" in f"{proc.cgroup(pid)}/"

    def set_frozen(self, frozen: bool) -> bool:
        """Ask, and wait until the kernel says that it is so."""
        wanted = "1" if frozen else "0"
        if not self._write("cgroup.freeze", wanted.encode()):
            return False
        poller = select.poll()
        poller.register(self.fileno(), select.POLLPRI)
        end = time.monotonic() + SETTLE_SECONDS
        while True:
            events = self.events()
            # An empty cgroup is never said to be frozen.
            if events.get("frozen") == wanted or events.get("populated") == "0":
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
            # Removed: nothing can be in it.
            return error.errno == errno.ENODEV
        return True

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def remove(self) -> bool:
        """Remove it and what is below, as far as nobody is in there."""
        self.close()
        remove(self.path)
        return not self.path.exists()


class CgroupTree(WalkTree):
    """A cgroup, and whoever carries its mark outside."""

    by = "cgroup"
    inherited = False

    def __init__(
        self,
        walk: Walk,
        name: str,
        folder: Folder,
        grades: Grades = GRADES,
        *,
        uid: int | None = None,
        apart: bool = False,
    ) -> None:
        super().__init__(walk, name, grades, uid=uid, apart=apart)
        self.folder = folder
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
        """Who left, asked when nobody is inside: the child itself, or an orphan of it."""
        orphans = self._walk.orphans_of(self, everywhere=self._adopted, age=LOOK_SECONDS)
        found = living([*self._root(), *orphans])
        # Whoever is in a cgroup of ours is that one's, whatever its mark says.
        return sorted(pid for pid in found if not self._is_owned(pid))

    def _is_owned(self, pid: int) -> bool:
        return self._house in proc.cgroup(pid).split("/")

    def kill(self) -> None:
        self.folder.kill()
        if not self._populated():
            send(self._outside(), signal.SIGKILL)

    def freeze(self) -> bool:
        return self.folder.set_frozen(True)

    def thaw(self) -> bool:
        return self.folder.set_frozen(False)

    def fileno(self) -> int:
        return self.folder.fileno()

    def close(self) -> None:
        super().close()
        self.folder.remove()
        if self.inherited:
            # The folders of a supervisor that is gone go with its last tree.
            for above in list(self.folder.path.parents)[:2]:
                with contextlib.suppress(OSError):
                    above.rmdir()

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "cgroup": str(self.folder.path)}


class Cgroup(Mechanism):
    """A subtree of this process's own cgroup."""

    by = "cgroup"

    def __init__(self, home: str, want_uid: int | None = None, within: Path | None = None) -> None:
        me = os.getpid()
        # With PID 1 the kernel ends the rest.
        self.grades = {**GRADES, "parent_death": "A"} if me == 1 else dict(GRADES)
        self.uid = want_uid
        above = within or own_folder()
        self.path = above / f"andon-{me}-{proc.start_ticks(me)}-{_namespace()}"
        self._walk = Walk()
        self.path.mkdir(exist_ok=True)
        sweep(above)
        self._fleet = Folder(self.path / "fleet")
        self._apart = self.path / "apart"

    def make(
        self,
        name: str,
        parent: Tree | None = None,
        *,
        kind: str = "worker",
        uid: int | None = None,
        apart: bool = False,
    ) -> Tree:
        if isinstance(parent, CgroupTree):
            above = parent.folder.path
        else:
            above = self._apart if apart else self._fleet.path
        above.mkdir(exist_ok=True)
        path = above / _safe(name)
        # The same name again while the last one is still dying: a folder of its own.
        turn = 0
        while path.exists():
            turn += 1
            path = above / f"{_safe(name)}-{turn}"
        uid = self.user(uid, apart=apart)
        try:
            folder = Folder(path)
        except OSError:
            # No more cgroups to be had: a lower grade, which is stamped on the child.
            return self._walk.make(name, uid=uid, apart=apart)
        return CgroupTree(self._walk, name, folder, self.grades, uid=uid, apart=apart)

    def restore(self, described: dict[str, Any]) -> Tree:
        path = Path(str(described.get("cgroup") or ""))
        try:
            folder = Folder(path, create=False)
        except OSError:
            # Removed, or never there: whoever is left of it is found by its mark.
            return self._walk.restore(described)
        tree = CgroupTree(
            self._walk,
            str(described["name"]),
            folder,
            self.grades,
            uid=described.get("uid"),
            apart=bool(described.get("apart")),
        )
        tree.recall(described)
        tree.inherited = self.path not in path.parents
        return tree

    def kill_all(self) -> bool:
        self._fleet.kill()
        for tree in self._walk.trees:
            # Without a cgroup of its own, or in one of a supervisor that is gone.
            if not tree.apart and (not isinstance(tree, CgroupTree) or tree.inherited):
                tree.kill()
        return True

    @property
    def trees(self) -> list[WalkTree]:
        """Those that are not closed."""
        return self._walk.trees

    def fileno(self) -> int:
        """Tells that the whole fleet may have become empty."""
        return self._fleet.fileno()

    def empty(self) -> bool:
        """Whether nothing of the fleet is left in it."""
        return self._fleet.events().get("populated") == "0"

    def close(self) -> None:
        self._fleet.close()
        remove(self.path)
