"""The one seam between andon and a database.

Calls are messages: values in, values out, with no transaction left open between two calls. A store
carries out what core decided. Callers write in batches; a batch is one commit, and each message in
it succeeds or is refused on its own.

Every write about a run carries the fence it was claimed under. If the write changes no row, another
worker owns the run now, and the store refuses the write with Fenced.
"""

from __future__ import annotations

from andon.core.values.struct import Struct
from andon.store.messages.graphs import GraphMessage
from andon.store.messages.stops import StopMessage
from andon.store.read_api import Reading

TYPE_CHECKING = False  # commands must not pay for imports they do not need
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol

    from andon.core.journal import Entry
    from andon.core.lease import Fence
    from andon.store.messages.stops import StopNotice, StopRow, SupervisorRow
else:
    Any = Protocol = object


class Blob(Struct):
    """A body too large for its entry, stored under the hash of its content."""

    name: str
    body: str


class EffectRow(Struct):
    """The ledger's row for one effect: its state after the entry `seq`."""

    name: str
    key: str
    place: str
    kind: str
    state: str
    seq: int
    fence: int
    quiet: bool  # nobody can still be executing it
    undo: str | None = None  # the function that undoes it, as module:name; "?" if it has no name
    undo_within: float | None = None  # seconds until it is undone, unless its run is resumed


class Ask(Struct):
    """A durable question to a person."""

    id: str
    about: str  # "value", or "effect" for an effect in doubt
    question: str
    value: str | None  # JSON
    choices: str  # JSON list of the words that may answer it
    expires_at: float | None = None


class NewRun(Struct):
    """A run to start. `entry` is its first journal entry and holds the input."""

    id: str
    agent: str
    version: str
    queue: str
    priority: int
    labels: str  # JSON object
    entry: Entry
    delay_seconds: float = 0.0
    at: float | None = None  # when to start, by the store's clock, instead of a delay
    parent_id: str | None = None
    root_id: str | None = None
    blobs: tuple[Blob, ...] = ()


class WorkerRow(Struct):
    """A process that executes runs. `id` names one incarnation and is never reused."""

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
    drain_asked_at: float | None = None  # when somebody asked it to drain
    draining_at: float | None = None  # it has claimed nothing since then
    ended_at: float | None = None
    evidence: str | None = None  # how its end is known
    drain: str | None = None  # JSON: how its drain went
    queues: str | None = None  # JSON list; None: all queues
    supervisor: str | None = None  # the parent of its process
    containment: str | None = None  # JSON: how reliably it can be stopped
    progress: str | None = None  # JSON: what it was doing at its last heartbeat
    beaten_at: float | None = None
    stalled: str | None = None  # JSON
    embedded: bool = False  # inside a user's program, which is not killed to stop one run


class AgentRow(Struct):
    """A registered agent and the parameters its runs may start with."""

    name: str
    version: str
    queue: str
    parameters: str  # JSON
    retries: int = 0
    registered_at: float = 0.0
    promoted_at: float | None = None  # new runs take the version promoted last
    at_most: int | None = None  # this and the next two: the limit that the agent's code declares
    rate: int | None = None
    per_seconds: float | None = None
    types: str = "{}"  # JSON: the types of its parameters, as far as they are known


class Register(Struct):
    """A worker starts. Answers (epoch, the store's time)."""

    worker: WorkerRow
    agents: tuple[AgentRow, ...]
    lease_seconds: float
    promote: bool = True  # promote versions that were not known before
    promote_known: bool = False  # promote known versions too: a rollback


class Beat(Struct):
    """A worker's heartbeat. Answers the store's time, or Fenced if the store gave the worker up."""

    worker_id: str
    lease_seconds: float
    progress: str | None = None  # JSON


class FleetQuery(Struct):
    """Ask for the state of the fleet, in one round trip with a heartbeat. Answers a Seen."""


class FleetState(Struct):
    """The workers not known to have ended, and the facts a worker needs to judge them."""

    workers: list[WorkerRow]
    supervisors: list[SupervisorRow]  # live ones
    busy: frozenset[str]  # workers that hold runs
    waiting: bool  # a run waits for a worker
    newest: StopRow | None  # the newest order


class Depart(Struct):
    """A worker ends. Runs that it still holds go back to the queue."""

    worker_id: str
    drain: str | None = None  # JSON: how its drain went
    alive: bool = False  # some of its code runs until its process ends: only `drain` is recorded


class Drain(Struct):
    """A worker stops claiming and gives back its runs."""

    worker_id: str
    drain: str  # JSON: why, and how long it has
    ago: float = 0.0  # seconds between the request to drain and `made_at`
    made_at: float = 0.0  # when this message was made, by time.monotonic(); 0: now


class AskDrain(Struct):
    """Ask a worker to drain. Answers whether the worker is alive."""

    worker_id: str
    by: str = ""


class MoveRun(Struct):
    """Move a run that no worker holds from the state the caller saw to another one."""

    run_id: str
    seen: str
    state: str
    entries: tuple[Entry, ...] = ()  # the journal entries that record the move
    undoing: str | None = None  # JSON: why its effects must be undone
    fresh: bool = False  # reset its counts, as if it had never failed
    forgets: bool = True  # drop its error
    version: str | None = None
    trial: str | None = None  # JSON: its old version, until the new one is known to fit its journal
    note: NoteEvent | None = None


class Recall(Struct):
    """Ask for the effects of a running run to be undone; its worker will give it back."""

    run_id: str
    undoing: str
    note: NoteEvent | None = None


class Promote(Struct):
    """Make new runs use this version. Answers the agents that have it."""

    version: str
    agent: str | None = None
    by: str = ""


class SetLimit(Struct):
    """Limit how many runs execute at once, or start in a period; without either, drop the limit."""

    scope: str  # queue, agent or label
    name: str
    at_most: int | None = None
    rate: int | None = None
    per_seconds: float | None = None
    by: str = ""


class NoteEvent(Struct):
    """An event to keep, so that people can look it up later with `andon events`."""

    kind: str
    body: str  # JSON
    run_id: str | None = None
    worker: str | None = None


class Claim(Struct):
    """Claim ready runs, after taking back the runs of dead and overdue workers."""

    worker_id: str
    agents: tuple[tuple[str, str], ...]
    limit: int
    only: tuple[str, ...] | None = None  # claim only these runs and their children
    queues: tuple[str, ...] | None = None  # claim only from these queues
    dead: tuple[tuple[str, str], ...] = ()  # (worker, how it is known)
    seen: tuple[tuple[str, float], ...] = ()  # (worker, when it was seen to end, monotonic)
    expire: bool = False  # expire overdue leases, if this worker itself
    lease_seconds: float = 0.0  # has been in contact for this long
    interruption_limit: int = 10
    # Counts this worker's claims from 1. A claim that is sent again because its outcome was unknown
    # then answers the runs it has claimed already. 0 gives no such guarantee.
    number: int = 0


class Claimed(Struct):
    """A claimed run, as its new owner gets it."""

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
    undoing: str | None = None  # JSON: why its effects must be undone
    trial: str | None = None  # JSON: check first whether this version's code fits the journal
    start: Entry | None = None  # the whole journal, if nothing else can have been written yet


class ClaimResult(Struct):
    runs: list[Claimed]
    wake_in: float | None  # seconds until the next sleeping run is due
    returned: int  # runs taken back from dead or overdue workers
    drain: bool = False  # somebody asked this worker to drain
    recalled: Sequence[str] = ()  # runs it holds whose effects must be undone
    notices: Sequence[StopNotice] = ()  # orders about runs it holds
    halted: bool = False  # the whole fleet is halted: the worker claims nothing


class Start(Struct):
    """Start a run. Answers whether it is new (False: the id exists with the same input)."""

    run: NewRun


class Append(Struct):
    """Append entries to a run's journal, with everything that belongs to them, in one commit."""

    run_id: str
    fence: Fence
    entries: tuple[Entry, ...]
    effects: tuple[EffectRow, ...] = ()
    blobs: tuple[Blob, ...] = ()
    ask: Ask | None = None
    close_ask: str | None = None
    spawn: NewRun | None = None
    take: int | None = None  # the inbox message this entry consumes
    give_back: int | None = None  # a message an earlier entry consumed but never handed over
    step: str | None = None  # the current step, for people
    checkpoint_of: str | None = None  # drop the partial value kept for this operation


class Settle(Struct):
    """End an attempt: the run finishes, waits, goes back to the queue or is put aside.

    If a message has arrived since `seen_inbox`, a run that would suspend is queued instead.
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
    keeps_place: bool = False  # the run was not touched and keeps its place in the queue
    failed: bool = False  # counts against the user's retries
    version: str | None = None  # move the run back to this version
    tried: bool = False  # it is known now whether the version fits
    undone: bool = False  # all effects of the run are undone
    cleared: bool = False  # nothing that the attempt started is still running
    also: str = ""  # processes that were ended with it


class Checkpoint(Struct):
    """Save partial progress inside a step; only the latest is kept."""

    run_id: str
    fence: Fence
    op: str
    body: str
    progress: str | None = None  # JSON: name, done and total, if the step says how far it is


class Deliver(Struct):
    """Deliver an outside message to a run, and wake it if it waits. Answers whether it was new."""

    run_id: str
    kind: str  # event | answer
    name: str
    body: str
    message_id: str
    by: str = ""


class Log(Struct):
    """Store lines that the agent wrote with ctx.log."""

    run_id: str
    attempt: int
    lines: tuple[tuple[float, str, str], ...]  # (at, level, text)


Message = (
    Register
    | Beat
    | FleetQuery
    | Drain
    | AskDrain
    | Depart
    | Promote
    | SetLimit
    | NoteEvent
    | MoveRun
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
    """The protocol that every database implements."""

    url: str

    def write(self, batch: Sequence[Message]) -> list[Outcome]:
        """Apply the messages in one commit. Each outcome is an answer or an exception."""

    def transact(self, append: Callable[[Any], Append]) -> None:
        """Run the caller's writes and one append in one transaction of the caller's database.

        The store calls `append` with a connection inside the transaction.
        """

    def orders_for(self, worker_id: str) -> ClaimResult:
        """Return the orders that a claim would carry, for a worker that has stopped claiming."""

    def hold(self, worker_id: str) -> str | None:
        """Take a lock that ends with this process; return its name, or None if unsupported."""

    def release(self, worker_id: str) -> None: ...
    def is_free(self, worker: WorkerRow) -> bool:
        """Return whether that worker's lock is free."""

    def lost(self, workers: Sequence[WorkerRow]) -> tuple[list[WorkerRow], bool]:
        """Return the workers whose lock is free, and whether to look again in a moment."""

    # Whether notifications arrive at all; otherwise only polling finds new work.
    notifies: bool

    # The meaning of a free lock: "process" (the process is gone) or "silent" (its connection is).
    free_means: str

    def notify(self) -> None:
        """Wake every listener. This is only a hint: a notification may be lost."""

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` from a thread at every notification; the return value stops listening."""

    def listen_on(self, loop: Any, callback: Callable[[], None]) -> Callable[[], None]:
        """Like `listen`, on an event loop. Another thread may stop it."""

    def checkpoint(self) -> None:
        """Do upkeep, at a moment when no caller waits."""

    def integrity(self) -> str:
        """Return 'ok', or the damage that the database itself finds."""

    def close(self) -> None: ...
