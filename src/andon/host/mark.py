"""Process marks: setting them, reading them, and finding every marked process of this host.

A mark is kept in the soft limit on file locks (RLIMIT_LOCKS), which Linux has not enforced since
2.4.25 and no program uses. Fork and exec preserve it, any user may read it, and setting it needs
no privilege. A program that is executed has the mark in its environment too, so a process that
another one starts with that environment (an `at` job) is found as well. A process that removes
both on purpose escapes, unless it is still a descendant of one that has not.
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
# Process lists read per search. A host that starts hundreds of processes a second may never
# produce a list without a new one.
LISTS = 100
_LOCKS = 10  # RLIMIT_LOCKS; `resource` has no name for it
_NAME = "Max file locks"
_ALL_KINDS = 0x40000000  # __WALL: also children that send another signal than SIGCHLD when they end
VARIABLE = "ANDON_MARK"
_ASSIGNED = b"ANDON_MARK="

# All threads of a process share one limit, so only one thread at a time may start something.
_starting = threading.RLock()


def put(mark: int) -> bool:
    """Mark this process and everything it starts from now on. Returns False if that failed."""
    try:
        resource.setrlimit(_LOCKS, (mark, resource.getrlimit(_LOCKS)[1]))
    except (OSError, ValueError):  # no such limit here, or the hard limit has been lowered
        return False
    return True


def own() -> int:
    """Return this process's limit, which is its mark if it has one."""
    try:
        return resource.getrlimit(_LOCKS)[0]
    except (OSError, ValueError):
        return -1


def of(pid: int) -> int:
    """Return another process's limit, its mark if it has one; GONE if there is no such process."""
    try:
        return resource.prlimit(pid, _LOCKS)[0]
    except ProcessLookupError:
        return GONE
    except (OSError, AttributeError):  # another user's process: everybody may read the file
        found = proc.limit(pid, _NAME)
        return GONE if found is None else found[0]


def in_environment(pid: int) -> int:
    """Return the mark in a program's environment; GONE if it has none or cannot be read."""
    for word in proc.from_any_thread(pid, "environ").split(b"\0"):
        if word.startswith(_ASSIGNED):
            value = word[len(_ASSIGNED) :]
            return int(value) if value.isdigit() else GONE
    return GONE


def put_on(pid: int, mark: int) -> bool:
    """Mark another process, which has no mark yet."""
    try:
        resource.prlimit(pid, _LOCKS, (mark, resource.prlimit(pid, _LOCKS)[1]))
    except (OSError, ValueError):
        return False
    return True


def has_children() -> bool:
    """Whether any thread of this process has children; one system call."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | _ALL_KINDS)
    except ChildProcessError:
        return False
    return True


def begin(mark: int) -> int:
    """Mark every process that this thread starts until `finish`. Returns the previous limit."""
    _starting.acquire()
    before = own()
    put(mark)
    return before


def finish(before: int) -> None:
    put(before)
    _starting.release()


def renew_lock() -> None:
    """Replace the lock in a forked child: the thread that held it does not exist there."""
    global _starting  # noqa: PLW0603
    _starting = threading.RLock()


def carriers(matches: Callable[[int], bool], found: Callable[[int], None]) -> bool:
    """Call `found` with each process of this host whose mark matches, zombies included.

    The calling process is left out. The search repeats until a list of all processes has no
    process it has not read, because one that starts another and ends between two lists is in
    neither. Returns False if that was not reached, or if processes are hidden: some may be missing.
    """
    complete = os.path.exists("/proc/1")  # hidepid hides other users' processes
    read = {os.getpid()}
    for _ in range(LISTS):
        new = [pid for pid in proc.every_pid() if pid not in read]
        if not new:
            return complete
        for pid in new:
            limit = of(pid)
            if limit == GONE:
                continue  # its pid may be reused
            read.add(pid)
            if matches(limit) or matches(in_environment(pid)):
                found(pid)
    return False
