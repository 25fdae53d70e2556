"""Compensation: undoes a run's effects, the last first; each undo is recorded before it executes.

A crash in the middle of an undo may cause it to be executed twice, so it must tolerate that. It
gets the effect's result and the effect's own arguments, key and fence. If an undo keeps failing, a
person is asked and the run waits.
"""

import asyncio
import json
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from andon.core.effect import OPEN, OWED, EffectState
from andon.core.journal import Entry, EntryKind, Mark
from andon.core.queue import Retry
from andon.core.run import State
from andon.core.values import value
from andon.errors import AndonError, Stopped
from andon.points import point
from andon.runtime.attempt import settlement
from andon.runtime.attempt.exit import log
from andon.runtime.attempt.journal_writer import Draft
from andon.runtime.effects import in_doubt, ledger
from andon.runtime.operations import calls
from andon.runtime.operations.operation import invoke, is_async
from andon.store.store import Ask, EffectRow, Settle

if TYPE_CHECKING:
    from andon.runtime.attempt.attempt import Attempt

RETRY = Retry(4, first_seconds=0.5, most_seconds=10.0)
UNDO_SECONDS = 300.0
CHOICES = ("undone", "try_again", "leave")


def _find(attempt: "Attempt", row: EffectRow) -> Callable[..., Any] | None:
    """The undo as the code passed it, or else by its name.

    The name is also looked up in the agent's module: a program's own file (`__main__`) has another
    module name in this process.
    """
    known = attempt.effects.undos.get((row.name, row.key))
    if known is not None:
        return known
    module, _, name = (row.undo or "").partition(":")
    for place in (module, attempt.agent.function.__module__):
        found = calls.named(place, name)
        if callable(found):
            return found  # type: ignore[no-any-return]
    return None


async def begin_after_failure(attempt: "Attempt", described: dict[str, Any]) -> bool:
    """Begin compensation of a run that failed for good; return whether anything is to be undone."""
    acted = any(one.kind == EntryKind.EFFECT for one in attempt.journal.replay.records())
    if not attempt.effects.undos and not acted and attempt.journal.replay.snapshot is None:
        return False
    if not any(_owed(row) for row in await ledger.read(attempt)):
        return False
    ending = State.DEAD if attempt.agent.retry.retries else State.FAILED
    await _begin(attempt, {"ending": ending, "error": described})
    return True


def _owed(row: EffectRow) -> bool:
    return row.undo is not None and row.state in OWED


async def _begin(attempt: "Attempt", verdict: dict[str, Any]) -> None:
    body = msgspec.json.encode(verdict)
    draft = Draft(kind=EntryKind.COMPENSATE, state=Mark.BEGUN, name=attempt.agent.name, body=body)
    await attempt.journal.append(draft)
    attempt.journal.replay.compensation = Entry(
        seq=attempt.journal.seq, kind=EntryKind.COMPENSATE, state=Mark.BEGUN, body=body.decode()
    )
    point("undo:begun")


async def carry_out(attempt: "Attempt") -> Settle:
    """Undo everything that is owed; return the settlement of the run."""
    if attempt.journal.replay.compensation is None:
        wanted = json.loads(attempt.run.undoing or "{}")
        error = {"type": "Compensated", "message": wanted.get("why") or "it was asked for"}
        await _begin(attempt, {"ending": State.CANCELLED, "error": error})
    assert attempt.journal.replay.compensation is not None
    verdict = json.loads(attempt.journal.replay.compensation.body or "{}")
    await in_doubt.find_open(attempt)
    asked = await _Compensation(attempt).undo_all()
    waiting = await in_doubt.ask_about_open(attempt)
    if not waiting and not asked:
        # An answer that arrived meanwhile may have made one more effect certain.
        asked = await _Compensation(attempt).undo_all()
    if waiting:
        asks = await attempt.read(attempt.host.store.asks, attempt.run.id)
        asked += [ask.id for ask in asks if ask.about == "effect"]
    if waiting or asked:  # without open asks, an answer has arrived meanwhile and wakes the run
        return settlement.waiting_for_people(attempt, asked)
    return settlement.compensated(attempt, verdict)


class _Compensation:
    """All undos of one attempt."""

    def __init__(self, attempt: "Attempt") -> None:
        self.attempt = attempt
        self.entries: dict[tuple[str, str], list[Entry]] = {}

    async def undo_all(self) -> list[str]:
        """Undo effects, the last first; return the ids of open asks about undos."""
        attempt = self.attempt
        rows = await ledger.read(attempt)
        owed = [row for row in rows if _owed(row) or _undoable_doubt(attempt, row)]
        if not owed:
            return []
        await self._read_journal()
        if any(_find(attempt, row) is None for row in owed):
            await self._rehearse()
        found = [await self._undo(row) for row in self._reversed(owed)]
        return [ask for ask in found if ask is not None]

    def _reversed(self, owed: list[EffectRow]) -> list[EffectRow]:
        """Sort by each effect's first entry, the last first: later entries do not change it."""

        def begun(row: EffectRow) -> int:
            return self.entries[row.name, row.key][0].seq

        return sorted(owed, key=begun, reverse=True)

    async def _read_journal(self) -> None:
        run_id, after = self.attempt.run.id, -1
        while page := await self.attempt.read(self.attempt.host.store.journal, run_id, after):
            for entry in page:
                if entry.kind == EntryKind.EFFECT:
                    key = entry.key or f"{run_id}/{entry.place}"
                    self.entries.setdefault((entry.name, key), []).append(entry)
            after = page[-1].seq

    async def _rehearse(self) -> None:
        """Replay the agent's code past its effects, to collect their undo functions."""
        from andon.runtime.attempt import rehearsal

        try:
            rehearsed = await rehearsal.rehearse(self.attempt)
            self.attempt.effects.undos.update(rehearsed.effects.undos)
        except AndonError as error:
            log.warning("run %s: its code does not fit its journal: %s", self.attempt.run.id, error)

    async def _undo(self, row: EffectRow) -> str | None:
        """Undo one effect; return None if that is done, else the id of the ask about it."""
        attempt = self.attempt
        last = self.entries[row.name, row.key][-1]
        noted = json.loads(last.body or "{}") if last.state == EffectState.UNDOING else {}
        asked: str | None = noted.get("asked")
        if asked is not None:
            message = attempt.waits.take("answer", asked)
            if message is None:
                return asked
            decision = value.decode(message.body)["decision"]
            if decision != "try_again":
                await self._settle_by_hand(row, decision, message.id)
                return None
            await self._write(row, EffectState.UNDOING, {}, take=message.id)
        failures = 0
        while (error := await self._try(row)) is not None:
            failures += 1
            if not RETRY.again(failures) or _still_executes(attempt, row, error):
                return await self._ask(row, error)
            delay = RETRY.delay(failures, random.random())  # noqa: S311 (not for secrets)
            until = attempt.host.clock.now() + delay
            await attempt.waits.wait_for("timer", f"undo {row.name}", until)
        return None

    async def _try(self, row: EffectRow) -> dict[str, Any] | None:
        """Record, execute and confirm an undo once; return the error that it raised, if any."""
        attempt = self.attempt
        undo = _find(attempt, row)
        if undo is None:
            message = f"{row.undo or 'its undo'} is not in the code of this worker"
            return {"type": "NotFound", "message": message}
        await attempt.boundary()
        hand = attempt.exit.begin_operation(f"undo {row.name}")
        undone, seq = self._draft(row, EffectState.COMPENSATED), -1
        try:
            await self._write(row, EffectState.UNDOING, {})
            point("undo:started", row)
            await attempt.boundary()
            await self._call(row, undo)
            point("undo:executed", row)
            seq = attempt.journal.seq
            await attempt.journal.append(undone)
            point("undo:confirmed", row)
        except (asyncio.CancelledError, Stopped):
            if seq == attempt.journal.seq:  # the undo has executed, and that is not recorded yet
                attempt.effects.cut_off.append(undone)
            raise
        except Exception as error:
            if attempt.exit.reason is not None:
                raise
            return attempt.journal.note_failure(error, f"the undo of effect {row.name!r} raised")
        finally:
            attempt.exit.end_operation(hand)
        return None

    async def _call(self, row: EffectRow, undo: Callable[..., Any]) -> None:
        attempt = self.attempt
        entries = self.entries[row.name, row.key]
        intents = [entry for entry in entries if entry.state == EffectState.STARTED]
        results = [entry for entry in entries if entry.state == EffectState.CONFIRMED]
        intent = value.decode(await attempt.body_of(intents[-1].body, intents[-1].blob))
        result = None
        if results:
            result = value.decode(await attempt.body_of(results[-1].body, results[-1].blob))
        given = calls.typed(undo, [result, *intent["args"]], intent["kwargs"])
        extras = {"key": row.key, "fence": attempt.fence}
        wanted = {name: extras[name] for name in extras if name in calls.parameters(undo)}
        stand_in: Any = _Undo(attempt, row)
        await invoke(stand_in, undo, tuple(given[0]), {**given[1], **wanted}, UNDO_SECONDS)

    async def _ask(self, row: EffectRow, error: dict[str, Any]) -> str:
        ask_id = f"undo:{row.name}/{row.key}#{self.attempt.journal.seq}"
        ask = Ask(
            id=ask_id,
            about="undo",
            question=f"Effect {row.name!r} (key {row.key!r}) could not be undone: {error['type']}: "
            f"{error['message']}. Undo it by hand and answer undone, or answer try-again or leave.",
            value=None,
            choices=json.dumps(CHOICES),
        )
        await self._write(row, EffectState.UNDOING, {"asked": ask_id, "error": error}, ask=ask)
        return ask_id

    async def _settle_by_hand(self, row: EffectRow, decision: str, message: int) -> None:
        if decision == "undone":
            await self._write(row, EffectState.COMPENSATED, {"by": "hand"}, take=message)
            return
        results = [e for e in self.entries[row.name, row.key] if e.state == EffectState.CONFIRMED]
        body = results[-1].body if results else None
        left = row.but(undo=None, undo_within=None)
        await self._write(left, EffectState.CONFIRMED, body and body.encode(), take=message)

    async def _write(
        self, row: EffectRow, state: EffectState, body: Any = None, **fields: Any
    ) -> None:
        await self.attempt.journal.append(self._draft(row, state, body, **fields))

    def _draft(self, row: EffectRow, state: EffectState, body: Any = None, **fields: Any) -> Draft:
        first = self.entries[row.name, row.key][0]
        return ledger.draft(self.attempt, row, first, state, body, **fields)


class _Undo:
    """Stand-in for an Operation when `invoke` calls an undo function."""

    kind = "undo"

    def __init__(self, attempt: "Attempt", row: EffectRow) -> None:
        self.attempt, self.name, self.key, self.digest = attempt, row.name, row.key, ""
        self.place = f"undo {row.place}"


def _undoable_doubt(attempt: "Attempt", row: EffectRow) -> bool:
    """Whether an effect in doubt can be undone without asking: nobody executes it any more."""
    quiet = row.quiet or attempt.is_quiet(row.fence)
    return row.kind == "compensatable" and row.state in OPEN and row.undo is not None and quiet


def _still_executes(attempt: "Attempt", row: EffectRow, error: dict[str, Any]) -> bool:
    """Whether a plain undo that ran into its timeout may still execute in its thread."""
    undo = _find(attempt, row)
    return error["type"] == "TimeoutError" and undo is not None and not is_async(undo)
