"""Queues, limits, dead runs and versions on a terminal."""

from collections.abc import Sequence
from typing import Any

from andon.cli.colour import paint
from andon.cli.output import clock, note, say, state
from andon.cli.table import column, table
from andon.core.text import age, clean, command, failure

# Further values of a label are counted, not named.
MOST_VALUES = 5

QUEUES = (
    column("QUEUE", whole=True),
    column("WAITING"),
    column("RETURNED", 3),
    column("LATER", 4),
    column("RUNNING"),
    column("OLDEST", 2),
    column("LIMIT", 1, least=12),
)
LIMITS = (
    column("LIMIT", whole=True),
    column("AT MOST"),
    column("RATE"),
    column("SET BY", 2, least=8),
    column("USED NOW", 1, least=16),
)
DEAD = (
    column("ID", whole=True),
    column("AGENT", 2, least=8),
    column("VERSION", 5, least=6),
    column("ATTEMPTS", 4),
    column("DEAD FOR", 3),
    column("TO UNDO"),
    column("ERROR", 1, least=16),
)
VERSIONS = (
    column("AGENT", whole=True),
    column("VERSION", whole=True),
    column("NEW RUNS"),
    column("WORKERS", 1),
    column("REGISTERED", 3),
    column("UNFINISHED RUNS", 2, least=12),
)

Rows = Sequence[dict[str, Any]]


def queues(rows: Rows) -> None:
    """Print the table of `andon queues`."""
    if not rows:
        note("no queues; a worker registers the queues of its agents: andon work FILE")
        return
    table(
        QUEUES,
        [
            (
                clean(row["queue"], 60),
                str(row["waiting"]),
                str(row["returned"]),
                str(row["later"]),
                str(row["running"]),
                "-" if row["oldest_seconds"] is None else age(row["oldest_seconds"]),
                terms(row),
            )
            for row in rows
        ],
    )


def terms(row: dict[str, Any]) -> str:
    """Describe a limit in words."""
    at_most = "" if row["at_most"] is None else f"at most {row['at_most']} at once"
    rate = "" if row["rate"] is None else f"rate {row['rate']}"
    by = f" (by {clean(row['set_by'], 40)})" if row.get("set_by") else ""
    return (", ".join(filter(None, (at_most, rate))) or "no limit") + by


def limits(rows: Rows) -> None:
    """Print the table of `andon limit`."""
    if not rows:
        note("no limits; set one: andon limit queue:NAME --at-most 5 --rate 100/1h")
        return
    table(
        LIMITS,
        [
            (
                clean(row["limit"], 60),
                str(row["at_most"] or "-"),
                row["rate"] or "-",
                clean(row["set_by"], 40) or "-",
                _used(row),
            )
            for row in rows
        ],
    )


def _used(row: dict[str, Any]) -> str:
    words = [_slot(row, slot) for slot in row["used"][:MOST_VALUES]]
    more = len(row["used"]) - MOST_VALUES
    return "; ".join(words + ([f"{more:,} more values"] if more > 0 else [])) or "nothing"


def _slot(row: dict[str, Any], slot: dict[str, Any]) -> str:
    name = "" if slot["value"] is None else f"{clean(slot['value'], 40)}: "
    of = "" if row["at_most"] is None else f" of {row['at_most']}"
    words = f"{name}{slot['running']}{of} running"
    if slot["may_begin"] is None:
        return words
    wait = slot["next_in_seconds"]
    return f"{words}, " + (f"next in {age(wait)}" if wait else f"{slot['may_begin']} may begin")


def dead(rows: Rows) -> None:
    """Print the table of `andon dead list`."""
    if not rows:
        note("no dead runs")
        return
    table(
        DEAD,
        [
            (
                row["id"],
                row["agent"],
                row["version"],
                str(row["attempts"]),
                age(row["age_seconds"]),
                str(row["obligations"] or "-"),
                _error(row["error"]),
            )
            for row in rows
        ],
    )
    note(f"next: {command('show', rows[0]['id'])}   andon dead redrive RUN   andon dead drop RUN")


def _error(error: dict[str, Any] | None) -> str:
    if not error:
        return "-"
    return clean(failure(error), 300)


def versions(rows: Rows) -> None:
    """Print the table of `andon versions`."""
    if not rows:
        note("no agents; a worker registers its own: andon work FILE")
        return
    table(
        VERSIONS,
        [
            (
                row["agent"],
                row["version"],
                "promoted" if row["promoted"] else "-",
                str(len(row["workers"])),
                clock(row["registered_at"]),
                _unfinished(row),
            )
            for row in rows
        ],
    )
    for row in rows:
        if row["runs"] and not row["workers"]:
            what = f"{clean(row['agent'])} (version {clean(row['version'])})"
            stranded = paint(state("stranded"))
            say(f"\n{stranded}: no running worker serves {what}   next: andon work FILE")


def _unfinished(row: dict[str, Any]) -> str:
    return ", ".join(f"{count:,} {word}" for word, count in sorted(row["runs"].items())) or "-"
