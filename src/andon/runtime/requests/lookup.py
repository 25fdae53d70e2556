"""Finds a run by its id and writes one message to the store: the first and last part of requests.

Imports little, because commands that stop something wait for the imports.
"""

from __future__ import annotations

from andon.errors import NotFound
from andon.store.messages.rows import Filter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from andon.store.messages.rows import RunRow
    from andon.store.store import Message, Store


def write(store: Store, message: Message) -> Any:
    """Write one message; raises the error if the store refuses it."""
    [outcome] = store.write([message])
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def find(store: Store, run_id: str) -> RunRow:
    """Return the run with this id, or the only run whose id begins with it."""
    row = store.run(run_id)
    if row is not None:
        return row
    near = _beginning(store, run_id) if run_id else []
    if len(near) == 1:
        return near[0]
    if near:
        matches = ", ".join(one.id for one in near)
        raise NotFound(f"run {run_id!r}: ambiguous id; matches: {matches}")
    raise NotFound(f"there is no run {run_id!r}; andon ps --old lists them")


def _beginning(store: Store, prefix: str) -> list[RunRow]:
    """Find runs by prefix, roots first: the ids of children begin with their parent's id."""
    roots = store.runs(Filter(prefix=prefix, roots=True, limit=5))
    return roots or store.runs(Filter(prefix=prefix, limit=5))
