"""Rehearsal: play a run's code against its journal without executing or writing anything.

A rehearsal ends at the first operation that the journal does not answer. It shows whether code
fits a journal before a run moves to another version. Before effects are undone, it collects the
undo functions that the agent's code passes with them.
"""

import asyncio
import json
from typing import Any

from andon.core.run import Event, State, advance
from andon.errors import Diverged, Stopped
from andon.points import point
from andon.runtime.attempt.attempt import Attempt
from andon.runtime.attempt.error_text import describe
from andon.runtime.attempt.journal import Draft
from andon.store.messages.rows import InboxMessage
from andon.store.store import Settle

# A rehearsal executes nothing: code that takes longer than this does not end by itself.
REHEARSAL_SECONDS = 30.0


class Rehearsal(Attempt):
    """An attempt that stops where it would act."""

    outcome: tuple[str, Any] | None = None  # set if the code came to its end

    def passes(self) -> bool:
        return False

    async def boundary(self, *, writes: bool = False) -> None:
        await self.turns.end()
        raise self.stop("rehearsed")

    async def append(self, *drafts: Draft) -> None:
        raise self.stop("rehearsed")

    def append_soon(self, draft: Draft) -> "asyncio.Future[Any]":
        raise self.stop("rehearsed")

    async def wait_for(
        self, kind: str, name: str, wake_at: float | None = None
    ) -> InboxMessage | None:
        if self.turns.replayed:
            await self.turns.end()
        raise self.stop("rehearsed")

    def keep_partial(self, place: str, body: str, progress: str | None = None) -> None:
        pass

    def add_line(self, level: str, text: str) -> None:
        pass

    def add_failure(self, text: str) -> None:
        pass


async def rehearse(attempt: Attempt) -> Rehearsal:
    """Play the code of the attempt's agent. Raises Diverged if it does not fit the journal."""
    # The journal now ends with the entries that this attempt itself has written.
    run = attempt.run.but(head_seq=attempt.seq, head_hash=attempt.head, start=None)
    rehearsal = Rehearsal(attempt.host, run, attempt.agent)
    await rehearsal._load()  # noqa: SLF001 (a subclass of Attempt)
    playing = asyncio.ensure_future(rehearsal.play())
    ends: set[asyncio.Future[Any]] = {playing, attempt.left}
    try:
        await asyncio.wait(ends, timeout=REHEARSAL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not playing.done():  # the code waits for something outside andon
            rehearsal.leave("stopped")
        rehearsal.outcome = await playing
    except Stopped:
        pass
    finally:
        rehearsal.end_flushing()
        await rehearsal._clean_up()  # noqa: SLF001
    attempt.check()
    if rehearsal.cut:
        raise Diverged(
            f"run {run.id}: its code did not reach the run's position within "
            f"{REHEARSAL_SECONDS:g} s: it waits for something outside its steps. Nothing was "
            "executed."
        )
    if isinstance(rehearsal.error, Diverged):
        raise rehearsal.error
    return rehearsal


async def settle_trial(attempt: Attempt) -> str:
    """Settle a trial: keep the run on this version if its code fits the journal, else return it."""
    trial: dict[str, Any] = json.loads(attempt.run.trial or "{}")
    try:
        _refuse_error(await rehearse(attempt))
        message = _to_queue(attempt, trial)
    except Diverged as error:
        message = _back(attempt, trial, error)
    point("attempt:before-settle")
    attempt.ending = message.ending
    return str(await attempt.host.writer.write(message))


def _refuse_error(rehearsal: Rehearsal) -> None:
    if rehearsal.outcome is not None and rehearsal.outcome[0] == "error":
        error = describe(rehearsal.outcome[1])
        raise Diverged(
            f"run {rehearsal.run.id}: the code raised {error['type']}: {error['message']}, before "
            "it reached the run's position. Nothing was executed."
        )


def _to_queue(attempt: Attempt, trial: dict[str, Any]) -> Settle:
    paused = trial.get("state") == State.PAUSED  # the run goes on when somebody resumes it
    return Settle(
        run_id=attempt.run.id,
        fence=attempt.fence,
        state=advance(State.RUNNING, Event.PAUSE if paused else Event.RETURN),
        ending="migrated",
        error=trial.get("error") or None,
        returned=True,
        delay_seconds=_delay(attempt, trial),
        tried=True,
    )


def _delay(attempt: Attempt, trial: dict[str, Any]) -> float:
    """Seconds until the run is due, if it was not yet due before the trial."""
    due: float = trial.get("at", 0.0)
    return max(due - attempt.host.clock.now(), 0.0)


def _back(attempt: Attempt, trial: dict[str, Any], error: Diverged) -> Settle:
    events: dict[Any, Event] = {State.STRANDED: Event.STRAND, State.PAUSED: Event.PAUSE}
    event = events.get(trial.get("state"), Event.RETURN)
    return Settle(
        run_id=attempt.run.id,
        fence=attempt.fence,
        state=advance(State.RUNNING, event),
        ending="refused",
        error=json.dumps(describe(error)),
        returned=True,
        version=trial["from"],
        delay_seconds=_delay(attempt, trial),
        tried=True,
    )
