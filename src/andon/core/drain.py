"""How a draining worker divides its grace period.

The grace period is a budget. Each phase gets a share and ends when it is done or its time is over;
the next, harsher phase deals with what is left. The end of the last phase is the end of the
process, whatever hangs.
"""

from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """The phases of a drain, in order."""

    ANNOUNCE = "announce"  # stop claiming runs and announce the drain
    BOUNDARY = "boundary"  # steps in hand continue, none begins
    CHECKPOINT = "checkpoint"  # steps still running are cut, their partial values kept
    COMPENSATE = "compensate"  # effects that would have to be undone are registered with a deadline
    CLEANUP = "cleanup"  # the journal is flushed; then everything else is cleaned up


# How the drain deals with the part that a phase did not finish.
OVERRUN: dict[Phase, str] = {
    Phase.ANNOUNCE: "the drain continues; other workers see it when the runs are requeued",
    Phase.BOUNDARY: "steps that have not ended are cut off",
    Phase.CHECKPOINT: "runs that are not requeued are taken over when this process ends",
    Phase.COMPENSATE: "the next worker sets the deadlines",
    Phase.CLEANUP: "the process exits; cleanups that did not finish are left",
}

# The most seconds that a phase needs, and its share of a short grace period.
_MOST: dict[Phase, tuple[float, float]] = {
    Phase.ANNOUNCE: (0.05, 0.05),
    Phase.CHECKPOINT: (3.0, 0.15),
    Phase.COMPENSATE: (0.5, 0.05),
    Phase.CLEANUP: (5.0, 0.2),
}


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """Each phase's share, and its latest end in seconds since the order."""

    grace_seconds: float
    share: dict[Phase, float]
    ends: dict[Phase, float]


def plan(grace_seconds: float) -> DrainPlan:
    """Divide the grace period; the steps in hand get most of it."""
    share = {phase: min(most, part * grace_seconds) for phase, (most, part) in _MOST.items()}
    share[Phase.BOUNDARY] = grace_seconds - sum(share.values())
    ends, end = {}, 0.0
    for phase in Phase:
        end += share[phase]
        ends[phase] = end
    return DrainPlan(grace_seconds, share, ends)
