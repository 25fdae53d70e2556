"""Processes, threads and callbacks that a run has started: recorded in the store, ended in time."""

import asyncio
import contextlib
import threading
from typing import Any

from andon.core.effect import Sight
from andon.core.stop import Stage
from andon.errors import StoreError, StoreUnavailable
from andon.runtime.attempt import callbacks
from andon.runtime.attempt.branch import Tasks
from andon.runtime.attempt.exit import log
from andon.runtime.attempt.host import Host
from andon.runtime.futures import retrieve
from andon.runtime.processes import attribution
from andon.store.messages.stops import ProcessStarted, StopNotice, TargetReport
from andon.store.store import Claimed

# Limit for the commit before an attempt's first process starts: even a busy disk needs less.
NOTE_SECONDS = 5.0
# A kill waits no longer than this for its receipt to name the processes it ends.
NAMED_SECONDS = 0.1


class RunProcesses:
    """The processes and threads that one attempt has started."""

    def __init__(self, host: Host, run: Claimed, tasks: Tasks) -> None:
        self._host, self._run, self._tasks = host, run, tasks
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self.started = attribution.StartedProcesses(host.new_mark, self._record)
        self.ended = ""  # names of those that were ended with the run

    def _record(self, *, threads: bool = False) -> None:
        """Record that the run starts a process or thread. Safe from any thread.

        On a store whose free lock shows only that a process is gone, other workers go by this
        record: there, a process is not started before the record is durable.
        """
        message = ProcessStarted(
            run_id=self._run.id,
            fence=self._run.fence.counter,
            mark=self.started.any_mark(),
            threads=threads or bool(self.started.threads),
        )
        if self._host.store.free_means == Sight.PROCESS:
            self._write_first(message)
            return

        def submit() -> None:
            # True even if another worker owns the run by the time this is written.
            self._host.writer.submit(message).add_done_callback(retrieve)

        if threading.get_ident() == self._loop_thread:
            submit()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: its process is ending
                self._loop.call_soon_threadsafe(submit)

    def _write_first(self, message: ProcessStarted) -> None:
        try:
            self._host.writer.submit_from_thread(message).result(NOTE_SECONDS)
        except TimeoutError:
            raise StoreUnavailable(
                f"run {self._run.id} starts a process, which has to be written down first: the "
                f"store has not done that within {NOTE_SECONDS:g} s. The process was not started"
            ) from None

    async def end(self, *, at_once: bool) -> bool:
        """End the run's processes before another worker continues it; False if some are left."""
        remains = self.started.remains()
        if remains is None:
            return True
        try:
            self._add_ended(await attribution.end(remains, at_once=at_once))
        except TimeoutError as error:
            log.error(
                "run %s: processes that it has started cannot be ended: %s", self._run.id, error
            )
            return False
        return True

    async def end_all(self, *, at_once: bool) -> bool:
        """End the run's processes and callbacks; return whether nothing it started goes on."""
        if not await self.end(at_once=at_once) or self.started.threads:
            return False
        strays = self.started.strays()
        if strays.look() and self.started.alone:
            with contextlib.suppress(TimeoutError):
                self._add_ended(await attribution.end(strays, at_once=at_once))
        if strays.look():
            names = strays.named(strays.survivors)
            log.error(
                "run %s: these may be its processes, or another run's: %s", self._run.id, names
            )
        return not strays.survivors and not self._end_callbacks()

    def _add_ended(self, names: str) -> None:
        self.ended = "; ".join(filter(None, (self.ended, names)))

    def _end_callbacks(self) -> bool:
        """Cancel what the run's code left on the event loop; return whether there was anything."""
        own, alone = not self._host.embedded, self.started.alone
        left = callbacks.end(self._loop, self._tasks, own=own, alone=alone)
        if left:
            log.warning("run %s: left on the event loop: %s", self._run.id, ", ".join(left))
        return bool(left)

    async def report(self, order: StopNotice) -> None:
        """Name the processes about to be ended: once gone, nobody outside can name them."""
        found = [self.started.remains(), self.started.strays() if self.started.alone else None]
        named = [one.named(pids) for one in found if one is not None and (pids := one.look())]
        if not named:
            return
        report = TargetReport(
            stop_id=order.stop_id,
            target=order.target,
            stage=Stage.FENCED,
            evidence=f"its worker has ended processes of it: {', '.join(named)}",
        )
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(NAMED_SECONDS):
                await self._host.writer.submit(report)

    def settled(self) -> dict[str, Any]:
        """Fields of a settlement: whether anything the run started goes on."""
        if self.started.threads or not self._tasks.still:  # these outlive the attempt
            self._record(threads=True)
            return {"also": self.ended}
        remains = self.started.remains()
        return {"also": self.ended, "cleared": remains is not None and remains.none()}
