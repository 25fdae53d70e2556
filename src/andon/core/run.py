"""The life of a run: its states and the transitions between them.

Every change of state is a row of TRANSITIONS. A store never writes a state that this table did not
return, and the diagram in docs/concepts/runs.md is drawn from it.
"""

from enum import StrEnum

from andon.errors import IllegalTransition


class State(StrEnum):
    """The states of a run."""

    QUEUED = "queued"  # ready for any worker that has its version
    RUNNING = "running"  # one worker holds it
    SUSPENDED = "suspended"  # the run waits for a timer, an event, an answer or a child
    PAUSED = "paused"  # paused by an order
    KILLED = "killed"  # ended from outside; it can be resumed
    STRANDED = "stranded"  # code and journal diverge, or the journal is damaged; needs a person
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DEAD = "dead"  # its attempts ran out; kept for redrive


class Event(StrEnum):
    """The events that change a run's state."""

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
    COMPENSATE = "compensate"  # the next worker that claims it undoes its effects
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
    """Return the state that `event` leads to. Raises IllegalTransition if there is none."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise IllegalTransition(run_id, state, event) from None
