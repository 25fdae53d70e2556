"""Queues, limits, dead runs and versions on a terminal."""

from collections.abc import Sequence
from typing import Any

from andon.cli.colour import paint
from andon.cli.output import clock, note, say, state
from andon.cli.table import column, table
from andon.core.text import age, clean, command, failure

# Further values of a label are counted, not named.
MOST_VALUES = 5

Rows = Sequence[dict[str, Any]]


def queues(rows: Rows) -> None:
    """Print the table of `andon queues`."""
    table(
        QUEUES, rows, none="no queues; a worker registers the queues of its agents: andon work FILE"
    )


def _oldest(row: dict[str, Any]) -> str | None:
    return None if row["oldest_seconds"] is None else age(row["oldest_seconds"])


def terms(row: dict[str, Any]) -> str:
    """Describe a limit in words."""
    at_most = "" if row["at_most"] is None else f"at most {row['at_most']} at once"
    rate = "" if row["rate"] is None else f"rate {row['rate']}"
    by = f" (by {clean(row['set_by'], 40)})" if row.get("set_by") else ""
    return (", ".join(filter(None, (at_most, rate))) or "no limit") + by


def limits(rows: Rows) -> None:
    """Print the table of `andon limit`."""
    table(LIMITS, rows, none="no limits; set one: andon limit queue:NAME --at-most 5 --rate 100/1h")


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
    if table(DEAD, rows, none="no dead runs"):
        show = command("show", rows[0]["id"])
        note(f"next: {show}   andon dead redrive RUN   andon dead drop RUN")


def _error(row: dict[str, Any]) -> str | None:
    return clean(failure(row["error"]), 300) if row["error"] else None


def versions(rows: Rows) -> None:
    """Print the table of `andon versions`."""
    table(VERSIONS, rows, none="no agents; a worker registers its own: andon work FILE")
    for row in rows:
        if row["runs"] and not row["workers"]:
            what = f"{clean(row['agent'])} (version {clean(row['version'])})"
            stranded = paint(state("stranded"))
            say(f"\n{stranded}: no running worker serves {what}   next: andon work FILE")


def _unfinished(row: dict[str, Any]) -> str:
    return ", ".join(f"{count:,} {word}" for word, count in sorted(row["runs"].items())) or "-"


QUEUES = (
    column("QUEUE", of=lambda row: clean(row["queue"], 60), whole=True),
    column("WAITING"),
    column("RETURNED", 3),
    column("LATER", 4),
    column("RUNNING"),
    column("OLDEST", 2, _oldest),
    column("LIMIT", 1, terms, least=12),
)
LIMITS = (
    column("LIMIT", of=lambda row: clean(row["limit"], 60), whole=True),
    column("AT MOST"),
    column("RATE"),
    column("SET BY", 2, lambda row: clean(row["set_by"], 40) or "-", least=8),
    column("USED NOW", 1, _used, least=16),
)
DEAD = (
    column("ID", whole=True),
    column("AGENT", 2, least=8),
    column("VERSION", 5, least=6),
    column("ATTEMPTS", 4),
    column("DEAD FOR", 3, lambda row: age(row["age_seconds"])),
    column("TO UNDO", of=lambda row: row["obligations"] or "-"),
    column("ERROR", 1, _error, least=16),
)
VERSIONS = (
    column("AGENT", whole=True),
    column("VERSION", whole=True),
    column("NEW RUNS", of=lambda row: "promoted" if row["promoted"] else "-"),
    column("WORKERS", 1, lambda row: len(row["workers"])),
    column("REGISTERED", 3, lambda row: clock(row["registered_at"])),
    column("UNFINISHED RUNS", 2, _unfinished, least=12),
)
