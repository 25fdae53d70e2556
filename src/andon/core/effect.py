"""The life of an effect: one action on the outside world.

The intent is durable before the action starts, and the outcome before the run moves on. After a
crash the outcome is known, asked, or shown in doubt to a person; it is never guessed.

The takeover rule: what an earlier owner started may be probed or repeated only when that owner is
certainly not executing it any more. Else it could wake up after the probe and act a second time.
Only an idempotent effect is exempt: its provider refuses the second one by its key.

An owner is everything that can act for it: its process, and all that its attempts have started. A
program that outlives its worker acts as well as a worker that wakes up.
"""

from enum import StrEnum


class Kind(StrEnum):
    """What an effect declares itself to be."""

    PURE = "pure"  # changes nothing outside
    IDEMPOTENT = "idempotent"  # the provider knows the key and does it once
    PROBEABLE = "probeable"  # the outside can be asked whether it happened
    COMPENSATABLE = "compensatable"  # can be undone, also when it is not known to have happened
    IRREVERSIBLE = "irreversible"  # the default: never repeated on a guess


class EffectState(StrEnum):
    """Where an effect is in the ledger."""

    PLANNED = "planned"  # written down, certainly not done
    STARTED = "started"  # the call may have left this machine
    IN_DOUBT = "in_doubt"  # started, and its outcome is not known
    CONFIRMED = "confirmed"  # it happened
    FAILED = "failed"  # it certainly did not happen, and the agent was told so
    UNDOING = "undoing"  # it happened; its undo was started
    COMPENSATED = "compensated"  # it may have happened, and was undone


class Verdict(StrEnum):
    """What the outside, or a person, says about an effect in doubt."""

    NOT_ASKED = "not_asked"
    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did_not_happen"
    UNKNOWN = "unknown"


class Sight(StrEnum):
    """What somebody has seen of the end of an owner."""

    ALL = "dead"  # its process is gone, and so is all that it had started: looked for on its host
    PROCESS = "process"  # its process is gone; from here nobody can see what it had started
    NOTHING = "silent"  # nothing is heard of it


class Move(StrEnum):
    """What has to be done about an effect next."""

    EXECUTE = "execute"
    PROBE = "probe"
    RECORD = "record"  # it happened: write the outcome down
    UNDO = "undo"  # then execute
    ASK = "ask"  # a person decides; the run waits
    ANSWER = "answer"  # the outcome is in the journal


TRANSITIONS: dict[EffectState, frozenset[EffectState]] = {
    EffectState.PLANNED: frozenset({EffectState.STARTED, EffectState.FAILED}),
    EffectState.STARTED: frozenset(
        {
            EffectState.CONFIRMED,
            EffectState.IN_DOUBT,
            EffectState.FAILED,
            EffectState.PLANNED,  # it raised that it did not happen, and is retried
            EffectState.STARTED,  # the same key again, by a new owner
            EffectState.COMPENSATED,  # by a new owner
            EffectState.UNDOING,  # by a new owner, whose run goes no further
        }
    ),
    EffectState.IN_DOUBT: frozenset(
        {
            EffectState.CONFIRMED,
            EffectState.PLANNED,
            EffectState.FAILED,
            EffectState.COMPENSATED,
            EffectState.STARTED,  # the same key again
            EffectState.IN_DOUBT,  # a person is asked
            EffectState.UNDOING,  # its run goes no further
        }
    ),
    EffectState.CONFIRMED: frozenset({EffectState.UNDOING}),
    EffectState.UNDOING: frozenset(
        {
            EffectState.UNDOING,  # again, after an error or a crash
            EffectState.COMPENSATED,
            EffectState.CONFIRMED,  # a person decided to leave it
        }
    ),
    EffectState.FAILED: frozenset({EffectState.PLANNED}),  # the agent is retried
    # Again, or the agent is told that its tries ran out.
    EffectState.COMPENSATED: frozenset({EffectState.STARTED, EffectState.FAILED}),
}

SETTLED = frozenset({EffectState.CONFIRMED, EffectState.FAILED})
OPEN = frozenset({EffectState.STARTED, EffectState.IN_DOUBT})
OWED = frozenset({EffectState.CONFIRMED, EffectState.UNDOING})  # if it has an undo

_WHEN_PROBED: dict[Verdict, Move] = {
    Verdict.NOT_ASKED: Move.PROBE,
    Verdict.HAPPENED: Move.RECORD,
    Verdict.DID_NOT_HAPPEN: Move.EXECUTE,
    Verdict.UNKNOWN: Move.ASK,  # guessing is how duplicates are made
}


def kind_of(kind: str | None, *, probe: bool, undo: bool) -> Kind:
    """The declared kind, or the one that the declared functions imply."""
    if kind is not None:
        return Kind(kind)
    if probe:
        return Kind.PROBEABLE
    return Kind.COMPENSATABLE if undo else Kind.IRREVERSIBLE


def next_move(
    state: EffectState | None,
    kind: Kind,
    *,
    quiet: bool,
    verdict: Verdict = Verdict.NOT_ASKED,
) -> Move:
    """What to do about an effect found in `state` (None: not in the ledger yet).

    `quiet`: nobody can still be executing it. Its owner wrote that itself, or is confirmed dead.
    """
    if state in SETTLED:
        return Move.ANSWER
    if state is EffectState.UNDOING:  # no code of the agent's runs any more
        return Move.ASK
    if state not in OPEN or kind in (Kind.PURE, Kind.IDEMPOTENT):
        return Move.EXECUTE
    if kind is Kind.IRREVERSIBLE or not quiet:
        return Move.ASK
    if kind is Kind.PROBEABLE:
        return _WHEN_PROBED[verdict]
    return Move.UNDO


def is_certain(sight: Sight, *, has_started: bool) -> bool:
    """Whether an owner certainly executes nothing any more; then what it did may be probed.

    `has_started`: it has started processes that may go on without it.
    """
    return sight is Sight.ALL or (sight is Sight.PROCESS and not has_started)


def after_answer(verdict: Verdict) -> Move:
    """What a person's word about an effect in doubt leads to."""
    return _WHEN_PROBED[verdict] if verdict is not Verdict.NOT_ASKED else Move.ASK
