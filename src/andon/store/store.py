"""The one seam between andon and a database.

Calls are messages: values in, values out, no transaction left open between two calls. A store
carries out what core decided. Writes are given in batches; a batch is one commit, each message in
it succeeds or is refused alone.

Every write about a run shows the fence it was claimed under. Zero rows changed means that somebody
else owns the run now, and the write is refused with Fenced.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from andon.core.journal import Entry
from andon.core.lease import Fence


class Blob(msgspec.Struct, frozen=True):
    """A body too large for its entry, under the hash of its content."""

    name: str
    body: str


class EffectRow(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger's line about one effect: how it stands after the entry `seq`."""

    name: str
    key: str
    place: str
    kind: str
    state: str
    seq: int
    fence: int
    quiet: bool  # nobody can still be executing it


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A durable question to a person."""

    id: str
    about: str  # "value", or "effect" for an effect in doubt
    question: str
    value: str | None  # JSON
    choices: str  # JSON list of the words that may answer it
    expires_at: float | None = None


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
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


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
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


class AgentRow(msgspec.Struct, frozen=True, kw_only=True):
    """A registered agent: what its runs may be started with."""

    name: str
    version: str
    queue: str
    parameters: str  # JSON
    retries: int = 0
    registered_at: float = 0.0


# ── writes ────────────────────────────────────────────────────────────────────────────────────


class Register(msgspec.Struct, frozen=True, kw_only=True):
    """A worker begins. Answers (epoch, the store's time)."""

    worker: WorkerRow
    agents: tuple[AgentRow, ...]
    lease_seconds: float


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """A worker is alive. Answers the store's time; Fenced if it was given up."""

    worker_id: str
    lease_seconds: float


class Depart(msgspec.Struct, frozen=True, kw_only=True):
    """A worker ends, and executes nothing any more. What it still holds goes back."""

    worker_id: str


class Resume(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody moves a run that nobody holds: from the state they saw to the next one."""

    run_id: str
    seen: str
    state: str


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Take ready runs; before that, take back those of dead and overdue workers."""

    worker_id: str
    agents: tuple[tuple[str, str], ...]
    limit: int
    only: tuple[str, ...] | None = None  # these runs, with their children, and no others
    dead: tuple[tuple[str, str], ...] = ()  # (worker, how it is known)
    expire: bool = False  # end overdue leases, if this worker itself
    lease_seconds: float = 0.0  # has been in contact for this long
    interruption_limit: int = 10
    # Counts this worker's claims from 1: one that is sent again because its outcome was unknown
    # answers what it has claimed already. 0 promises nothing of the kind.
    number: int = 0


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
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


class ClaimResult(msgspec.Struct, frozen=True, kw_only=True):
    runs: list[Claimed]
    wake_in: float | None  # seconds until the next sleeping run is due
    returned: int  # runs taken back from dead or overdue workers


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """Answers whether the run is new (False: that id exists with the same input)."""

    run: NewRun


class Append(msgspec.Struct, frozen=True, kw_only=True):
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
    step: str | None = None  # the step now in hand, for people
    checkpoint_of: str | None = None  # drop the partial value kept for this operation


class Settle(msgspec.Struct, frozen=True, kw_only=True):
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
    failed: bool = False  # counts against the user's retries


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Partial progress inside a step; only the latest is kept."""

    run_id: str
    fence: Fence
    op: str
    body: str


class Deliver(msgspec.Struct, frozen=True, kw_only=True):
    """A message to a run, from outside. Wakes it if it waits. Answers whether it was new."""

    run_id: str
    kind: str  # event | answer
    name: str
    body: str
    message_id: str
    by: str = ""


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """Lines that the agent wrote with ctx.log."""

    run_id: str
    attempt: int
    lines: tuple[tuple[float, str, str], ...]  # (at, level, text)


Message = (
    Register | Beat | Depart | Resume | Claim | Start | Append | Settle | Checkpoint | Deliver | Log
)

# ── reads ─────────────────────────────────────────────────────────────────────────────────────


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """A message in a run's inbox that no entry has consumed yet."""

    id: int
    kind: str
    name: str
    body: str


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a new owner needs of a run, read once."""

    start: Entry
    entries: list[Entry]  # from the last snapshot on
    letters: list[Letter]
    checkpoints: dict[str, str]
    quiet_fences: frozenset[int]  # earlier claims whose workers are certainly gone


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
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


class AttemptRow(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's hold on a run."""

    number: int
    fence: int
    worker: str
    claimed_at: float
    ended_at: float | None
    ending: str | None


class AskRow(msgspec.Struct, frozen=True, kw_only=True):
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


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs to list, newest first."""

    states: tuple[str, ...] = ()
    agent: str | None = None
    parent_id: str | None = None
    label: tuple[str, str] | None = None
    prefix: str | None = None
    limit: int = 100
    before: tuple[float, str] | None = None  # (created_at, id) of the last one of the page before


Outcome = Any


class Store(Protocol):
    """What every database does for andon."""

    url: str

    def write(self, batch: Sequence[Message]) -> list[Outcome]:
        """Carry the messages out in one commit. An outcome is an answer or an exception."""
        ...

    def send_one(self, message: Message) -> int | None:
        """Send one message without waiting; answers the descriptor to watch, None if it cannot."""
        ...

    def receive_one(self, message: Any) -> bool:
        """Whether the message sent is written. Raises StoreUnavailable if that is not known."""
        ...

    def transact(self, append: Callable[[Any], Append]) -> None:
        """Run the caller's writes and one append in one transaction of the caller's database.

        `append` is called with a connection inside the transaction.
        """
        ...

    def load(self, run_id: str, *, untouched: bool = False) -> Loaded:
        """`untouched`: nothing but its start can have been written yet."""
        ...

    def letters(self, run_ids: Sequence[str]) -> dict[str, list[Letter]]: ...
    def run(self, run_id: str) -> RunRow | None: ...
    def runs(self, which: Filter) -> list[RunRow]: ...
    def journal(self, run_id: str, after: int = -1, limit: int = 1000) -> list[Entry]: ...
    def last_entry(self, run_id: str) -> Entry | None: ...
    def ledger(self, run_id: str) -> list[EffectRow]: ...
    def attempts(self, run_id: str) -> list[AttemptRow]: ...
    def asks(self, run_id: str | None = None, *, open_only: bool = True) -> list[AskRow]: ...
    def logs(self, run_id: str, after: int = 0) -> list[tuple[int, float, str, str]]: ...
    def blob(self, name: str) -> str: ...
    def workers(self) -> list[WorkerRow]: ...
    def agents(self, name: str | None = None) -> list[AgentRow]: ...
    def now(self) -> float: ...
    def facts(self) -> dict[str, Any]: ...
    def hold(self, worker_id: str) -> str | None:
        """Take a lock that ends with this process; answers its name, None where there is none."""
        ...

    def release(self, worker_id: str) -> None: ...

    def is_free(self, worker: WorkerRow) -> bool:
        """Whether that worker's lock is free."""
        ...

    # What a free lock proves: "dead" (the process is gone), or only "silent" (its connection is).
    free_means: str

    def ring(self) -> None:
        """Wake everybody who listens. A hint: it may be lost."""
        ...

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` from another thread at every ring; the answer ends it."""
        ...

    def checkpoint(self) -> None:
        """Upkeep for a moment when nobody waits."""
        ...

    def integrity(self) -> str:
        """'ok', or what the database itself finds wrong."""
        ...

    def close(self) -> None: ...
