"""The run that an id means, and one message to the store: what every request begins and ends with.

Imports little: commands that stop something wait for it.
"""

from __future__ import annotations

from andon.errors import NotFound
from andon.store.messages.rows import Filter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from andon.store.messages.rows import RunRow
    from andon.store.store import Message


def write(store: Any, message: Message) -> Any:
    """Carry one message out; raises what it is refused with."""
    [outcome] = store.write([message])
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def find(store: Any, run_id: str) -> RunRow:
    """The run of that id, or the only one whose id begins so."""
    row: RunRow | None = store.run(run_id)
    if row is not None:
        return row
    near = _beginning(store, run_id) if run_id else []
    if len(near) == 1:
        return near[0]
    if near:
        matches = ", ".join(one.id for one in near)
        raise NotFound(f"run {run_id!r}: ambiguous id; matches: {matches}")
    raise NotFound(f"there is no run {run_id!r}; andon ps --old lists them")


def _beginning(store: Any, prefix: str) -> list[RunRow]:
    """Runs whose ids begin so; the children of a run have its id in theirs and are not meant."""
    roots: list[RunRow] = store.runs(Filter(prefix=prefix, roots=True, limit=5))
    return roots or store.runs(Filter(prefix=prefix, limit=5))
