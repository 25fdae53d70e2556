"""How a worker that is told to go divides the time it has.

A grace period is a budget: every phase gets its share of it, ends when it is done or its time is
over, and what was not done by then is handed to the next, harsher one. The end of the last phase is
the end of the process, whatever hangs.
"""

from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """What a draining worker is busy with."""

    ANNOUNCE = "announce"  # take nothing any more, and say so
    BOUNDARY = "boundary"  # the steps in hand go on, none begins
    CHECKPOINT = "checkpoint"  # what does not end in time is cut off, its partial value is kept
    COMPENSATE = "compensate"  # what would have to be undone is registered with its deadline
    CLEANUP = "cleanup"  # the journal is flushed; now what is not the journal's


# What becomes of what a phase did not get done.
OVERRUN: dict[Phase, str] = {
    Phase.ANNOUNCE: "the drain continues; other workers see it when the runs are requeued",
    Phase.BOUNDARY: "steps that have not ended are cut off",
    Phase.CHECKPOINT: "runs that are not requeued are taken over when this process ends",
    Phase.COMPENSATE: "the next worker sets the deadlines",
    Phase.CLEANUP: "the process exits; cleanups that did not finish are left",
}

# The most that a phase needs, and its share of a short grace period.
_MOST: dict[Phase, tuple[float, float]] = {
    Phase.ANNOUNCE: (0.05, 0.05),
    Phase.CHECKPOINT: (3.0, 0.15),
    Phase.COMPENSATE: (0.5, 0.05),
    Phase.CLEANUP: (5.0, 0.2),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """The share of each phase, and when it ends at the latest, in seconds since the order."""

    grace_seconds: float
    share: dict[Phase, float]
    ends: dict[Phase, float]


def plan(grace_seconds: float) -> Plan:
    """Divide the grace period; most of it goes to the steps in hand."""
    share = {phase: min(most, part * grace_seconds) for phase, (most, part) in _MOST.items()}
    share[Phase.BOUNDARY] = grace_seconds - sum(share.values())
    ends, end = {}, 0.0
    for phase in Phase:
        end += share[phase]
        ends[phase] = end
    return Plan(grace_seconds, share, ends)
