"""Effects in doubt: the questions put to a person, and how their answers are applied.

A run does not end while one of its effects is open, whether or not its code still knows the effect.
"""

from typing import TYPE_CHECKING, Any

import msgspec

from andon.core.effect import OPEN, EffectMove, EffectState, Verdict, after_answer
from andon.core.journal import EntryKind, Mark
from andon.core.values import value
from andon.runtime.effects import ledger
from andon.store.messages.rows import InboxMessage
from andon.store.store import Ask, EffectRow

if TYPE_CHECKING:
    from andon.runtime.attempt.attempt import Attempt

CHOICES = ("happened", "did_not_happen")


def new_ask_id(attempt: "Attempt", name: str, key: str) -> str:
    """Return a new ask id. Each doubt has its own, so answers to earlier doubts do not count."""
    return f"effect:{name}/{key}#{attempt.journal.seq}"


def question(
    name: str, key: str, ask_id: str, cause: dict[str, Any] | None, args: tuple[Any, ...]
) -> Ask:
    why = f"it raised {cause['type']}" if cause else "its worker was lost while it was executing"
    return Ask(
        id=ask_id,
        about="effect",
        question=f"Did effect {name!r} (key {key!r}) happen? {why[0].upper()}{why[1:]}, and it is "
        "not repeated on a guess. Answer did-not-happen only if you are sure: it will then be "
        "executed again.",
        value=value.encode(args, "the arguments").decode(),
        choices=msgspec.json.encode(CHOICES).decode(),
    )


def decision(message: InboxMessage) -> tuple[Verdict, Any]:
    given = value.decode(message.body)
    return Verdict(given["decision"]), given.get("value")


async def find_open(attempt: "Attempt") -> None:
    """Find open effects at the start of an attempt, and apply answers that arrived meanwhile."""
    records = {
        one.place: one for one in attempt.journal.replay.records() if one.kind == EntryKind.EFFECT
    }
    open_ones = [one for one in records.values() if one.state in (*OPEN, Mark.CANCELLED)]
    if not open_ones and attempt.journal.replay.snapshot is None:
        return
    for row in await ledger.read(attempt):
        if row.state not in OPEN:
            continue
        attempt.effects.track(row)
        record = records.get(row.place)
        if record is None or record.state == Mark.CANCELLED:
            # None of the code's operations will take the answer.
            await _apply_answer(attempt, row)


async def ask_about_open(attempt: "Attempt") -> bool:
    """Ask about open effects once the run's code has ended; return whether it has to wait."""
    for row in list(attempt.effects.open.values()):
        if await _apply_answer(attempt, row):
            continue
        asks = await attempt.read(attempt.host.store.asks, attempt.run.id)
        if any(_is_about(row, ask.id) for ask in asks):
            continue
        ask_id = new_ask_id(attempt, row.name, row.key)
        body = {"asked": ask_id, "quiet": row.quiet}
        ask = question(row.name, row.key, ask_id, None, ())
        await _write(attempt, row, EffectState.IN_DOUBT, body, ask=ask)
    return bool(attempt.effects.open)


async def _apply_answer(attempt: "Attempt", row: EffectRow) -> bool:
    """Record a person's answer about an effect; return whether there was one."""
    names = [one.name for one in attempt.waits.inbox if one.kind == "answer"]
    for name in [one for one in names if _is_about(row, one)]:
        if not await _is_outdated(attempt, row, name):
            break
    else:
        return False
    message = attempt.waits.take("answer", name)
    assert message is not None
    verdict, given = decision(message)
    yes = after_answer(verdict) is EffectMove.RECORD
    state = EffectState.CONFIRMED if yes else EffectState.FAILED
    raw = value.encode(given, "the answer")
    asks = await attempt.read(attempt.host.store.asks, attempt.run.id)
    fields: dict[str, Any] = {"take": message.id}
    for ask in asks:  # asked again after the code gave up waiting: close that ask too
        if _is_about(row, ask.id):
            fields["close_ask"] = ask.id
    await _write(attempt, row, state, raw, **fields)
    return True


async def _write(
    attempt: "Attempt", row: EffectRow, state: EffectState, body: Any, **fields: Any
) -> None:
    records = [one for one in attempt.journal.replay.records() if one.place == row.place]
    known = records[0] if records else await ledger.last_entry(attempt, row)
    await attempt.journal.append(ledger.draft(attempt, row, known, state, body, **fields))


def _is_about(row: EffectRow, ask_id: str) -> bool:
    return ask_id.rpartition("#")[0] == f"effect:{row.name}/{row.key}"


async def _is_outdated(attempt: "Attempt", row: EffectRow, ask_id: str) -> bool:
    """Whether the effect was started again after the ask, so the answer is about an older doubt."""
    after = int(ask_id.rpartition("#")[2])
    while page := await attempt.read(attempt.host.store.journal, attempt.run.id, after):
        if any((one.place, one.state) == (row.place, EffectState.STARTED) for one in page):
            return True
        after = page[-1].seq
    return False
