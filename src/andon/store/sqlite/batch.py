"""Writes the appends, starts and settlements of a batch with one statement each.

A statement that returns the rows it has changed builds a table of them first. So appends only count
the changed rows, and run again with RETURNING if the count falls short.
"""

from __future__ import annotations

import re
from itertools import chain

from andon.store import queries
from andon.store.sql.reads import values
from andon.store.sql.runs import BARE, NUL, begun, settling
from andon.store.store import Append
from andon.store.writer.shared_statements import AppendGroup, is_plain, parted

TYPE_CHECKING = False  # commands must not pay for imports they do not need
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    import apsw

    from andon.store.handlers import Handlers
    from andon.store.store import Message, Outcome, Settle, Start

    Advance = Callable[[list[AppendGroup]], set[str]]

# advance_head without its RETURNING clause.
_ADVANCE = queries.load("sqlite")["advance_head"].removesuffix("RETURNING id;")
_INSERT = queries.load("sqlite")["insert_entry"]


def _of_new(sql: str) -> str:
    return re.sub(r":(\w+)", r"NEW.\1", sql)


# Inserting a row into this view does both in one statement, which is its own commit. A lone step
# mostly waits for the work around its commit, done with caches that have gone cold meanwhile.
_STEP = (*re.findall(r":(\w+)", _INSERT), "step", "progress", "epoch", "before")
_STEP_VIEW = f"""
CREATE TEMP VIEW IF NOT EXISTS andon_step ({", ".join(_STEP)})
    AS SELECT {", ".join("NULL" for _ in _STEP)};
CREATE TEMP TRIGGER IF NOT EXISTS andon_step INSTEAD OF INSERT ON andon_step BEGIN
{_of_new(_ADVANCE)};
{_of_new(_INSERT.replace("VALUES (", "SELECT ").removesuffix(");"))} WHERE changes();
END
"""
_INSERT_STEP = f"INSERT INTO andon_step VALUES ({', '.join('?' for _ in _STEP)})"  # noqa: S608 (constants)


class RowsMissing(Exception):
    """Fewer rows were changed than expected, so the batch must find out which."""


class SqliteBatches:
    """Writes batches on the connection of the store that writes, inside its transaction."""

    def __init__(self, db: apsw.Connection, handlers: Handlers) -> None:
        self._db, self._handlers = db, handlers
        self._sql = queries.load("sqlite")
        self._has_step_view = False

    def append_alone(self, message: Message) -> bool:
        """Write a lone step in one statement; False: nothing is written, use `apply`."""
        if type(message) is not Append or len(message.entries) != 1 or message.effects:
            return False
        [entry], fence = message.entries, message.fence
        if entry.fence != fence.counter or not is_plain(message):
            return False
        db = self._db
        if not self._has_step_view:
            db.execute(_STEP_VIEW)
            self._has_step_view = True
        named = values(entry)
        if "\0" in f"{entry.name}{entry.key}{entry.place}{entry.body}{message.step}":
            refuse_nul((*named, message.step))
        further = entry.state not in BARE
        row = (message.run_id, *named, message.step, further, fence.epoch, entry.seq - 1)
        before = db.total_changes()
        db.execute(_INSERT_STEP, row)
        return db.total_changes() != before

    def apply(self, batch: Sequence[Message], advance: Advance) -> list[Outcome]:
        if len(batch) == 1:
            return [self._apply_one(batch[0])]
        parts = parted(batch)
        outcomes: list[Outcome] = [None] * len(batch)
        # Messages left over are fenced or already written: find out one by one.
        others = parts.others + self._append_all(parts.groups, advance)
        others += self._start_all(parts.starts, outcomes)
        others += self._settle_all(parts.settles, outcomes)
        for place in sorted(others):
            outcomes[place] = self._handlers.apply(batch[place])
        return outcomes

    def _apply_one(self, message: Message) -> Outcome:
        if isinstance(message, Append) and is_plain(message) and self._append_one(message):
            return None
        return self._handlers.apply(message)

    def _append_one(self, m: Append) -> bool:
        """Write a plain append with effects or several entries; False as in `append_alone`."""
        group = AppendGroup(0, m)
        self._db.execute(_ADVANCE, _heading(group))
        if not self._db.changes():
            return False
        self._insert_all([group])
        return True

    def _append_all(self, groups: list[AppendGroup], advance: Advance) -> list[int]:
        """Write the groups whose fence holds; return the places of the rest."""
        if not groups:
            return []
        held = advance(groups)
        self._insert_all([group for group in groups if group.run_id in held])
        return [place for group in groups if group.run_id not in held for place in group.places]

    def _start_all(self, starts: dict[int, Start], outcomes: list[Outcome]) -> list[int]:
        if not starts:
            return []
        rows = [begun(m.run) for m in starts.values()]
        for row in rows:
            refuse_nul(row.values())
        new = {run_id for (run_id,) in self._db.executemany(self._sql["start_run"], rows)}
        runs = [m.run for m in starts.values() if m.run.id in new]
        self._insert_entries([(run.id, *values(run.entry)) for run in runs])
        for place, m in starts.items():
            outcomes[place] = m.run.id in new
        return [place for place in starts if not outcomes[place]]

    def _settle_all(self, settles: dict[int, Settle], outcomes: list[Outcome]) -> list[int]:
        if not settles:
            return []
        rows = [settling(m) for m in settles.values()]
        for row in rows:
            refuse_nul(row.values())
        answers = self._db.executemany(self._sql["settle_run"], rows)
        settled = {run_id: rest for run_id, *rest in answers}
        ended = {place: m for place, m in settles.items() if m.run_id in settled}
        self._insert_entries([(m.run_id, *values(e)) for m in ended.values() for e in m.entries])
        ends = [(m.ending, m.run_id, m.fence.counter) for m in ended.values()]
        self._db.executemany(self._sql["end_attempt"], ends)
        for place, m in ended.items():
            state, parent_id, stop = settled[m.run_id]
            self._handlers.runs.announce_settled(m, state, parent_id, stop)
            outcomes[place] = str(state)
        return [place for place in settles if place not in ended]

    def advance_counted(self, groups: list[AppendGroup]) -> set[str]:
        """Move the heads of all groups and return their runs, or raise RowsMissing."""
        before = self._db.total_changes()
        self._db.executemany(_ADVANCE, [_heading(group) for group in groups])
        if self._db.total_changes() - before < len(groups):
            raise RowsMissing
        return {group.run_id for group in groups}

    def advance_named(self, groups: list[AppendGroup]) -> set[str]:
        """Move the heads of all groups whose fence holds; return their runs."""
        rows = self._db.executemany(
            self._sql["advance_head"], [_heading(group) for group in groups]
        )
        return {row[0] for row in rows}

    def _insert_all(self, groups: list[AppendGroup]) -> None:
        self._insert_entries([(g.run_id, *values(entry)) for g in groups for entry in g.entries])
        effects = [(g.run_id, *values(row)) for g in groups for row in g.effects.values()]
        if effects:
            refuse_nul(chain.from_iterable(effects))
            self._db.executemany(self._sql["upsert_effect"], effects)

    def _insert_entries(self, entries: list[tuple[Any, ...]]) -> None:
        """Insert rows of a run id and an entry's fields, in the order of the statement."""
        refuse_nul(chain.from_iterable(entries))
        self._db.executemany(_INSERT, entries)


def _heading(group: AppendGroup) -> tuple[Any, ...]:
    """Return advance_head's values in its order; binding by position is faster than by name."""
    last = group.entries[-1]
    return (
        last.seq,
        last.hash,
        group.step,
        group.progress is not None,
        group.run_id,
        group.fence.counter,
        group.fence.epoch,
        group.entries[0].seq - 1,
    )


def refuse_nul(values: Iterable[Any]) -> None:
    """Refuse text with a NUL: PostgreSQL cannot keep it, and some programs would cut it there."""
    for value in values:
        if value.__class__ is str and "\0" in value:
            raise UnicodeEncodeError("utf-8", value, value.index("\0"), value.index("\0") + 1, NUL)
