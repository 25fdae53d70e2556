"""What becomes of a supervised process that has ended: started again, left alone, or given up.

A process that keeps dying is not started for ever: after more than `limit` ends within `seconds`
it is given up, which is a state that a person can see, and not a loop that a host can feel.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple


class Mode(StrEnum):
    """When a process is started again."""

    ALWAYS = "always"
    ON_FAILURE = "on-failure"
    NEVER = "never"


class Action(StrEnum):
    RESTART = "restart"
    END = "end"
    GIVE_UP = "give up"


class Policy(NamedTuple):
    mode: Mode
    limit: int | None = 5  # ends within `seconds`; None: never given up
    seconds: float = 60.0
    first_seconds: float = 0.5  # long enough for a port or a lock of the dead one to be free
    most_seconds: float = 30.0


class Next(NamedTuple):
    action: Action
    delay_seconds: float = 0.0


def recent(ends: Sequence[float], now: float, seconds: float) -> list[float]:
    """The ends that still count."""
    return [end for end in ends if now - end <= seconds]


def after(policy: Policy, ends: Sequence[float], now: float, *, failed: bool) -> Next:
    """What follows the last of these `ends`, none of which anybody asked for."""
    if policy.mode is Mode.NEVER or (policy.mode is Mode.ON_FAILURE and not failed):
        return Next(Action.END)
    counted = len(recent(ends, now, policy.seconds))
    if policy.limit is not None and counted > policy.limit:
        return Next(Action.GIVE_UP)
    return Next(Action.RESTART, backoff(policy, counted))


def backoff(policy: Policy, counted: int) -> float:
    """The pause before the start that follows so many ends: doubled each time, with a limit."""
    doublings = min(max(counted - 1, 0), 30)  # beyond that only the limit speaks
    return float(min(policy.most_seconds, policy.first_seconds * 2**doublings))
