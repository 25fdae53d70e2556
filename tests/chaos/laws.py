"""The laws that must hold after any crash, checked against the world and the stored rows.

The runtime's own summary counts for nothing: the world's log says which acts happened, the journal
says what was known, and the two must fit. Each check returns one sentence for each broken law.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos import world

from andon.core.effect import EffectState
from andon.core.journal import Entry, EntryKind, check_chain
from andon.core.run import TERMINAL
from andon.errors import Corrupt
from andon.runtime.requests import requests
from andon.store.messages.rows import AskRow, AttemptRow, RunRow
from andon.store.store import EffectRow

# The names of effects in the world's log, by the name of their function.
KINDS = ("idempotent", "probeable", "compensatable", "irreversible")


@dataclass
class Evidence:
    """All evidence about one run."""

    run: RunRow
    entries: list[Entry]
    ledger: list[EffectRow]
    attempts: list[AttemptRow]
    asks: list[AskRow]
    lines: list[tuple[str, str, int]]  # (what, key, attempt), in the order in which they happened

    @property
    def fences(self) -> dict[int, int]:
        """Fence → number of the attempt."""
        return {attempt.fence: attempt.number for attempt in self.attempts}


def evidence(store: Any, run_id: str, folder: Path) -> Evidence:
    return Evidence(
        run=store.run(run_id),
        entries=requests.journal(store, run_id),
        ledger=store.ledger(run_id),
        attempts=store.attempts(run_id),
        asks=store.asks(run_id),
        lines=[
            (what, key, int(attempt))
            for what, key, attempt in map(str.split, world.lines(folder))
            if key.startswith(f"{run_id}/")
        ],
    )


def broken(store: Any, folder: Path, run_ids: Iterable[str]) -> list[str]:
    """Every broken law of these runs."""
    return [wrong for run_id in run_ids for wrong in check(evidence(store, run_id, folder))]


def check(found: Evidence) -> list[str]:
    checks = (chain, ledger, attempts, steps, effects, end)
    return [f"{found.run.id}: {wrong}" for one in checks for wrong in one(found)]


def chain(found: Evidence) -> Iterator[str]:
    try:
        head = check_chain(found.entries, run_id=found.run.id)
    except Corrupt as error:
        yield str(error)
        return
    if (found.entries[-1].seq, head) != (found.run.head_seq, found.run.head_hash):
        yield f"the journal ends with {found.entries[-1].seq}, the run says {found.run.head_seq}"


def ledger(found: Evidence) -> Iterator[str]:
    """The ledger is the journal's entries about effects, folded."""
    last, confirmed = dict[str, Entry](), set[str]()
    for entry in found.entries:
        if entry.kind == EntryKind.EFFECT:
            last[entry.place] = entry
            confirmed |= {entry.place} if entry.state == EffectState.CONFIRMED else set()
    rows = {row.place: row for row in found.ledger}
    if last.keys() != rows.keys():
        yield f"effects in the journal: {sorted(last)}, in the ledger: {sorted(rows)}"
        return
    for place, entry in last.items():
        row = rows[place]
        known = "confirmed" if place in confirmed else "in_doubt"
        state = known if entry.state == "cancelled" else entry.state
        same = row.state == state or entry.state == "retrying"
        if not same or (row.seq, row.fence) != (entry.seq, entry.fence):
            yield f"{place}: the journal says {entry.state} at {entry.seq}, the ledger {row}"


def attempts(found: Evidence) -> Iterator[str]:
    numbers = [attempt.number for attempt in found.attempts]
    fences = [attempt.fence for attempt in found.attempts]
    if numbers != list(range(1, found.run.attempt + 1)):
        yield f"attempts {numbers}, the run says {found.run.attempt}"
    if fences != sorted(set(fences)):
        yield f"fences do not grow: {fences}"
    unended = [attempt.number for attempt in found.attempts if attempt.ended_at is None]
    if found.run.state in TERMINAL and unended:
        yield f"it has ended, but its attempts {unended} have not"
    written = [entry.fence for entry in found.entries]
    if written != sorted(written):
        yield f"an earlier owner wrote after a later one: {written}"


def steps(found: Evidence) -> Iterator[str]:
    """A step whose result is durable never executes again."""
    done: dict[str, Entry] = {}
    places: set[str] = set()
    for entry in found.entries:
        if entry.kind == EntryKind.STEP and entry.state == "done":
            if entry.place in places:
                yield f"{entry.name} was finished twice"
            places.add(entry.place)
            done[entry.name] = entry
    starts = Counter((key, attempt) for what, key, attempt in found.lines if what == "step")
    for (key, attempt), times in starts.items():
        name = key.rpartition("/")[2]
        if times > 1:
            yield f"{name} executed {times} times in attempt {attempt}"
        if name in done and attempt > found.fences[done[name].fence]:
            yield f"{name} executed in attempt {attempt} after it was finished"
    executed = {key.rpartition("/")[2] for key, _ in starts}
    for name in done.keys() - executed:
        if name.startswith("step-"):
            yield f"{name} is in the journal, but was never executed"


def effects(found: Evidence) -> Iterator[str]:
    """An effect is written down before it is executed, happens once, and is confirmed only then."""
    by_key: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for what, key, attempt in found.lines:
        if what in KINDS or what == "undone":
            name = key.rpartition("/")[2]
            kind = next(kind for kind in KINDS if kind in name)
            by_key.setdefault((kind, key), []).append((what, attempt))
    for (kind, key), acts in by_key.items():
        yield from _doubled(kind, key, acts)
        yield from _unwritten(found, key, [attempt for what, attempt in acts if what == kind])
    for row in found.ledger:
        if row.state != EffectState.CONFIRMED or row.kind == "pure":
            continue
        done = [what for (_, key), acts in by_key.items() if key == row.key for what, _ in acts]
        if not done or done[-1] == "undone":
            yield f"{row.key} is confirmed, but the world has {done}"


def _doubled(kind: str, key: str, acts: list[tuple[str, int]]) -> Iterator[str]:
    before = "undone"
    for what, attempt in acts:
        if what == kind == before:
            yield f"{key} happened twice, the second time in attempt {attempt}: {acts}"
        before = what


def _unwritten(found: Evidence, key: str, acting: list[int]) -> Iterator[str]:
    started = Counter(
        found.fences[entry.fence]
        for entry in found.entries
        if entry.kind == EntryKind.EFFECT and entry.key == key and entry.state == "started"
    )
    for attempt, times in Counter(acting).items():
        if times > started[attempt]:
            yield f"{key} was done {times} times in attempt {attempt}, written {started[attempt]}"


def end(found: Evidence) -> Iterator[str]:
    if found.run.state not in TERMINAL:
        return
    if found.asks:
        yield f"it has ended with open asks: {[ask.id for ask in found.asks]}"
    last = found.entries[-1]
    if (last.kind, last.state) != (EntryKind.END, found.run.state):
        yield f"its last entry is {last.kind} {last.state}, the run says {found.run.state}"
    opened = [row.key for row in found.ledger if row.state in ("started", "in_doubt")]
    if found.run.state == "succeeded" and opened:
        yield f"it has succeeded with open effects: {opened}"


def result(store: Any, run_id: str) -> Any:
    entry = store.last_entry(run_id)
    return json.loads(requests.body_of(store, entry))
