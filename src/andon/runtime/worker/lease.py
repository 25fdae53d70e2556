"""The lease of one incarnation of a worker: its heartbeats, and whether it is still trusted.

Heartbeats are sent for the process, not for each run, from a thread of their own: agent code that
blocks the event loop does not lose the lease. The worker trusts its lease for less time than the
store grants; outside that window, no operation starts before the lease is renewed.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable

from andon.core.lease import renew_every, trusted_until
from andon.errors import Fenced, StoreError
from andon.runtime.worker.clock import own_time
from andon.store.store import Beat
from andon.store.writer.writer import Writer

log = logging.getLogger("andon")


class WorkerLease:
    """One lease, from the registration of a worker until it is lost or the worker ends."""

    def __init__(
        self,
        worker_id: str,
        seconds: float,
        writer: Writer,
        *,
        progress: Callable[[], str],
        on_renewed: Callable[[float], None],
        on_lost: Callable[[Fenced], None],
    ) -> None:
        self.worker_id, self._seconds, self._writer = worker_id, seconds, writer
        self._progress, self._on_renewed, self._on_lost = progress, on_renewed, on_lost
        self._loop = asyncio.get_running_loop()
        self._renewed_at = 0.0
        self.trusted_until = 0.0
        self.ended = threading.Event()

    def begin(self) -> None:
        """Start the heartbeats."""
        threading.Thread(
            target=self._renew_for_ever, args=(self.ended,), name="andon-heart", daemon=True
        ).start()

    def _renew_for_ever(self, ended: threading.Event) -> None:
        """Send heartbeats when due; while the event loop turns, the worker's claims carry them."""
        every = renew_every(self._seconds)
        left = every
        while not ended.wait(left):
            left = self._renewed_at + every - own_time()
            if left > 0:
                continue
            left = every
            try:
                self.renew()
            except Fenced as error:
                log.warning("worker %s is fenced: its lease ended. It starts over.", self.worker_id)
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self.lose, error)
                return
            except StoreError as error:
                log.warning("worker %s: no heartbeat: %s", self.worker_id, error)

    def heartbeat(self) -> Beat:
        return Beat(
            worker_id=self.worker_id, lease_seconds=self._seconds, progress=self._progress()
        )

    def renew(self) -> None:
        """Send a heartbeat and wait for its commit. Safe from any thread but the loop's."""
        asked_at = own_time()
        self.renewed(self._writer.submit_from_thread(self.heartbeat()).result(), asked_at)

    def renew_soon(self) -> None:
        """Submit a heartbeat, to be committed together with the claim that follows."""
        asked_at = own_time()

        def renewed(done: "asyncio.Future[float]") -> None:
            # Set the clock at once: it is the commit's time, and the claim's answer comes later.
            error = None if done.cancelled() else done.exception()
            if isinstance(error, Fenced):
                self.lose(error)
            elif error is None and not done.cancelled():
                self.renewed(done.result(), asked_at)

        self._writer.submit(self.heartbeat()).add_done_callback(renewed)

    def renewed(self, store_now: float, asked_at: float) -> None:
        """Note that the store has renewed the lease; the request was made at `asked_at`."""
        self._on_renewed(store_now)
        self._renewed_at = asked_at
        self.trusted_until = trusted_until(asked_at, self._seconds)

    @property
    def trusted(self) -> bool:
        return own_time() < self.trusted_until

    async def ensure_trust(self) -> None:
        """Return once the lease is certainly held; raise Fenced if it is not."""
        while not self.trusted:  # a freeze before the answer arrives may be longer than it
            try:
                await self._loop.run_in_executor(None, self.renew)
            except Fenced as error:
                self.lose(error)
                raise

    async def check(self) -> None:
        """Check the lease after a run was fenced: all may be, and the next beat is far off."""
        self.trusted_until = 0.0
        with contextlib.suppress(Fenced, StoreError):
            await self.ensure_trust()

    def lose(self, error: Fenced) -> None:
        """Note that the lease is lost, once."""
        if not self.ended.is_set():
            self.ended.set()
            self._on_lost(error)
