"""The orchestrator's grace period compared with andon's own.

An orchestrator counts from its decision to stop the process, which comes before a preStop command
and long before the exit. Its grace period must cover all three.
"""

from math import ceil

# The preStop command starts an interpreter, says "drain" and ends. That takes much less, except on
# an overloaded machine.
PRE_STOP_SECONDS = 5
# Covers the time from the end of the drain to the end of the process, and clock differences.
MARGIN_SECONDS = 5


def stop_period(grace_seconds: float) -> int:
    """Return the value for the orchestrator: terminationGracePeriodSeconds, TimeoutStopSec."""
    return ceil(grace_seconds) + PRE_STOP_SECONDS + MARGIN_SECONDS


def fits(grace_seconds: float, period_seconds: float) -> bool:
    """Whether a drain ends before the orchestrator kills; a period of 0 means unknown."""
    return period_seconds == 0 or grace_seconds + MARGIN_SECONDS <= period_seconds
