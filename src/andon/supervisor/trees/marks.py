"""A mark that a process and all its descendants carry, and that no ordinary program takes off.

An orphan no longer says whose it was: its parent is the supervisor now. The environment may be
scrubbed, the process group and the session are left by the first `setsid`. What fork and exec keep
and nobody changes is the soft limit on the bytes of POSIX message queues: a number of our choice,
still large enough for every queue. Whoever changes it on purpose has escaped the mark: grade C.
"""

import contextlib
import os

from andon.host import proc

# What Linux gives everybody; unlimited counts as this.
_USUAL = 819_200
# Below this a queue of the usual size would not fit.
_LEAST = 90_000


def _limits() -> tuple[int, int]:
    try:
        import resource

        return resource.getrlimit(resource.RLIMIT_MSGQUEUE)
    except (ImportError, AttributeError, OSError):
        return 0, 0


def make() -> int:
    """A mark not in use, or 0 where this host has no room for marks."""
    soft, _ = _limits()
    top = _USUAL if soft < 0 else min(soft, _USUAL)
    # Halves with every supervisor inside a supervisor, so that there is always room below.
    room = (top - _LEAST) // 2
    return top - 1 - int.from_bytes(os.urandom(4), "big") % room if room > 1000 else 0


def put(mark: int) -> None:
    """Mark this process, and so all that it will start."""
    if not mark:
        return
    import resource

    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_MSGQUEUE, (mark, _limits()[1]))


def of(pid: int) -> int:
    """The mark of a process, 0 when it has the same limit as this one: never marked."""
    found, _ = proc.limit(pid, "Max msgqueue size") or (-1, -1)
    return 0 if found <= 0 or found == _limits()[0] else found
