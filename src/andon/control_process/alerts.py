"""Sends alerts when a stop does not go as it should.

An alert goes to a URL (POST, signed) and to a command, from a separate thread: a slow or dead
receiver delays nothing else. Each alert is sent once.
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

from andon.settings import Settings

log = logging.getLogger("andon")

POST_SECONDS, COMMAND_SECONDS = 5.0, 10.0
TRIES = 3
BACKOFF_SECONDS = 0.5
# Bounds the memory for alerts while a receiver is away.
MOST_WAITING = 1000
MOST_REMEMBERED = 10_000
SIGNATURE = "X-Andon-Signature"


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
        self._telling = threading.Lock()  # two threads call `tell`: main and reader
        self.lost = 0

    @property
    def wanted(self) -> bool:
        return bool(self._settings.alert_url or self._settings.alert_command)

    def tell(self, layer: str, about: str, text: str, **facts: Any) -> bool:
        """Send an alert unless it was sent before; returns whether it was new."""
        with self._telling:
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
        with self._telling:
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
                log.warning("%s: an alert was not taken: %s", name, error)
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
