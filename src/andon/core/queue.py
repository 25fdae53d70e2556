"""The order of waiting runs, how long to wait before a retry, when to give up, and who may start.

Order: work that was returned or interrupted, then priority (higher first), then age. Limits hold
runs back without changing that order: how many at once, and how many may begin in a time.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import NamedTuple

from andon.errors import BadInput

# A run that interrupts its worker this often without coming further is buried.
INTERRUPTION_LIMIT = 10
# Behind a pooler, after so long without a run: less than one transaction a second by default.
IDLE_SECONDS, IDLE_POLLS = 10.0, 3
# And so many times as often if its checkpoint is another one each time, but no step is ever
# finished: a step that writes the time into its checkpoint and dies must not circle for ever, and a
# batch on machines that live for an hour has six weeks.
MOVING_FACTOR = 100


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


class Lost(NamedTuple):
    """How far a run had come when its worker was lost."""

    fruitless: int  # how often in a row its workers were lost before, and it came no further
    finished: bool  # a step was finished in this attempt
    checkpoint: str | None  # digest of its checkpoints, if it has any
    known: bool  # an attempt since the last finished step ended with the same checkpoints
    moved: int  # how many attempts ended since then, and left a checkpoint


def checkpoint_digest(kept: Iterable[tuple[str, str]]) -> str | None:
    """Of the places and bodies of a run's checkpoints; None if there are none."""
    found = sorted(kept)
    return sha256(repr(found).encode()).hexdigest()[:32] if found else None


def fruitless_after(lost: Lost) -> int:
    """How often in a row a run has now lost its worker without coming further.

    A checkpoint is progress if the run has never died with the same one: a step that begins from
    the start each time, and writes what it wrote before, comes no further.
    """
    moved = lost.checkpoint is not None and not lost.known
    return 0 if lost.finished or moved else lost.fruitless + 1


def bury(fruitless: int, limit: int = INTERRUPTION_LIMIT, moved: int = 0) -> bool:
    """Whether a run that was interrupted so often is dead.

    `fruitless` times in a row without progress, or `moved` times with nothing but checkpoints.
    """
    return fruitless >= limit or moved >= limit * MOVING_FACTOR


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


# ── limits ────────────────────────────────────────────────────────────────────────────────────


class Scope(StrEnum):
    """What a limit is about."""

    QUEUE = "queue"
    AGENT = "agent"
    LABEL = "label"  # each value of that label by itself


class Slot(NamedTuple):
    """Where runs count together: a queue, an agent, or one value of a label."""

    scope: str
    name: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class Limit:
    """How many runs of a slot may run at once, and how many may begin in a time."""

    scope: str
    name: str
    at_most: int | None = None
    rate: int = 0  # no limit
    per_seconds: float = 1.0

    def slot(self, run: "Candidate") -> Slot | None:
        """Where the run counts; None if this limit is not about it."""
        match self.scope:
            case Scope.QUEUE:
                return Slot(self.scope, self.name) if run.queue == self.name else None
            case Scope.AGENT:
                return Slot(self.scope, self.name) if run.agent == self.name else None
            case _:
                value = run.labels.get(self.name)
                return None if value is None else Slot(self.scope, self.name, _short(value))

    def fill(self, bucket: "Bucket | None", now: float) -> "Bucket":
        """The bucket as it is now. A new one is full, and so is one after a whole period."""
        if bucket is None:
            return Bucket(self.rate, now)
        gained = max(now - bucket.filled_at, 0.0) * self.rate / self.per_seconds
        return Bucket(min(bucket.unspent + gained, self.rate), now)

    def wait(self, bucket: "Bucket") -> float:
        """Seconds until one more run may begin."""
        return max(1 - bucket.unspent, 0.0) * self.per_seconds / self.rate


# Longer ones fit into no index.
_LONGEST_VALUE = 300
_SURROGATE = re.compile("[\ud800-\udfff]")


def _short(value: str) -> str:
    """A label's value as a slot is kept: one that no database keeps must not stop all claims."""
    if len(value) <= _LONGEST_VALUE and not _SURROGATE.search(value):
        return value
    return f"sha256:{sha256(value.encode('utf-8', 'surrogatepass')).hexdigest()}"


class Bucket(NamedTuple):
    """How many more runs of a slot may begin, counted at a moment."""

    unspent: float
    filled_at: float


class Candidate(NamedTuple):
    """A waiting run, as far as limits look at it."""

    id: str
    queue: str
    agent: str
    labels: Mapping[str, str]
    spends: bool  # it begins; what was begun before is never held back by a rate


class Admission(NamedTuple):
    """Which runs may start, and how the slots stand then."""

    ids: list[str]
    running: dict[Slot, int]
    buckets: dict[Slot, Bucket]  # those that were spent from
    full: set[Slot]  # no run of these may start
    spent: dict[Slot, float]  # no run of these may begin for so many seconds


# Adding up fractions of seconds must not make somebody wait for a billionth of a run.
_WHOLE = 1 - 1e-6


def tally(running: Iterable[tuple[Candidate, int]], limits: Sequence[Limit]) -> dict[Slot, int]:
    """How many runs count in each slot."""
    found: dict[Slot, int] = {}
    for run, count in running:
        for limit in limits:
            slot = limit.slot(run)
            if slot is not None:
                found[slot] = found.get(slot, 0) + count
    return found


def admit(
    candidates: Iterable[Candidate],
    limits: Sequence[Limit],
    running: Mapping[Slot, int],
    buckets: Mapping[Slot, Bucket],
    *,
    now: float,
    room: int,
) -> Admission:
    """Choose from the candidates, in their order, those that no limit holds back.

    What is held back holds up nobody behind it.
    """
    ids: list[str] = []
    counts, left = dict(running), dict(buckets)
    # A clock that was set back must not stop the filling until it has caught up.
    changed = {slot for slot, bucket in left.items() if bucket.filled_at > now}
    left |= {slot: Bucket(left[slot].unspent, now) for slot in changed}
    for run in candidates:
        if len(ids) >= room:
            break
        slots = [(limit, slot) for limit in limits if (slot := limit.slot(run)) is not None]
        if any(_is_full(limit, counts.get(slot, 0)) for limit, slot in slots):
            continue
        filled = {slot: limit.fill(left.get(slot), now) for limit, slot in slots if limit.rate}
        if run.spends and any(bucket.unspent < _WHOLE for bucket in filled.values()):
            continue
        ids.append(run.id)
        for _, slot in slots:
            counts[slot] = counts.get(slot, 0) + 1
        if run.spends:
            for slot, bucket in filled.items():
                left[slot] = Bucket(max(bucket.unspent - 1, 0.0), now)
                changed.add(slot)
    return Admission(
        ids,
        counts,
        {slot: left[slot] for slot in changed},
        _full(limits, counts),
        _spent(limits, left, now),
    )


def _is_full(limit: Limit, running: int) -> bool:
    return limit.at_most is not None and running >= limit.at_most


def _full(limits: Sequence[Limit], running: Mapping[Slot, int]) -> set[Slot]:
    return {
        slot
        for limit in limits
        for slot in _slots_of(limit, running)
        if _is_full(limit, running[slot])
    }


def _spent(
    limits: Sequence[Limit], buckets: Mapping[Slot, Bucket], now: float
) -> dict[Slot, float]:
    found: dict[Slot, float] = {}
    for limit in (one for one in limits if one.rate):
        for slot in _slots_of(limit, buckets):
            bucket = limit.fill(buckets[slot], now)
            if bucket.unspent < _WHOLE:
                found[slot] = limit.wait(bucket)
    return found


def _slots_of(limit: Limit, slots: Iterable[Slot]) -> list[Slot]:
    return [slot for slot in slots if (slot.scope, slot.name) == (limit.scope, limit.name)]


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_RATE = re.compile(r"(\d{1,9})/(\d{0,6}(?:\.\d{1,3})?)([smhd])")


def rate_of(text: str) -> tuple[int, float]:
    """A rate as people write it: 100/1h is (100, 3600.0)."""
    found = _RATE.fullmatch(text)
    rate, seconds = (0, 0.0) if found is None else _rate(*found.groups())
    if rate < 1 or seconds <= 0:
        raise BadInput(f"rate {text!r}: expected N/TIME with N of 1 or more, like 10/1m or 100/1h")
    return rate, seconds


def _rate(count: str, length: str, unit: str) -> tuple[int, float]:
    return int(count), float(length or 1) * _UNITS[unit]


def poll_after(poll_seconds: float, beats_every: float | None, idle_seconds: float) -> float:
    """Seconds until a worker looks for work that nothing has announced.

    One that hears wake-ups looks as rarely as it beats. One that hears none (`beats_every` is
    None) looks less often when it has had no run for a while: many idle workers behind a pooler
    would keep it busy.
    """
    if beats_every is not None:
        return max(poll_seconds, beats_every)
    return poll_seconds * (IDLE_POLLS if idle_seconds > IDLE_SECONDS else 1)
