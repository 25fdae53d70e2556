"""What the ways to be told, and the probes, see of a worker."""

import asyncio
from typing import Any, Protocol

from andon.settings import Settings


class Told(Protocol):
    """A worker, seen from other threads."""

    worker_id: str
    draining: bool
    started: bool  # registered, and its first claim was answered
    loop: asyncio.AbstractEventLoop
    active: dict[Any, Any]  # runs in hand
    settings: Settings
    store: Any  # its calls block
    last_contact: float  # time.monotonic() of the last answer of the store to a claim or heartbeat

    def tell(self, why: str, grace_seconds: float | None = None) -> None:
        """Drain. From any thread; telling twice is telling once."""
        ...

    def counts(self) -> dict[str, float]:
        """Numbers for /metrics by their names; those that only grow end in `_total`."""
        ...
