"""The effect of a deploy on runs, computed from stored records.

It does not depend on a worker's last report: attempts, journal and ledger are enough, and they
survive SIGKILL. Every hold of a leaving worker on a run counts once, as exactly one part. Every run
that was given back is resumed, over, set aside by a person, waiting or lost.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from math import ceil
from statistics import median

import msgspec

from andon.core.drain import Phase, plan
from andon.core.effect import OPEN, EffectState
from andon.core.journal import Entry, EntryKind, Mark
from andon.core.run import TERMINAL, State

# Drains that start within this time of each other are one deploy: a new process has to start and
# become ready before the next old one is ordered to drain.
GAP_SECONDS = 60.0
# A step may take this much longer than it ever has.
SPARE = 1.1


class Part(StrEnum):
    """The outcome for a run held by a worker that left."""

    HELD = "held"  # the worker still holds it
    FINISHED = "finished"  # it ended or began to wait there
    SAVED = "saved"  # given back between two steps
    CUT = "cut"  # given back inside a step, with its latest checkpoint
    UNTOUCHED = "untouched"  # given back before anything was executed
    INTERRUPTED = "interrupted"  # not given back: another process noticed that the worker was gone


GIVEN_BACK = frozenset({Part.SAVED, Part.CUT, Part.UNTOUCHED, Part.INTERRUPTED})
_PARTS = {
    None: Part.HELD,
    "returned": Part.SAVED,
    "cut": Part.CUT,
    "untouched": Part.UNTOUCHED,
    "interrupted": Part.INTERRUPTED,
}


def part_of(ending: str | None) -> Part:
    """Return the part for an attempt's ending; other endings are the agent's own end or wait."""
    return _PARTS.get(ending, Part.FINISHED)


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """A leaving worker's hold on a run, and the run's state now."""

    run_id: str
    fence: int
    ending: str | None
    ended_at: float | None
    next_claimed_at: float | None
    state: str
    lost_at: float | None = None  # when its worker was seen to end, or last known to be alive

    @property
    def part(self) -> Part:
        return part_of(self.ending)

    @property
    def recovery(self) -> float | None:
        """Seconds until another worker claimed the run, or None.

        Counted from when the run was given back, or from the loss of its worker, which others may
        have noticed much later.
        """
        if self.part not in GIVEN_BACK or self.next_claimed_at is None or self.ended_at is None:
            return None
        lost_at = self.lost_at if self.part is Part.INTERRUPTED else None
        return max(self.next_claimed_at - (self.ended_at if lost_at is None else lost_at), 0.0)

    @property
    def buried(self) -> bool:
        return self.part is Part.INTERRUPTED and self.state == State.DEAD

    @property
    def unresumed(self) -> bool:
        """Whether the run was given back and no worker has it. A paused run is meant to wait."""
        waits = self.state not in TERMINAL and self.state != State.PAUSED
        return self.part in GIVEN_BACK and self.next_claimed_at is None and waits


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of holds. The parts add up to `times`."""

    runs: int  # distinct runs that are no longer held
    times: int  # number of holds that have ended
    held: int
    finished: int
    saved: int
    cut: int
    untouched: int
    interrupted: int
    dead: int  # distinct runs given up since, because their workers were lost too often
    resumed: int
    unresumed: int
    recovery_median: float | None
    recovery_worst: float | None


def tally(holds: Iterable[Hold]) -> Tally:
    """Count holds. A run that was given back twice adds 1 to `runs` and 2 to `times`."""
    holds = list(holds)
    parts = Counter(hold.part for hold in holds)
    recoveries = [hold.recovery for hold in holds if hold.recovery is not None]
    return Tally(
        runs=len({hold.run_id for hold in holds if hold.part is not Part.HELD}),
        times=len(holds) - parts[Part.HELD],
        **{part.value: parts[part] for part in Part},
        dead=len({hold.run_id for hold in holds if hold.buried}),
        resumed=len(recoveries),
        unresumed=sum(hold.unresumed for hold in holds),
        recovery_median=median(recoveries) if recoveries else None,
        recovery_worst=max(recoveries, default=None),
    )


def last_sign(noticed_at: float, signs: Iterable[float | None]) -> float:
    """Return when an unwatched worker was lost: its last heartbeat before anybody noticed."""
    known = [sign for sign in signs if sign is not None and sign <= noticed_at]
    return max(known, default=noticed_at)


class Departure(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that was ordered to drain, or that has ended."""

    worker: str
    told_at: float | None
    ended_at: float | None

    def window(self, now: float) -> tuple[float, float]:
        """Return when it began and stopped leaving; a worker that died left in an instant."""
        end = now if self.ended_at is None else self.ended_at
        begin = end if self.told_at is None else self.told_at
        return min(begin, end), end


def deploys(leavings: Iterable[Departure], now: float) -> list[list[Departure]]:
    """Group workers that left together, oldest group first."""
    ordered = sorted(leavings, key=lambda one: (one.window(now), one.worker))
    groups: list[list[Departure]] = []
    until = 0.0
    for one in ordered:
        begin, end = one.window(now)
        if groups and begin <= until + GAP_SECONDS:
            groups[-1].append(one)
            until = max(until, end)
        else:
            groups.append([one])
            until = end
    return groups


def versions_after(
    before: frozenset[tuple[str, str]], staying: frozenset[tuple[str, str]]
) -> dict[str, tuple[list[str], list[str]]]:
    """Return for each agent that left its versions before and those that took over.

    New versions took over. If there are none, the versions that stayed carry on; if none stayed,
    nothing did.
    """
    found: dict[str, tuple[list[str], list[str]]] = {}
    for agent in sorted({name for name, _ in before}):
        old = {version for name, version in before if name == agent}
        carried = {version for name, version in staying if name == agent}
        found[agent] = sorted(old), sorted(carried - old or carried)
    return found


def is_lost(
    state: str, worker: str | None, ended: Mapping[str, float], now: float, lease_seconds: float
) -> bool:
    """Whether a run is not over, not waiting, and not held by a worker that could be alive.

    `ended` maps workers to the time they ended. For one lease a run may only appear lost, because
    rows are read one after the other while others write them.
    """
    if state != State.RUNNING:
        return False
    if worker is None:
        return True
    return worker in ended and now - ended[worker] > lease_seconds


class Twice(msgspec.Struct, frozen=True):
    """An operation that was done twice according to the journal."""

    kind: str
    name: str
    spot: str
    first: int  # the entry that did it first
    again: int


_UNDONE = frozenset(
    {Mark.REOPENED, EffectState.COMPENSATED, EffectState.PLANNED, EffectState.FAILED}
)


def doubled(entries: Iterable[Entry]) -> list[Twice]:
    """Return operations done twice without having been reopened or undone in between."""
    done: dict[tuple[str, ...], int] = {}
    found: list[Twice] = []
    for entry in entries:
        keyed = entry.key is not None
        spot = (entry.kind, entry.name, str(entry.key)) if keyed else (entry.place,)
        if entry.kind == EntryKind.SNAPSHOT:
            done.clear()  # the code continues from the snapshot, and may do the same again
        elif entry.kind == EntryKind.RETRY:
            done.pop((entry.place,), None)
        elif entry.kind in (EntryKind.START, EntryKind.END):
            pass  # about the run, not an operation of it
        elif entry.state in _UNDONE:
            done.pop(spot, None)
        elif entry.state in (Mark.DONE, EffectState.CONFIRMED):
            if spot in done:
                found.append(Twice(entry.kind, entry.name, spot[-1], done[spot], entry.seq))
            done[spot] = entry.seq
    return found


def left_in_doubt(state: str, fence: int, given_back: int) -> bool:
    """Whether an effect is in doubt since the claim `given_back`, or waits for a person now.

    Effects started by a later owner are in that owner's hands.
    """
    return state == EffectState.IN_DOUBT or (state in OPEN and fence <= given_back)


def overruns(
    phases: Sequence[tuple[str, bool]],
    *,
    ended: str | None,
    took: float | None,
    grace_seconds: float | None,
) -> list[str]:
    """Return what a drain has overrun beyond its plan.

    `ended` is the worker's own report, "clean" or "overrun". A worker that did not report is
    judged by its time. A boundary phase that used all its time is planned for: it cuts steps.
    """
    if ended is None:
        late = took is not None and grace_seconds is not None and took > grace_seconds
        return ["grace"] if late else []
    if ended != "overrun":
        return []
    return [name for name, overran in phases if overran and name != Phase.BOUNDARY] or ["exit"]


def steps_have(grace_seconds: float) -> float:
    """Return how long a step may take that begins just before the drain, without being cut."""
    return plan(grace_seconds).ends[Phase.BOUNDARY]


def grace_for(longest_seconds: float) -> float:
    """Return a grace period, in fives, that the longest known step fits with room to spare."""
    needed = longest_seconds * SPARE
    grace = _in_fives(needed)
    while steps_have(grace) < needed:
        grace += 5.0
    return grace


def orchestrator_for(grace_seconds: float) -> float:
    """Return the orchestrator's period: the grace period, and time for the exit."""
    return _in_fives(grace_seconds + max(5.0, grace_seconds / 10))


def _in_fives(seconds: float) -> float:
    return 5.0 * max(ceil(round(seconds / 5, 6)), 1)
