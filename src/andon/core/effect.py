"""The life of an effect: one action on the outside world.

The intent is durable before the action starts, and the outcome before the run moves on. After a
crash the outcome is known, probed, or shown to a person as in doubt; it is never guessed.

The takeover rule: an effect that an earlier owner started may be probed or repeated only when that
owner certainly no longer executes it. Otherwise the owner could wake up after the probe and act a
second time. Only idempotent effects are exempt: the provider refuses the second one by its key.

An owner is everything that can act for it: its process and everything its attempts have started. A
program that outlives its worker can act just as a worker that wakes up can.
"""

from enum import StrEnum


class EffectKind(StrEnum):
    """The kind an effect declares."""

    PURE = "pure"  # changes nothing outside
    IDEMPOTENT = "idempotent"  # the provider knows the key and does it once
    PROBEABLE = "probeable"  # the provider can be asked whether it happened
    COMPENSATABLE = "compensatable"  # can be undone, even if it is unknown whether it happened
    IRREVERSIBLE = "irreversible"  # the default: never repeated on a guess


class EffectState(StrEnum):
    """The state of an effect in the ledger."""

    PLANNED = "planned"  # recorded; certainly not done
    STARTED = "started"  # the call may have left this machine
    IN_DOUBT = "in_doubt"  # started, outcome unknown
    CONFIRMED = "confirmed"  # it happened
    FAILED = "failed"  # it certainly did not happen, and the agent has been told
    UNDOING = "undoing"  # it happened, and its undo has started
    COMPENSATED = "compensated"  # it may have happened, and has been undone


class Verdict(StrEnum):
    """The answer of a probe or a person about an effect in doubt."""

    NOT_ASKED = "not_asked"
    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did_not_happen"
    UNKNOWN = "unknown"


class Sight(StrEnum):
    """How much is known about the end of an owner."""

    ALL = "dead"  # its process and every process it started are gone, checked on its host
    PROCESS = "process"  # its process is gone; those it started cannot be checked from here
    NOTHING = "silent"  # it no longer reports


class EffectMove(StrEnum):
    """The next action for an effect."""

    EXECUTE = "execute"
    PROBE = "probe"
    RECORD = "record"  # it happened: record the outcome
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
            EffectState.STARTED,  # retried with the same key by a new owner
            EffectState.COMPENSATED,  # by a new owner
            EffectState.UNDOING,  # by a new owner, whose run does not continue
        }
    ),
    EffectState.IN_DOUBT: frozenset(
        {
            EffectState.CONFIRMED,
            EffectState.PLANNED,
            EffectState.FAILED,
            EffectState.COMPENSATED,
            EffectState.STARTED,  # retried with the same key
            EffectState.IN_DOUBT,  # waiting for a person
            EffectState.UNDOING,  # the run does not continue
        }
    ),
    EffectState.CONFIRMED: frozenset({EffectState.UNDOING}),
    EffectState.UNDOING: frozenset(
        {
            EffectState.UNDOING,  # undone again after an error or a crash
            EffectState.COMPENSATED,
            EffectState.CONFIRMED,  # a person decided to leave it
        }
    ),
    EffectState.FAILED: frozenset({EffectState.PLANNED}),  # the agent is retried
    # Started again, or reported to the agent as failed because its tries ran out.
    EffectState.COMPENSATED: frozenset({EffectState.STARTED, EffectState.FAILED}),
}

SETTLED = frozenset({EffectState.CONFIRMED, EffectState.FAILED})
OPEN = frozenset({EffectState.STARTED, EffectState.IN_DOUBT})
OWED = frozenset({EffectState.CONFIRMED, EffectState.UNDOING})  # only if the effect has an undo

_WHEN_PROBED: dict[Verdict, EffectMove] = {
    Verdict.NOT_ASKED: EffectMove.PROBE,
    Verdict.HAPPENED: EffectMove.RECORD,
    Verdict.DID_NOT_HAPPEN: EffectMove.EXECUTE,
    Verdict.UNKNOWN: EffectMove.ASK,  # guessing would produce duplicates
}


def kind_of(kind: str | None, *, probe: bool, undo: bool) -> EffectKind:
    """Return the declared kind, or the one implied by the declared functions."""
    if kind is not None:
        return EffectKind(kind)
    if probe:
        return EffectKind.PROBEABLE
    return EffectKind.COMPENSATABLE if undo else EffectKind.IRREVERSIBLE


def next_move(
    state: EffectState | None,
    kind: EffectKind,
    *,
    quiet: bool,
    verdict: Verdict = Verdict.NOT_ASKED,
) -> EffectMove:
    """Return what to do about an effect in `state` (None: it is not in the ledger yet).

    `quiet` means that nobody can still be executing it: its owner recorded that itself, or is
    confirmed dead.
    """
    if state in SETTLED:
        return EffectMove.ANSWER
    if state is EffectState.UNDOING:  # the agent's code no longer runs
        return EffectMove.ASK
    if state not in OPEN or kind in (EffectKind.PURE, EffectKind.IDEMPOTENT):
        return EffectMove.EXECUTE
    if kind is EffectKind.IRREVERSIBLE or not quiet:
        return EffectMove.ASK
    if kind is EffectKind.PROBEABLE:
        return _WHEN_PROBED[verdict]
    return EffectMove.UNDO


def is_certain(sight: Sight, *, has_started: bool) -> bool:
    """Whether an owner has certainly stopped executing, so that its effects may be probed.

    `has_started` means that it started processes that may outlive it.
    """
    return sight is Sight.ALL or (sight is Sight.PROCESS and not has_started)


def after_answer(verdict: Verdict) -> EffectMove:
    """Return what to do once a person has answered about an effect in doubt."""
    return _WHEN_PROBED[verdict] if verdict is not Verdict.NOT_ASKED else EffectMove.ASK
