"""Schema migrations: numbered files, applied once, in order, forward only.

The caller holds a lock, so that two processes that open an empty store at the same instant do not
both create it. `apply` refuses a schema newer than this code: an older program must not write to
it.
"""

from __future__ import annotations

from andon.errors import StoreError
from andon.store import queries

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def apply(dialect: str, run_one: Callable[[int, str], None], version: Callable[[], int]) -> None:
    """Upgrade the schema to the newest version this code knows."""
    known = queries.migrations(dialect)
    newest, found = known[-1][0], version()
    refuse_newer(found, newest)
    for number, _name, sql in known:
        if number > found:
            run_one(number, sql)


def refuse_newer(found: int, newest: int) -> None:
    if found > newest:
        raise StoreError(
            f"the store has schema {found}, this andon knows {newest} at most. Upgrade andon."
        )
