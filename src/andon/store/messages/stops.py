"""Messages and rows about stops, and about supervisors."""

import json

from andon.core.values.struct import Struct


class Order(Struct):
    """Stop a scope. Answers the id of the receipt: of the same order, if it is in force already."""

    id: str
    kind: str
    scope: str
    name: str = ""
    value: str = ""  # of a label
    within: float = 10.0
    by: str = ""
    why: str = ""
    via: str = ""
    spare: bool | None = None  # the worker's process; None: only that of a program using andon


class Heard(Struct):
    """A worker has heard of orders about these runs."""

    worker_id: str
    run_ids: tuple[str, ...]


class Started(Struct):
    """An attempt has started a process, which carries this mark; or threads of it go on."""

    run_id: str
    fence: int
    mark: int
    threads: bool = False


class Ended(Struct):
    """A worker says that nothing of a run that was taken from it executes any more."""

    worker_id: str
    run_id: str
    fence: int
    also: str = ""  # processes that it has ended for that


class Bury(Struct):
    """A worker's process is certainly gone. Answers how many runs that gives back."""

    worker_id: str
    evidence: str
    interruption_limit: int = 10
    seen_at: float = 0.0  # when it was seen to end, by time.monotonic(); 0: nobody watched it
    ordered: bool = False  # somebody had it ended for one of its runs: the others are not to blame


class Report(Struct):
    """How far the stop of one target is; answers whether that was news."""

    stop_id: str
    target: str
    stage: str
    evidence: str = ""
    body: str | None = None  # JSON: what was measured, kept with the order


class Stall(Struct):
    """A worker makes no progress (JSON: since, why, evidence), or does again (None)."""

    worker_id: str
    stalled: str | None


class Escalate(Struct):
    """Make polite orders hard whose time is over. Answers how many runs were fenced."""


class Resume(Struct):
    """Lift the pause of a scope and let its held runs go on. Answers how many."""

    scope: str  # agent, label, fleet
    name: str = ""
    value: str = ""
    by: str = ""
    why: str = ""
    besides: tuple[str, ...] = ()  # agents whose runs stay


class Reauthorize(Struct):
    """Lift the hard latches of a scope, if the newest is the one that was seen. Starts nothing.

    Answers how many runs that waited are held until they are resumed.
    """

    epoch: int
    scope: str
    by: str
    why: str
    name: str = ""
    value: str = ""


class SupervisorRow(Struct):
    """The parent of agent processes on one host."""

    id: str
    host: str
    boot: str
    namespace: str
    pid: int
    start_ticks: int
    home: str
    state: str = "live"
    lease_until: float = 0.0
    grades: str = "{}"
    body: str = "{}"
    started_at: float = 0.0
    ended_at: float | None = None
    evidence: str | None = None


class Enlist(Struct):
    """A supervisor begins. Answers the store's time."""

    supervisor: SupervisorRow
    lease_seconds: float


class Attend(Struct):
    """A supervisor is there. Answers what it has to do: an Attendance."""

    supervisor_id: str
    lease_seconds: float
    body: str = "{}"


class Dismiss(Struct):
    """A supervisor has ended: `gone` (it said so), or `dead` (its process is gone)."""

    supervisor_id: str
    state: str = "gone"
    evidence: str = "it said so"


class StopRow(Struct):
    """An order, and so far as it is known how it went: the head of a receipt."""

    id: str
    epoch: int
    kind: str
    scope: str
    name: str
    value: str
    within: float
    by: str
    why: str
    via: str
    asked_at: float
    escalate_at: float | None
    closed_at: float | None
    latched: bool
    lifted_at: float | None
    lifted_by: str | None
    lifted_why: str | None
    waiting: int
    body: str
    spare: bool | None = None


class TargetRow(Struct):
    """One row of a receipt."""

    stop_id: str
    target: str
    run_id: str | None
    worker: str | None
    supervisor: str | None
    fence: int
    stage: str
    evidence: str | None
    requested_at: float
    acknowledged_at: float | None
    fenced_at: float | None
    ended_at: float | None
    mark: int | None = None  # of what an attempt has started: that alone is meant, not its worker


class Told(Struct):
    """What a worker or a supervisor has to do about one target."""

    stop_id: str
    kind: str
    target: str
    run_id: str | None
    worker: str | None
    fence: int
    hard: bool
    by: str = ""
    why: str = ""
    mark: int | None = None  # as in TargetRow
    spare: bool | None = None  # as in Order


def told(text: str) -> list[Told]:
    """Out of JSON, as the databases answer it."""
    return [
        Told(**{**one, "hard": bool(one["hard"]), "spare": said(one["spare"])})
        for one in json.loads(text)
    ]


def said(flag: object) -> bool | None:
    """What was said, or that nothing was: SQLite has numbers for it."""
    return None if flag is None else bool(flag)


class Attendance(Struct):
    """What a supervisor learns by its heartbeat."""

    now: float
    known: bool  # else it has to enlist again
    told: list[Told]  # open targets of its workers, and itself
    halt: StopRow | None  # the latch of the fleet, if there is one
    escalate_in: float | None


StopMessage = (
    Order
    | Heard
    | Started
    | Ended
    | Bury
    | Report
    | Stall
    | Escalate
    | Resume
    | Reauthorize
    | Enlist
    | Attend
    | Dismiss
)
