"""Real-time priority for a halt, so that agents that take every processor cannot delay it.

A nice value does not help: the kernel weighs it within a session only, and each agent has its own.
A process without CAP_SYS_NICE keeps its usual priority. Processes started meanwhile do not inherit
the raised one.
"""

import contextlib
import os


def raise_priority() -> None:
    """Raise this process to real-time priority."""
    with contextlib.suppress(OSError, AttributeError):  # not Linux
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def reset_priority() -> None:
    """Return to normal priority; does nothing unless `raise_priority` raised it."""
    with contextlib.suppress(OSError, AttributeError):
        if os.sched_getscheduler(0) == os.SCHED_RR | os.SCHED_RESET_ON_FORK:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
