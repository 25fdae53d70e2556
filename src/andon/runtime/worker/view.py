"""The part of a worker that shutdown triggers and health probes see."""

import asyncio
from typing import Any, Protocol

from andon.settings import Settings


class WorkerView(Protocol):
    """A worker as seen from other threads."""

    worker_id: str
    draining: bool
    started: bool  # registered, and its first claim was answered
    loop: asyncio.AbstractEventLoop
    active: dict[Any, Any]  # runs in hand
    settings: Settings
    store: Any  # its calls block
    # time.monotonic() when the store last answered a claim or heartbeat.
    last_contact: float

    def tell(self, why: str, grace_seconds: float | None = None) -> None:
        """Drain the worker. Safe from any thread; a second call changes nothing."""
        ...

    def counts(self) -> dict[str, float]:
        """Numbers for /metrics by name; names of counters end in `_total`."""
        ...
