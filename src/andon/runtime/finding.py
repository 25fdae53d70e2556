"""The run that an id means, and one message to the store: what every request begins and ends with.

Imports little: commands that stop something wait for it.
"""

from __future__ import annotations

from andon.errors import NotFound
from andon.store.rows import Filter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from andon.store.rows import RunRow
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
    near: list[RunRow] = store.runs(Filter(prefix=run_id, limit=5)) if run_id else []
    if len(near) == 1:
        return near[0]
    if near:
        raise NotFound(f"run {run_id!r}: several begin so: {', '.join(one.id for one in near)}")
    raise NotFound(f"there is no run {run_id!r}; andon ps --all lists those there are")
