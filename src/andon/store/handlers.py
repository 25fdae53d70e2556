"""The handlers of a store, and the table that names one for each message."""

from __future__ import annotations

from andon.errors import AndonError, StoreError
from andon.store.messages import graphs, stops
from andon.store.sql.claims import ClaimHandler
from andon.store.sql.events import EventHandler
from andon.store.sql.graph_threads import GraphThreadHandler
from andon.store.sql.inbox import InboxHandler
from andon.store.sql.latches import LatchHandler
from andon.store.sql.limits import LimitHandler
from andon.store.sql.orders import OrderHandler
from andon.store.sql.processes import ProcessHandler
from andon.store.sql.reads import Reads
from andon.store.sql.runs import RunHandler
from andon.store.sql.supervisors import SupervisorHandler
from andon.store.sql.targets import TargetHandler
from andon.store.sql.workers import WorkerHandler
from andon.store.store import (
    Append,
    AskDrain,
    Beat,
    Checkpoint,
    Claim,
    Deliver,
    Depart,
    Drain,
    FleetQuery,
    Log,
    MoveRun,
    NoteEvent,
    Promote,
    Recall,
    Register,
    SetLimit,
    Settle,
    Start,
)

TYPE_CHECKING = False  # commands must not pay for imports they do not need
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from andon.store.sql.claims import UsualClaim
    from andon.store.sql.reads import Query
    from andon.store.store import Message, Outcome

# Messages that other processes wait for.
_NOTIFYING: tuple[type, ...] = (Start, Deliver, Drain, AskDrain, Depart, Settle, Register, MoveRun)
_NOTIFYING += (Recall, SetLimit, stops.Order, stops.Ended, stops.WorkerGone, stops.TargetReport)
_NOTIFYING += (stops.Escalate, stops.Resume, stops.Reauthorize)


class Handlers:
    """One handler for each noun. `q` runs a named query inside the batch's transaction."""

    def __init__(self, q: Query, usual: UsualClaim = lambda _: None) -> None:
        reads, self.events, self.inbox = Reads(q), EventHandler(q), InboxHandler(q)
        self.limits = LimitHandler(q, reads, self.events)
        self.targets = TargetHandler(q, self.events, self.inbox)
        self.processes = ProcessHandler(q, self.targets)
        self.orders = OrderHandler(q, reads, self.events, self.inbox, self.processes, self.targets)
        self.latches = LatchHandler(q, reads, self.events)
        self.supervisors = SupervisorHandler(q, reads, self.events, self.orders, self.targets)
        self.workers = WorkerHandler(
            q, reads, self.events, self.inbox, self.limits, self.processes, self.targets
        )
        self.claims = ClaimHandler(q, self.events, self.limits, self.orders, self.workers, usual)
        self.runs = RunHandler(q, self.events, self.inbox, self.targets)
        self.graph_threads = GraphThreadHandler(q)
        self.table: dict[type, Callable[[Any], Any]] = {
            Register: self.workers.register,
            Beat: self.workers.beat,
            Depart: self.workers.depart,
            Drain: self.workers.drain,
            AskDrain: self.workers.ask_drain,
            Promote: self.workers.promote,
            stops.WorkerGone: self.workers.bury,
            Claim: self.claims.claim,
            SetLimit: self.limits.set_limit,
            NoteEvent: self.events.write,
            Deliver: self.inbox.deliver,
            Start: self.runs.start,
            Append: self.runs.append,
            Settle: self.runs.settle,
            Checkpoint: self.runs.checkpoint,
            MoveRun: self.runs.move,
            Recall: self.runs.recall,
            Log: self.runs.log,
            stops.Order: self.orders.order,
            stops.Heard: self.orders.acknowledge,
            stops.Escalate: self.orders.escalate,
            stops.Ended: self.processes.ended,
            stops.ProcessStarted: self.processes.started,
            stops.TargetReport: self.targets.report,
            stops.Resume: self.latches.resume,
            stops.Reauthorize: self.latches.reauthorize,
            FleetQuery: self.supervisors.look_around,
            stops.Enlist: self.supervisors.enlist,
            stops.Attend: self.supervisors.attend,
            stops.Dismiss: self.supervisors.dismiss,
            stops.StallReport: self.supervisors.stall,
            graphs.SaveCheckpoint: self.graph_threads.save_checkpoint,
            graphs.SaveWrites: self.graph_threads.save_writes,
            graphs.DropThread: self.graph_threads.drop_thread,
            graphs.DropCheckpoints: self.graph_threads.drop_checkpoints,
            graphs.CopyThread: self.graph_threads.copy_thread,
        }

    def apply(self, message: Message) -> Outcome:
        """Carry out one message; return refusals as its outcome, raise errors of the database."""
        try:
            return self.table[type(message)](message)
        except StoreError:
            raise
        except AndonError as refusal:
            return refusal


def concerns_others(batch: Sequence[Message], outcomes: Sequence[Outcome]) -> bool:
    """Return whether other processes must be notified of what the batch has written."""
    for message, outcome in zip(batch, outcomes, strict=True):
        match message:
            case Append(spawn=None):  # by far the most common message
                found = False
            case Append():
                found = True
            case Claim():
                found = not isinstance(outcome, Exception) and bool(outcome.returned)
            case _:
                found = isinstance(message, _NOTIFYING)
        if found and not isinstance(outcome, Exception):
            return True
    return False
