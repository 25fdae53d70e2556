"""Messages to runs: events, answers to asks, and the ends of child runs."""

from __future__ import annotations

import json

from andon.core.run import TERMINAL
from andon.errors import Conflict, IllegalTransition, NotFound

TYPE_CHECKING = False
if TYPE_CHECKING:
    from andon.store.sql.reads import Query
    from andon.store.store import Deliver

_DELIVERY = {"event": "receive an event", "answer": "be answered"}


class InboxHandler:
    """Puts messages into the inboxes of runs, and wakes the runs that wait for them."""

    def __init__(self, q: Query) -> None:
        self.q = q

    def deliver(self, m: Deliver) -> bool:
        rows = self.q("lock_runs", run_ids=json.dumps([m.run_id]), ending="[]")
        if not rows:
            raise NotFound(f"there is no run {m.run_id!r}")
        if self.q("is_delivered", run_id=m.run_id, message_id=m.message_id):
            return False
        if rows[0][1] in TERMINAL:
            raise IllegalTransition(m.run_id, rows[0][1], _DELIVERY[m.kind])
        if m.kind == "answer" and not self.q(
            "answer_ask", run_id=m.run_id, id=m.name, answer=m.body
        ):
            raise Conflict(
                f"run {m.run_id!r}: ask {m.name!r} is not open; it was answered or has expired"
            )
        self.q("deliver", run_id=m.run_id)
        self._insert(m.run_id, m.kind, m.name, m.body, m.message_id)
        return True

    def notify_parent(self, parent_id: str | None, child_id: str, state: str) -> None:
        if parent_id is not None and self.q("deliver", run_id=parent_id):
            self._insert(parent_id, "child", child_id, json.dumps(state), f"child:{child_id}")

    def _insert(self, run_id: str, kind: str, name: str, body: str, message_id: str) -> None:
        self.q(
            "insert_message", run_id=run_id, kind=kind, name=name, body=body, message_id=message_id
        )
