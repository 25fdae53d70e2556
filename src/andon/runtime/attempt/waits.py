"""Waits for inbox messages (`InboxMessage`: events, answers, ends of children) and for times.

A run that does nothing but wait is suspended and holds neither a process nor memory. The message
or the time wakes it, and its code is replayed.
"""

import asyncio
import contextlib
import contextvars
import weakref
from typing import Any

import msgspec

from andon.points import point
from andon.runtime.attempt import branch
from andon.runtime.attempt.exit import Exit
from andon.runtime.attempt.host import Host
from andon.runtime.attempt.replay_order import Turns
from andon.store.messages.rows import InboxMessage

# Holding a wait shorter than this in memory is cheaper than a suspension and a new claim.
LINGER_SECONDS = 1.0
# How often to check whether a run does nothing but wait, if nothing reports a change.
AGAIN_SECONDS = 0.5
DAY_SECONDS = 86_400.0


class Wait(msgspec.Struct, kw_only=True):
    """Something a run waits for: an inbox message, a time, or the first of both."""

    kind: str
    name: str
    wake_at: float | None = None
    future: Any = None
    timer: Any = None


class Waits:
    """The waits of an attempt, and the messages that its run has received."""

    def __init__(
        self, host: Host, exit_: Exit, tasks: branch.Tasks, turns: Turns, *, plain: bool
    ) -> None:
        self._host, self._exit, self._tasks, self._turns = host, exit_, tasks, turns
        self._plain = plain  # the agent is a plain function, in a thread
        self._loop = asyncio.get_running_loop()
        self.open: list[Wait] = []
        self.left: list[Wait] = []  # those that were open when the attempt left
        self.inbox: list[InboxMessage] = []
        self._taken: set[int] = set()  # ids of messages that this attempt has used
        self._considering = False
        self._again: asyncio.TimerHandle | None = None

    def take(self, kind: str, name: str) -> InboxMessage | None:
        for message in self.inbox:
            if (message.kind, message.name) == (kind, name):
                self.inbox.remove(message)
                self._taken.add(message.id)
                return message
        return None

    def has(self, kind: str, name: str) -> bool:
        return any((one.kind, one.name) == (kind, name) for one in self.inbox)

    def put_back(self, message: InboxMessage) -> None:
        """Return a message that was taken but not used."""
        self._taken.discard(message.id)
        self.inbox.insert(0, message)

    def receive(self, messages: list[InboxMessage]) -> None:
        """Deliver new messages to waits that are held in memory."""
        # A message that was read again before its use was committed is not a second message.
        known = {message.id for message in self.inbox} | self._taken
        self.inbox += [message for message in messages if message.id not in known]
        for wait in self.open:
            if wait.future.done():
                continue
            message = self.take(wait.kind, wait.name)
            if message is not None:
                wait.future.set_result(message)
        self.consider_soon()

    async def wait_for(
        self, kind: str, name: str, wake_at: float | None = None
    ) -> InboxMessage | None:
        """Wait for a message; None once `wake_at` has come. The run may be suspended meanwhile."""
        await self._turns.end()
        message = self.take(kind, name)
        if message is not None:
            return message
        if wake_at is not None and wake_at <= self._host.clock.now():
            return None
        self._exit.check()
        if self._exit.stopping and not self._exit.shielded:
            raise await self._exit.give_way()
        wait = Wait(kind=kind, name=name, wake_at=wake_at, future=self._loop.create_future())
        task = asyncio.current_task()
        self.open.append(wait)
        self._tasks.waiting.add(task)
        self._end_at(wait)
        point("wait:registered")
        self.consider_soon()
        try:
            found: InboxMessage | None = await wait.future
        except asyncio.CancelledError:
            if wait.future.done() and not wait.future.cancelled() and wait.future.result():
                self.put_back(wait.future.result())
            raise
        finally:
            self.open.remove(wait)
            self._tasks.waiting.discard(task)
            if wait.timer is not None:
                wait.timer.cancel()
            # An error that ends the wait holds this frame: break the cycle back to the error.
            wait.future = task = None
        return found

    def _end_at(self, wait: Wait) -> None:
        """End the wait at its time, in hops of a day: event loops refuse timers far ahead."""
        if wait.wake_at is None or wait.future.done():
            return
        left = wait.wake_at - self._host.clock.now()
        if left <= 0:
            wait.future.set_result(None)
        else:
            wait.timer = branch.call_later(min(left, DAY_SECONDS), self._end_at, wait)

    def stop(self) -> None:
        """End all waits, because the attempt leaves."""
        self.left = list(self.open)
        for wait in self.open:
            if not wait.future.done():
                wait.future.set_exception(self._exit.stopped(self._exit.reason or ""))

    def consider_from_thread(self) -> None:
        """React to the end of a thread or process of the run. Safe from any thread."""
        if self.open or self._exit.order is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._consider_or_notify)

    def _consider_or_notify(self) -> None:
        self.consider_soon()
        if self._exit.order is not None:
            self._exit.notify()

    def consider_soon(self) -> None:
        """Check soon whether the run does nothing but wait: something has changed."""
        if self.open and self._exit.reason is None and not self._considering:
            self._considering = True
            self._loop.call_soon(self._consider)

    def _consider(self) -> None:
        """Suspend the run if it does nothing but wait, for longer than LINGER_SECONDS."""
        self._considering = False
        leaving = self._exit.reason is not None
        if leaving or self._exit.hands or any(wait.future.done() for wait in self.open):
            return
        main = self._tasks.main
        if not self.open or main is None or main.done():
            return  # the agent's call has ended: no code depends on the waits that are left
        if len(self._tasks.executing) > self._plain:  # beside the thread of a plain agent itself
            # A call that ran into its timeout still executes in its thread: a stop of the
            # suspended run would be reported as proven while that thread acts.
            self._consider_again()
            return
        if not self._plain and not self._tasks.all_wait():
            self._consider_again()
            return
        soon = self._host.clock.now() + LINGER_SECONDS
        if any(wait.wake_at is not None and wait.wake_at < soon for wait in self.open):
            return
        if not self._host.embedded and not self._tasks.started.claim_strays():
            self._consider_again()  # a stop can be proven only while the run is held here
            return
        point("attempt:suspended")
        self._exit.leave("suspended")

    def _consider_again(self) -> None:
        """Check again later: threads, processes or timers of the run may end without notice."""
        if self._again is None:
            self._again = contextvars.Context().run(  # the run's own context would hold it
                branch.call_later, AGAIN_SECONDS, _considered_again, weakref.ref(self)
            )


def _considered_again(waits: "weakref.ref[Waits]") -> None:
    """Run `consider_soon` from a timer that does not keep the attempt in memory."""
    found = waits()
    if found is not None:
        found._again = None  # noqa: SLF001
        found.consider_soon()
