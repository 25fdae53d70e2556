"""Events: what happened to the fleet or to a run, kept for `andon events`."""

from __future__ import annotations

import json

from andon.store.sql.reads import fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from andon.store.sql.reads import Query
    from andon.store.store import NoteEvent


class EventHandler:
    """Writes events, in the commit of the change that they are about."""

    def __init__(self, q: Query) -> None:
        self.q = q

    def note(
        self, kind: str, *, run_id: str | None = None, worker: str | None = None, **body: Any
    ) -> None:
        self.q("insert_event", kind=kind, run_id=run_id, worker=worker, body=json.dumps(body))

    def write(self, m: NoteEvent) -> None:
        self.q("insert_event", **fields(m))
