"""The answers of the two stores to questions: the same, and in agreement with the rows."""

from collections.abc import Callable, Iterator
from typing import Any

from andon.core.journal import Entry
from andon.core.values.struct import Struct
from andon.store.messages.rows import EventRow, Filter, InboxMessage
from verify.promises import Seen

# Numbers that each database assigns by itself.
_NUMBERED = (InboxMessage, EventRow)
_PLAIN: tuple[str, ...] = (
    "workers",
    "latches",
    "stops",
    "unproved",
    "supervisors",
    "agents",
    "limits",
    "usage",
)
_PLAIN += ("queues", "forsaken", "stranded_versions", "now", "obligations", "waiting", "asks")
_PLAIN += ("unfinished", "events")
# Answers whose order matters to the caller.
_ORDERED = ("load", "sent", "journal", "descendants", "agents", "runs", "of a label", "latches")
_STATES = ("queued", "running", "suspended")

Ask = Callable[[Any], Any]  # of a store


def _questions(seen: Seen) -> dict[str, Ask]:
    asked: dict[str, Ask] = {name: _call(name) for name in _PLAIN}
    asked["fleet"] = lambda store: store.fleet(0.0)
    asked["runs"] = lambda store: store.runs(Filter())
    asked["of a label"] = lambda store: store.runs(Filter(label=("tenant", "t0")))
    asked["among"] = lambda store: store.among(list(seen.runs), _STATES)
    for run_id in seen.runs:
        for name in ("load", "run", "ledger", "attempts", "journal", "last_entry", "descendants"):
            asked[f"{name} {run_id}"] = _call(name, run_id)
        asked[f"sent {run_id}"] = _call("sent", run_id, "e")
    for worker_id in seen.workers:
        asked[f"held by {worker_id}"] = _call("held_by", worker_id)
        asked[f"orders for {worker_id}"] = _call("orders_for", worker_id)
    for stop_id in seen.stops:
        asked[f"targets {stop_id}"] = _call("targets", stop_id)
    return asked


def _call(name: str, *given: Any) -> Ask:
    return lambda store: getattr(store, name)(*given)


def wrong(seen: Seen, sqlite: Any, postgres: Any) -> Iterator[str]:
    for what, ask in _questions(seen).items():
        ordered = what.startswith(_ORDERED)
        one, other = (_plain(ask(store), ordered=ordered) for store in (sqlite, postgres))
        if one != other:
            yield f"{what}: SQLite answers {one}, PostgreSQL {other}"
    for run_id in seen.runs:
        yield from _loaded(seen, run_id, sqlite.load(run_id))


def _loaded(seen: Seen, run_id: str, loaded: Any) -> Iterator[str]:
    """A run resumes from every entry since its last snapshot, and from no other."""
    journal = [row for (of, _), row in sorted(seen.entries.items()) if of == run_id]
    snapshots = [row["seq"] for row in journal if row["kind"] == "snapshot"]
    since = max(snapshots, default=0)
    if [entry.seq for entry in loaded.entries] != [r["seq"] for r in journal if r["seq"] >= since]:
        yield f"{run_id} goes on from {[entry.seq for entry in loaded.entries]}, not from {since}"
    rows = sorted((row for row in seen.rows["inbox"] if row["run_id"] == run_id), key=_number)
    unread = [row["id"] for row in rows if not row["taken"]]
    if [message.id for message in loaded.inbox] != unread:
        yield f"{run_id} reads {loaded.inbox}, and has not read {unread}"
    quiet = {
        row["fence"]
        for row in seen.rows["attempts"]
        if row["run_id"] == run_id
        and (row["quiet"] or _is_over(seen.workers[row["worker"]]["state"], row["mark"]))
    }
    if loaded.quiet_fences != quiet:
        yield f"{run_id}: nothing executes under {loaded.quiet_fences}, the rows say {quiet}"
    kept = {op: body for (of, op), body in seen.kept.items() if of == run_id}
    if loaded.checkpoints != kept:
        yield f"{run_id} goes on from {loaded.checkpoints}, and has kept {kept}"


def _is_over(state: str, mark: int | None) -> bool:
    """A worker that has left does not answer for the programs it started."""
    return state == "dead" or (state == "gone" and mark is None)


def _number(row: dict[str, Any]) -> int:
    return int(row["id"])


def _plain(answer: Any, *, ordered: bool) -> Any:  # noqa: PLR0911 (a table)
    """In the form that is compared: without numbers of one database, or an arbitrary order."""
    match answer:
        case Struct() | Entry():
            fields = [name for name in answer.__struct_fields__ if not _is_own(answer, name)]
            return tuple(_plain(getattr(answer, name), ordered=ordered) for name in fields)
        case dict():
            return sorted((repr(key), _plain(one, ordered=ordered)) for key, one in answer.items())
        case set() | frozenset():
            return sorted(map(repr, answer))
        case list():
            found = [_plain(one, ordered=ordered) for one in answer]
            return found if ordered else sorted(found, key=repr)
        case tuple():
            return tuple(_plain(one, ordered=ordered) for one in answer)
        case bool() | int() | float():
            return round(float(answer), 6)
        case _:
            return answer


def _is_own(answer: Any, name: str) -> bool:
    return name == "id" and isinstance(answer, _NUMBERED)
