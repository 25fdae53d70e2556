"""Messages and rows about stops and supervisors. Values only, no I/O."""

import json

from andon.core.values.struct import Struct


class Order(Struct):
    """Stop a scope. Answers the receipt's id; if the same order is in force already, that one's."""

    id: str
    kind: str
    scope: str
    name: str = ""
    value: str = ""  # a label's value
    within: float = 10.0
    by: str = ""
    why: str = ""
    via: str = ""
    spare: bool | None = None  # spare the worker's process; None: only if it is a user's program


class Heard(Struct):
    """A worker has received the orders about these runs."""

    worker_id: str
    run_ids: tuple[str, ...]


class ProcessStarted(Struct):
    """An attempt has started a process that carries this mark, or has left threads running."""

    run_id: str
    fence: int
    mark: int
    threads: bool = False


class Ended(Struct):
    """A worker reports that it no longer executes a run that was taken from it."""

    worker_id: str
    run_id: str
    fence: int
    also: str = ""  # processes that it has ended to make that true


class WorkerGone(Struct):
    """A worker's process is certainly gone. Answers how many runs this gives back."""

    worker_id: str
    evidence: str
    interruption_limit: int = 10
    seen_at: float = 0.0  # when it was seen to end, by time.monotonic(); 0: nobody watched it
    ordered: bool = False  # it was ended to stop one of its runs, so the others are not to blame


class TargetReport(Struct):
    """Report the stage of one target of a stop. Answers whether that was news."""

    stop_id: str
    target: str
    stage: str
    evidence: str = ""
    body: str | None = None  # JSON: what was measured, kept with the order


class StallReport(Struct):
    """A worker makes no progress (JSON: since, why, evidence), or makes progress again (None)."""

    worker_id: str
    stalled: str | None


class Escalate(Struct):
    """Make polite orders hard whose window is over. Answers how many runs were fenced."""


class Resume(Struct):
    """Lift the pause of a scope and let its held runs continue. Answers how many."""

    scope: str  # agent, label, fleet
    name: str = ""
    value: str = ""
    by: str = ""
    why: str = ""
    besides: tuple[str, ...] = ()  # agents whose runs stay held


class Reauthorize(Struct):
    """Lift the hard latches of a scope, if the newest is the one the caller saw. Starts nothing.

    Answers how many waiting runs are now held until somebody resumes them.
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
    """A supervisor starts. Answers the store's time."""

    supervisor: SupervisorRow
    lease_seconds: float


class Attend(Struct):
    """A supervisor's heartbeat. Answers an Attendance: what the supervisor has to do."""

    supervisor_id: str
    lease_seconds: float
    body: str = "{}"


class Dismiss(Struct):
    """A supervisor has ended: `gone` (it said so), or `dead` (its process is gone)."""

    supervisor_id: str
    state: str = "gone"
    evidence: str = "it said so"


class StopRow(Struct):
    """An order and its outcome as far as it is known: the head of a receipt."""

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
    mark: int | None = None  # if set, the target is only what an attempt started, not its worker


class StopNotice(Struct):
    """An order about one target, for a worker or a supervisor to carry out."""

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


def stop_notices(text: str) -> list[StopNotice]:
    """Parse orders from the JSON that the databases return."""
    return [
        StopNotice(**{**one, "hard": bool(one["hard"]), "spare": optional_flag(one["spare"])})
        for one in json.loads(text)
    ]


def optional_flag(flag: object) -> bool | None:
    """Convert a nullable flag to bool or None; SQLite stores flags as numbers."""
    return None if flag is None else bool(flag)


class Attendance(Struct):
    """The answer to a supervisor's heartbeat."""

    now: float
    known: bool  # if False, it has to enlist again
    notices: list[StopNotice]  # open targets: its workers, and itself
    halt: StopRow | None  # the latch of the fleet, if there is one
    escalate_in: float | None


StopMessage = (
    Order
    | Heard
    | ProcessStarted
    | Ended
    | WorkerGone
    | TargetReport
    | StallReport
    | Escalate
    | Resume
    | Reauthorize
    | Enlist
    | Attend
    | Dismiss
)
