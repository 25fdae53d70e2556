"""A mark that a process passes on to all its descendants, and that no ordinary program removes.

The parent of an orphan is the supervisor, which does not say what tree the orphan came from. Its
environment may be scrubbed, and `setsid` leaves both the process group and the session. Fork and
exec do keep the soft limit on the bytes of POSIX message queues, and programs do not change it. The
mark is such a limit: a number of our choice, still large enough for every queue. A process that
changes it on purpose escapes the mark, hence grade C.
"""

import contextlib
import os

from andon.host import proc

# The default on Linux; unlimited counts as this.
_USUAL = 819_200
# Below this a queue of the default size would not fit.
_LEAST = 90_000


def _limits() -> tuple[int, int]:
    try:
        import resource

        return resource.getrlimit(resource.RLIMIT_MSGQUEUE)
    except (ImportError, AttributeError, OSError):
        return 0, 0


def make() -> int:
    """Make a random mark, or 0 where this host leaves no room for marks."""
    soft, _ = _limits()
    top = _USUAL if soft < 0 else min(soft, _USUAL)
    # The room halves with each nested supervisor, so that the next one always has some.
    room = (top - _LEAST) // 2
    return top - 1 - int.from_bytes(os.urandom(4), "big") % room if room > 1000 else 0


def put(mark: int) -> None:
    """Mark this process, and so all processes that it will start."""
    if not mark:
        return
    import resource

    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_MSGQUEUE, (mark, _limits()[1]))


def of(pid: int) -> int:
    """Return the mark of a process; 0 if its limit is ours, which means it was never marked."""
    found, _ = proc.limit(pid, "Max msgqueue size") or (-1, -1)
    return 0 if found <= 0 or found == _limits()[0] else found
