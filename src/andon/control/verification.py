"""Verifies stored journals against their hash chain, for `andon verify`.

A run's journal is a chain of hashes that ends at the run's own row. The ledger and the blobs
follow from the journal, and most of the row follows from the journal and its attempts. A run that
executes meanwhile is read as of its row; newer entries are left for the next walk.

Damage can have any shape: data that cannot even be read counts as damage and does not stop the
walk.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from andon.control.runs import runs
from andon.control.runs.shown_state import Surroundings
from andon.core.effect import EffectState
from andon.core.journal import GENESIS, Entry, EntryKind, Mark, check_chain
from andon.core.run import State
from andon.core.values import snapshot_parts
from andon.errors import AndonError, Corrupt, NotFound
from andon.runtime.requests import requests
from andon.store.messages.rows import RunRow
from andon.store.store import EffectRow, Store

# The ledger states that are valid after an entry; every other entry state must match exactly.
_LEDGER: dict[str, frozenset[str]] = {
    Mark.CANCELLED: frozenset({EffectState.IN_DOUBT}),
    # CONFIRMED: it happened, but its result could not be stored, so the agent got an error.
    Mark.FAILED: frozenset({EffectState.FAILED, EffectState.CONFIRMED}),
    Mark.RETRYING: frozenset(EffectState),
}


class VerifyTally(msgspec.Struct, kw_only=True):
    """Counts of what was checked, and the damage found."""

    runs: int = 0
    entries: int = 0
    effects: int = 0
    blobs: set[str] = set()  # their names: runs may share one
    damage: list[dict[str, Any]] = []

    def add(self, run_id: str | None, what: str) -> None:
        self.damage.append({"run": run_id, "what": what})


def verify(
    store: Store,
    run_id: str | None = None,
    on_progress: Callable[[VerifyTally], None] = lambda _: None,
) -> VerifyTally:
    """Check one run, or the database itself and every run."""
    tally = VerifyTally()
    if run_id is not None:
        _check(store, runs.find(store, run_id), tally)
        return tally
    try:
        found = store.integrity()
        if found != "ok":
            tally.add(None, f"the database: {found}")
        Surroundings(store)  # fails if the rows of workers cannot be read
        for row in runs.every_run(store):
            _check(store, row, tally)
            on_progress(tally)
    except Exception as error:  # noqa: BLE001 (see above)
        tally.add(None, _unreadable(error))
    return tally


def _unreadable(error: Exception) -> str:
    if isinstance(error, AndonError):
        return str(error)
    return f"cannot be read ({type(error).__name__}: {error})"


def _check(store: Store, row: RunRow, tally: VerifyTally) -> None:
    tally.runs += 1
    try:
        for what in _wrong(store, row, tally):
            tally.add(row.id, what)
    except Exception as error:  # noqa: BLE001 (see above)
        tally.add(row.id, _unreadable(error))


def _wrong(store: Store, row: RunRow, tally: VerifyTally) -> Iterator[str]:
    effects: dict[tuple[str, str], list[Entry]] = {}
    blobs: set[str] = set()
    first: Entry | None = None
    last: Entry | None = None
    for entry in _walk(store, row):
        first, last = first or entry, entry
        tally.entries += 1
        if entry.kind == EntryKind.EFFECT:
            key = entry.key or f"{row.id}/{entry.place}"
            effects.setdefault((entry.name, key), []).append(entry)
        if entry.blob is not None:
            blobs.add(entry.blob)
        if entry.kind == EntryKind.SNAPSHOT and entry.name == snapshot_parts.PARTS:
            yield from _parts(store, entry, blobs)
    tally.effects += len(effects)
    tally.blobs |= blobs
    yield from _head(row, first, last)
    yield from _attempts(store, row)
    yield from _blobs(store, blobs)
    yield from _ledger(store, row, effects)
    requests.described(store, row)  # fails if the values that `andon show` prints cannot be read
    for ask in store.asks(row.id, open_only=False):
        runs.as_ask(ask)


def _walk(store: Store, row: RunRow) -> Iterator[Entry]:
    """Yield the entries up to the run's head, each checked against the one before."""
    seq, head = -1, GENESIS
    while seq < row.head_seq:
        page = [entry for entry in store.journal(row.id, seq) if entry.seq <= row.head_seq]
        if not page:
            return
        if page[0].seq != seq + 1:
            raise Corrupt(
                f"expected journal entry {seq + 1}, found {page[0].seq}; entries are missing. "
                "Restore the database from a backup."
            )
        head = check_chain(page, run_id=row.id, previous=head)
        seq = page[-1].seq
        yield from page


def _head(row: RunRow, first: Entry | None, last: Entry | None) -> Iterator[str]:
    if first is None or last is None:
        yield "its journal is empty"
        return
    if (last.seq, last.hash) != (row.head_seq, row.head_hash):
        yield (
            f"its journal ends at entry {last.seq} ({last.hash[:12]}), its row says "
            f"{row.head_seq} ({row.head_hash[:12]})"
        )
        return
    if row.agent != first.name:
        yield f"its row says agent {row.agent!r}, its journal {first.name!r}"
    if row.state not in set(State):
        yield f"its row says {row.state!r}, which is not a state"
    if row.parent_id is None and row.root_id != row.id:
        yield f"its row says that it is part of {row.root_id!r}, and of no parent"
    yield from _end(row, last)


def _end(row: RunRow, last: Entry) -> Iterator[str]:
    ended = last.state if last.kind == EntryKind.END else None
    if row.state in (State.SUCCEEDED, State.FAILED) and ended != row.state:
        yield f"its row says {row.state}, its journal {ended or 'that it is not over'}"
    elif row.state == State.FAILED and last.blob is None and row.error != last.body:
        yield "its row has another error than its journal"


def _attempts(store: Store, row: RunRow) -> Iterator[str]:
    """Check the attempts of a run that no worker executes now."""
    found = store.attempts(row.id)
    if row.worker is not None or store.run(row.id) != row:
        return
    if [one.number for one in found] != list(range(1, row.attempt + 1)):
        yield f"it had {row.attempt} attempts, and lines about {[one.number for one in found]}"
    if any(one.fence > row.fence for one in found):
        yield f"its row says claim {row.fence}, its attempts have later ones"


def _parts(store: Store, entry: Entry, known: set[str]) -> Iterator[str]:
    """Check the parts of a snapshot; `_blobs` reports parts that are missing."""
    try:
        snapshot_parts.names(requests.body_of(store, entry), store.blob, known)
    except AndonError as error:
        yield f"the snapshot at {entry.seq} cannot be put together: {error}"


def _blobs(store: Store, names: set[str]) -> Iterator[str]:
    for name in sorted(names):
        try:
            store.blob(name)
        except NotFound:
            yield f"blob {name[:12]} is missing"
        except Corrupt as error:
            yield str(error)


def _ledger(
    store: Store, row: RunRow, effects: dict[tuple[str, str], list[Entry]]
) -> Iterator[str]:
    rows = {(one.name, one.key): one for one in store.ledger(row.id)}
    for identity, entries in effects.items():
        found = rows.pop(identity, None)
        if found is None:
            # An effect that was cancelled before it was written has no ledger row.
            if any(entry.state != Mark.CANCELLED for entry in entries):
                yield f"effect {identity[0]!r} (key {identity[1]!r}) is not in the ledger"
        elif found.seq <= row.head_seq:
            yield from _line(found, entries)
    for name, key in (one for one, found in rows.items() if found.seq <= row.head_seq):
        yield f"effect {name!r} (key {key!r}) is in the ledger and not in the journal"


def _line(found: EffectRow, entries: list[Entry]) -> Iterator[str]:
    """Check an effect's ledger row against its journal entries."""
    where = f"effect {found.name!r} (key {found.key!r})"
    # The journal records a cancelled wait for the effect, which does not change the effect.
    told = [n for n, entry in enumerate(entries) if entry.state != Mark.CANCELLED]
    candidates = entries[told[-1] :] if told else entries
    entry = next((one for one in candidates if one.seq == found.seq), None)
    if entry is None:
        yield f"{where}: the ledger is at entry {found.seq}, the journal at {entries[-1].seq}"
        return
    if found.state not in _LEDGER.get(entry.state, {entry.state}):
        yield f"{where}: the ledger says {found.state}, the journal {entry.state}"
    if (found.fence, found.place) != (entry.fence, entry.place):
        yield f"{where}: the ledger names another claim or place than the journal"
    kind = _declared_kind(entries)
    if kind is not None and kind != found.kind:
        yield f"{where}: the ledger says {found.kind}, the journal {kind}"


def _declared_kind(entries: list[Entry]) -> str | None:
    started = [one for one in entries if one.state == EffectState.STARTED and one.body]
    if not started:
        return None
    intent = json.loads(started[-1].body or "{}")
    return str(intent["kind"]) if "kind" in intent else None
