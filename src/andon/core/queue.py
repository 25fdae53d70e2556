"""The order of waiting runs, the delay before a retry, and the limit of interruptions.

Returned or interrupted runs come first, then higher priority, then age.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

# A run that loses its worker this often in a row without progress is declared dead.
INTERRUPTION_LIMIT = 10
# An idle worker behind a pooler polls less often after this time without a run: that keeps it below
# one transaction a second with default settings.
IDLE_SECONDS, IDLE_POLLS = 10.0, 3
# A run that never finishes a step, but leaves a new checkpoint each time, gets this many times as
# many interruptions. A step that writes the time into its checkpoint and dies must not loop for
# ever, while a batch on machines that live for an hour gets six weeks.
MOVING_FACTOR = 100


class Place(NamedTuple):
    """A sort key in queue order; the ORDER BY of each store says the same."""

    returned_last: bool
    priority_last: int
    available_at: float
    id: str


def place(*, returned: bool, priority: int, available_at: float, run_id: str) -> Place:
    return Place(not returned, -priority, available_at, run_id)


@dataclass(frozen=True, slots=True)
class Retry:
    """How often to retry, and how long to wait in between."""

    retries: int = 0
    first_seconds: float = 1.0
    factor: float = 2.0
    most_seconds: float = 300.0

    def delay(self, failures: int, chance: float) -> float:
        """Return the seconds to wait before the next try, after `failures` failed ones.

        `chance` in [0, 1) spreads the delay over its upper half, so that runs that failed together
        do not retry together.
        """
        # 2.0 ** 1024 would overflow a float; the maximum applies long before.
        full = self.first_seconds * self.factor ** min(failures - 1, 64)
        return min(full, self.most_seconds) * (0.5 + chance / 2)

    def again(self, failures: int) -> bool:
        return failures <= self.retries


class Lost(NamedTuple):
    """The progress of a run at the moment its worker was lost."""

    fruitless: int  # losses in a row without progress before this one
    finished: bool  # this attempt finished a step
    checkpoint: str | None  # digest of its checkpoints, if it has any
    known: bool  # an attempt since the last finished step ended with the same checkpoints
    moved: int  # attempts since then that ended with a checkpoint


def checkpoint_digest(kept: Iterable[tuple[str, str]]) -> str | None:
    """Return a digest of a run's checkpoints (their places and bodies), or None if it has none."""
    found = sorted(kept)
    return sha256(repr(found).encode()).hexdigest()[:32] if found else None


def fruitless_after(lost: Lost) -> int:
    """Return how often in a row the run has now lost its worker without progress.

    A checkpoint counts as progress only if no earlier loss left the same one. A step that starts
    over each time and writes the same checkpoint makes no progress.
    """
    moved = lost.checkpoint is not None and not lost.known
    return 0 if lost.finished or moved else lost.fruitless + 1


def bury(fruitless: int, limit: int = INTERRUPTION_LIMIT, moved: int = 0) -> bool:
    """Whether a run is dead after this many interruptions.

    It is dead after `limit` losses in a row without progress (`fruitless`), or MOVING_FACTOR times
    as many whose only progress was a new checkpoint (`moved`).
    """
    return fruitless >= limit or moved >= limit * MOVING_FACTOR


def suspect_from(limit: int) -> int:
    """Return the number of fruitless losses in a row that makes a run suspect.

    A suspect run may be killing its workers. A worker executes one suspect at a time until that
    run has finished a step, because runs executed beside the guilty one would be buried with it.
    The threshold is half the limit, so that workers killed a few times for another reason do not
    hold everybody up.
    """
    return max(1, limit // 2)


def note_begin(interruptions: int) -> bool:
    """Whether to record the beginning of a step before executing it.

    Safety does not need the record and it is not free, so only runs that have lost a worker get
    it. If such a run loses another one, the step in hand is known.
    """
    return interruptions > 0


def poll_after(poll_seconds: float, beats_every: float | None, idle_seconds: float) -> float:
    """Return the seconds until a worker polls for work that was not announced.

    A worker that receives notifications polls as rarely as it sends heartbeats (`beats_every`).
    One without notifications (None) polls less often once it has had no run for a while, because
    many idle workers would keep a pooler busy.
    """
    if beats_every is not None:
        return max(poll_seconds, beats_every)
    return poll_seconds * (IDLE_POLLS if idle_seconds > IDLE_SECONDS else 1)
