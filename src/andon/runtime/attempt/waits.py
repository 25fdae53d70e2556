"""Waits for inbox messages (`InboxMessage`: events, answers, ends of children) and for times.

A run that does nothing but wait is suspended and holds neither a process nor memory. The message
or the time wakes it, and its code is replayed.
"""

import asyncio
import contextlib
import contextvars
import weakref
from typing import Any

from andon.points import point
from andon.runtime.attempt import branch
from andon.runtime.attempt.exit import Hand, Host, Wait
from andon.runtime.attempt.journal import Journaling
from andon.store.messages.rows import InboxMessage
from andon.store.store import Claimed

# Holding a wait shorter than this in memory is cheaper than a suspension and a new claim.
LINGER_SECONDS = 1.0
# How often to check whether a run does nothing but wait, if nothing reports a change.
AGAIN_SECONDS = 0.5
DAY_SECONDS = 86_400.0


class Waiting(Journaling):
    """The part of an attempt that waits."""

    def __init__(self, host: Host, run: Claimed, agent: Any) -> None:
        super().__init__(host, run, agent)
        self.inbox: list[InboxMessage] = []
        self.sync = False  # the agent is a plain function, in a thread
        self._taken: set[int] = set()  # ids of messages that this attempt has used
        self._considering = False
        self._again: asyncio.TimerHandle | None = None
        self.tasks.on_still = self._from_thread

    def take_message(self, kind: str, name: str) -> InboxMessage | None:
        for message in self.inbox:
            if (message.kind, message.name) == (kind, name):
                self.inbox.remove(message)
                self._taken.add(message.id)
                return message
        return None

    def has_message(self, kind: str, name: str) -> bool:
        return any((one.kind, one.name) == (kind, name) for one in self.inbox)

    def put_back(self, message: InboxMessage) -> None:
        """Return a message that was taken but not used."""
        self._taken.discard(message.id)
        self.inbox.insert(0, message)

    async def wait_for(
        self, kind: str, name: str, wake_at: float | None = None
    ) -> InboxMessage | None:
        """Wait for a message; None once `wake_at` has come. The run may be suspended meanwhile."""
        if self.turns.replayed:
            await self.turns.end()
        message = self.take_message(kind, name)
        if message is not None:
            return message
        if wake_at is not None and wake_at <= self.host.clock.now():
            return None
        self.check()
        if self.stopping and not self.shielded:
            raise await self.give_way()
        wait = Wait(kind=kind, name=name, wake_at=wake_at, future=self.loop.create_future())
        wait.task = asyncio.current_task()
        self.waits.append(wait)
        self._ring_at(wait)
        point("wait:registered")
        self.consider_soon()
        try:
            found: InboxMessage | None = await wait.future
        except asyncio.CancelledError:
            if wait.future.done() and not wait.future.cancelled() and wait.future.result():
                self.put_back(wait.future.result())
            raise
        finally:
            self.waits.remove(wait)
            if wait.timer is not None:
                wait.timer.cancel()
            # An error that ends the wait holds this frame: break the cycle back to the error.
            wait.future = wait.task = None
        return found

    def _ring_at(self, wait: Wait) -> None:
        """End the wait at its time, in hops of a day: event loops refuse timers far ahead."""
        if wait.wake_at is None or wait.future.done():
            return
        left = wait.wake_at - self.host.clock.now()
        if left <= 0:
            wait.future.set_result(None)
        else:
            wait.timer = branch.call_later(min(left, DAY_SECONDS), self._ring_at, wait)

    def receive(self, messages: list[InboxMessage]) -> None:
        """Deliver new messages to waits that are held in memory."""
        # A message that was read again before its use was committed is not a second message.
        known = {message.id for message in self.inbox} | self._taken
        self.inbox += [message for message in messages if message.id not in known]
        for wait in self.waits:
            if wait.future.done():
                continue
            message = self.take_message(wait.kind, wait.name)
            if message is not None:
                wait.future.set_result(message)
        self.consider_soon()

    def _from_thread(self) -> None:
        """React to the end of a thread or process of the run. Safe from any thread."""
        if self.waits or self.order is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self._grown_still)

    def _grown_still(self) -> None:
        self.consider_soon()
        if self.order is not None:
            self.move()

    def consider_soon(self) -> None:
        if self.waits and self.reason is None and not self._considering:
            self._considering = True
            self.loop.call_soon(self._consider)

    def _consider(self) -> None:
        """Suspend the run if it does nothing but wait, for longer than LINGER_SECONDS."""
        self._considering = False
        pending = [wait for wait in self.waits if not wait.future.done()]
        if self.active or self.reason is not None or not pending or len(pending) < len(self.waits):
            return
        if self.main is None or self.main.done():
            return  # the agent's call has ended: no code depends on the waits that are left
        if len(self.tasks.executing) > self.sync:  # beside the thread of a plain agent itself
            # A call that ran into its timeout still executes in its thread: a stop of the
            # suspended run would be reported as proven while that thread acts.
            self._consider_again()
            return
        if not self.sync and not self.tasks.all_wait({wait.task for wait in pending}):
            self._consider_again()
            return
        soon = self.host.clock.now() + LINGER_SECONDS
        if any(wait.wake_at is not None and wait.wake_at < soon for wait in pending):
            return
        if not self.host.embedded and not self.started.claim_strays():
            self._consider_again()  # a stop can be proven only while the run is held here
            return
        point("attempt:suspended")
        self.leave("suspended")

    def _consider_again(self) -> None:
        """Check again later: threads, processes or timers of the run may end without notice."""
        if self._again is None:
            self._again = contextvars.Context().run(  # the run's own context would hold it
                branch.call_later, AGAIN_SECONDS, _considered_again, weakref.ref(self)
            )

    def begin_operating(self, name: str, *, cuttable: bool = False) -> Hand:
        task = asyncio.current_task(self.loop)
        hand = Hand(name=name, since=self.loop.time(), task=task, cuttable=cuttable)
        self.hands[hand] = None
        return hand

    def done_operating(self, hand: Hand) -> None:
        del self.hands[hand]
        hand.task = None  # an error that ends the operation holds it, and with it this task
        self.host.operations += 1
        if self.waits:
            self.consider_soon()
        if self.order is not None:
            self.move()


def _considered_again(attempt: "weakref.ref[Waiting]") -> None:
    """Run `consider_soon` from a timer that does not keep the attempt in memory."""
    found = attempt()
    if found is not None:
        found._again = None  # noqa: SLF001
        found.consider_soon()
