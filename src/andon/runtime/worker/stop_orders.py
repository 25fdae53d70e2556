"""Stop orders: the worker obeys those that the store returns with each claim.

A polite order ends the run at its next boundary; returning the run proves the stop. After a hard
order, nothing the run writes counts any more: the worker cancels its code again and again, and
reports the end only when none of it executes. If some code still executes, the worker never
reports an end, and something outside has to end this process.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from andon.core import mark as marks
from andon.core.stop import StopKind, ends_worker, replaces
from andon.errors import StoreError
from andon.host.remains import Remains
from andon.points import point
from andon.runtime.attempt.exit import log
from andon.runtime.processes import attribution
from andon.store.messages.stops import Ended, Heard, StopNotice, TargetReport
from andon.store.store import ClaimResult

if TYPE_CHECKING:
    from andon.runtime.attempt.attempt import Attempt
    from andon.runtime.worker.worker import Worker

# How often code that does not end is cancelled again; this is the time it gets to unwind.
AGAIN_SECONDS = 0.1
# After a hard order the code gets no time to unwind.
HARD_SECONDS = 0.01
# The command that kills from outside names what it ends, so it gets to act first.
OUTSIDE_SECONDS = 0.2
# For a worker that ends because everything is halted: all its runs are taken from it.
HALT_SECONDS = 1.0

_Key = tuple[str, int]  # a run, and the fence under which it was held


class WorkerStops:
    """The stop orders about one worker and its runs."""

    def __init__(self, worker: "Worker") -> None:
        self._worker = worker
        self.halted: StopNotice | None = None  # the order about this process itself
        self._acknowledged: set[tuple[str, str]] = set()
        self._hard: set[_Key] = set()  # runs whose end must be reported
        self._reporting: set[object] = set()
        self._lingering: list[Attempt] = []  # over, but some of their code still executes
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending_left: set[_Key] = set()
        # By attempt that could not settle: the processes it had ended.
        self._ended_names: dict[_Key, str] = {}
        self._ending_process = False  # after a kill, unless something outside does so first

    def obey(self, result: ClaimResult) -> None:
        """Carry out the orders in a claim's answer; idempotent, as they repeat until done."""
        orders = sorted(result.notices, key=lambda one: one.hard)
        self._acknowledged &= {(one.stop_id, one.target) for one in orders}
        self._hard &= {(one.run_id or "", one.fence) for one in orders if one.hard}
        self._lingering = [one for one in self._lingering if _still_executes(one)]
        if orders:
            point("stop:told")
            self._acknowledge([one for one in orders if not one.hard])
        for one in orders:
            if one.run_id is None:
                self._halt(one)
            elif one.hard:
                self._kill(one, one.run_id)
                self._end_process(one)
            else:
                self._stop_politely(one, one.run_id)
        if result.halted:
            self._kill_all(next((one for one in orders if one.kind == StopKind.HALT), _UNNAMED))

    async def fetch_for_ever(self) -> None:
        """Fetch orders during a drain, when the worker no longer claims."""
        worker = self._worker
        while True:
            worker.woken.clear()
            with contextlib.suppress(StoreError):
                fetching = worker.loop.run_in_executor(
                    None, worker.store.orders_for, worker.worker_id
                )
                self.obey(await fetching)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(worker.settings.poll_seconds):
                    await worker.woken.wait()

    def _acknowledge(self, orders: list[StopNotice]) -> None:
        """Confirm receipt, once, of the orders about runs in hand."""
        new = {
            (one.stop_id, one.target): one.run_id
            for one in orders
            if one.run_id is not None and self._find(one.run_id, one.fence) is not None
        }
        new = {key: run_id for key, run_id in new.items() if key not in self._acknowledged}
        if new:
            self._acknowledged |= new.keys()
            message = Heard(worker_id=self._worker.worker_id, run_ids=tuple(new.values()))
            self._send(message, failed=lambda: self._acknowledged.difference_update(new))

    def _stop_politely(self, order: StopNotice, run_id: str) -> None:
        attempt = self._find(run_id, order.fence)
        if attempt is None or not _changes(order, attempt.exit.order):
            return
        attempt.exit.take_order(order)
        attempt.exit.press()
        if attempt.exit.reason is None:
            self._spawn(_press(attempt))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._worker.loop.create_task(work, name="andon-stop")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _kill(self, order: StopNotice, run_id: str) -> None:
        self._hard.add((run_id, order.fence))
        attempt = self._find(run_id, order.fence)
        if attempt is None:
            self._end_left(order, (run_id, order.fence))
        elif attempt.exit.reason != "killed":
            attempt.exit.take_order(order)
            attempt.exit.leave("killed")

    def _end_process(self, order: StopNotice) -> None:
        """End this process after a kill of one of its runs, unless a supervisor does.

        A command on this host ends the process sooner. A command elsewhere can neither reach the
        process nor prove its end.
        """
        worker = self._worker
        if order.kind != StopKind.KILL or order.mark is not None or worker.supervisor is not None:
            return
        if ends_worker(order.spare, embedded=worker.embedded) and not self._ending_process:
            self._ending_process = True
            worker.loop.call_later(OUTSIDE_SECONDS, self._end_worker)

    def _end_worker(self) -> None:
        self._worker.tell("a run of it was killed", HALT_SECONDS)
        self._worker.hurry()

    def _kill_all(self, order: StopNotice) -> None:
        for attempt in self._worker.active:
            if attempt.exit.reason != "killed":
                attempt.exit.take_order(order)
                attempt.exit.leave("killed")

    def attempt_ended(self, attempt: "Attempt") -> None:
        """Note that an attempt has ended, in whatever way."""
        if _still_executes(attempt):
            self._lingering.append(attempt)
            attempt.tasks.on_still = partial(self._worker.post, self._worker.wake)
        key = attempt.run.id, attempt.fence.counter
        if key in self._hard:
            self._report_ended(key, attempt.processes.ended)
        elif (
            attempt.processes.ended and attempt.settled.result() == "fenced"
        ):  # it turned hard meanwhile
            self._ended_names[key] = attempt.processes.ended

    def _end_left(self, order: StopNotice, key: _Key) -> None:
        """End the processes a finished attempt may have left behind, then report its end."""
        if order.mark is None:
            self._report_ended(key, self._ended_names.get(key, ""))
        elif key not in self._ending_left:
            self._ending_left.add(key)
            late = OUTSIDE_SECONDS if order.kind == StopKind.KILL else 0.0
            self._spawn(self._end_marked(order.mark, key, late))

    async def _end_marked(self, mark: int, key: _Key, late: float) -> None:
        await asyncio.sleep(late)
        remains = Remains(matches=lambda found: marks.belongs(found, mark))
        try:
            also = await attribution.end(remains, at_once=False)
        except TimeoutError as error:
            log.error("run %s: processes that it has started cannot be ended: %s", key[0], error)
        else:
            self._report_ended(key, also)
        finally:
            self._ending_left.discard(key)

    def _report_ended(self, key: _Key, also: str = "") -> None:
        """Report that this worker no longer executes a run, if that is certain."""
        if key in self._reporting or any(_key(one) == key for one in self._lingering):
            return
        run_id, fence = key
        self._reporting.add(key)
        worker_id = self._worker.worker_id
        message = Ended(worker_id=worker_id, run_id=run_id, fence=fence, also=also)

        def succeeded() -> None:
            self._ended_names.pop(key, None)
            point("stop:ended")

        self._send(message, succeeded, finished=lambda: self._reporting.discard(key))

    def _halt(self, order: StopNotice) -> None:
        """End this process, unless the worker is embedded in a user's program."""
        worker = self._worker
        self._kill_all(order)
        if worker.only is None:
            if self.halted is None:
                self.halted = order
                worker.on_halted(order)
                worker.tell("halted", HALT_SECONDS)
                worker.hurry()
        elif not worker.active and not self._lingering and order.target not in self._reporting:
            self._reporting.add(order.target)
            report = TargetReport(
                stop_id=order.stop_id,
                target=order.target,
                stage="verified",
                evidence="its worker: it holds nothing, and nothing of a run executes",
            )
            self._send(report, finished=lambda: self._reporting.discard(order.target))

    def _find(self, run_id: str, fence: int) -> "Attempt | None":
        key = run_id, fence
        return next((one for one in self._worker.active if _key(one) == key), None)

    def _send(
        self,
        message: Heard | Ended | TargetReport,
        succeeded: Callable[[], object] = lambda: None,
        *,
        failed: Callable[[], object] = lambda: None,
        finished: Callable[[], object] = lambda: None,
    ) -> None:
        """Submit a message without waiting. The store repeats an order whose message was lost."""

        def sent(done: "asyncio.Future[Any]") -> None:
            finished()
            error = None if done.cancelled() else done.exception()
            if done.cancelled() or error is not None:
                failed()
                log.warning("a stop could not be confirmed yet: %s", error)
            else:
                succeeded()

        self._worker.writer.submit(message).add_done_callback(sent)


_UNNAMED = StopNotice(
    stop_id="", kind="halt", target="", run_id=None, worker=None, fence=0, hard=True
)


def _key(attempt: "Attempt") -> _Key:
    return attempt.run.id, attempt.fence.counter


def _still_executes(attempt: "Attempt") -> bool:
    """Whether any task or thread of an attempt executes, including threads its code started."""
    return not attempt.tasks.still or bool(attempt.started.threads)


def _changes(order: StopNotice, before: StopNotice | None) -> bool:
    """Whether an order changes what is already being done."""
    return before is None or (
        not before.hard and replaces(StopKind(order.kind), StopKind(before.kind))
    )


async def _press(attempt: "Attempt") -> None:
    """Press the attempt until it leaves or ends by itself."""
    while attempt.exit.reason is None and not attempt.settled.done():
        attempt.exit.press()
        await attempt.exit.changed(AGAIN_SECONDS)
