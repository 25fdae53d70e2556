"""Marks of processes: put on, read, and found on all processes of this host.

A mark is kept in the soft limit on file locks (RLIMIT_LOCKS), which Linux has not enforced since
2.4.25 and no program uses. Fork and exec keep it, everybody may read it, and it needs no right. A
program that is executed has it in its environment too: so a process that somebody else starts with
that environment (an `at` job) is found. A process that takes both off on purpose has escaped them,
unless it is still below one that has not.
"""

from __future__ import annotations

import os
import resource
import threading

from andon.host import proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

GONE = -2
# Of all processes, in one look; on a host that starts hundreds a second none may be the last.
LISTS = 100
_LOCKS = 10  # RLIMIT_LOCKS; `resource` has no name for it
_NAME = "Max file locks"
_ALL_KINDS = 0x40000000  # __WALL: also children that end with another signal than SIGCHLD
VARIABLE = "ANDON_MARK"
_ASSIGNED = b"ANDON_MARK="

# A process has one limit for all its threads, so that one of them at a time starts something.
_starting = threading.RLock()


def put(mark: int) -> bool:
    """Mark this process, and so all that it will start; whether that was possible."""
    try:
        resource.setrlimit(_LOCKS, (mark, resource.getrlimit(_LOCKS)[1]))
    except (OSError, ValueError):  # no such limit here, or somebody has lowered the hard one
        return False
    return True


def own() -> int:
    """The limit of this process: its mark, if it has one."""
    try:
        return resource.getrlimit(_LOCKS)[0]
    except (OSError, ValueError):
        return -1


def of(pid: int) -> int:
    """The limit of another process: its mark, if it has one; GONE if it is not there."""
    try:
        return resource.prlimit(pid, _LOCKS)[0]
    except ProcessLookupError:
        return GONE
    except (OSError, AttributeError):  # another user's: the file may be read by everybody
        found = proc.limit(pid, _NAME)
        return GONE if found is None else found[0]


def in_environment(pid: int) -> int:
    """The mark that a program was executed with; GONE if there is none, or it may not be read."""
    for word in proc.from_any_thread(pid, "environ").split(b"\0"):
        if word.startswith(_ASSIGNED):
            value = word[len(_ASSIGNED) :]
            return int(value) if value.isdigit() else GONE
    return GONE


def put_on(pid: int, mark: int) -> bool:
    """Mark another process, which has none."""
    try:
        resource.prlimit(pid, _LOCKS, (mark, resource.prlimit(pid, _LOCKS)[1]))
    except (OSError, ValueError):
        return False
    return True


def has_children() -> bool:
    """Whether this process has any, of whatever thread; one system call."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | _ALL_KINDS)
    except ChildProcessError:
        return False
    return True


def begin(mark: int) -> int:
    """From here to `finish`, what this thread starts carries the mark; answers the limit before."""
    _starting.acquire()
    before = own()
    put(mark)
    return before


def finish(before: int) -> None:
    put(before)
    _starting.release()


def renew_lock() -> None:
    """In a forked child, where no other thread is that could release it."""
    global _starting  # noqa: PLW0603
    _starting = threading.RLock()


def carriers(matches: Callable[[int], bool], found: Callable[[int], None]) -> bool:
    """Tell each process of this host whose mark matches, zombies too; never this one itself.

    It looks until a list of all processes has none that was not read before: a process that starts
    another one and ends between two looks is seen in neither of them. Answers whether that came
    about; else more may be there.
    """
    complete = os.path.exists("/proc/1")  # else other users' processes are hidden (hidepid)
    read = {os.getpid()}
    for _ in range(LISTS):
        new = [pid for pid in proc.every_pid() if pid not in read]
        if not new:
            return complete
        for pid in new:
            limit = of(pid)
            if limit == GONE:
                continue  # its number may be used again
            read.add(pid)
            if matches(limit) or matches(in_environment(pid)):
                found(pid)
    return False
