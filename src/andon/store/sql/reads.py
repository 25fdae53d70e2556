"""The reads of a store: each runs named queries and builds rows from their results.

A `Reads` asks through the query function it is given: a store's own uses a connection that only
reads, and the handlers of messages have one inside the batch's transaction.
"""

from __future__ import annotations

import json
from operator import attrgetter

from andon.errors import Corrupt, NotFound
from andon.store.messages.rows import (
    AskRow,
    AttemptRow,
    EventRow,
    Filter,
    Forsaken,
    Held,
    InboxMessage,
    LimitRow,
    Loaded,
    Obligation,
    QueueRow,
    RunRow,
    StepTime,
    Usage,
    WaitingRuns,
)
from andon.store.messages.stops import StopRow, SupervisorRow, TargetRow, optional_flag
from andon.store.read_api import ALLOWANCE_SECONDS
from andon.store.store import AgentRow, EffectRow, WorkerRow

TYPE_CHECKING = False  # commands must not pay for imports they do not need
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, TypeVar

    from andon.core.journal import Entry
    from andon.core.values.struct import Struct
    from andon.store.messages.graphs import GraphFilter, GraphKey, GraphRow
    from andon.store.sql.graph_threads import GraphThreadReads

    Rows = list[tuple[Any, ...]]
    Query = Callable[..., Rows]  # runs a named query with parameters by name
    T = TypeVar("T", bound=Struct | Entry)
else:
    Rows = list


def entries(rows: Rows) -> list[Entry]:
    from andon.core.journal import Entry

    return [build(Entry, row) for row in rows]


def fields(struct: Struct | Entry) -> dict[str, Any]:
    return dict(zip(struct.__struct_fields__, values(struct), strict=True))


_GETTERS: dict[type, Callable[[Any], tuple[Any, ...]]] = {}


def values(struct: Struct | Entry) -> tuple[Any, ...]:
    """Return the values of a struct's fields in order; every step calls this, so it is cached."""
    kind = type(struct)
    getter = _GETTERS.get(kind)
    if getter is None:
        getter = _GETTERS[kind] = attrgetter(*kind.__struct_fields__)
    return getter(struct)


def build(kind: type[T], row: Sequence[Any]) -> T:
    return kind(**dict(zip(kind.__struct_fields__, row, strict=True)))


def _astray(what: str, last: int, after: int) -> Corrupt:
    """Build the error for a damaged index, with which reading page by page would never end."""
    return Corrupt(
        f"{what}: asked for what comes after {after}, the database answered up to {last}; "
        "it is damaged. Restore it from a backup."
    )


class Reads:
    """The reads of a store, for every SQL database."""

    def __init__(self, read: Query) -> None:
        self.read = read

    def load(self, run_id: str) -> Loaded:
        found = entries(self.read("load_entries", run_id=run_id))
        if not found:
            raise Corrupt(f"run {run_id}: its journal is gone. Restore it from a backup.")
        [start] = entries(self.read("start_entry", run_id=run_id))
        quiet = self.read("quiet_fences", run_id=run_id)
        return Loaded(
            start=start,
            entries=found,
            inbox=self.inbox([run_id]).get(run_id, []),
            checkpoints=dict(self.read("checkpoints", run_id=run_id)),
            quiet_fences=frozenset(row[0] for row in quiet),
        )

    def sent(self, run_id: str, name: str) -> list[str]:
        return [str(body) for (body,) in self.read("sent", run_id=run_id, name=name)]

    def inbox(self, run_ids: Sequence[str]) -> dict[str, list[InboxMessage]]:
        found: dict[str, list[InboxMessage]] = {}
        for run_id, *row in self.read("inbox", run_ids=json.dumps(list(run_ids))):
            found.setdefault(run_id, []).append(build(InboxMessage, row))
        return found

    def run(self, run_id: str) -> RunRow | None:
        rows = self.read("run", run_id=run_id)
        return build(RunRow, rows[0]) if rows else None

    def among(self, run_ids: Sequence[str], states: Sequence[str]) -> list[RunRow]:
        """Return those of the given runs that are in one of the states."""
        named = {"run_ids": json.dumps(list(run_ids)), "states": json.dumps(list(states))}
        return [build(RunRow, row) for row in self.read("runs_among", **named)]

    def descendants(self, run_id: str) -> list[str]:
        """Return the run and all its unfinished descendants, parents first."""
        return [str(row[0]) for row in self.read("descendants", run_id=run_id, over=False)]

    def runs(self, which: Filter) -> list[RunRow]:
        label, label_value = which.label or (None, None)
        before_at, before_id = which.before or (None, None)
        rows = self.read(
            "runs",
            states=json.dumps(which.states) if which.states else None,
            agent=which.agent,
            parent_id=which.parent_id,
            prefix=which.prefix,
            roots=which.roots,
            label=label,
            label_value=label_value,
            before_at=before_at,
            before_id=before_id,
            limit=which.limit,
        )
        return [build(RunRow, row) for row in rows]

    def journal(self, run_id: str, after: int = -1, limit: int = 1000) -> list[Entry]:
        found = entries(self.read("journal", run_id=run_id, after=after, limit=limit))
        if found and found[-1].seq <= after:
            raise _astray(f"run {run_id}: its journal", found[-1].seq, after)
        return found

    def last_entry(self, run_id: str) -> Entry | None:
        return next(iter(entries(self.read("last_entry", run_id=run_id))), None)

    def ledger(self, run_id: str) -> list[EffectRow]:
        rows = self.read("ledger", run_id=run_id)
        return [build(EffectRow, (*row[:7], bool(row[7]), *row[8:])) for row in rows]

    def attempts(self, run_id: str) -> list[AttemptRow]:
        return [build(AttemptRow, row) for row in self.read("attempts", run_id=run_id)]

    def asks(self, run_id: str | None = None, *, open_only: bool = True) -> list[AskRow]:
        return [build(AskRow, row) for row in self.read("asks", run_id=run_id, open_only=open_only)]

    def progress(self) -> dict[str, list[dict[str, Any]]]:
        """Return the progress that steps of unfinished runs report, by run."""
        found: dict[str, list[dict[str, Any]]] = {}
        for run_id, progress in self.read("progress"):
            found.setdefault(run_id, []).append(json.loads(progress))
        return found

    def logs(self, run_id: str, after: int = 0) -> list[tuple[int, float, str, str]]:
        found = self.read("logs", run_id=run_id, after=after)
        if found and found[-1][0] <= after:
            raise _astray(f"run {run_id}: its lines", found[-1][0], after)
        return [(row[0], row[1], row[2], row[3]) for row in found]

    def blob(self, name: str) -> str:
        rows = self.read("blob", name=name)
        if not rows:
            raise NotFound(f"there is no blob {name!r}; the database is damaged")
        body: str = rows[0][0]
        from andon.core.values.value import content_name

        if content_name(body.encode()) != name:
            raise Corrupt(
                f"blob {name[:12]} does not match its hash. Restore the database from a backup."
            )
        return body

    def workers(self) -> list[WorkerRow]:
        return [build(WorkerRow, row) for row in self.read("workers")]

    def busy(self) -> frozenset[str]:
        return frozenset(str(worker) for (worker,) in self.read("busy_workers"))

    def fleet(self, since: float) -> list[WorkerRow]:
        return [build(WorkerRow, row) for row in self.read("fleet", since=since)]

    def held_by(self, worker_id: str, since: float = 0.0) -> list[Held]:
        rows = self.read("held_by", worker_id=worker_id, since=since)
        return [build(Held, row) for row in rows]

    def obligations(self, run_id: str | None = None, limit: int = 1000) -> list[Obligation]:
        rows = self.read("obligations", run_id=run_id, limit=limit)
        return [build(Obligation, row) for row in rows]

    def waiting(self, limit: int = 100_000) -> list[WaitingRuns]:
        return [build(WaitingRuns, row) for row in self.read("waiting", limit=limit)]

    def events(self, after: int = 0, limit: int = 1000) -> list[EventRow]:
        found = [build(EventRow, row) for row in self.read("events", after=after, limit=limit)]
        if found and found[-1].id <= after:
            raise _astray("the list of events", found[-1].id, after)
        return found

    def last_event(self, before: float | None = None) -> int:
        if before is None:
            number: int = self.read("last_event")[0][0]
        else:
            number = self.read("last_event_before", before=before)[0][0]
        return number

    def slowest_steps(self, since: float, longer_than: float, runs: int = 2000) -> list[StepTime]:
        rows = self.read("slowest_steps", since=since, longer_than=longer_than, runs=runs)
        return [build(StepTime, row) for row in rows]

    def agents(self, name: str | None = None) -> list[AgentRow]:
        return [build(AgentRow, row) for row in self.read("agents", name=name)]

    def limits(self) -> list[LimitRow]:
        return [build(LimitRow, row) for row in self.read("limits")]

    def usage(self) -> Usage:
        from andon.core.limits import Bucket, Candidate, LimitSlot

        running = [
            (Candidate("", queue, agent, json.loads(labels), spends=False), count)
            for queue, agent, labels, count in self.read("running")
        ]
        buckets = {LimitSlot(*row[:3]): Bucket(*row[3:]) for row in self.read("buckets")}
        return Usage(running=running, buckets=buckets)

    def queues(self) -> list[QueueRow]:
        return [build(QueueRow, row) for row in self.read("queues")]

    def run_count(self) -> int:
        count: int = self.read("run_count")[0][0]
        return count

    def unfinished(self, agent: str | None = None) -> list[tuple[str, str, str, int]]:
        rows = self.read("unfinished", agent=agent)
        return [(name, version, state, count) for name, version, state, count in rows]

    def forsaken(self, allowance: float = ALLOWANCE_SECONDS) -> list[Forsaken]:
        return [build(Forsaken, row) for row in self.read("forsaken", allowance=allowance)]

    def stranded_versions(self) -> set[tuple[str, str]]:
        return {(agent, version) for agent, version in self.read("stranded_versions")}

    def stops(self, limit: int = 50) -> list[StopRow]:
        return [_stop(row) for row in self.read("stops", limit=limit)]

    def stop(self, stop_id: str) -> StopRow | None:
        return next((_stop(row) for row in self.read("stop", id=stop_id)), None)

    def latches(self) -> list[StopRow]:
        return [_stop(row) for row in self.read("latches")]

    def targets(self, stop_id: str) -> list[TargetRow]:
        return [build(TargetRow, row) for row in self.read("targets", stop_id=stop_id)]

    def unproved(self) -> list[TargetRow]:
        return [build(TargetRow, row) for row in self.read("unproved")]

    def supervisors(self, since: float | None = None) -> list[SupervisorRow]:
        return [build(SupervisorRow, row) for row in self.read("supervisors", since=since)]

    def graph_checkpoint(self, which: GraphFilter) -> GraphRow | None:
        return self._graphs().checkpoint(which)

    def graph_checkpoints(self, which: GraphFilter) -> list[GraphKey]:
        return self._graphs().checkpoints(which)

    def graph_checkpoints_of(self, graph_runs: Sequence[str]) -> list[GraphKey]:
        return self._graphs().checkpoints_of(graph_runs)

    def _graphs(self) -> GraphThreadReads:
        from andon.store.sql.graph_threads import GraphThreadReads

        return GraphThreadReads(self.read)

    def now(self) -> float:
        now: float = self.read("now")[0][0]
        return now


def _stop(row: Sequence[Any]) -> StopRow:
    *plain, spare = row
    named = dict(zip(StopRow.__struct_fields__, plain, strict=False))
    return StopRow(**{**named, "latched": bool(named["latched"])}, spare=optional_flag(spare))
