"""The grace of whoever starts and stops the process, against our own.

An orchestrator counts from the moment at which it decides, which is before a preStop command and
long before the exit; what it is given must hold all three.
"""

from math import ceil

# An interpreter starts, says "drain" and ends: much less, but not on a machine that is full.
PRE_STOP_SECONDS = 5
# From the end of the drain to the end of the process, and for clocks.
MARGIN_SECONDS = 5


def stop_period(grace_seconds: float) -> int:
    """What to give to the orchestrator: terminationGracePeriodSeconds, TimeoutStopSec."""
    return ceil(grace_seconds) + PRE_STOP_SECONDS + MARGIN_SECONDS


def fits(grace_seconds: float, period_seconds: float) -> bool:
    """Whether a drain ends before the orchestrator kills; a period of 0 is not known."""
    return period_seconds == 0 or grace_seconds + MARGIN_SECONDS <= period_seconds
