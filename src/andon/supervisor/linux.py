"""What the kernel offers and Python does not: prctl, unshare, mount, and reading /proc.

`libc.syscall` and `prctl` are variadic: every int goes in as a long, or the upper half of a
register is whatever it was before. Off Linux everything here answers "not available" by OSError.
"""

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

_PDEATHSIG, _CHILD_SUBREAPER = 1, 36
NEWNS, NEWUSER, NEWPID = 0x00020000, 0x10000000, 0x20000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_SLAVE = 2, 4, 8, 0x4000, 0x80000


@cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _failed(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


def _prctl(option: int, value: int = 0) -> None:
    call = getattr(_libc(), "prctl", None)
    if call is None:
        raise OSError(errno.ENOSYS, "prctl: not available on this system")
    if call(ctypes.c_long(option), *(ctypes.c_long(one) for one in (value, 0, 0, 0))):
        raise _failed("prctl")


# ── what a process says about itself ──────────────────────────────────────────────────────────


def become_subreaper() -> None:
    """Adopt every descendant whose parent ends. Whoever does this must also reap."""
    _prctl(_CHILD_SUBREAPER, 1)


def die_with_parent(signal_number: int = 9) -> None:
    """Ask for a signal when the parent ends.

    Three holes: grandchildren do not inherit it, a later setuid clears it, and it fires when the
    thread that forked ends. So it is set last, by a child of a single-threaded process.
    """
    _prctl(_PDEATHSIG, signal_number)


def unshare(flags: int) -> None:
    call = getattr(_libc(), "unshare", None)
    if call is None:
        raise OSError(errno.ENOSYS, "unshare: not available on this system")
    if call(ctypes.c_long(flags)):
        raise _failed("unshare")


def mount_proc() -> None:
    """A /proc of this pid namespace; in a mount namespace of its own, so nobody else sees it."""
    mount = _libc().mount
    if mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None):
        raise _failed("mount /")
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    if mount(b"proc", b"/proc", b"proc", flags, None):
        raise _failed("mount /proc")


# ── /proc ─────────────────────────────────────────────────────────────────────────────────────


class Stat(NamedTuple):
    """One process as the kernel sees it now."""

    state: str
    parent: int
    start_ticks: int

    @property
    def alive(self) -> bool:
        """A zombie executes nothing."""
        return self.state not in "ZX"


def _read(path: str) -> bytes:
    """The whole of a small file. Not `open`: that costs three more system calls each."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(fd, 65536):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def stat(pid: int) -> Stat | None:
    """What is known of a process, or None when there is none of that number."""
    try:
        text = _read(f"/proc/{pid}/stat")
    except OSError:
        return None
    # The name stands in brackets and may itself hold brackets and spaces.
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    return Stat(fields[0].decode(), int(fields[1]), int(fields[19]))


def start_ticks(pid: int) -> int:
    """When it began, in ticks since boot; with the pid this names one process. 0: not there."""
    found = stat(pid)
    return found.start_ticks if found else 0


def alive(pid: int, ticks: int = 0) -> bool:
    """Whether that very process still executes; `ticks` tells it from a later one of its number."""
    found = stat(pid)
    return found is not None and found.alive and ticks in (0, found.start_ticks)


def every_pid() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


@cache
def _lists_children() -> bool:
    """Whether this kernel has /proc/PID/task/TID/children."""
    me = os.getpid()
    return os.path.exists(f"/proc/{me}/task/{me}/children")


def children(pid: int) -> list[int]:
    """The children of a process, zombies too; those of all its threads."""
    if not _lists_children():
        return [one for one in every_pid() if (found := stat(one)) and found.parent == pid]
    found_pids: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    for thread in threads:
        with contextlib.suppress(OSError):
            text = _read(f"/proc/{pid}/task/{thread}/children")
            found_pids.extend(int(one) for one in text.split())
    return found_pids


def descendants(roots: Iterable[int]) -> Iterator[int]:
    """Everything below, parents first and the roots not.

    Processes come and go meanwhile: who kills must look again until nothing is found.
    """
    if not _lists_children():
        yield from _descendants_by_scan(roots)
        return
    seen = set(roots)
    waiting = list(seen)
    while waiting:
        for child in children(waiting.pop()):
            if child not in seen:
                seen.add(child)
                waiting.append(child)
                yield child


def _descendants_by_scan(roots: Iterable[int]) -> Iterator[int]:
    """The same from one look at every process."""
    below: dict[int, list[int]] = {}
    for pid in every_pid():
        found = stat(pid)
        if found:
            below.setdefault(found.parent, []).append(pid)
    seen = set(roots)
    waiting = list(seen)
    while waiting:
        for child in below.get(waiting.pop(), ()):
            if child not in seen:
                seen.add(child)
                waiting.append(child)
                yield child


def uids(pid: int) -> tuple[int, ...]:
    """Real, effective, saved and file-system uid; empty when the process is gone."""
    try:
        text = _read(f"/proc/{pid}/status")
    except OSError:
        return ()
    for line in text.splitlines():
        if line.startswith(b"Uid:"):
            return tuple(int(one) for one in line.split()[1:])
    return ()


def cgroup(pid: int) -> str:
    """Its cgroup in the v2 hierarchy, as seen from here; nothing when unknown."""
    try:
        text = _read(f"/proc/{pid}/cgroup")
    except OSError:
        return ""
    return next((one[3:].decode() for one in text.splitlines() if one.startswith(b"0::")), "")


def message_queue_limit(pid: int) -> int:
    """The soft limit on message queue bytes of a process, -1 when unknown or unlimited."""
    try:
        text = _read(f"/proc/{pid}/limits")
    except OSError:
        return -1
    for line in text.splitlines():
        if line.startswith(b"Max msgqueue size"):
            word = line.split()[3]
            return int(word) if word.isdigit() else -1
    return -1


def open_pidfd(pid: int, ticks: int = 0) -> int:
    """A descriptor of that very process: opened first and compared after, so no reuse slips in."""
    if not hasattr(os, "pidfd_open"):
        raise OSError(errno.ENOSYS, "pidfd_open: not available on this system")
    fd = os.pidfd_open(pid)
    if ticks and start_ticks(pid) != ticks:
        os.close(fd)
        raise ProcessLookupError(errno.ESRCH, f"process {pid} is another one now")
    return fd


@cache
def boot_id() -> str:
    """Names this boot of this kernel; pids and ticks mean nothing across it."""
    try:
        return _read("/proc/sys/kernel/random/boot_id").decode().strip()
    except OSError:
        return ""


def pid_namespace(pid: int | str = "self") -> str:
    """Names whose pids these are, e.g. `pid:[4026531836]`; nothing where unknown."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""
