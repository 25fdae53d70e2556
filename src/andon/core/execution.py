"""How often a step was executed, as far as its journal can tell.

The beginning of a step is written down only for a run that has lost a worker: what a worker was
executing when it died is otherwise not known. Then the answer is from how often to how often.
"""

from collections.abc import Iterable, Sequence

from andon.core.journal import Entry, Mark

# How attempts end that leave no step unfinished and unmentioned.
_ORDERLY = frozenset(
    {"suspended", "returned", "untouched", "succeeded", "failed", "stranded", "migrated", "refused"}
)
_TRIED = (Mark.RETRYING, Mark.DONE, Mark.FAILED)


class _Hold:
    """What one attempt has written of a step."""

    def __init__(self) -> None:
        self.begun = self.ended = 0
        self.last = ""

    def add(self, state: str) -> None:
        self.begun += state == Mark.BEGUN
        # Cancelled while it waited for its next try it was not executed once more, or nobody knows.
        self.ended += state in _TRIED or (state == Mark.CANCELLED and self.last != Mark.RETRYING)
        self.last = state

    @property
    def least(self) -> int:
        return max(self.begun, self.ended)

    def may_have_begun(self, ending: str | None) -> bool:
        """Whether it may have been executed once more than was written."""
        if self.begun or not self.last:
            return False
        return self.last == Mark.RETRYING and ending not in _ORDERLY


def counts(
    step: Sequence[Entry], before: int, attempts: Iterable[tuple[int, str | None]]
) -> tuple[int, int]:
    """How often at least and at most a step was executed.

    `step` are its entries; `before` is the fence under which what comes before it was finished;
    `attempts` are the fences of the run's attempts with their endings.
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
    """The place of the operation before that one in its branch; "" if it is named by a key."""
    branch, _, number = place.rpartition(":")
    named = place.startswith("@") or not number
    return "" if named else f"{branch}:{int(number) - 1}"
