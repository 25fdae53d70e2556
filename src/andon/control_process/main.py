"""The control process: the supervisor's memory and its way to the fleet.

    python -m andon.control_process.main     (started by the supervisor, again when it dies)

It attends the store every few seconds, and at once when rung: what it is told there it carries to
the supervisor, and what the supervisor says it writes down. It kills nobody and may die at any
moment: what is to be done follows from the store, from the latch, and from what the supervisor
answers.
Nothing it owes the store is forgotten while the store is away.
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
from andon.control_process.black_box import Box, Command
from andon.control_process.channel import Wire
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
    Report,
    StopRow,
    SupervisorRow,
    Told,
)
from andon.store.store import Beat, Look, Message, Seen, Store

log = logging.getLogger("andon")

# Without a ring: as rarely as a lease allows, and every second where no ring is heard.
ATTEND_SECONDS = 1.0
# How often the latch of this host is looked at; and how soon an order that was rung is read.
LOOK_SECONDS = 0.1
# A busy fleet rings for every run: this often it is looked whether there is a new order.
RING_SECONDS = 0.02
HELLO_SECONDS = 30.0
# How often the supervisor is told that this process is there, and whether it gets on.
HERE_SECONDS = 0.5
# Less than the supervisor waits for it: what is not written then is found out by others.
LEAVE_SECONDS = 4.0


class Attending:
    """One control process, for one supervisor."""

    def __init__(self, settings: Settings, wire_fd: int, command: Command | None = None) -> None:
        self.settings = settings
        self._rung = threading.Event()
        self.wire = Wire(wire_fd, self._rung.set, self._alert)
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
        self._rang = False  # the store did; else it was the wire
        self._looked = 0.0
        self._due = 0.0
        self._newest: tuple[str, ...] = ()
        self._told: list[Told] = []

    def run(self) -> int:
        """Until the supervisor has nothing more to say, and everything is written down."""
        self.wire.start()
        threading.Thread(target=self._be_here, name="andon-here", daemon=True).start()
        if not self._greeted():
            return 1
        while True:
            self._turns += 1
            self._rung.clear()
            over = self.wire.ended  # looked at first: what came before the end is then taken
            self._hear()
            self._turn()
            if over:
                break
            self._rung.wait(self._pause())
        self._leave()
        return 0

    def _be_here(self) -> None:
        """From a thread: silent when the process is frozen; the same turn when the store hangs."""
        while not self.wire.ended:
            self.wire.send("here", turn=self._turns)
            time.sleep(HERE_SECONDS)

    def _greeted(self) -> bool:
        """Nothing can be done before the supervisor has said who it is."""
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
        """Attend the store not later than in so many seconds."""
        self._due = min(self._due, time.monotonic() + seconds)

    def _pause(self) -> float:
        soon = self._due - time.monotonic()
        ring = RING_SECONDS if self._rang else LOOK_SECONDS
        return max(0.001, min(LOOK_SECONDS, ring, soon, self.tending.wait()))

    def _ring(self) -> None:
        self._rang = True
        self._rung.set()

    # ── what the supervisor says ──────────────────────────────────────────────────────────────

    def _hear(self) -> None:
        for event in self.wire.take():
            heard = getattr(self, f"_on_{event.get('event')}", None)
            if heard is None:
                continue  # of a newer supervisor
            try:
                heard(event)
            except Exception:  # one event that is not understood must not hide the next
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
        """At once, from the thread that reads: the store may hang, and that may be the reason."""
        found = overruns.described(event)
        if found is not None:
            layer, about, text = found
            self.alerts.tell(layer, about, text, event=event)

    # ── what the store says ───────────────────────────────────────────────────────────────────

    def _turn(self) -> None:
        """Look at the latch; and at the store, if that is due."""
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
        except Exception:  # it must not end quietly: nobody would be told to stop
            log.exception("attending failed")

    @property
    def _every(self) -> float:
        if self.store is None or not self.store.hears:
            return ATTEND_SECONDS
        least = min(self.settings.lease_seconds, self.settings.lost_contact_seconds)
        return max(ATTEND_SECONDS, renew_every(least))

    def _is_rung(self, now: float) -> bool:
        """Whether somebody has given an order since the last look."""
        if self.store is None or not self._rang or now - self._looked < RING_SECONDS:
            return False
        self._rang, self._looked = False, now
        try:
            return self._seen(self.store) != self._newest
        except StoreError:
            return True

    def _seen(self, store: Store, newest: StopRow | None = None) -> tuple[str, ...]:
        """What changes with every order, and with the run of the command."""
        orders = store.stops(1) if newest is None else [newest]
        seen = tuple(f"{one.id} {one.closed_at} {one.lifted_at}" for one in orders)
        if self.box is not None:
            row = store.run(self.box.command.run)
            seen += (f"{row.state} {row.stop}" if row is not None else "",)
        return seen

    def _attend(self) -> None:
        store = self._opened()
        # First: after a halt of this host nothing else is true, and its receipt has whom it ended.
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
        """It is opened anew: a connection that has failed may never answer again."""
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

    def report(self, message: Report) -> None:
        self.write(message)
        point("attend:reported")

    def _beat(self, store: Store) -> tuple[Seen, Attendance]:
        """All of it in one commit. The look first: an order that comes between is seen again."""
        assert self.supervisor is not None
        lease = self.settings.lease_seconds
        body = json.dumps({"children": self.wards.described(), "latch": self.latching.said()})
        batch: list[Message] = [
            Look(),
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
            self._due = 0.0  # what it left behind is being ended

    # ── the end ───────────────────────────────────────────────────────────────────────────────

    def _leave(self) -> None:
        """The supervisor has ended: by its own will, or by nobody's."""
        end = time.monotonic() + LEAVE_SECONDS
        while True:
            try:
                self._take_leave()
                break
            except StoreError as error:
                log.warning("the store does not answer: %s", error)
                self._forget_store()
            except Exception:  # the last words are worth less than the end of this process
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
    """What the supervisor started, with its descriptor in the environment."""
    prepare_logging(0)
    faulthandler.enable()  # its stack, when the supervisor ends it because it stands still
    said = os.environ.get("ANDON_COMMAND")
    command = msgspec.json.decode(said, type=Command) if said else None
    return Attending(load(), int(os.environ["ANDON_SUPERVISOR_FD"]), command).run()


if __name__ == "__main__":
    sys.exit(main())
