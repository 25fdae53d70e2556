"""Rehearsal: play a run's code against its journal without executing or writing anything.

A rehearsal ends at the first operation that the journal does not answer. It shows whether code
fits a journal before a run moves to another version. Before effects are undone, it collects the
undo functions that the agent's code passes with them.
"""

import asyncio
import json
from typing import Any

from andon.core.run import Event, State
from andon.errors import Diverged, Stopped
from andon.runtime.attempt.attempt import Attempt
from andon.runtime.attempt.error_text import describe
from andon.runtime.attempt.journal_writer import Draft, Journal
from andon.runtime.attempt.settlement import settle
from andon.runtime.attempt.waits import Waits
from andon.store.messages.rows import InboxMessage
from andon.store.store import Settle

# A rehearsal executes nothing: code that takes longer than this does not end by itself.
REHEARSAL_SECONDS = 30.0


class _NoJournal(Journal):
    """A journal that stops the rehearsal instead of writing."""

    async def append(self, *drafts: Draft) -> None:
        raise self._exit.stop("rehearsed")

    def append_soon(self, draft: Draft) -> "asyncio.Future[Any]":
        raise self._exit.stop("rehearsed")

    def _write_checkpoints(self) -> None:
        pass

    def _write_lines(self) -> None:
        pass


class _NoWaits(Waits):
    """Waits that stop the rehearsal."""

    async def wait_for(
        self, kind: str, name: str, wake_at: float | None = None
    ) -> InboxMessage | None:
        await self._turns.end()
        raise self._exit.stop("rehearsed")


class Rehearsal(Attempt):
    """An attempt that stops where it would act."""

    journal_class, waits_class = _NoJournal, _NoWaits
    outcome: tuple[str, Any] | None = None  # set if the code came to its end

    def passes(self) -> bool:
        return False

    async def boundary(self, *, writes: bool = False) -> None:
        await self.turns.end()
        raise self.exit.stop("rehearsed")


async def rehearse(attempt: Attempt) -> Rehearsal:
    """Play the code of the attempt's agent. Raises Diverged if it does not fit the journal."""
    # The journal now ends with the entries that this attempt itself has written.
    run = attempt.run.but(head_seq=attempt.journal.seq, head_hash=attempt.journal.head, start=None)
    rehearsal = Rehearsal(attempt.host, run, attempt.agent)
    await rehearsal._load()  # noqa: SLF001 (a subclass of Attempt)
    playing = asyncio.ensure_future(rehearsal.play())
    ends: set[asyncio.Future[Any]] = {playing, attempt.exit.left}
    try:
        await asyncio.wait(ends, timeout=REHEARSAL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not playing.done():  # the code waits for something outside andon
            rehearsal.exit.leave("stopped")
        rehearsal.outcome = await playing
    except Stopped:
        pass
    finally:
        rehearsal.journal.end_flushing()
        await rehearsal._clean_up()  # noqa: SLF001
    attempt.exit.check()
    if rehearsal.exit.cut:
        raise Diverged(
            f"run {run.id}: its code did not reach the run's position within "
            f"{REHEARSAL_SECONDS:g} s: it waits for something outside its steps. Nothing was "
            "executed."
        )
    if isinstance(rehearsal.exit.error, Diverged):
        raise rehearsal.exit.error
    return rehearsal


async def settle_trial(attempt: Attempt) -> str:
    """Settle a trial: keep the run on this version if its code fits the journal, else return it."""
    trial: dict[str, Any] = json.loads(attempt.run.trial or "{}")
    try:
        _refuse_error(await rehearse(attempt))
        message = _to_queue(attempt, trial)
    except Diverged as error:
        message = _back(attempt, trial, error)
    return await attempt.write_settlement(message)


def _refuse_error(rehearsal: Rehearsal) -> None:
    if rehearsal.outcome is not None and rehearsal.outcome[0] == "error":
        error = describe(rehearsal.outcome[1])
        raise Diverged(
            f"run {rehearsal.run.id}: the code raised {error['type']}: {error['message']}, before "
            "it reached the run's position. Nothing was executed."
        )


def _to_queue(attempt: Attempt, trial: dict[str, Any]) -> Settle:
    paused = trial.get("state") == State.PAUSED  # the run goes on when somebody resumes it
    return settle(
        attempt,
        Event.PAUSE if paused else Event.RETURN,
        "migrated",
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
    return settle(
        attempt,
        events.get(trial.get("state"), Event.RETURN),
        "refused",
        error=json.dumps(describe(error)),
        returned=True,
        version=trial["from"],
        delay_seconds=_delay(attempt, trial),
        tried=True,
    )
