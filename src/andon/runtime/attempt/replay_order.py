"""Replay order: a run's code gets its answers one at a time, in the order of their entries.

The next thing that code does may depend on which of its branches was first: asyncio.wait,
as_completed, a queue, a shared list. So an answer is given once all earlier ones have been given
and the code has come to rest after them. This holds on replay as in the first execution, and new
operations start only after all replayed ones.

Code that was changed, or that waits for something outside, may never ask for the next answer. The
wait for it is limited: then later answers are given, and a divergence is found by its place.
"""

import asyncio
from collections import deque

from andon.runtime.attempt.branch import Tasks, call_later

# How long code may take to ask for an answer while others wait for their turn.
PATIENCE_SECONDS = 2.0
# The end of a task reaches its waiters through callbacks, each of which takes a turn of the loop.
REST_TURNS = 4

_END = -1  # the turn of new operations, after all replayed ones


class Turns:
    """The answers that a run's code has yet to receive, and the tasks that wait for them."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self.replayed: set[int] = set()  # recorded answers that are yet to be given
        self._order: deque[int] = deque()
        self._left: set[int] = set()
        self._waiting: dict[int, list[asyncio.Future[None]]] = {}
        self._stopped: BaseException | None = None
        self._looking = False
        self._rest, self._since = 0, 0.0

    def expect(self, answers: list[int]) -> None:
        """Set the answers that the journal holds, in their order."""
        self._order, self._left, self.replayed = deque(answers), set(answers), set(answers)

    def forget(self) -> None:
        """Drop all expected answers: the code continues from a later place than the start."""
        self.expect([])
        for answer in self._waiting:
            self._release(answer)

    def enter(self, answer: int) -> None:
        """Add an answer whose entry is being written."""
        if len(self._tasks.living) > 1:
            self._order.append(answer)
            self._left.add(answer)

    def leave(self, answer: int) -> None:
        """Drop an answer that no code waits for any more."""
        if answer in self._left:
            self._order.remove(answer)
            self._forget(answer)

    async def take(self, answer: int) -> None:
        """Wait for the turn of this answer."""
        if answer not in self._left:
            return
        if len(self._tasks.living) == 1 and self._order[0] == answer:
            self._next()
            return
        recorded = answer in self.replayed
        try:
            await self._wait(answer)
        except asyncio.CancelledError:
            if not recorded:  # the code asks for a recorded answer again
                self.leave(answer)
            raise
        except BaseException:
            self.leave(answer)
            raise

    async def end(self) -> None:
        """Wait until all answers of the journal have been given."""
        if self.replayed:
            await self._wait(_END)

    def stop(self, error: BaseException) -> None:
        self._stopped = error
        for futures in self._waiting.values():
            for future in futures:
                if not future.done():
                    future.set_exception(error)

    def _next(self) -> int:
        answer = self._order.popleft()
        self._forget(answer)
        self._since = self._loop.time()
        return answer

    def _forget(self, answer: int) -> None:
        self._left.discard(answer)
        self.replayed.discard(answer)

    async def _wait(self, answer: int) -> None:
        if self._stopped is not None:
            raise self._stopped
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.setdefault(answer, []).append(future)
        task = asyncio.current_task()
        self._tasks.park(task)
        if not self._looking:
            self._looking, self._rest, self._since = True, 0, self._loop.time()
            self._loop.call_soon(self._look)
        try:
            await future
        finally:
            self._tasks.unpark(task)
            self._waiting[answer].remove(future)
            if not self._waiting[answer]:
                del self._waiting[answer]

    def _look(self) -> None:
        """Check in each turn of the loop, while a task waits, whether the code is at rest."""
        if not self._waiting:
            self._looking = False
            return
        self._rest = 0 if self._tasks.any_runs() else self._rest + 1
        if self._rest < REST_TURNS and not (self._rest and self._idle()):
            self._loop.call_soon(self._look)
        elif self._give():
            self._rest = 0
            self._loop.call_soon(self._look)
        else:
            call_later(0.005, self._look)

    def _idle(self) -> bool:
        """Whether the loop visibly has nothing else to do, so that all code is at rest."""
        ready = getattr(self._loop, "_ready", None)
        return ready is not None and not ready

    def _give(self) -> bool:
        """Give the next answer; return False if no task has asked for it yet."""
        while self.replayed and self._order[0] not in self._waiting:
            if not self._hopeless():
                return False
            self._next()
        if not self.replayed and _END in self._waiting:
            return self._release(_END)
        return bool(self._order) and self._order[0] in self._waiting and self._release(self._next())

    def _release(self, answer: int) -> bool:
        for future in self._waiting[answer]:
            if not future.done():
                future.set_result(None)
        return True

    def _hopeless(self) -> bool:
        """Whether no task will ask for the next answer: all wait for something else."""
        if self._loop.time() - self._since > PATIENCE_SECONDS:
            return True
        return self._tasks.all_wait(parked=True)
