"""Stopping: a worker obeys the orders that the answers to its claims tell it of.

A polite one ends the run at its next boundary, and the run is given back: that proves it. After a
hard one nothing that is written counts any more; the code is cancelled again and again, and that
it has ended is said only when nothing of it executes. If something goes on, nothing is said, ever:
then somebody outside has to end this process.
"""

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from andon.core import mark as marks
from andon.core.stop import Kind, ends_worker, replaces
from andon.errors import StoreError
from andon.host.remains import Remains
from andon.points import point
from andon.runtime.attempt.exit import log
from andon.runtime.processes import attribution
from andon.store.messages.stops import Ended, Heard, Report, Told
from andon.store.store import ClaimResult

if TYPE_CHECKING:
    from andon.runtime.attempt.attempt import Attempt
    from andon.runtime.worker.worker import Worker

# How often code that does not end is cancelled again: its own last words get that long.
AGAIN_SECONDS = 0.1
# After a hard order nobody waits for last words.
HARD_SECONDS = 0.01
# A kill is carried out from outside, and whoever does that names what it ends: it comes first.
OUTSIDE_SECONDS = 0.2
# For a worker that is to end because everything is halted: all that it holds is taken from it.
HALT_SECONDS = 1.0

_Key = tuple[str, int]  # a run, and the fence under which it was held


class Stopping:
    """What one worker knows of the orders about its runs and itself."""

    def __init__(self, worker: "Worker") -> None:
        self._worker = worker
        self.halted: Told | None = None  # the order about this process itself
        self._heard: set[tuple[str, str]] = set()
        self._hard: set[_Key] = set()  # their end is to be said
        self._saying: set[object] = set()
        self._lingering: list[Attempt] = []  # over, and something of them goes on
        self._pressing: set[asyncio.Task[None]] = set()
        self._ending_left: set[_Key] = set()
        self._unsaid: dict[_Key, str] = {}  # what attempts had ended that could not settle
        self._goes = False  # a run of it was killed, and nobody outside has ended it yet

    def obey(self, result: ClaimResult) -> None:
        """Do what was told; it is told again until it is done, so doing it twice is once."""
        told = sorted(result.told, key=lambda one: one.hard)
        self._heard &= {(one.stop_id, one.target) for one in told}
        self._hard &= {(one.run_id or "", one.fence) for one in told if one.hard}
        self._lingering = [one for one in self._lingering if _goes_on(one)]
        if told:
            point("stop:told")
            self._hear([one for one in told if not one.hard])
        for one in told:
            if one.run_id is None:
                self._halt(one)
            elif one.hard:
                self._kill(one, one.run_id)
                self._end_process(one)
            else:
                self._ask(one, one.run_id)
        if result.halted:
            self._kill_all(next((one for one in told if one.kind == Kind.HALT), _UNNAMED))

    async def hear_for_ever(self) -> None:
        """While it drains a worker claims nothing, and is told all the same."""
        worker = self._worker
        while True:
            worker.woken.clear()
            with contextlib.suppress(StoreError):
                heard = worker.loop.run_in_executor(None, worker.store.hear, worker.worker_id)
                self.obey(await heard)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(worker.settings.poll_seconds):
                    await worker.woken.wait()

    # ── polite ────────────────────────────────────────────────────────────────────────────────

    def _hear(self, told: list[Told]) -> None:
        """Say that it was heard, once, of those that are in hand."""
        news = {
            (one.stop_id, one.target): one.run_id
            for one in told
            if one.run_id is not None and self._find(one.run_id, one.fence) is not None
        }
        news = {key: run_id for key, run_id in news.items() if key not in self._heard}
        if news:
            self._heard |= news.keys()
            runs = tuple(run_id for run_id in news.values() if run_id is not None)
            message = Heard(worker_id=self._worker.worker_id, run_ids=runs)
            self._say(message, lambda: self._heard.difference_update(news))

    def _ask(self, told: Told, run_id: str) -> None:
        attempt = self._find(run_id, told.fence)
        if attempt is None or not _counts(told, attempt.order):
            return
        attempt.be_told(told)
        attempt.press()
        if attempt.reason is None:
            task = self._worker.loop.create_task(_press(attempt), name=f"andon-stop-{run_id}")
            self._pressing.add(task)
            task.add_done_callback(self._pressing.discard)

    # ── hard ──────────────────────────────────────────────────────────────────────────────────

    def _kill(self, told: Told, run_id: str) -> None:
        self._hard.add((run_id, told.fence))
        attempt = self._find(run_id, told.fence)
        if attempt is None:
            self._end_left(told, (run_id, told.fence))
        elif attempt.reason != "killed":
            attempt.be_told(told)
            attempt.leave("killed")

    def _end_process(self, told: Told) -> None:
        """A kill ends the process that executes the run. Without a supervisor it ends by itself.

        A command on this host is sooner. One elsewhere can neither reach it nor prove its end.
        """
        worker = self._worker
        if told.kind != Kind.KILL or told.mark is not None or worker.supervisor is not None:
            return
        if ends_worker(told.spare, embedded=worker.embedded) and not self._goes:
            self._goes = True
            worker.loop.call_later(OUTSIDE_SECONDS, self._go)

    def _go(self) -> None:
        self._worker.tell("a run of it was killed", HALT_SECONDS)
        self._worker.tell_again()

    def _kill_all(self, told: Told) -> None:
        for attempt in self._worker.active:
            if attempt.reason != "killed":
                attempt.be_told(told)
                attempt.leave("killed")

    def over(self, attempt: "Attempt") -> None:
        """An attempt has ended, in whatever way."""
        if _goes_on(attempt):
            self._lingering.append(attempt)
            attempt.tasks.on_still = partial(self._worker.post, self._worker.wake)
        key = attempt.run.id, attempt.fence.counter
        if key in self._hard:
            self._say_ended(key, attempt.also)
        elif attempt.also and attempt.settled.result() == "fenced":  # it became hard meanwhile
            self._unsaid[key] = attempt.also

    def _end_left(self, told: Told, key: _Key) -> None:
        """The attempt has ended before; what it had started may not have."""
        if told.mark is None:
            self._say_ended(key, self._unsaid.get(key, ""))
        elif key not in self._ending_left:
            self._ending_left.add(key)
            late = OUTSIDE_SECONDS if told.kind == Kind.KILL else 0.0
            task = self._worker.loop.create_task(self._end_marked(told.mark, key, late))
            self._pressing.add(task)
            task.add_done_callback(self._pressing.discard)

    async def _end_marked(self, mark: int, key: _Key, late: float) -> None:
        await asyncio.sleep(late)
        remains = Remains(matches=lambda found: marks.belongs(found, mark))
        try:
            also = await attribution.end(remains, at_once=False)
        except TimeoutError as error:
            log.error("run %s: processes that it has started cannot be ended: %s", key[0], error)
        else:
            self._say_ended(key, also)
        finally:
            self._ending_left.discard(key)

    def _say_ended(self, key: _Key, also: str = "") -> None:
        """Say that nothing of it executes any more, if that is certain."""
        if key in self._saying or any(_key(one) == key for one in self._lingering):
            return
        run_id, fence = key
        self._saying.add(key)
        worker_id = self._worker.worker_id
        message = Ended(worker_id=worker_id, run_id=run_id, fence=fence, also=also)
        self._say(message, then=lambda: self._said(key), at_last=lambda: self._forget(key))

    def _said(self, key: _Key) -> None:
        self._unsaid.pop(key, None)
        point("stop:ended")

    def _forget(self, key: object) -> None:
        self._saying.discard(key)

    # ── everything ────────────────────────────────────────────────────────────────────────────

    def _halt(self, told: Told) -> None:
        """The process itself is meant: it ends, unless it is somebody else's program."""
        worker = self._worker
        self._kill_all(told)
        if worker.only is None:
            if self.halted is None:
                self.halted = told
                worker.on_halted(told)
                worker.tell("halted", HALT_SECONDS)
                worker.tell_again()
        elif not worker.active and not self._lingering and told.target not in self._saying:
            self._saying.add(told.target)
            report = Report(
                stop_id=told.stop_id,
                target=told.target,
                stage="verified",
                evidence="its worker: it holds nothing, and nothing of a run executes",
            )
            self._say(report, at_last=lambda: self._forget(told.target))

    # ── the rest ──────────────────────────────────────────────────────────────────────────────

    def _find(self, run_id: str, fence: int) -> "Attempt | None":
        key = run_id, fence
        return next((one for one in self._worker.active if _key(one) == key), None)

    def _say(
        self,
        message: Heard | Ended | Report,
        otherwise: Callable[[], object] = lambda: None,
        *,
        then: Callable[[], object] = lambda: None,
        at_last: Callable[[], object] = lambda: None,
    ) -> None:
        """Write it without waiting. What does not arrive is told again, and said again."""

        def said(done: "asyncio.Future[Any]") -> None:
            at_last()
            error = None if done.cancelled() else done.exception()
            if done.cancelled() or error is not None:
                otherwise()
                log.warning("a stop could not be confirmed yet: %s", error)
            else:
                then()

        self._worker.writer.submit(message).add_done_callback(said)


_UNNAMED = Told(stop_id="", kind="halt", target="", run_id=None, worker=None, fence=0, hard=True)


def _key(attempt: "Attempt") -> _Key:
    return attempt.run.id, attempt.fence.counter


def _goes_on(attempt: "Attempt") -> bool:
    """Whether a task of it executes, or a thread: also one that its own code has started."""
    return not attempt.tasks.still or bool(attempt.started.threads)


def _counts(told: Told, before: Told | None) -> bool:
    """Whether an order changes what is being done already."""
    return before is None or (not before.hard and replaces(Kind(told.kind), Kind(before.kind)))


async def _press(attempt: "Attempt") -> None:
    """Until the attempt leaves, or has ended by itself."""
    while attempt.reason is None and not attempt.settled.done():
        attempt.press()
        await attempt.moved(AGAIN_SECONDS)
