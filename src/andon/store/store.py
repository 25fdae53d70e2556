"""The one seam between andon and a database.

Calls are messages: values in, values out, no transaction left open between two calls. A store
carries out what core decided. Writes are given in batches; a batch is one commit, each message in
it succeeds or is refused alone.

Every write about a run shows the fence it was claimed under. Zero rows changed means that somebody
else owns the run now, and the write is refused with Fenced.
"""

from __future__ import annotations

from andon.core.values.struct import Struct
from andon.store.messages.graphs import GraphMessage
from andon.store.messages.stops import StopMessage
from andon.store.read_api import Reading

TYPE_CHECKING = False  # so that no command waits for the import of what it does not need
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol

    from andon.core.journal import Entry
    from andon.core.lease import Fence
    from andon.store.messages.stops import StopRow, SupervisorRow, Told
else:
    Any = Protocol = object


class Blob(Struct):
    """A body too large for its entry, under the hash of its content."""

    name: str
    body: str


class EffectRow(Struct):
    """The ledger's line about one effect: how it stands after the entry `seq`."""

    name: str
    key: str
    place: str
    kind: str
    state: str
    seq: int
    fence: int
    quiet: bool  # nobody can still be executing it
    undo: str | None = None  # the function that undoes it, as module:name; "?" if it has no name
    undo_within: float | None = None  # undone after so many seconds, unless its run is resumed


class Ask(Struct):
    """A durable question to a person."""

    id: str
    about: str  # "value", or "effect" for an effect in doubt
    question: str
    value: str | None  # JSON
    choices: str  # JSON list of the words that may answer it
    expires_at: float | None = None


class NewRun(Struct):
    """A run to be started. `entry` is its first journal entry and holds the input."""

    id: str
    agent: str
    version: str
    queue: str
    priority: int
    labels: str  # JSON object
    entry: Entry
    delay_seconds: float = 0.0
    at: float | None = None  # the store's time to start at, instead of a delay
    parent_id: str | None = None
    root_id: str | None = None
    blobs: tuple[Blob, ...] = ()


class WorkerRow(Struct):
    """A process that executes runs. `id` names one incarnation and is never used again."""

    id: str
    host: str
    boot: str
    namespace: str
    pid: int
    start_ticks: int
    lock: str | None = None
    state: str = "live"
    lease_until: float = 0.0
    agents: str = "[]"  # JSON list of [name, version]
    started_at: float = 0.0
    concurrency: int = 0
    drain_asked_at: float | None = None  # somebody wants it to go
    draining_at: float | None = None  # since then it takes nothing any more
    ended_at: float | None = None
    evidence: str | None = None  # how its end is known
    drain: str | None = None  # JSON: how its drain went
    queues: str | None = None  # JSON list; all of them if None
    supervisor: str | None = None  # the parent of its process
    containment: str | None = None  # JSON: how surely it can be stopped
    progress: str | None = None  # JSON: what it was doing at its last heartbeat
    beaten_at: float | None = None
    stalled: str | None = None  # JSON
    embedded: bool = False  # in a program of somebody's, which is not ended for one of its runs


class AgentRow(Struct):
    """A registered agent: what its runs may be started with."""

    name: str
    version: str
    queue: str
    parameters: str  # JSON
    retries: int = 0
    registered_at: float = 0.0
    promoted_at: float | None = None  # new runs take the version promoted last
    at_most: int | None = None  # what its code says about the limits of the agent
    rate: int | None = None
    per_seconds: float | None = None
    types: str = "{}"  # JSON: the shapes of its parameters, as far as they are known


# ── writes ────────────────────────────────────────────────────────────────────────────────────


class Register(Struct):
    """A worker begins. Answers (epoch, the store's time)."""

    worker: WorkerRow
    agents: tuple[AgentRow, ...]
    lease_seconds: float
    promote: bool = True  # versions that were not known before
    promote_known: bool = False  # and those that were: a rollback


class Beat(Struct):
    """A worker is alive. Answers the store's time; Fenced if it was given up."""

    worker_id: str
    lease_seconds: float
    progress: str | None = None  # JSON


class Look(Struct):
    """How does the fleet stand? Asked with a heartbeat, in the same exchange. Answers a Seen."""


class Seen(Struct):
    """The workers that are not known to have ended, and what has to be known beside them."""

    workers: list[WorkerRow]
    supervisors: list[SupervisorRow]  # live ones
    busy: frozenset[str]  # workers that hold runs
    waiting: bool  # a run waits for a worker
    newest: StopRow | None  # order


class Depart(Struct):
    """A worker ends, and executes nothing any more. What it still holds goes back."""

    worker_id: str
    drain: str | None = None  # JSON: how its drain went
    alive: bool = False  # something of it goes on until its process ends: only the story is kept


class Drain(Struct):
    """A worker takes nothing any more, and gives back what it has."""

    worker_id: str
    drain: str  # JSON: why, and how long it has
    ago: float = 0.0  # seconds since it was told
    made_at: float = 0.0  # when that was so, by time.monotonic(); 0: now


class AskDrain(Struct):
    """Somebody wants a worker to drain. Answers whether it is alive."""

    worker_id: str
    by: str = ""


class Move(Struct):
    """Somebody moves a run that nobody holds: from the state they saw to the next one."""

    run_id: str
    seen: str
    state: str
    entries: tuple[Entry, ...] = ()  # what the journal has to say about it
    undoing: str | None = None  # JSON: why its effects are to be undone
    fresh: bool = False  # as if it had never failed
    forgets: bool = True  # its error
    version: str | None = None
    trial: str | None = None  # JSON: the version it came from, until the new one fits its journal
    note: Note | None = None


class Recall(Struct):
    """Somebody wants the effects of a run undone that a worker holds: it will be given back."""

    run_id: str
    undoing: str
    note: Note | None = None


class Promote(Struct):
    """New runs take this version. Answers the agents that have it."""

    version: str
    agent: str | None = None
    by: str = ""


class SetLimit(Struct):
    """How many runs may run at once, and how many may begin in a time; without both: no limit."""

    scope: str  # queue, agent or label
    name: str
    at_most: int | None = None
    rate: int | None = None
    per_seconds: float | None = None
    by: str = ""


class Note(Struct):
    """Something that people should be able to look up later: see `andon events`."""

    kind: str
    body: str  # JSON
    run_id: str | None = None
    worker: str | None = None


class Claim(Struct):
    """Take ready runs; before that, take back those of dead and overdue workers."""

    worker_id: str
    agents: tuple[tuple[str, str], ...]
    limit: int
    only: tuple[str, ...] | None = None  # these runs, with their children, and no others
    queues: tuple[str, ...] | None = None  # those of these queues, and no others
    dead: tuple[tuple[str, str], ...] = ()  # (worker, how it is known)
    seen: tuple[tuple[str, float], ...] = ()  # (worker, when it was seen to end, monotonic)
    expire: bool = False  # end overdue leases, if this worker itself
    lease_seconds: float = 0.0  # has been in contact for this long
    interruption_limit: int = 10
    # Counts this worker's claims from 1: one that is sent again because its outcome was unknown
    # answers what it has claimed already. 0 promises nothing of the kind.
    number: int = 0


class Claimed(Struct):
    """A run in the hands of its new owner."""

    id: str
    agent: str
    version: str
    attempt: int
    fence: Fence
    failures: int
    interruptions: int
    head_seq: int
    head_hash: str
    inbox: int
    parent_id: str | None
    root_id: str
    labels: str
    queue: str
    undoing: str | None = None  # JSON: why its effects are to be undone
    trial: str | None = None  # JSON: whether this version's code fits is to be found out first
    start: Entry | None = None  # all of its journal, if nothing else can have been written yet


class ClaimResult(Struct):
    runs: list[Claimed]
    wake_in: float | None  # seconds until the next sleeping run is due
    returned: int  # runs taken back from dead or overdue workers
    drain: bool = False  # somebody wants this worker to go
    recalled: Sequence[str] = ()  # runs in its hands that somebody wants undone
    told: Sequence[Told] = ()  # orders about runs in its hands
    halted: bool = False  # everything is: it claims nothing


class Start(Struct):
    """Answers whether the run is new (False: that id exists with the same input)."""

    run: NewRun


class Append(Struct):
    """Entries of a run, with everything that belongs to them, in one commit."""

    run_id: str
    fence: Fence
    entries: tuple[Entry, ...]
    effects: tuple[EffectRow, ...] = ()
    blobs: tuple[Blob, ...] = ()
    ask: Ask | None = None
    close_ask: str | None = None
    spawn: NewRun | None = None
    take: int | None = None  # the inbox message this entry consumes
    give_back: int | None = None  # the one that an earlier entry did, and nobody has got
    step: str | None = None  # the step now in hand, for people
    checkpoint_of: str | None = None  # drop the partial value kept for this operation


class Settle(Struct):
    """The end of an attempt: the run finishes, waits, goes back or is put aside.

    A run that would suspend although a message has arrived since `seen_inbox` is queued instead.
    """

    run_id: str
    fence: Fence
    state: str
    ending: str
    entries: tuple[Entry, ...] = ()
    effects: tuple[EffectRow, ...] = ()
    blobs: tuple[Blob, ...] = ()
    error: str | None = None
    waits: str | None = None
    wake_at: float | None = None
    seen_inbox: int = 0
    awake_state: str = "queued"
    delay_seconds: float = 0.0
    returned: bool = False
    keeps_place: bool = False  # it was not touched: it waits where it waited before
    failed: bool = False  # counts against the user's retries
    version: str | None = None  # back to this one
    tried: bool = False  # whether its version fits is known now
    undone: bool = False  # everything that it did
    cleared: bool = False  # nothing that the attempt has started goes on
    also: str = ""  # processes that were ended with it


class Checkpoint(Struct):
    """Partial progress inside a step; only the latest is kept."""

    run_id: str
    fence: Fence
    op: str
    body: str
    progress: str | None = None  # JSON: name, done and total, if the step says how far it is


class Deliver(Struct):
    """A message to a run, from outside. Wakes it if it waits. Answers whether it was new."""

    run_id: str
    kind: str  # event | answer
    name: str
    body: str
    message_id: str
    by: str = ""


class Log(Struct):
    """Lines that the agent wrote with ctx.log."""

    run_id: str
    attempt: int
    lines: tuple[tuple[float, str, str], ...]  # (at, level, text)


Message = (
    Register
    | Beat
    | Look
    | Drain
    | AskDrain
    | Depart
    | Promote
    | SetLimit
    | Note
    | Move
    | Recall
    | Claim
    | Start
    | Append
    | Settle
    | Checkpoint
    | Deliver
    | Log
    | StopMessage
    | GraphMessage
)

Outcome = Any


class Store(Reading, Protocol):
    """What every database does for andon."""

    url: str

    def write(self, batch: Sequence[Message]) -> list[Outcome]:
        """Carry the messages out in one commit. An outcome is an answer or an exception."""

    def write_at_once(self, batch: Sequence[Message]) -> list[Outcome]:
        """On an event loop: StoreUnavailable where others are not done in a moment."""

    def send(self, batch: Sequence[Message], *, behind: bool = False) -> Any:
        """Send without waiting; answers what is to be watched, None if it cannot.

        `behind`: what the caller has under way. Raises StoreUnavailable if of all that is under
        way nothing is known.
        """

    def receive(self) -> tuple[list[tuple[list[Outcome], list[int]]], bool]:
        """Of each batch that was answered since: its outcomes, and the places of what was not done.

        And whether more is under way. Raises StoreUnavailable as `send` does.
        """

    def unsent(self) -> bool:
        """Whether `receive` is to be called as soon as the network takes something, too."""

    def transact(self, append: Callable[[Any], Append]) -> None:
        """Run the caller's writes and one append in one transaction of the caller's database.

        `append` is called with a connection inside the transaction.
        """

    def hold(self, worker_id: str) -> str | None:
        """Take a lock that ends with this process; answers its name, None where there is none."""

    def release(self, worker_id: str) -> None: ...
    def is_free(self, worker: WorkerRow) -> bool:
        """Whether that worker's lock is free."""

    def lost(self, workers: Sequence[WorkerRow]) -> tuple[list[WorkerRow], bool]:
        """Those whose lock is free, by one look; and whether more may be in a moment."""

    # Whether rings are heard at all; else only looking finds what is new.
    hears: bool

    # What a free lock proves: "process" (that is gone), or only "silent" (its connection is).
    free_means: str

    def ring(self) -> None:
        """Wake everybody who listens. A hint: it may be lost."""

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` from another thread at every ring; the answer ends it."""

    def listen_on(self, loop: Any, callback: Callable[[], None]) -> Callable[[], None]:
        """The same, on an event loop. It is ended from another thread."""

    def checkpoint(self) -> None:
        """Upkeep for a moment when nobody waits."""

    def needs_upkeep(self) -> bool:
        """Whether it is time for that."""

    def integrity(self) -> str:
        """'ok', or what the database itself finds wrong."""

    def close(self) -> None: ...
