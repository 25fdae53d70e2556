"""Limits: how many runs of a queue, an agent or a label execute at once, or begin in a period.

A limit holds runs back without changing their order.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import NamedTuple

from andon.core.duration import UNITS
from andon.errors import BadInput


class LimitScope(StrEnum):
    """The kinds of things a limit can apply to."""

    QUEUE = "queue"
    AGENT = "agent"
    LABEL = "label"  # each value of the label separately


class LimitSlot(NamedTuple):
    """A group of runs that are counted together: a queue, an agent, or one value of a label."""

    scope: str
    name: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class Limit:
    """How many runs of a slot may run at once, and how many may begin in a period."""

    scope: str
    name: str
    at_most: int | None = None
    rate: int = 0  # no limit
    per_seconds: float = 1.0

    def slot(self, run: "Candidate") -> LimitSlot | None:
        """Return the slot the run counts in, or None if this limit does not apply to it."""
        match self.scope:
            case LimitScope.QUEUE:
                return LimitSlot(self.scope, self.name) if run.queue == self.name else None
            case LimitScope.AGENT:
                return LimitSlot(self.scope, self.name) if run.agent == self.name else None
            case _:
                value = run.labels.get(self.name)
                return None if value is None else LimitSlot(self.scope, self.name, _short(value))

    def fill(self, bucket: "Bucket | None", now: float) -> "Bucket":
        """Return the bucket refilled up to now. A new bucket is full, as after a whole period."""
        if bucket is None:
            return Bucket(self.rate, now)
        gained = max(now - bucket.filled_at, 0.0) * self.rate / self.per_seconds
        return Bucket(min(bucket.unspent + gained, self.rate), now)

    def wait(self, bucket: "Bucket") -> float:
        """Return the seconds until one more run may begin."""
        return max(1 - bucket.unspent, 0.0) * self.per_seconds / self.rate


# Longer values do not fit into an index.
_LONGEST_VALUE = 300
_SURROGATE = re.compile("[\ud800-\udfff]")


def _short(value: str) -> str:
    """Return a label's value in a form every database stores; a refused one would stop all claims.

    Long values and values with lone surrogates are replaced by a digest.
    """
    if len(value) <= _LONGEST_VALUE and not _SURROGATE.search(value):
        return value
    return f"sha256:{sha256(value.encode('utf-8', 'surrogatepass')).hexdigest()}"


class Bucket(NamedTuple):
    """How many more runs of a slot may begin, at a given time."""

    unspent: float
    filled_at: float


class Candidate(NamedTuple):
    """The fields of a waiting run that limits look at."""

    id: str
    queue: str
    agent: str
    labels: Mapping[str, str]
    spends: bool  # the run is new; a rate never holds back a run that has begun before


class Admission(NamedTuple):
    """The runs that may start, and the state of the slots afterwards."""

    ids: list[str]
    running: dict[LimitSlot, int]
    buckets: dict[LimitSlot, Bucket]  # only the buckets that changed
    full: set[LimitSlot]  # no run of these slots may start
    spent: dict[LimitSlot, float]  # seconds for which no run of the slot may begin


# Rounding errors of added fractions must not delay a run by a billionth.
_WHOLE = 1 - 1e-6


def _slots(run: Candidate, limits: Iterable[Limit]) -> list[tuple[Limit, LimitSlot]]:
    """Return the limits that apply to the run, each with the slot it counts in."""
    return [(limit, slot) for limit in limits if (slot := limit.slot(run)) is not None]


def tally(
    running: Iterable[tuple[Candidate, int]], limits: Sequence[Limit]
) -> dict[LimitSlot, int]:
    """Count the runs in each slot."""
    found: Counter[LimitSlot] = Counter()
    for run, count in running:
        for _, slot in _slots(run, limits):
            found[slot] += count
    return dict(found)


def admit(
    candidates: Iterable[Candidate],
    limits: Sequence[Limit],
    running: Mapping[LimitSlot, int],
    buckets: Mapping[LimitSlot, Bucket],
    *,
    now: float,
    room: int,
) -> Admission:
    """Choose the candidates, in their order, that no limit holds back.

    A run that is held back does not delay the runs behind it.
    """
    ids: list[str] = []
    counts, left = Counter(running), dict(buckets)
    # After the clock was set back, filling must not pause until it has caught up.
    changed = {slot for slot, bucket in left.items() if bucket.filled_at > now}
    left |= {slot: Bucket(left[slot].unspent, now) for slot in changed}
    for run in candidates:
        if len(ids) >= room:
            break
        slots = _slots(run, limits)
        if any(_is_full(limit, counts[slot]) for limit, slot in slots):
            continue
        filled = {slot: limit.fill(left.get(slot), now) for limit, slot in slots if limit.rate}
        if run.spends and any(bucket.unspent < _WHOLE for bucket in filled.values()):
            continue
        ids.append(run.id)
        for _, slot in slots:
            counts[slot] += 1
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


def _full(limits: Sequence[Limit], running: Mapping[LimitSlot, int]) -> set[LimitSlot]:
    return {
        slot
        for limit in limits
        for slot in _slots_of(limit, running)
        if _is_full(limit, running[slot])
    }


def _spent(
    limits: Sequence[Limit], buckets: Mapping[LimitSlot, Bucket], now: float
) -> dict[LimitSlot, float]:
    found: dict[LimitSlot, float] = {}
    for limit in (one for one in limits if one.rate):
        for slot in _slots_of(limit, buckets):
            bucket = limit.fill(buckets[slot], now)
            if bucket.unspent < _WHOLE:
                found[slot] = limit.wait(bucket)
    return found


def _slots_of(limit: Limit, slots: Iterable[LimitSlot]) -> list[LimitSlot]:
    return [slot for slot in slots if (slot.scope, slot.name) == (limit.scope, limit.name)]


_RATE = re.compile(r"(\d{1,9})/(\d{0,6}(?:\.\d{1,3})?)([smhd])")


def rate_of(text: str) -> tuple[int, float]:
    """Parse a rate as people write it: 100/1h is (100, 3600.0)."""
    found = _RATE.fullmatch(text)
    count, length, unit = found.groups() if found is not None else ("0", "", "s")
    rate, seconds = int(count), float(length or 1) * UNITS[unit]
    if rate < 1 or seconds <= 0:
        raise BadInput(f"rate {text!r}: expected N/TIME with N of 1 or more, like 10/1m or 100/1h")
    return rate, seconds
