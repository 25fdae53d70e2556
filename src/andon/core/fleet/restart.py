"""Decides about a supervised process that has ended: restart it, leave it, or give it up.

A process that keeps dying is not restarted for ever. After more than `limit` ends within `seconds`
it is given up: a state that a person can see instead of a loop that loads the host.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple


class Mode(StrEnum):
    """The conditions for a restart."""

    ALWAYS = "always"
    ON_FAILURE = "on-failure"
    NEVER = "never"


class Action(StrEnum):
    RESTART = "restart"
    END = "end"
    GIVE_UP = "give up"


class RestartPolicy(NamedTuple):
    mode: Mode
    limit: int | None = 5  # ends within `seconds`; None: never give up
    seconds: float = 60.0
    first_seconds: float = 0.5  # time to release a port or a lock of the dead process
    most_seconds: float = 30.0


class Next(NamedTuple):
    action: Action
    delay_seconds: float = 0.0


def recent(ends: Sequence[float], now: float, seconds: float) -> list[float]:
    """Return the ends that still count."""
    return [end for end in ends if now - end <= seconds]


def after(policy: RestartPolicy, ends: Sequence[float], now: float, *, failed: bool) -> Next:
    """Return the next action after the last of these `ends`, none of which was requested."""
    if policy.mode is Mode.NEVER or (policy.mode is Mode.ON_FAILURE and not failed):
        return Next(Action.END)
    counted = len(recent(ends, now, policy.seconds))
    if policy.limit is not None and counted > policy.limit:
        return Next(Action.GIVE_UP)
    return Next(Action.RESTART, backoff(policy, counted))


def backoff(policy: RestartPolicy, counted: int) -> float:
    """Return the delay before the next start: doubled with each end, up to a maximum."""
    doublings = min(max(counted - 1, 0), 30)  # beyond that the maximum applies anyway
    return float(min(policy.most_seconds, policy.first_seconds * 2**doublings))
