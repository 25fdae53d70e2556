"""Effects in doubt: the questions put to a person, and how their answers are applied.

A run does not end while one of its effects is open, whether or not its code still knows the effect.
"""

from typing import Any

import msgspec

from andon.core.effect import OPEN, EffectMove, EffectState, Verdict, after_answer
from andon.core.journal import Entry, EntryKind, Mark, Record
from andon.core.values import value
from andon.runtime.attempt.attempt import Attempt
from andon.runtime.attempt.journal import Draft
from andon.store.messages.rows import AskRow, InboxMessage
from andon.store.store import Ask, EffectRow

CHOICES = ("happened", "did_not_happen")


def new_ask_id(attempt: Attempt, name: str, key: str) -> str:
    """A new id for an ask. Each doubt has its own: an answer to an earlier one does not count."""
    return f"effect:{name}/{key}#{attempt.seq}"


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


def track(attempt: Attempt, row: EffectRow) -> None:
    """Record the state of an open effect, and of every effect once the run has a snapshot."""
    if attempt.replay.snapshot is not None:
        attempt.ledger[row.name, row.key] = row
    if row.state in OPEN:
        attempt.open_effects[row.name, row.key] = row
    else:
        attempt.open_effects.pop((row.name, row.key), None)


async def look_back(attempt: Attempt) -> None:
    """Find open effects at the start of an attempt, and apply answers that arrived meanwhile."""
    records = {one.place: one for one in attempt.replay.records() if one.kind == EntryKind.EFFECT}
    open_ones = [one for one in records.values() if one.state in (*OPEN, Mark.CANCELLED)]
    if not open_ones and attempt.replay.snapshot is None:
        return
    rows: list[EffectRow] = await attempt.read(attempt.host.store.ledger, attempt.run.id)
    for row in rows:
        if row.state not in OPEN:
            continue
        track(attempt, row)
        record = records.get(row.place)
        if record is None or record.state == Mark.CANCELLED:
            # None of the code's operations will take the answer.
            await _apply_answer(attempt, row)


async def ask_about_open(attempt: Attempt) -> bool:
    """Ask about open effects once the run's code has ended; return whether it has to wait."""
    for row in list(attempt.open_effects.values()):
        if await _apply_answer(attempt, row):
            continue
        asks: list[AskRow] = await attempt.read(attempt.host.store.asks, attempt.run.id)
        if any(_is_about(row, ask.id) for ask in asks):
            continue
        ask_id = new_ask_id(attempt, row.name, row.key)
        body = msgspec.json.encode({"asked": ask_id, "quiet": row.quiet})
        ask = question(row.name, row.key, ask_id, None, ())
        draft = await _row_draft(attempt, row, EffectState.IN_DOUBT, body, ask=ask)
        await attempt.append(draft)
    return bool(attempt.open_effects)


async def remember(attempt: Attempt, name: str, key: str) -> None:
    """Look up an effect in the ledger by its key, which outlives snapshots, unlike the replay.

    The ledger is read once per attempt, not after every snapshot: it grows with the run.
    """
    if not attempt.ledger_read:
        await attempt.written()  # the ledger lacks effects whose entries are not yet written
        rows: list[EffectRow] = await attempt.read(attempt.host.store.ledger, attempt.run.id)
        attempt.ledger = {(row.name, row.key): row for row in rows} | attempt.ledger
        attempt.ledger_read = True
    row = attempt.ledger.get((name, key))
    if row is None:
        return
    await attempt.written()
    entry = await _entry_of(attempt, row)
    attempt.replay.add(entry)
    if entry.state == Mark.CANCELLED:
        attempt.cancelled.add(entry.place)


async def _apply_answer(attempt: Attempt, row: EffectRow) -> bool:
    """Record a person's answer about an effect; return whether there was one."""
    names = [one.name for one in attempt.inbox if one.kind == "answer"]
    for name in [one for one in names if _is_about(row, one)]:
        if not await _is_outdated(attempt, row, name):
            break
    else:
        return False
    message = attempt.take_message("answer", name)
    assert message is not None
    verdict, given = decision(message)
    yes = after_answer(verdict) is EffectMove.RECORD
    state = EffectState.CONFIRMED if yes else EffectState.FAILED
    raw = value.encode(given, "the answer")
    asks: list[AskRow] = await attempt.read(attempt.host.store.asks, attempt.run.id)
    along: dict[str, Any] = {"take": message.id}
    for ask in asks:  # asked again after the code gave up waiting: close that ask too
        if _is_about(row, ask.id):
            along["close_ask"] = ask.id
    await attempt.append(await _row_draft(attempt, row, state, raw, **along))
    return True


def _is_about(row: EffectRow, ask_id: str) -> bool:
    return ask_id.rpartition("#")[0] == f"effect:{row.name}/{row.key}"


async def _is_outdated(attempt: Attempt, row: EffectRow, ask_id: str) -> bool:
    """Whether the effect was started again after the ask, so the answer is about an older doubt."""
    after = int(ask_id.rpartition("#")[2])
    page: list[Entry]
    while page := await attempt.read(attempt.host.store.journal, attempt.run.id, after):
        if any((one.place, one.state) == (row.place, EffectState.STARTED) for one in page):
            return True
        after = page[-1].seq
    return False


async def _entry_of(attempt: Attempt, row: EffectRow) -> Entry:
    found: list[Entry] = await attempt.read(
        attempt.host.store.journal, attempt.run.id, row.seq - 1, 1
    )
    return found[0]


async def _row_draft(
    attempt: Attempt, row: EffectRow, state: EffectState, body: bytes, **along: Any
) -> Draft:
    def changed(entry: Entry) -> EffectRow:
        new = row.but(state=state, seq=entry.seq, fence=entry.fence)
        track(attempt, new)
        return new

    records = [one for one in attempt.replay.records() if one.place == row.place]
    known: Record | Entry = records[0] if records else await _entry_of(attempt, row)
    return Draft(
        kind=EntryKind.EFFECT,
        state=state,
        place=row.place,
        name=row.name,
        key=known.key,
        digest=known.digest,
        body=body,
        along=along,
        effect=changed,
    )
