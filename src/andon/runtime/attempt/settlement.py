"""Builds the message that settles an attempt in the store.

An attempt ends finished, failed, suspended, returned or stranded.
"""

import json
import random
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from andon.core.journal import EntryKind, Mark
from andon.core.queue import Retry
from andon.core.run import TERMINAL, Event, State, advance
from andon.core.values import value
from andon.runtime.attempt.error_text import describe, places_of
from andon.runtime.attempt.journal_writer import Draft
from andon.runtime.attempt.waits import Wait
from andon.store.store import Settle

if TYPE_CHECKING:
    from andon.runtime.attempt.attempt import Attempt


def settle(attempt: "Attempt", event: Event, ending: str | None = None, **fields: Any) -> Settle:
    """The message that settles the attempt by this event; `ending`: by default the new state."""
    state = advance(State.RUNNING, event)
    return Settle(
        run_id=attempt.run.id,
        fence=attempt.fence,
        state=state,
        ending=ending or state,
        **fields,
    )


def checked(attempt: "Attempt", outcome: tuple[str, Any] | None) -> tuple[str, Any] | None:
    """Encode a result as the store keeps it; one that cannot be stored becomes an error."""
    if outcome is None or outcome[0] != "result":
        return outcome
    what = f"the result of agent {attempt.agent.name!r}"
    try:
        raw, _ = value.encode_result(outcome[1], what, attempt.agent.result_decoder)
    except Exception as error:  # noqa: BLE001 (a value's own code may raise anything)
        return "unstorable", error
    return "result", raw


def settlement(
    attempt: "Attempt", outcome: tuple[str, Any] | None, failure: dict[str, Any] | None
) -> Settle:
    """The message that settles the attempt. `failure`: the outcome's error in its stored form."""
    if outcome is not None:
        kind, what = outcome
        if kind == "result":
            return _end(attempt, Event.SUCCEED, what)
        return _failure(attempt, what, failure or {}, final=kind == "unstorable")
    match attempt.exit.reason:
        case "suspended":
            return _suspension(attempt)
        case "diverged":
            return stranding(attempt)
        case _:
            return returning(attempt, attempt.effects.cut_off)


def is_final_failure(attempt: "Attempt", outcome: tuple[str, Any]) -> bool:
    """Whether the outcome ends the run without success: no retry follows."""
    retry: Retry = attempt.agent.retry
    again = retry.again(attempt.run.failures + 1)
    return outcome[0] == "unstorable" or (outcome[0] == "error" and not again)


def compensated(attempt: "Attempt", verdict: dict[str, Any]) -> Settle:
    """End a run whose effects were undone, as the verdict says."""
    events = {State.FAILED: Event.FAIL, State.DEAD: Event.BURY, State.CANCELLED: Event.CANCEL}
    event, body = events[State(verdict["ending"])], msgspec.json.encode(verdict["error"])
    return _end(attempt, event, body, failed=True).but(undone=True)


def waiting_for_people(attempt: "Attempt", ask_ids: list[str]) -> Settle:
    attempt.waits.left = [Wait(kind="answer", name=ask_id) for ask_id in ask_ids]
    return _suspension(attempt)


def _failure(
    attempt: "Attempt", error: BaseException, described: dict[str, Any], *, final: bool
) -> Settle:
    failures = attempt.run.failures + 1
    retry: Retry = attempt.agent.retry
    if retry.again(failures) and not final:
        delay = retry.delay(failures, random.random())  # noqa: S311 (not for secrets)
        first, *others = places_of(error) or ["-"]
        once = {name: given for name, given in described.items() if name != "traceback"}
        reopened = [
            _draft_retry(first, described, delay),
            *(_draft_retry(place, once, delay) for place in others),
        ]
        entries, blobs, _ = attempt.journal.number(reopened)
        return settle(
            attempt,
            Event.RETRY,
            "failed",
            entries=entries,
            blobs=blobs,
            error=json.dumps(described),
            delay_seconds=delay,
            returned=True,
            failed=True,
        )
    event = Event.BURY if retry.retries and not final else Event.FAIL
    places = None if final else places_of(error)
    return _end(attempt, event, msgspec.json.encode(described), failed=True, places=places)


def _draft_retry(place: str, described: dict[str, Any], delay: float) -> Draft:
    body = msgspec.json.encode({**described, "delay_seconds": delay})
    return Draft(kind=EntryKind.RETRY, state=Mark.REOPENED, place=place, body=body)


def _end(
    attempt: "Attempt",
    event: Event,
    body: bytes,
    *,
    failed: bool = False,
    places: list[str] | None = None,
) -> Settle:
    """End the run. `places`: operations that made it fail; a redrive reopens them."""
    state = advance(State.RUNNING, event)
    error = body.decode() if failed else None
    if event is Event.BURY:
        body = msgspec.json.encode({**json.loads(body), "places": places})
    draft = Draft(kind=EntryKind.END, state=state, name=attempt.agent.name, body=body)
    entries, blobs, _ = attempt.journal.number([draft])
    return settle(attempt, event, entries=entries, blobs=blobs, error=error, failed=failed)


def _suspension(attempt: "Attempt") -> Settle:
    times = [wait.wake_at for wait in attempt.waits.left if wait.wake_at is not None]
    described = [
        {"kind": wait.kind, "name": wait.name, "until": wait.wake_at} for wait in attempt.waits.left
    ]
    return settle(
        attempt,
        Event.SUSPEND,
        waits=json.dumps(described),
        wake_at=min(times, default=None),
        seen_inbox=attempt.run.inbox,
        awake_state=advance(State.RUNNING, Event.RETURN),
    )


def stranding(attempt: "Attempt") -> Settle:
    error = attempt.exit.error
    return settle(attempt, Event.STRAND, error=json.dumps(describe(error)) if error else None)


def returning(attempt: "Attempt", drafts: Sequence[Draft] = ()) -> Settle:
    """Return the run to the queue, ahead of new work; an untouched run keeps its place there."""
    entries, blobs, rows = attempt.journal.number(drafts)
    unwritten = not entries and attempt.journal.seq == attempt.run.head_seq
    untouched = unwritten and not attempt.touched
    ending = "cut" if attempt.exit.cut_short else "untouched" if untouched else "returned"
    return settle(
        attempt,
        Event.RETURN,
        ending,
        entries=entries,
        blobs=blobs,
        effects=rows,
        returned=True,
        keeps_place=untouched,
    )


def counted(endings: Counter[str]) -> dict[str, float]:
    """Counts of how attempts ended, under the names of the metrics."""
    return {
        "runs_finished_total": sum(endings[word] for word in TERMINAL),
        "runs_saved_total": endings["returned"] + endings["untouched"],
        "runs_cut_total": endings["cut"],
    }


def ended_as(ending: str | None, state: str) -> str:
    """The name an attempt is counted under: the run's state, or for a queued run how it got there.

    `ending` is what the worker asked for. An order may have changed the result: a run that leaves
    a step because somebody pauses it counts as paused, not as saved.
    """
    if state != State.QUEUED:
        return state
    return ending if ending in {"returned", "untouched", "cut", "suspended"} else "again"
