"""Rows that a store returns, as people and programs read them."""

from __future__ import annotations

from andon.core.values.struct import Struct

TYPE_CHECKING = False  # commands must not pay for imports they do not need
if TYPE_CHECKING:
    from andon.core.journal import Entry
    from andon.core.limits import Bucket, Candidate, Limit, LimitSlot


class InboxMessage(Struct):
    """A message in a run's inbox that no entry has consumed yet."""

    id: int
    kind: str
    name: str
    body: str


class Loaded(Struct):
    """Everything a new owner needs to know about a run, read once."""

    start: Entry
    entries: list[Entry]  # starting at the last snapshot
    inbox: list[InboxMessage]
    checkpoints: dict[str, str]
    quiet_fences: frozenset[int]  # earlier claims whose workers are certainly gone

    @classmethod
    def untouched(cls, start: Entry) -> Loaded:
        """Build the rows of a run whose journal can hold nothing but its start yet."""
        return cls(start=start, entries=[start], inbox=[], checkpoints={}, quiet_fences=frozenset())


class RunRow(Struct):
    """A run, as listings show it."""

    id: str
    agent: str
    version: str
    queue: str
    state: str
    priority: int
    labels: str
    attempt: int
    failures: int
    interruptions: int
    epoch: int
    fence: int
    worker: str | None
    parent_id: str | None
    root_id: str
    step: str | None
    error: str | None
    waits: str | None
    wake_at: float | None
    available_at: float
    created_at: float
    changed_at: float
    head_seq: int
    head_hash: str
    undoing: str | None = None
    undo_at: float | None = None
    trial: str | None = None
    stop: str | None = None  # JSON: the order that is stopping it
    containment: str | None = None  # JSON


class AttemptRow(Struct):
    """One worker's hold on a run."""

    number: int
    fence: int
    worker: str
    claimed_at: float
    ended_at: float | None
    ending: str | None


class Held(Struct):
    """One worker's hold on a run, as listed for that worker."""

    run_id: str
    number: int
    fence: int
    worker: str
    claimed_at: float
    ended_at: float | None
    ending: str | None
    state: str  # of the run, now
    next_claimed_at: float | None
    written_at: float | None  # time of the last entry up to this hold


class Obligation(Struct):
    """A confirmed effect that will be undone if its run goes no further."""

    run_id: str
    agent: str
    version: str
    run_state: str
    name: str
    key: str
    state: str
    seq: int
    undo: str
    undo_within: float | None
    undo_at: float | None


class WaitingRuns(Struct):
    """Runs that wait for a worker now or are stranded: their number and the oldest one's wait."""

    state: str
    queue: str
    agent: str
    version: str
    runs: int
    oldest_seconds: float


class EventRow(Struct):
    """Something that happened to the fleet or to a run."""

    id: int
    at: float
    kind: str
    run_id: str | None
    worker: str | None
    body: str


class StepTime(Struct):
    """How long the finished steps of one name took."""

    agent: str
    name: str
    count: int
    longer: int  # how many took longer than the time asked about
    longest_seconds: float


class AskRow(Struct):
    """A question to a person, and its answer if there is one."""

    run_id: str
    id: str
    about: str
    question: str
    value: str | None
    choices: str
    asked_at: float
    expires_at: float | None
    answer: str | None
    answered_at: float | None


class LimitRow(Struct):
    """A limit: how many runs may execute at once, and how many may start in a period."""

    scope: str
    name: str
    at_most: int | None
    rate: int | None
    per_seconds: float | None
    set_by: str
    set_at: float

    @property
    def limit(self) -> Limit:
        from andon.core.limits import Limit

        return Limit(self.scope, self.name, self.at_most, self.rate or 0, self.per_seconds or 1.0)


class Usage(Struct):
    """The running runs that count against limits, and the rest of each rate."""

    running: list[tuple[Candidate, int]]
    buckets: dict[LimitSlot, Bucket]


class QueueRow(Struct):
    """A queue that has runs."""

    name: str
    waiting: int
    returned: int  # how many of the waiting runs were given back
    later: int  # runs that start at a later time
    running: int
    oldest_at: float | None  # when the oldest waiting run became available


class Forsaken(Struct):
    """Queued runs of a version that no live worker would take."""

    agent: str
    version: str
    runs: int
    oldest_available_at: float


class Filter(Struct):
    """Selects the runs to list, newest first."""

    states: tuple[str, ...] = ()
    agent: str | None = None
    parent_id: str | None = None
    label: tuple[str, str] | None = None
    prefix: str | None = None
    roots: bool | None = None  # True: only runs that no run has started; False: only the others
    limit: int = 100
    before: tuple[float, str] | None = None  # (created_at, id) of the previous page's last run
