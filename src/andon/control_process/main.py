"""The control process: the connection between a supervisor and the store.

    python -m andon.control_process.main     (started by the supervisor, again when it dies)

It polls the store every few seconds, and at once when notified: it passes orders on to the
supervisor, and writes the supervisor's events to the store. It asks the supervisor to kill its
children, and may die at any moment: the next action follows from the store, the latch and the
supervisor's answers. While the store is away, everything that must be written to it is kept.
"""

import contextlib
import faulthandler
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from andon.control.log import prepare_logging
from andon.control_process import alerts
from andon.control_process.alerts import Alerts, FleetAlerts
from andon.control_process.channel import Channel
from andon.control_process.children import Children
from andon.control_process.command_runner import CommandRun, CommandRunner
from andon.control_process.latch_sync import LatchSync
from andon.control_process.workers import SupervisedWorkers
from andon.core.lease import renew_every
from andon.errors import AndonError, Fenced, StoreError
from andon.points import point
from andon.settings import Settings, load
from andon.store import open_store
from andon.store.messages.stops import (
    Attend,
    Attendance,
    Dismiss,
    Enlist,
    StopNotice,
    StopRow,
    SupervisorRow,
    TargetReport,
)
from andon.store.store import Beat, FleetQuery, FleetState, Message, Store

log = logging.getLogger("andon")

# The poll interval where the store sends no notifications; with them, as long as leases allow.
POLL_SECONDS = 1.0
# How often the latch of this host is polled: the longest pause between two turns.
LOOK_SECONDS = 0.1
# A busy fleet notifies for every run: notifications are checked for a new order this often.
NOTIFIED_SECONDS = 0.02
HELLO_SECONDS = 30.0
# How often this process sends its heartbeat and progress to the supervisor.
HEARTBEAT_SECONDS = 0.5
# Shorter than the supervisor waits for this process; other processes find out what is not written.
LEAVE_SECONDS = 4.0


class ControlProcess:
    """One control process, for one supervisor."""

    def __init__(
        self, settings: Settings, channel_fd: int, command: CommandRun | None = None
    ) -> None:
        self.settings = settings
        self._woken = threading.Event()
        self.channel = Channel(channel_fd, self._woken.set, self._alert)
        self.children = Children()
        self.alerts = Alerts(settings)
        self.store: Store | None = None
        self.supervisor: SupervisorRow | None = None
        self.runner: CommandRunner | None = None
        self._given = command
        self._stop_listening: Callable[[], None] = lambda: None
        self._registered = False
        self._ending = False
        self._turns = 0
        self._notified = False  # by the store; otherwise the channel woke us
        self._looked = 0.0
        self._due = 0.0
        self._newest: tuple[str, ...] = ()
        self._notices: list[StopNotice] = []

    def run(self) -> int:
        """Serve until the supervisor has ended and all its events are written; the exit code."""
        self.channel.start()
        threading.Thread(target=self._send_heartbeats, name="andon-heartbeat", daemon=True).start()
        if not self._greeted():
            return 1
        while True:
            self._turns += 1
            self._woken.clear()
            over = self.channel.ended  # read first: all messages before the end are then taken
            self._take_events()
            self._turn()
            if over:
                break
            self._woken.wait(self._pause())
        self._leave()
        return 0

    def _send_heartbeats(self) -> None:
        """Send heartbeats from a thread.

        They stop when the process is frozen, and repeat the same turn when the store hangs.
        """
        while not self.channel.ended:
            self.channel.send("here", turn=self._turns)
            time.sleep(HEARTBEAT_SECONDS)

    def _greeted(self) -> bool:
        """Wait for the supervisor's hello, without which nothing can be done."""
        end = time.monotonic() + HELLO_SECONDS
        while self.supervisor is None and time.monotonic() < end:
            self._woken.clear()
            over = self.channel.ended
            self._take_events()
            if over:
                break
            if self.supervisor is None:
                self._woken.wait(0.5)
        return self.supervisor is not None

    def poll_soon(self, seconds: float = 0.0) -> None:
        """Poll the store in at most this many seconds."""
        self._due = min(self._due, time.monotonic() + seconds)

    def _pause(self) -> float:
        soon = self._due - time.monotonic()
        interval = NOTIFIED_SECONDS if self._notified else LOOK_SECONDS
        return max(0.001, min(LOOK_SECONDS, interval, soon, self.workers.wait()))

    def _wake_by_store(self) -> None:
        self._notified = True
        self._woken.set()

    def _take_events(self) -> None:
        for event in self.channel.take():
            handler = getattr(self, f"_on_{event.get('event')}", None)
            if handler is None:
                continue  # an event of a newer supervisor
            try:
                handler(event)
            except Exception:  # a malformed event must not hide the next one
                log.exception("an event of the supervisor: %s", event.get("event"))
            self._due = 0.0

    def _on_hello(self, event: dict[str, Any]) -> None:
        said = event["supervisor"]
        names = ("id", "host", "boot", "namespace", "pid", "start_ticks", "home")
        self.supervisor = one = SupervisorRow(
            **{name: said[name] for name in names}, grades=json.dumps(said.get("grades") or {})
        )
        self.children.greet(event.get("children") or [])
        self.workers = SupervisedWorkers(self, one)
        self.latch_sync = LatchSync(self, one)
        self.latch_sync.greet(event.get("receipt"))
        self.fleet_alerts = FleetAlerts(self.alerts, one.id)
        if self._given is not None:
            self.runner = CommandRunner(self._given, one, self.settings, self.channel.send)
        self._registered = False

    def _on_started(self, event: dict[str, Any]) -> None:
        self.children.started(event)

    def _on_exited(self, event: dict[str, Any]) -> None:
        child = self.children.exited(event)
        if child.kind == "worker":
            self.workers.ended(child, event)

    def _on_change(self, event: dict[str, Any]) -> None:
        self.children.changed(event)

    _on_killed = _on_frozen = _on_thawed = _on_refused = _on_gave_up = _on_change

    def _on_stalled(self, event: dict[str, Any]) -> None:
        self.workers.stalled(event)

    def _on_halted(self, event: dict[str, Any]) -> None:
        point("attend:heard")
        self.latch_sync.halted(event)

    def _on_answer(self, event: dict[str, Any]) -> None:
        if event.get("error"):
            log.warning("the supervisor could not %s: %s", event.get("to"), event["error"])

    def _on_ending(self, _event: dict[str, Any]) -> None:
        self._ending = True

    def _alert(self, event: dict[str, Any]) -> None:
        """Alert from the reading thread: a store that hangs may be the very cause of the event."""
        found = alerts.described(event)
        if found is not None:
            layer, about, text = found
            self.alerts.send(layer, about, text, event=event)

    def _turn(self) -> None:
        """Poll the latch, and the store if that is due."""
        self.latch_sync.look()
        now = time.monotonic()
        if now < self._due and not self._is_woken(now):
            return
        self._due = now + self._every
        try:
            self._poll_store()
        except StoreError as error:
            log.warning("the store does not answer: %s", error)
            self._forget_store()
        except AndonError as error:
            log.warning("polling the store: %s", error)
        except Exception:  # an error here must not end the process: stops would go unheard
            log.exception("polling the store failed")

    @property
    def _every(self) -> float:
        if self.store is None or not self.store.notifies:
            return POLL_SECONDS
        least = min(self.settings.lease_seconds, self.settings.lost_contact_seconds)
        return max(POLL_SECONDS, renew_every(least))

    def _is_woken(self, now: float) -> bool:
        """Whether the store has notified us of a new order since the last poll."""
        if self.store is None or not self._notified or now - self._looked < NOTIFIED_SECONDS:
            return False
        self._notified, self._looked = False, now
        try:
            return self._seen(self.store) != self._newest
        except StoreError:
            return True

    def _seen(self, store: Store, newest: StopRow | None = None) -> tuple[str, ...]:
        """Values that change with every order, and with the state of the command's run."""
        orders = store.stops(1) if newest is None else [newest]
        seen = tuple(f"{one.id} {one.closed_at} {one.lifted_at}" for one in orders)
        if self.runner is not None:
            row = store.run(self.runner.command.run)
            seen += (f"{row.state} {row.stop}" if row is not None else "",)
        return seen

    def _poll_store(self) -> None:
        store = self._opened()
        # First, because a halt of this host overrides everything else, and its receipt names the
        # processes that it killed.
        self.latch_sync.reconcile(store)
        self.workers.record_deaths(store)
        seen, attendance = self._exchange(store)
        self._newest = self._seen(store, seen.newest) if seen.newest or self.runner else ()
        self._notices = attendance.notices + self.workers.inherited(seen)
        if attendance.escalate_in is not None:
            self._due = min(self._due, time.monotonic() + max(0.0, attendance.escalate_in))
        self.channel.send("contact")
        if self._notices or attendance.halt is not None:
            point("attend:order")
        self.latch_sync.obey(store, attendance, self._notices)
        if attendance.halt is None:
            self.workers.begin()
        self.workers.obey(seen, self._notices)
        self.latch_sync.follow(store)
        self._advance_command(store)
        self.fleet_alerts.look(store)

    def _opened(self) -> Store:
        if self.store is None:
            self.store = open_store(self.settings.store, lean=True)
            self._stop_listening = self.store.listen(self._wake_by_store)
        if not self._registered:
            assert self.supervisor is not None
            lease = self.settings.lease_seconds
            self.write(Enlist(supervisor=self.supervisor, lease_seconds=lease))
            self._registered = True
        return self.store

    def _forget_store(self) -> None:
        """Close the store, to be reopened: a connection that has failed may never answer again."""
        store, self.store = self.store, None
        with contextlib.suppress(Exception):
            self._stop_listening()
        self._stop_listening = lambda: None
        if store is not None:
            with contextlib.suppress(Exception):
                store.close()

    def write(self, message: Message) -> Any:
        assert self.store is not None
        [outcome] = self.store.write([message])
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def report(self, message: TargetReport) -> None:
        self.write(message)
        point("attend:reported")

    def _exchange(self, store: Store) -> tuple[FleetState, Attendance]:
        """Write all that is due in one commit, Look first: an order in between is seen again."""
        assert self.supervisor is not None
        lease = self.settings.lease_seconds
        body = json.dumps({"children": self.children.described(), "latch": self.latch_sync.said()})
        batch: list[Message] = [
            FleetQuery(),
            Attend(supervisor_id=self.supervisor.id, lease_seconds=lease, body=body),
        ]
        if self.runner is not None and self.runner.worker_id:
            seconds = self.runner.lease_seconds
            batch.append(Beat(worker_id=self.runner.worker_id, lease_seconds=seconds))
        seen, attendance, *beaten = store.write(batch)
        for outcome in (seen, attendance):
            if isinstance(outcome, BaseException):
                raise outcome
        if any(isinstance(one, Fenced) for one in beaten) and self.runner is not None:
            self.runner.lost()
        if not attendance.known:
            self._registered = False
            self._due = 0.0
        return seen, attendance

    def _advance_command(self, store: Store) -> None:
        runner = self.runner
        child = self.children.by_name.get(runner.command.child) if runner is not None else None
        if runner is None or child is None:
            return
        runner.advance(store, child, self._notices)
        if not child.alive and not child.quiet:
            self._due = 0.0  # the processes it left behind are being killed

    def _leave(self) -> None:
        """Write what is still due after the supervisor has exited or died."""
        end = time.monotonic() + LEAVE_SECONDS
        while True:
            try:
                self._take_leave()
                break
            except StoreError as error:
                log.warning("the store does not answer: %s", error)
                self._forget_store()
            except Exception:  # the end of this process matters more than its last writes
                log.exception("leaving")
                break
            if time.monotonic() > end:
                break
            time.sleep(LOOK_SECONDS)
        self._forget_store()
        self.alerts.close()

    def _take_leave(self) -> None:
        assert self.supervisor is not None
        store = self._opened()
        self.workers.record_deaths(store)
        self._advance_command(store)
        if not self._ending:
            self.workers.record_gone()
            return
        if self.runner is not None:
            self.runner.leave(store)
        self.write(Dismiss(supervisor_id=self.supervisor.id))


def main() -> int:
    """The entry point; the supervisor passes its descriptor in the environment."""
    prepare_logging(0)
    faulthandler.enable()  # prints the stack when the supervisor ends this process for a stall
    said = os.environ.get("ANDON_COMMAND")
    command = msgspec.json.decode(said, type=CommandRun) if said else None
    return ControlProcess(load(), int(os.environ["ANDON_SUPERVISOR_FD"]), command).run()


if __name__ == "__main__":
    sys.exit(main())
