"""The life of a run.

Every change of state is a row of TRANSITIONS; a store never writes a state this table did not
answer, and docs/concepts/runs.md draws its diagram from it.
"""

from enum import StrEnum

from andon.errors import IllegalTransition


class State(StrEnum):
    """Where a run is."""

    QUEUED = "queued"  # ready for any worker that carries its version
    RUNNING = "running"  # one worker holds it
    SUSPENDED = "suspended"  # the run itself waits: a timer, an event, an answer, a child
    PAUSED = "paused"  # somebody told it to wait
    KILLED = "killed"  # somebody ended it from outside; it can be resumed
    STRANDED = "stranded"  # code and journal diverge, or the journal is damaged: a person looks
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DEAD = "dead"  # its attempts ran out; kept for redrive


class Event(StrEnum):
    """What may befall a run."""

    CLAIM = "claim"
    RETURN = "return"  # drained or interrupted: back to the queue, ahead of new work
    RETRY = "retry"  # the agent failed and may try again
    SUSPEND = "suspend"
    WAKE = "wake"
    PAUSE = "pause"
    RESUME = "resume"
    KILL = "kill"
    STRAND = "strand"
    SUCCEED = "succeed"
    FAIL = "fail"
    CANCEL = "cancel"
    BURY = "bury"
    REDRIVE = "redrive"
    COMPENSATE = "compensate"  # what it did is undone, by the next worker that claims it
    DROP = "drop"  # given up by a person


TERMINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.DEAD})

TRANSITIONS: dict[State, dict[Event, State]] = {
    State.QUEUED: {
        Event.CLAIM: State.RUNNING,
        Event.PAUSE: State.PAUSED,
        Event.KILL: State.KILLED,
        Event.STRAND: State.STRANDED,
        Event.CANCEL: State.CANCELLED,
        Event.COMPENSATE: State.QUEUED,
    },
    State.RUNNING: {
        Event.RETURN: State.QUEUED,
        Event.RETRY: State.QUEUED,
        Event.SUSPEND: State.SUSPENDED,
        Event.PAUSE: State.PAUSED,
        Event.KILL: State.KILLED,
        Event.STRAND: State.STRANDED,
        Event.SUCCEED: State.SUCCEEDED,
        Event.FAIL: State.FAILED,
        Event.CANCEL: State.CANCELLED,
        Event.BURY: State.DEAD,
    },
    State.SUSPENDED: {
        Event.WAKE: State.QUEUED,
        Event.PAUSE: State.PAUSED,
        Event.KILL: State.KILLED,
        Event.CANCEL: State.CANCELLED,
        Event.COMPENSATE: State.QUEUED,
    },
    State.PAUSED: {
        Event.RESUME: State.QUEUED,
        Event.KILL: State.KILLED,
        Event.CANCEL: State.CANCELLED,
        Event.COMPENSATE: State.QUEUED,
    },
    State.KILLED: {
        Event.RESUME: State.QUEUED,
        Event.PAUSE: State.PAUSED,
        Event.CANCEL: State.CANCELLED,
        Event.COMPENSATE: State.QUEUED,
    },
    State.STRANDED: {
        Event.RESUME: State.QUEUED,
        Event.KILL: State.KILLED,
        Event.CANCEL: State.CANCELLED,
        Event.COMPENSATE: State.QUEUED,
    },
    State.SUCCEEDED: {Event.COMPENSATE: State.QUEUED},
    State.FAILED: {Event.COMPENSATE: State.QUEUED},
    State.CANCELLED: {Event.COMPENSATE: State.QUEUED},
    State.DEAD: {
        Event.REDRIVE: State.QUEUED,
        Event.DROP: State.FAILED,
        Event.COMPENSATE: State.QUEUED,
    },
}


def advance(state: State, event: Event, *, run_id: str = "?") -> State:
    """The state that `event` leads to, or a refusal that changes nothing."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise IllegalTransition(run_id, state, event) from None
