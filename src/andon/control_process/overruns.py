"""Decides which events cause an alert.

Each control process reports the events of its own host. Events of the whole fleet, read from the
store, are reported by the control process of the oldest live supervisor only; the others read them
too, and take over when it is gone.
"""

import json
import time
from typing import Any

from andon.control import workers
from andon.control_process.alerts import Alerts
from andon.store.messages.rows import EventRow
from andon.store.store import Store

_TEXTS = {
    "stop.overran": "a polite stop took longer than its window; the run is killed",
    "stop.unproved": "a stop ended without proof",
}
_LAYERS = {"stop.overran": "overrun", "stop.unproved": "unproved"}
DRAINS_SECONDS = 60.0
MOST_EVENTS = 1000


def described(event: dict[str, Any]) -> tuple[str, str, str] | None:
    """Layer, subject and text of a supervisor's event; None if it causes no alert."""
    name, seconds = event.get("child"), event.get("seconds")
    match event.get("event"):
        case "overrun":
            what = str(event.get("what"))
            return "overrun", what, f"{what} takes longer than {seconds} s; {event.get('next')}"
        case "gave_up":
            crashes = event.get("crashes")
            text = f"{name} ended {crashes} times in {seconds} s and is not started again"
            return "gave_up", str(name), text
        case "lost_contact":
            did = ", ".join(event.get("did") or []) or "nothing"
            text = f"no contact with the store for {seconds} s; stopped: {did}"
            return "lost_contact", f"{time.time():.0f}", text
        case _:
            return None


class Overruns:
    def __init__(self, alerts: Alerts, supervisor_id: str) -> None:
        self._alerts, self._id = alerts, supervisor_id
        self._after: int | None = None

    def local(self, layer: str, about: str, text: str, **facts: Any) -> None:
        self._alerts.tell(layer, about, text, supervisor=self._id, **facts)

    def look(self, store: Store) -> None:
        """Report the fleet's events since the last call."""
        if not self._alerts.wanted:
            return
        if self._after is None:
            self._after = store.last_event()
        first = store.supervisors()[:1]
        speaks = bool(first) and first[0].id == self._id
        events = store.events(self._after, MOST_EVENTS)
        for event in events:
            self._after = event.id
            if speaks and event.kind in _LAYERS:
                self._tell(event)
        if speaks:
            self._look_at_drains(store)

    def _tell(self, event: EventRow) -> None:
        said = json.loads(event.body or "{}")
        about = str(said.get("stop") or event.run_id or event.worker)
        self._alerts.tell(
            _LAYERS[event.kind],
            about,
            f"{_TEXTS[event.kind]}: {about}",
            run=event.run_id,
            worker=event.worker,
            event=said,
        )

    def _look_at_drains(self, store: Store) -> None:
        now = store.now()
        for row in store.fleet(now - DRAINS_SECONDS):
            over = workers.overrun(row, now) if row.draining_at is not None else []
            if over:
                text = f"the drain of worker {row.id} overran: {', '.join(over)}"
                self._alerts.tell("drain", row.id, text, worker=row.id, overran=over)
