"""System calls that Python does not offer: prctl, unshare, mount and a few more.

`libc.syscall` and `prctl` are variadic, so every int is passed as a long; otherwise the upper half
of the register keeps its previous content. Off Linux, prctl and unshare raise OSError (ENOSYS).
"""

import ctypes
import errno
import os
from functools import cache
from signal import SIGCHLD
from typing import Any

_PDEATHSIG, _CHILD_SUBREAPER = 1, 36
_PTRACE_SEIZE, _CLONE_VFORK = 0x4206, 0x4000
# Newer architectures share one table of system call numbers.
_EXIT, _CLONE = (60, 56) if os.uname().machine == "x86_64" else (93, 220)
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


def _syscall(number: int, *arguments: int) -> int:
    words = (ctypes.c_long(one) for one in (number, *arguments))
    return int(_libc().syscall(*words))


def become_subreaper() -> None:
    """Adopt every descendant whose parent ends. The caller must then reap them too."""
    _prctl(_CHILD_SUBREAPER, 1)


def die_with_parent(signal_number: int = 9) -> None:
    """Ask for a signal when the parent ends.

    It has three holes: grandchildren do not inherit it, a later setuid clears it, and it fires
    when the thread that forked ends. So a child of a single-threaded process sets it, and last.
    """
    _prctl(_PDEATHSIG, signal_number)


def exit_thread() -> None:
    """End only the calling thread. If it is the main thread, a zombie remains."""
    _syscall(_EXIT, 0)


def fork_and_wait() -> int:
    """Fork, and sleep uninterruptibly until the child has ended. Returns 0 in the child."""
    return _syscall(_CLONE, _CLONE_VFORK | SIGCHLD, 0, 0, 0, 0)


def trace(pid: int) -> None:
    """Become the tracer of a process without stopping it."""
    if _libc().ptrace(ctypes.c_long(_PTRACE_SEIZE), ctypes.c_long(pid), None, None):
        raise _failed("ptrace")


def unshare(flags: int) -> None:
    call = getattr(_libc(), "unshare", None)
    if call is None:
        raise OSError(errno.ENOSYS, "unshare: not available on this system")
    if call(ctypes.c_long(flags)):
        raise _failed("unshare")


def mount_proc() -> None:
    """Mount a /proc of this pid namespace, in a private mount namespace that nobody else sees."""
    mount = _libc().mount
    if mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None):
        raise _failed("mount /")
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    if mount(b"proc", b"/proc", b"proc", flags, None):
        raise _failed("mount /proc")
