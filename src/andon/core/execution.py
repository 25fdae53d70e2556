"""How often a step was executed, as far as its journal can tell.

The journal records the beginning of a step only for a run that has already lost a worker. Otherwise
nobody knows what a worker was executing when it died, and the answer is a range.
"""

from collections.abc import Iterable, Sequence

from andon.core.journal import Entry, Mark

# Endings of an attempt that leave no unrecorded step execution behind.
_ORDERLY = frozenset(
    {"suspended", "returned", "untouched", "succeeded", "failed", "stranded", "migrated", "refused"}
)
_TRIED = (Mark.RETRYING, Mark.DONE, Mark.FAILED)


class _Hold:
    """The entries one attempt wrote about a step."""

    def __init__(self) -> None:
        self.begun = self.ended = 0
        self.last = ""

    def add(self, state: str) -> None:
        self.begun += state == Mark.BEGUN
        # A step cancelled while it waited for its next try was not executed again, as far as known.
        self.ended += state in _TRIED or (state == Mark.CANCELLED and self.last != Mark.RETRYING)
        self.last = state

    @property
    def least(self) -> int:
        return max(self.begun, self.ended)

    def may_have_begun(self, ending: str | None) -> bool:
        """Whether the step may have been executed once more than was recorded."""
        if self.begun or not self.last:
            return False
        return self.last == Mark.RETRYING and ending not in _ORDERLY


def counts(
    step: Sequence[Entry], before: int, attempts: Iterable[tuple[int, str | None]]
) -> tuple[int, int]:
    """Return the least and greatest number of times a step was executed.

    `step` holds its entries, `before` is the fence under which the operation before it finished,
    and `attempts` holds the fences of the run's attempts with their endings.
    """
    holds: dict[int, _Hold] = {}
    for entry in step:
        holds.setdefault(entry.fence, _Hold()).add(entry.state)
    least = sum(hold.least for hold in holds.values())
    last = step[-1]
    over = last.state in (Mark.DONE, Mark.FAILED, Mark.CANCELLED)
    most = least
    for fence, ending in attempts:
        if fence in holds:
            most += holds[fence].may_have_begun(ending)
        elif before <= fence and (fence < last.fence or not over):
            most += ending not in _ORDERLY
    return least, most


def place_before(place: str) -> str:
    """Return the place of the preceding operation in the branch, or "" if it is named by a key."""
    branch, _, number = place.rpartition(":")
    named = place.startswith("@") or not number
    return "" if named else f"{branch}:{int(number) - 1}"
