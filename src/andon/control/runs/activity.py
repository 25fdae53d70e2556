"""Describes in a few words what a run does, waits for, or ended with."""

import json
from collections.abc import Sequence
from typing import Any

from andon.control.runs import command_run
from andon.control.runs.shown_state import Surroundings
from andon.core.effect import OPEN
from andon.core.journal import Entry, EntryKind, Mark
from andon.core.run import TERMINAL, State
from andon.core.text import age, failure
from andon.core.values.step_progress import progress_text
from andon.runtime.requests import scope_latches
from andon.store.messages.rows import AskRow, RunRow

# States in which a run was stopped from outside.
STOPPED = (State.PAUSED, State.KILLED, State.STRANDED)


def doing(row: RunRow, asks: Sequence[AskRow], around: Surroundings) -> str:
    """Describe in a few words what a run does, waits for, or ended with."""
    if row.attempt == 0 and (around.latch_on(row) is not None or row.state in STOPPED):
        return f"has not begun; {_doing(row, asks, around)}"
    return _doing(row, asks, around)


def _doing(row: RunRow, asks: Sequence[AskRow], around: Surroundings) -> str:
    match row.state:
        case _ if row.stop is not None and row.state not in TERMINAL:
            return _stopping(row, around)
        case State.QUEUED:
            return _queued(row, around)
        case State.RUNNING:
            return _running(row, around)
        case State.SUSPENDED:
            return _suspended(row, asks, around)
        case State.SUCCEEDED:
            return ""
        case _:
            return _error(row)


def _stopping(row: RunRow, around: Surroundings) -> str:
    mark = json.loads(row.stop or "{}")
    why = f": {mark['why']}" if mark["why"] else ""
    told = f"{mark['kind']} by {mark['by'] or 'an unnamed person'}{why} ({mark['order']})"
    if row.state == State.RUNNING:
        return f"{told}; {in_hand(around.store.last_entry(row.id), row.version)}"
    return f"{told}; fenced; its end is not proved yet"


def _running(row: RunRow, around: Surroundings) -> str:
    batch = progress_text(around.progress.get(row.id, []))
    found = (batch or in_hand(around.store.last_entry(row.id), row.version)) + _orphaned(
        row, around
    )
    stall = around.stall_of(row)
    return f"{found}; its worker is stalled: {stall.get('why')}" if stall else found


def _suspended(row: RunRow, asks: Sequence[AskRow], around: Surroundings) -> str:
    waited = _waits(json.loads(row.waits) if row.waits else [], around.now)
    waited = f"asks: {asks[0].question}" if asks else waited
    latch = around.latch_on(row)
    return waited if latch is None else f"{scope_latches.held_by(latch)}; {waited}"


def _queued(row: RunRow, around: Surroundings) -> str:
    latch = around.latch_on(row)
    if latch is not None:
        return scope_latches.held_by(latch)
    forsaken = "" if around.is_served(row) else around.missing_worker(row)
    left = row.available_at - around.now
    if left <= 0:
        return forsaken
    again = f"; failed {row.failures} times, {_error(row)}" if row.failures else ""
    return "; ".join(filter(None, (f"starts in {age(left)}{again}", forsaken)))


def in_hand(last: Entry | None, version: str = "") -> str:
    """The step or effect that a run has in hand, by the last entry of its journal."""
    if version == command_run.VERSION:
        return command_run.called(last)
    if last is None or last.kind == EntryKind.START:
        return "at its first step"
    if last.state in (Mark.BEGUN, Mark.WAITING) or last.state in OPEN:
        return f"{last.kind} {last.name}"
    if last.kind in (EntryKind.RETRY, EntryKind.END):  # END: a redriven run's earlier end
        return "tries again"
    return f"after {last.kind} {last.name}".rstrip()


def _orphaned(row: RunRow, around: Surroundings) -> str:
    """A remark if the run's worker is gone: no other worker may be left to record its death."""
    if row.worker in around.live:
        return ""
    if around.is_served(row):
        return "; its worker is gone"
    return f"; its worker is gone, and {around.missing_worker(row)}"


def _error(row: RunRow) -> str:
    if not row.error:
        return ""
    return failure(json.loads(row.error))


def _waits(waits: Sequence[dict[str, Any]], now: float) -> str:
    """All waits of a run; several children are only counted, as `andon ps` lists them below it."""
    children = [wait for wait in waits if wait.get("kind") == "child"]
    others = [_wait(wait, now) for wait in waits if wait.get("kind") != "child"]
    if len(children) > 1:
        return "; ".join([*others, f"waits for {len(children):,} runs that it has started"])
    return "; ".join([*others, *(f"waits for run {wait.get('name')}" for wait in children)])


def _wait(wait: dict[str, Any], now: float) -> str:
    until = wait.get("until")
    limit = f" for {age(until - now)} more" if until is not None else ""
    match wait.get("kind"):
        case "timer":
            return f"sleeps{limit}"
        case "answer":
            return f"waits for an answer{limit}"
        case kind:
            return f"waits for {kind} {wait.get('name')}{limit}"
