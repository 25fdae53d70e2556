"""The ledger of a run's effects, as far as an attempt knows it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from andon.core.effect import OPEN, EffectState
from andon.core.journal import Entry, EntryKind, Mark, Record
from andon.runtime.attempt.journal_writer import Draft, Journal
from andon.store.store import EffectRow

if TYPE_CHECKING:
    from andon.runtime.attempt.attempt import Attempt

_Name = tuple[str, str]  # an effect's name and key


class RunEffects:
    """The effects of one attempt's run: their states, their undos, and planned tool calls."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.open: dict[_Name, EffectRow] = {}
        self.undos: dict[_Name, Callable[..., Any]] = {}
        self.cut_off: list[Draft] = []  # entries on effects cut off here, for the settlement
        # Tool calls by the provider's id: the place of the answer that plans the call, and its key.
        self.planned: dict[str, tuple[str, str]] = {}
        # Effects of a run with a snapshot; includes earlier attempts once `_complete` is set.
        self._rows: dict[_Name, EffectRow] = {}
        self._complete = False

    def track(self, row: EffectRow) -> None:
        """Record the state of an open effect, and of every effect once the run has a snapshot."""
        if self._journal.replay.snapshot is not None:
            self._rows[row.name, row.key] = row
        if row.state in OPEN:
            self.open[row.name, row.key] = row
        else:
            self.open.pop((row.name, row.key), None)

    async def find(self, attempt: "Attempt", name: str, key: str) -> EffectRow | None:
        """Look up an effect by its key, which outlives snapshots, unlike the replay.

        The ledger is read once per attempt, not after every snapshot: it grows with the run.
        """
        if not self._complete:
            await self._journal.written()  # else effects whose entries are not written are missing
            self._rows = {(row.name, row.key): row for row in await read(attempt)} | self._rows
            self._complete = True
        return self._rows.get((name, key))


async def read(attempt: "Attempt") -> list[EffectRow]:
    """The whole ledger of the run, from the store."""
    return await attempt.read(attempt.host.store.ledger, attempt.run.id)


async def remember(attempt: "Attempt", name: str, key: str) -> None:
    """Add an effect from before the snapshot to the replay."""
    row = await attempt.effects.find(attempt, name, key)
    if row is None:
        return
    await attempt.journal.written()
    entry = await last_entry(attempt, row)
    attempt.journal.replay.add(entry)
    if entry.state == Mark.CANCELLED:
        attempt.cancelled.add(entry.place)


async def last_entry(attempt: "Attempt", row: EffectRow) -> Entry:
    [entry] = await attempt.read(attempt.host.store.journal, attempt.run.id, row.seq - 1, 1)
    return entry


def draft(
    attempt: "Attempt",
    row: EffectRow,
    known: Entry | Record,
    state: EffectState,
    body: Any,
    **fields: Any,
) -> Draft:
    """An entry that changes an effect's state, with its row; `known`: any entry of the effect."""
    raw = body if isinstance(body, bytes | None) else msgspec.json.encode(body)

    def changed(entry: Entry) -> EffectRow:
        new = row.but(state=state, seq=entry.seq, fence=entry.fence)
        attempt.effects.track(new)
        return new

    return Draft(
        kind=EntryKind.EFFECT,
        state=state,
        place=row.place,
        name=row.name,
        key=known.key,
        digest=known.digest,
        body=raw,
        fields=fields,
        effect=changed,
    )
