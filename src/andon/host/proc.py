"""The life of a process: the one place that reads it from the kernel.

A number names a process only together with its start time (`ticks`, counted since boot). Two
shapes are easily taken for one another:

    Z, 1 thread     a zombie: it has ended, executes nothing, and waits to be reaped
    Z, 4 threads    its main thread has ended, and the other three go on: alive

Every command that stops something imports this module, so it loads nothing that Python has not
loaded already, and reads files by `os.open`: `open` costs three more system calls each.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections import namedtuple
from functools import cache

TYPE_CHECKING = False  # importing typing costs more than all that is read here
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import NamedTuple

    class _Stat(NamedTuple):
        state: str
        parent: int
        group: int
        session: int
        start_ticks: int
        threads: int
else:
    _Stat = namedtuple("_Stat", "state parent group session start_ticks threads")

_DEAD = "ZX"
_STILL = "Tt"
_PART = 65_536
LONGEST_COMMAND = 200
MOST_THREADS = 64  # that evidence names
# How the kernel says that there is no such process. Any other error (no descriptors left, no
# memory) says nothing about the process, and is never taken for its end.
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


class Stat(_Stat):
    """One process as the kernel sees it now. The state is the letter of its main thread."""

    __slots__ = ()

    @property
    def alive(self) -> bool:
        """A zombie executes nothing, unless it has other threads than its main one."""
        return self.state not in _DEAD or self.threads > 1


def read(path: str, most: int = 0) -> bytes:
    """The whole of a small file, or its first `most` bytes; OSError if it cannot be read."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts, left = [], most or 1 << 30
        while left > 0 and (part := os.read(fd, min(_PART, left))):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def _of(pid: int | str, name: str) -> bytes:
    return read(f"/proc/{pid}/{name}")


# ── one process ───────────────────────────────────────────────────────────────────────────────


def stat(pid: int) -> Stat | None:
    """What is known of a process, or None when there is none of that number."""
    try:
        return _parsed(_of(pid, "stat"))
    except _GONE:
        return None


def _parsed(text: bytes) -> Stat | None:
    # The name stands in brackets and may itself hold brackets and spaces.
    fields = text[text.rfind(b")") + 2 :].split(None, 20)
    if len(fields) < 20:
        return None
    numbers = (int(fields[at]) for at in (1, 2, 3, 19, 17))
    return Stat(fields[0].decode(), *numbers)


def start_ticks(pid: int) -> int:
    """When it began, in ticks since boot; with the pid this names one process. 0: not there."""
    found = stat(pid)
    return found.start_ticks if found else 0


def alive(pid: int, ticks: int = 0) -> bool:
    """Whether that very process still executes; `ticks` tells it from a later one of its number.

    One that is there and cannot be read (no /proc, no descriptor left, another user's process
    under hidepid) counts as alive.
    """
    if pid <= 0:
        return False
    for _ in range(2):  # it may have ended between the two questions
        with contextlib.suppress(OSError):
            if found := stat(pid):
                return ticks in (0, found.start_ticks) and executes(pid, found)
        if not _answers(pid):
            return False
    return True


def executes(pid: int, found: Stat) -> bool:
    """Whether any thread of it does. Threads that have ended may be kept by a tracer.

    Only a look that saw all of them, dead, and as many as the kernel counts before and after,
    says that none is left: a thread that is born meanwhile is counted.
    """
    if found.state not in _DEAD or found.threads <= 1:
        return found.alive
    letters = thread_states(pid)
    after = stat(pid)
    if after is None or after.start_ticks != found.start_ticks:
        return False
    all_dead = all(letter in _DEAD for letter in letters)
    return not (all_dead and len(letters) == found.threads == after.threads) and after.alive


def is_still(pid: int) -> bool:
    """Whether no thread of it can move: each is stopped or has ended, not the main one alone."""
    letters = thread_states(pid)
    return all(letter in _STILL or letter in _DEAD for letter in letters)


def thread_states(pid: int) -> str:
    """The state letter of each of its threads, its main thread first; nothing if it is gone."""
    letters = []
    for thread in _threads(pid):
        with contextlib.suppress(*_GONE):
            found = _parsed(_of(pid, f"task/{thread}/stat"))
            letters.append(found.state if found else "")
    return "".join(letters)


def _threads(pid: int | str) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except _GONE:
        return []


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def uids(pid: int) -> tuple[int, ...]:
    """Real, effective, saved and file-system uid; empty when the process is gone."""
    return tuple(int(one) for one in _status(pid, b"Uid:"))


def tracer(pid: int) -> int:
    """The process that traces it, which may let it go on when it is stopped; 0: none."""
    found = _status(pid, b"TracerPid:")
    return int(found[0]) if found else 0


def _status(pid: int, name: bytes) -> list[bytes]:
    try:
        text = _of(pid, "status")
    except OSError:
        return []
    found = (line for line in text.splitlines() if line.startswith(name))
    return next(found, b"").split()[1:]


def catches(pid: int, number: int) -> bool:
    """Whether it has a handler for that signal; without one it may be ended by it."""
    found = _status(pid, b"SigCgt:")
    return bool(found and int(found[0], 16) >> (number - 1) & 1)


def cgroup(pid: int) -> str:
    """Its cgroup in the v2 hierarchy, as seen from here; nothing when unknown."""
    try:
        text = _of(pid, "cgroup")
    except OSError:
        return ""
    return next((one[3:].decode() for one in text.splitlines() if one.startswith(b"0::")), "")


def limit(pid: int, name: str) -> tuple[int, int] | None:
    """A resource limit, soft and hard, by its name in /proc/PID/limits; -1: unlimited."""
    try:
        text = _of(pid, "limits").decode("ascii", "replace")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith(name):
            soft, hard = (_number(word) for word in line[len(name) :].split()[:2])
            return soft, hard
    return None


def _number(word: str) -> int:
    return int(word) if word.isdigit() else -1


def command(pid: int) -> str:
    """Its command line, for people; the name in brackets where it has none."""
    if shown := _printable(" ".join(words(pid, 4 * LONGEST_COMMAND))):
        return shown
    with contextlib.suppress(OSError):
        return f"[{_printable(_of(pid, 'comm').decode('utf-8', 'replace'))}]"
    return ""


def words(pid: int, most: int = 0) -> list[str]:
    """The words of its command line, without empty ones."""
    text = from_any_thread(pid, "cmdline", most).decode("utf-8", "replace")
    return [word for word in text.split("\0") if word]


def from_any_thread(pid: int, name: str, most: int = 0) -> bytes:
    """A file about its memory; one whose main thread has ended is asked through another one."""
    for thread in ("", *(f"task/{one}/" for one in _threads(pid))):
        with contextlib.suppress(OSError):
            if text := read(f"/proc/{pid}/{thread}{name}", most):
                return text
    return b""


def _printable(text: str) -> str:
    shown = " ".join("".join(one if one.isprintable() else " " for one in text).split())
    return shown if len(shown) <= LONGEST_COMMAND else f"{shown[: LONGEST_COMMAND - 1]}…"


def evidence(pid: int) -> bytes:
    """What the kernel says of it, for people: state, what it waits in, and each thread."""
    paths = [f"/proc/{pid}/{name}" for name in ("status", "wchan", "syscall", "stack")]
    paths += [f"/proc/{pid}/task/{thread}/stat" for thread in _threads(pid)[:MOST_THREADS]]
    return b"".join(f"\n{path}\n".encode() + _said(path) for path in paths) + b"\n"


def _said(path: str) -> bytes:
    try:
        return read(path, 16_384)
    except OSError as error:
        return f"({error.strerror})".encode()


# ── many ──────────────────────────────────────────────────────────────────────────────────────


def every_pid() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except _GONE:
        return []


def in_group(group: int) -> list[int]:
    """Those of a process group that execute."""
    return [
        pid
        for pid in every_pid()
        if (found := stat(pid)) and found.group == group and executes(pid, found)
    ]


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
    for thread in _threads(pid):
        with contextlib.suppress(*_GONE):
            found_pids.extend(int(one) for one in _of(pid, f"task/{thread}/children").split())
    return found_pids


def descendants(roots: Iterable[int]) -> Iterator[int]:
    """Everything below, parents first and the roots not.

    Processes come and go meanwhile: who kills must look again until nothing is found.
    """
    below = children if _lists_children() else _by_scan()
    seen = set(roots)
    waiting = list(seen)
    while waiting:
        for child in below(waiting.pop()):
            if child not in seen:
                seen.add(child)
                waiting.append(child)
                yield child


def _by_scan() -> Callable[[int], list[int]]:
    """The same from one look at every process."""
    below: dict[int, list[int]] = {}
    for pid in every_pid():
        found = stat(pid)
        if found:
            below.setdefault(found.parent, []).append(pid)
    return lambda pid: below.get(pid, [])


# ── signals ───────────────────────────────────────────────────────────────────────────────────


def open_pidfd(pid: int, ticks: int = 0) -> int:
    """A descriptor of that very process: opened first and compared after, so no reuse slips in."""
    if not hasattr(os, "pidfd_open"):
        raise OSError(errno.ENOSYS, "pidfd_open: not available on this system")
    fd = os.pidfd_open(pid)
    if ticks and start_ticks(pid) != ticks:
        os.close(fd)
        raise ProcessLookupError(errno.ESRCH, f"process {pid} is another one now")
    return fd


def send(pid: int, ticks: int, number: int) -> bool:
    """A signal to that very process and no later one of its number; whether it was there."""
    try:
        if not hasattr(os, "pidfd_open"):  # not Linux
            os.kill(pid, number)
            return True
        descriptor = open_pidfd(pid, ticks)
    except OSError:
        return False
    try:
        signal.pidfd_send_signal(descriptor, number)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


# ── what numbers mean here ────────────────────────────────────────────────────────────────────


@cache
def boot_id() -> str:
    """Names this boot of this kernel; pids and ticks mean nothing across it."""
    try:
        return read("/proc/sys/kernel/random/boot_id").decode().strip()
    except OSError:
        return ""


def pid_namespace(pid: int | str = "self") -> str:
    """Names whose pids these are, e.g. `pid:[4026531836]`; nothing where unknown."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid")
    for thread in _threads(pid):  # its main thread has ended
        with contextlib.suppress(OSError):
            return os.readlink(f"/proc/{pid}/task/{thread}/ns/pid")
    return ""
