"""Processes as the kernel reports them. No other module reads /proc/PID/stat.

A pid identifies a process only together with its start time (`ticks`, counted since boot). Two
states are easily confused:

    Z, 1 thread     a zombie: it has ended, executes nothing, and waits to be reaped
    Z, 4 threads    its main thread has ended, and the other three go on: alive

Every stop command imports this module, so it imports nothing that Python has not loaded already,
and reads files with `os.open`: `open` costs three more system calls each.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections import namedtuple
from functools import cache

TYPE_CHECKING = False  # importing typing costs more than everything that is read here
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
MOST_THREADS = 64  # listed in evidence
# Errors that mean there is no such process. Any other error (no descriptors left, no memory) says
# nothing about the process and is never taken for its end.
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


class Stat(_Stat):
    """A process as the kernel sees it now. The state is the letter of its main thread."""

    __slots__ = ()

    @property
    def alive(self) -> bool:
        """Whether it is not a zombie, or has threads besides its main one."""
        return self.state not in _DEAD or self.threads > 1


def read(path: str, most: int = 0) -> bytes:
    """Read a small file, or its first `most` bytes. Raises OSError if it cannot be read."""
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


def stat(pid: int) -> Stat | None:
    """Return the process with this pid, or None."""
    try:
        return _parsed(_of(pid, "stat"))
    except _GONE:
        return None


def _parsed(text: bytes) -> Stat | None:
    # The name stands in brackets and may itself contain brackets and spaces.
    fields = text[text.rfind(b")") + 2 :].split(None, 20)
    if len(fields) < 20:
        return None
    numbers = (int(fields[at]) for at in (1, 2, 3, 19, 17))
    return Stat(fields[0].decode(), *numbers)


def start_ticks(pid: int) -> int:
    """Return the start time in ticks since boot, or 0 if there is no such process."""
    found = stat(pid)
    return found.start_ticks if found else 0


def alive(pid: int, ticks: int = 0) -> bool:
    """Whether this very process still executes; `ticks` tells it from a later one with its pid.

    A process that exists but cannot be read (no /proc, no descriptor left, another user's process
    under hidepid) counts as alive.
    """
    if pid <= 0:
        return False
    for _ in range(2):  # it may have ended between the two checks
        with contextlib.suppress(OSError):
            if found := stat(pid):
                return ticks in (0, found.start_ticks) and executes(pid, found)
        if not _answers(pid):
            return False
    return True


def executes(pid: int, found: Stat) -> bool:
    """Whether any thread of the process executes. A tracer may keep threads that have ended.

    The answer is no only if one pass saw every thread dead, as many as the kernel counts before and
    after the pass: a thread that is created meanwhile changes the count.
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
    """Whether every thread is stopped or has ended, not the main one alone."""
    letters = thread_states(pid)
    return all(letter in _STILL or letter in _DEAD for letter in letters)


def thread_states(pid: int) -> str:
    """Return the state letter of each thread, main thread first; empty if the process is gone."""
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
    """Return real, effective, saved and file-system uid; empty if the process is gone."""
    return tuple(int(one) for one in _status(pid, b"Uid:"))


def tracer(pid: int) -> int:
    """Return the pid of its tracer, or 0. A tracer may resume a stopped process."""
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
    """Whether it has a handler for the signal; without one the signal may end it."""
    found = _status(pid, b"SigCgt:")
    return bool(found and int(found[0], 16) >> (number - 1) & 1)


def cgroup(pid: int) -> str:
    """Return its cgroup in the v2 hierarchy as seen from here; empty if unknown."""
    try:
        text = _of(pid, "cgroup")
    except OSError:
        return ""
    return next((one[3:].decode() for one in text.splitlines() if one.startswith(b"0::")), "")


def limit(pid: int, name: str) -> tuple[int, int] | None:
    """Return the soft and hard limit of that name in /proc/PID/limits; -1 means unlimited."""
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
    """Return its command line for display, or its name in brackets if it has none."""
    if shown := _printable(" ".join(words(pid, 4 * LONGEST_COMMAND))):
        return shown
    with contextlib.suppress(OSError):
        return f"[{_printable(_of(pid, 'comm').decode('utf-8', 'replace'))}]"
    return ""


def words(pid: int, most: int = 0) -> list[str]:
    """Return its command line as words, without empty ones."""
    text = from_any_thread(pid, "cmdline", most).decode("utf-8", "replace")
    return [word for word in text.split("\0") if word]


def from_any_thread(pid: int, name: str, most: int = 0) -> bytes:
    """Read a file about its memory, through another thread if the main one has ended."""
    for thread in ("", *(f"task/{one}/" for one in _threads(pid))):
        with contextlib.suppress(OSError):
            if text := read(f"/proc/{pid}/{thread}{name}", most):
                return text
    return b""


def _printable(text: str) -> str:
    shown = " ".join("".join(one if one.isprintable() else " " for one in text).split())
    return shown if len(shown) <= LONGEST_COMMAND else f"{shown[: LONGEST_COMMAND - 1]}…"


def evidence(pid: int) -> bytes:
    """Return what the kernel reports of it, for people: status, wait channel and each thread."""
    paths = [f"/proc/{pid}/{name}" for name in ("status", "wchan", "syscall", "stack")]
    paths += [f"/proc/{pid}/task/{thread}/stat" for thread in _threads(pid)[:MOST_THREADS]]
    return b"".join(f"\n{path}\n".encode() + _said(path) for path in paths) + b"\n"


def _said(path: str) -> bytes:
    try:
        return read(path, 16_384)
    except OSError as error:
        return f"({error.strerror})".encode()


def every_pid() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except _GONE:
        return []


def in_group(group: int) -> list[int]:
    """Return the processes of a group that execute."""
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
    """Return the children of all threads of a process, zombies included."""
    if not _lists_children():
        return [one for one in every_pid() if (found := stat(one)) and found.parent == pid]
    found_pids: list[int] = []
    for thread in _threads(pid):
        with contextlib.suppress(*_GONE):
            found_pids.extend(int(one) for one in _of(pid, f"task/{thread}/children").split())
    return found_pids


def descendants(roots: Iterable[int]) -> Iterator[int]:
    """Yield all descendants, parents first, without the roots.

    Processes come and go meanwhile, so a caller that kills must repeat until nothing is found.
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
    """Return the same lookup as `children`, from one scan of all processes."""
    below: dict[int, list[int]] = {}
    for pid in every_pid():
        found = stat(pid)
        if found:
            below.setdefault(found.parent, []).append(pid)
    return lambda pid: below.get(pid, [])


def open_pidfd(pid: int, ticks: int = 0) -> int:
    """Return a descriptor of this very process, or -1 if it is gone or this is not Linux.

    It is opened first and compared afterwards, so a reused pid cannot slip in.
    """
    try:
        fd = os.pidfd_open(pid)
    except (OSError, AttributeError):
        return -1
    with contextlib.suppress(OSError):
        if not ticks or start_ticks(pid) == ticks:
            return fd
    os.close(fd)
    return -1


def send(pid: int, ticks: int, number: int) -> bool:
    """Signal this very process, never a later one with its pid. Returns False if it was gone."""
    if not hasattr(os, "pidfd_open"):  # not Linux
        try:
            os.kill(pid, number)
        except OSError:
            return False
        return True
    pidfd = open_pidfd(pid, ticks)
    try:
        return send_to(pidfd, number)
    finally:
        if pidfd >= 0:
            os.close(pidfd)


def send_to(pidfd: int, number: int) -> bool:
    """Signal the process of a pidfd. Returns False if it is gone."""
    if pidfd < 0:
        return False
    try:
        signal.pidfd_send_signal(pidfd, number)
    except OSError:
        return False
    return True


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@cache
def boot_id() -> str:
    """Return the id of this boot; pids and ticks mean nothing across boots."""
    try:
        return read("/proc/sys/kernel/random/boot_id").decode().strip()
    except OSError:
        return ""


def pid_namespace(pid: int | str = "self") -> str:
    """Return the pid namespace, e.g. `pid:[4026531836]`; empty if unknown."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid")
    for thread in _threads(pid):  # its main thread has ended
        with contextlib.suppress(OSError):
            return os.readlink(f"/proc/{pid}/task/{thread}/ns/pid")
    return ""
