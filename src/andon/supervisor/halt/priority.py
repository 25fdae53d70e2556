"""Before agents that take every processor, for as long as it takes to stop them.

Not by a nice value: the kernel weighs that within a session only, and each agent has its own. Who
may not do this (it takes CAP_SYS_NICE) goes on as it is. What is started meanwhile has none of it.
"""

import contextlib
import os


def ahead() -> None:
    """Go first from here on."""
    with contextlib.suppress(OSError, AttributeError):  # not Linux
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def abreast() -> None:
    """Be one of many again; who never went ahead stays as it was started."""
    with contextlib.suppress(OSError, AttributeError):
        if os.sched_getscheduler(0) == os.SCHED_RR | os.SCHED_RESET_ON_FORK:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
