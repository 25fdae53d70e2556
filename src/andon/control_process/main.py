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
from andon.control_process import overruns
from andon.control_process.alerts import Alerts
from andon.control_process.black_box import Box, CommandRun
from andon.control_process.channel import Channel
from andon.control_process.children import Wards
from andon.control_process.latch_sync import Latching
from andon.control_process.overruns import Overruns
from andon.control_process.workers import Tending
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
ATTEND_SECONDS = 1.0
# How often the latch of this host is polled: the longest pause between two turns.
LOOK_SECONDS = 0.1
# A busy fleet notifies for every run: notifications are checked for a new order this often.
RING_SECONDS = 0.02
HELLO_SECONDS = 30.0
# How often this process sends its heartbeat and progress to the supervisor.
HERE_SECONDS = 0.5
# Shorter than the supervisor waits for this process; other processes find out what is not written.
LEAVE_SECONDS = 4.0


class Attending:
    """One control process, for one supervisor."""

    def __init__(self, settings: Settings, wire_fd: int, command: CommandRun | None = None) -> None:
        self.settings = settings
        self._rung = threading.Event()
        self.wire = Channel(wire_fd, self._rung.set, self._alert)
        self.wards = Wards()
        self.alerts = Alerts(settings)
        self.store: Store | None = None
        self.supervisor: SupervisorRow | None = None
        self.box: Box | None = None
        self._command = command
        self._stop_listening: Callable[[], None] = lambda: None
        self._enlisted = False
        self._ending = False
        self._turns = 0
        self._rang = False  # by the store; otherwise the channel woke us
        self._looked = 0.0
        self._due = 0.0
        self._newest: tuple[str, ...] = ()
        self._told: list[StopNotice] = []

    def run(self) -> int:
        """Serve until the supervisor has ended and all its events are written; the exit code."""
        self.wire.start()
        threading.Thread(target=self._be_here, name="andon-here", daemon=True).start()
        if not self._greeted():
            return 1
        while True:
            self._turns += 1
            self._rung.clear()
            over = self.wire.ended  # read first: all messages before the end are then taken
            self._hear()
            self._turn()
            if over:
                break
            self._rung.wait(self._pause())
        self._leave()
        return 0

    def _be_here(self) -> None:
        """Send heartbeats from a thread.

        They stop when the process is frozen, and repeat the same turn when the store hangs.
        """
        while not self.wire.ended:
            self.wire.send("here", turn=self._turns)
            time.sleep(HERE_SECONDS)

    def _greeted(self) -> bool:
        """Wait for the supervisor's hello, without which nothing can be done."""
        end = time.monotonic() + HELLO_SECONDS
        while self.supervisor is None and time.monotonic() < end:
            self._rung.clear()
            over = self.wire.ended
            self._hear()
            if over:
                break
            if self.supervisor is None:
                self._rung.wait(0.5)
        return self.supervisor is not None

    def hurry(self, seconds: float = 0.0) -> None:
        """Poll the store in at most this many seconds."""
        self._due = min(self._due, time.monotonic() + seconds)

    def _pause(self) -> float:
        soon = self._due - time.monotonic()
        ring = RING_SECONDS if self._rang else LOOK_SECONDS
        return max(0.001, min(LOOK_SECONDS, ring, soon, self.tending.wait()))

    def _ring(self) -> None:
        self._rang = True
        self._rung.set()

    # ── events of the supervisor ──────────────────────────────────────────────────────────────

    def _hear(self) -> None:
        for event in self.wire.take():
            heard = getattr(self, f"_on_{event.get('event')}", None)
            if heard is None:
                continue  # an event of a newer supervisor
            try:
                heard(event)
            except Exception:  # a malformed event must not hide the next one
                log.exception("an event of the supervisor: %s", event.get("event"))
            self._due = 0.0

    def _on_hello(self, event: dict[str, Any]) -> None:
        said = event["supervisor"]
        names = ("id", "host", "boot", "namespace", "pid", "start_ticks", "home")
        self.supervisor = one = SupervisorRow(
            **{name: said[name] for name in names}, grades=json.dumps(said.get("grades") or {})
        )
        self.wards.greet(event.get("children") or [])
        self.tending = Tending(self, one)
        self.latching = Latching(self, one)
        self.latching.greet(event.get("receipt"))
        self.overruns = Overruns(self.alerts, one.id)
        if self._command is not None:
            self.box = Box(self._command, one, self.settings, self.wire.send)
        self._enlisted = False

    def _on_started(self, event: dict[str, Any]) -> None:
        self.wards.started(event)

    def _on_exited(self, event: dict[str, Any]) -> None:
        ward = self.wards.exited(event)
        if ward.kind == "worker":
            self.tending.ended(ward, event)

    def _on_killed(self, event: dict[str, Any]) -> None:
        ward = self.wards.get(event)
        if ward is not None:
            ward.killed = event
            if not event.get("survivors"):
                ward.left = frozenset()

    def _on_frozen(self, event: dict[str, Any]) -> None:
        ward = self.wards.get(event)
        if ward is not None and ward.alive:
            ward.state = "frozen"
            ward.containment["pause"] = event.get("grade")

    def _on_thawed(self, event: dict[str, Any]) -> None:
        ward = self.wards.get(event)
        if ward is not None and ward.alive:
            ward.state = "running"

    def _on_refused(self, event: dict[str, Any]) -> None:
        ward = self.wards.get(event)
        if ward is not None:
            ward.state = "refused"

    def _on_gave_up(self, event: dict[str, Any]) -> None:
        ward = self.wards.get(event)
        if ward is not None:
            ward.state = "gave_up"

    def _on_stalled(self, event: dict[str, Any]) -> None:
        self.tending.stalled(event)

    def _on_halted(self, event: dict[str, Any]) -> None:
        point("attend:heard")
        self.latching.halted(event)

    def _on_answer(self, event: dict[str, Any]) -> None:
        if event.get("error"):
            log.warning("the supervisor could not %s: %s", event.get("to"), event["error"])

    def _on_ending(self, _event: dict[str, Any]) -> None:
        self._ending = True

    def _alert(self, event: dict[str, Any]) -> None:
        """Alert from the reading thread: a store that hangs may be the very cause of the event."""
        found = overruns.described(event)
        if found is not None:
            layer, about, text = found
            self.alerts.tell(layer, about, text, event=event)

    # ── orders of the store ───────────────────────────────────────────────────────────────────

    def _turn(self) -> None:
        """Poll the latch, and the store if that is due."""
        self.latching.look()
        now = time.monotonic()
        if now < self._due and not self._is_rung(now):
            return
        self._due = now + self._every
        try:
            self._attend()
        except StoreError as error:
            log.warning("the store does not answer: %s", error)
            self._forget_store()
        except AndonError as error:
            log.warning("attending: %s", error)
        except Exception:  # an error here must not end the process: stops would go unheard
            log.exception("attending failed")

    @property
    def _every(self) -> float:
        if self.store is None or not self.store.notifies:
            return ATTEND_SECONDS
        least = min(self.settings.lease_seconds, self.settings.lost_contact_seconds)
        return max(ATTEND_SECONDS, renew_every(least))

    def _is_rung(self, now: float) -> bool:
        """Whether the store has notified us of a new order since the last poll."""
        if self.store is None or not self._rang or now - self._looked < RING_SECONDS:
            return False
        self._rang, self._looked = False, now
        try:
            return self._seen(self.store) != self._newest
        except StoreError:
            return True

    def _seen(self, store: Store, newest: StopRow | None = None) -> tuple[str, ...]:
        """Values that change with every order, and with the state of the command's run."""
        orders = store.stops(1) if newest is None else [newest]
        seen = tuple(f"{one.id} {one.closed_at} {one.lifted_at}" for one in orders)
        if self.box is not None:
            row = store.run(self.box.command.run)
            seen += (f"{row.state} {row.stop}" if row is not None else "",)
        return seen

    def _attend(self) -> None:
        store = self._opened()
        # First, because a halt of this host overrides everything else, and its receipt names the
        # processes that it killed.
        self.latching.tell(store)
        self.tending.bury(store)
        seen, attendance = self._beat(store)
        self._newest = self._seen(store, seen.newest) if seen.newest or self.box else ()
        self._told = attendance.told + self.tending.inherited(seen)
        if attendance.escalate_in is not None:
            self._due = min(self._due, time.monotonic() + max(0.0, attendance.escalate_in))
        self.wire.send("contact")
        if self._told or attendance.halt is not None:
            point("attend:order")
        self.latching.obey(store, attendance, self._told)
        if attendance.halt is None:
            self.tending.begin()
        self.tending.obey(seen, self._told)
        self.latching.follow(store)
        self._attend_box(store)
        self.overruns.look(store)

    def _opened(self) -> Store:
        if self.store is None:
            self.store = open_store(self.settings.store, lean=True)
            self._stop_listening = self.store.listen(self._ring)
        if not self._enlisted:
            assert self.supervisor is not None
            lease = self.settings.lease_seconds
            self.write(Enlist(supervisor=self.supervisor, lease_seconds=lease))
            self._enlisted = True
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

    def _beat(self, store: Store) -> tuple[FleetState, Attendance]:
        """Write all that is due in one commit, Look first: an order in between is seen again."""
        assert self.supervisor is not None
        lease = self.settings.lease_seconds
        body = json.dumps({"children": self.wards.described(), "latch": self.latching.said()})
        batch: list[Message] = [
            FleetQuery(),
            Attend(supervisor_id=self.supervisor.id, lease_seconds=lease, body=body),
        ]
        if self.box is not None and self.box.worker_id:
            batch.append(Beat(worker_id=self.box.worker_id, lease_seconds=self.box.lease_seconds))
        seen, attendance, *beaten = store.write(batch)
        for outcome in (seen, attendance):
            if isinstance(outcome, BaseException):
                raise outcome
        if any(isinstance(one, Fenced) for one in beaten) and self.box is not None:
            self.box.lost()
        if not attendance.known:
            self._enlisted = False
            self._due = 0.0
        return seen, attendance

    def _attend_box(self, store: Store) -> None:
        box = self.box
        ward = self.wards.by_name.get(box.command.child) if box is not None else None
        if box is None or ward is None:
            return
        box.attend(store, ward, self._told)
        if not ward.alive and not ward.quiet:
            self._due = 0.0  # the processes it left behind are being killed

    # ── the end ───────────────────────────────────────────────────────────────────────────────

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
        self.tending.bury(store)
        self._attend_box(store)
        if not self._ending:
            self.tending.orphaned()
            return
        if self.box is not None:
            self.box.leave(store)
        self.write(Dismiss(supervisor_id=self.supervisor.id))


def main() -> int:
    """The entry point; the supervisor passes its descriptor in the environment."""
    prepare_logging(0)
    faulthandler.enable()  # prints the stack when the supervisor ends this process for a stall
    said = os.environ.get("ANDON_COMMAND")
    command = msgspec.json.decode(said, type=CommandRun) if said else None
    return Attending(load(), int(os.environ["ANDON_SUPERVISOR_FD"]), command).run()


if __name__ == "__main__":
    sys.exit(main())
