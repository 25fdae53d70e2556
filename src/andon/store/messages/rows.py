"""What a store answers: rows as people and programs read them."""

from __future__ import annotations

from andon.core.values.struct import Struct

TYPE_CHECKING = False  # so that no command waits for the import of what it does not need
if TYPE_CHECKING:
    from andon.core.journal import Entry
    from andon.core.queue import Bucket, Candidate, Limit, Slot


class Letter(Struct):
    """A message in a run's inbox that no entry has consumed yet."""

    id: int
    kind: str
    name: str
    body: str


class Loaded(Struct):
    """Everything a new owner needs of a run, read once."""

    start: Entry
    entries: list[Entry]  # from the last snapshot on
    letters: list[Letter]
    checkpoints: dict[str, str]
    quiet_fences: frozenset[int]  # earlier claims whose workers are certainly gone

    @classmethod
    def untouched(cls, start: Entry) -> Loaded:
        """Of a run of which nothing but its start can have been written yet."""
        return cls(
            start=start, entries=[start], letters=[], checkpoints={}, quiet_fences=frozenset()
        )


class RunRow(Struct):
    """A run as people see it."""

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
    """One worker's hold on a run, seen from the worker."""

    run_id: str
    number: int
    fence: int
    worker: str
    claimed_at: float
    ended_at: float | None
    ending: str | None
    state: str  # of the run, now
    next_claimed_at: float | None
    written_at: float | None  # the last entry until then


class Obligation(Struct):
    """A confirmed effect that is undone if its run goes no further."""

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


class Waiting(Struct):
    """Runs that wait for a worker now, or are stranded: how many, and how long the oldest does."""

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
    """How long the steps of one name took, of those that were done."""

    agent: str
    name: str
    count: int
    longer: int  # than what was asked about
    longest_seconds: float


class AskRow(Struct):
    """An ask, and its answer if there is one."""

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
    """A limit: how many runs at once, and how many may begin in a time."""

    scope: str
    name: str
    at_most: int | None
    rate: int | None
    per_seconds: float | None
    set_by: str
    set_at: float

    @property
    def limit(self) -> Limit:
        from andon.core.queue import Limit

        return Limit(self.scope, self.name, self.at_most, self.rate or 0, self.per_seconds or 1.0)


class Usage(Struct):
    """What counts against limits: the runs that run, and what is left of the rates."""

    running: list[tuple[Candidate, int]]
    buckets: dict[Slot, Bucket]


class QueueRow(Struct):
    """A queue that has runs."""

    name: str
    waiting: int
    returned: int  # of these
    later: int  # they start at a time to come
    running: int
    oldest_at: float | None  # since when the oldest of the waiting ones could have been claimed


class Forsaken(Struct):
    """Queued runs of a version that no live worker would take."""

    agent: str
    version: str
    runs: int
    oldest_available_at: float


class Filter(Struct):
    """Which runs to list, newest first."""

    states: tuple[str, ...] = ()
    agent: str | None = None
    parent_id: str | None = None
    label: tuple[str, str] | None = None
    prefix: str | None = None
    roots: bool | None = None  # those that no run has started; False: the others
    limit: int = 100
    before: tuple[float, str] | None = None  # (created_at, id) of the last one of the page before
