"""Runs as a tree: children below the run that started them, under short names."""

from collections.abc import Sequence
from typing import Any

from andon.control.runs.runs import listing
from andon.core.run import TERMINAL
from andon.core.text import plural
from andon.store.store import Store

# More children of one run than this are counted, not listed.
MOST_CHILDREN = 5
_STARTED = "~@child/"  # between the parent's id and the child's name

Row = dict[str, Any]


def tree(store: Store, *, limit: int, before: str | None, everything: bool) -> list[Row]:
    """Runs without a parent, newest first, each followed by its current descendants."""
    which: dict[str, Any] = {"limit": limit, "everything": everything}
    roots = listing(store, **which, before=before, roots=True)
    below = listing(store, **which, roots=False)
    known = {row["id"] for row in (*roots, *below)}
    lost = [row for row in below if row["parent_id"] not in known and before is None]
    found: list[Row] = []
    for row in (*roots, *lost):
        found += [row, *_below(row, below, 1, full=len(below) >= limit)]
    return found


def _below(parent: Row, rows: Sequence[Row], depth: int, *, full: bool) -> list[Row]:
    children = [row for row in rows if row["parent_id"] == parent["id"]]
    # Children that may need a person come first.
    children.sort(key=lambda row: (not row["asks"], row["state"] in TERMINAL, row["created_at"]))
    found: list[Row] = []
    for row in children[:MOST_CHILDREN]:
        found.append({**row, "name": short(row["id"], parent["id"]), "depth": depth})
        found += _below(row, rows, depth + 1, full=full)
    hidden = children[MOST_CHILDREN:]
    if hidden:
        asks = sum(_asks(row, rows) for row in hidden)
        words = f"{'at least ' if full else ''}{len(hidden):,} more"
        words += f", {plural(asks, 'ask')}" if asks else ""
        found.append({"more": words, "depth": depth, "parent_id": parent["id"]})
    return found


def _asks(row: Row, rows: Sequence[Row]) -> int:
    """The number of open asks of a run and of the runs below it."""
    below = (one for one in rows if one["parent_id"] == row["id"])
    return len(row["asks"]) + sum(_asks(one, rows) for one in below)


def short(child: str, parent: str) -> str:
    if child.startswith(parent + _STARTED):
        return child.removeprefix(parent + _STARTED)
    return child.removeprefix(parent)
