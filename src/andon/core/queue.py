"""The order of waiting runs, how long to wait before a retry, and when to give up.

Order: work that was returned or interrupted, then priority (higher first), then age.
"""

from dataclasses import dataclass
from typing import NamedTuple

# A run that interrupts its worker this often without finishing one more step is buried.
INTERRUPTION_LIMIT = 10


class Place(NamedTuple):
    """Sorts as the queue does; the stores' ORDER BY says the same."""

    returned_last: bool
    priority_last: int
    available_at: float
    id: str


def place(*, returned: bool, priority: int, available_at: float, run_id: str) -> Place:
    return Place(not returned, -priority, available_at, run_id)


@dataclass(frozen=True, slots=True)
class Retry:
    """How often to try again, and how long to wait in between."""

    retries: int = 0
    first_seconds: float = 1.0
    factor: float = 2.0
    most_seconds: float = 300.0

    def delay(self, failures: int, chance: float) -> float:
        """Seconds before the next try, after `failures` failed ones.

        `chance` in [0, 1) spreads it over the upper half, so that what failed together does not
        come back together.
        """
        # 2.0 ** 1024 overflows a float; long before that the limit holds.
        full = self.first_seconds * self.factor ** min(failures - 1, 64)
        return min(full, self.most_seconds) * (0.5 + chance / 2)

    def again(self, failures: int) -> bool:
        return failures <= self.retries


def bury(fruitless: int, limit: int = INTERRUPTION_LIMIT) -> bool:
    """Whether a run that was interrupted `fruitless` times in a row without progress is dead."""
    return fruitless >= limit


def suspect_from(limit: int) -> int:
    """From how many fruitless interruptions in a row on a run is suspected of killing its workers.

    A worker executes one suspect at a time, until it has finished a step: else the runs that are
    executed beside the guilty one would be buried with it. Half of the limit: workers that are
    killed by something else a few times in a row must not make everybody wait.
    """
    return max(1, limit // 2)


def note_begin(interruptions: int) -> bool:
    """Whether to write a step down before it executes.

    Not needed for safety and not free, so it is done only for a run that has lost a worker: should
    it lose another, the step that was in hand is known.
    """
    return interruptions > 0
