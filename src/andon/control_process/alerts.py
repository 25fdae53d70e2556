"""Alerts when a stop does not go as it should.

An alert goes to a URL (POST, signed) and to a command, from a separate thread: a slow or dead
receiver delays nothing else. Each alert is sent once.

Each control process reports the events of its own host. Events of the whole fleet, read from the
store, are reported by the control process of the oldest live supervisor only; the others read them
too, and take over when it is gone.
"""

import hashlib
import hmac
import json
import logging
import queue
import shlex
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any

from andon.control import workers
from andon.settings import Settings
from andon.store.messages.rows import EventRow
from andon.store.store import Store

log = logging.getLogger("andon")

POST_SECONDS, COMMAND_SECONDS = 5.0, 10.0
TRIES = 3
BACKOFF_SECONDS = 0.5
# Bounds the memory for alerts while a receiver is away.
MOST_WAITING = 1000
MOST_REMEMBERED = 10_000
SIGNATURE = "X-Andon-Signature"
DRAINS_SECONDS = 60.0
MOST_EVENTS = 1000
# Events of the store that cause an alert: its layer, and its text.
_ALERTS = {
    "stop.overran": ("overrun", "a polite stop took longer than its window; the run is killed"),
    "stop.unproved": ("unproved", "a stop ended without proof"),
}


def signature(secret: str, body: bytes) -> str:
    """The value of the signature header; receivers compare it by hmac.compare_digest."""
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


class Alerts:
    """Sends alerts; two with the same `layer` and `about` are the same alert."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._waiting: queue.Queue[bytes | None] = queue.Queue(MOST_WAITING)
        self._sent: dict[tuple[str, str], None] = {}
        self._thread: threading.Thread | None = None
        self._sending = threading.Lock()  # two threads call `send`: main and reader
        self.lost = 0

    @property
    def wanted(self) -> bool:
        return bool(self._settings.alert_url or self._settings.alert_command)

    def send(self, layer: str, about: str, text: str, **facts: Any) -> bool:
        """Send an alert unless it was sent before; returns whether it was new."""
        with self._sending:
            if (layer, about) in self._sent:
                return False
            self._sent[layer, about] = None
            if len(self._sent) > MOST_REMEMBERED:
                del self._sent[next(iter(self._sent))]
        log.warning("%s: %s", layer, text)
        if self.wanted:
            alert = {"alert": layer, "about": about, "text": text, "at": time.time(), **facts}
            self._put(json.dumps(alert, default=str).encode())
        return True

    def close(self, seconds: float = POST_SECONDS) -> None:
        """Wait briefly until the alerts in the queue are sent."""
        if self._thread is not None:
            self._put(None)
            self._thread.join(seconds)

    def _put(self, body: bytes | None) -> None:
        with self._sending:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="andon-alerts", daemon=True)
                self._thread.start()
        try:
            self._waiting.put_nowait(body)
        except queue.Full:
            self.lost += 1

    def _work(self) -> None:
        while (body := self._waiting.get()) is not None:
            if self._settings.alert_url:
                self._try("alert_url", lambda body=body: self._post(body))  # type: ignore[misc]
            if self._settings.alert_command:
                self._try("alert_command", lambda body=body: self._run(body))  # type: ignore[misc]

    def _try(self, name: str, send: Callable[[], None]) -> None:
        for number in range(TRIES):
            try:
                send()
            except Exception as error:  # noqa: BLE001 (one receiver's failure must not stop the others)
                log.warning("%s: an alert was not accepted: %s", name, error)
                if number < TRIES - 1:
                    time.sleep(BACKOFF_SECONDS * 2**number)
            else:
                return
        self.lost += 1

    def _post(self, body: bytes) -> None:
        url = self._settings.alert_url
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"expected http:// or https://, found {url!r}")
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310
        if self._settings.alert_secret:
            request.add_header(SIGNATURE, signature(self._settings.alert_secret, body))
        with urllib.request.urlopen(request, timeout=POST_SECONDS) as answer:  # noqa: S310
            answer.read(1024)

    def _run(self, body: bytes) -> None:
        argv = shlex.split(self._settings.alert_command)
        subprocess.run(  # noqa: S603 (the command is the operator's)
            argv, input=body, timeout=COMMAND_SECONDS, check=True, stdout=subprocess.DEVNULL
        )


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


class FleetAlerts:
    """Decides which events of this host and of the fleet cause an alert."""

    def __init__(self, alerts: Alerts, supervisor_id: str) -> None:
        self._alerts, self._id = alerts, supervisor_id
        self._after: int | None = None

    def local(self, layer: str, about: str, text: str, **facts: Any) -> None:
        self._alerts.send(layer, about, text, supervisor=self._id, **facts)

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
            if speaks and event.kind in _ALERTS:
                self._alert(event)
        if speaks:
            self._look_at_drains(store)

    def _alert(self, event: EventRow) -> None:
        body = json.loads(event.body or "{}")
        about = str(body.get("stop") or event.run_id or event.worker)
        layer, text = _ALERTS[event.kind]
        facts = {"run": event.run_id, "worker": event.worker, "event": body}
        self._alerts.send(layer, about, f"{text}: {about}", **facts)

    def _look_at_drains(self, store: Store) -> None:
        now = store.now()
        for row in store.fleet(now - DRAINS_SECONDS):
            over = workers.overrun(row, now) if row.draining_at is not None else []
            if over:
                text = f"the drain of worker {row.id} overran: {', '.join(over)}"
                self._alerts.send("drain", row.id, text, worker=row.id, overran=over)
