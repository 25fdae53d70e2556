"""Keeps the latch of this host and the fleet's halt in the store in agreement.

A pull of the latch becomes a halt in the store as soon as the store answers, and a halt in the
store pulls the latch. The latch is cleared from the store only if the store knows this very pull
and a named person has lifted it there since.
"""

import json
import logging
import os
import time
from typing import TYPE_CHECKING, Any

from andon.control.halt import store_halt
from andon.core.latch import Pulled
from andon.core.stop import Stage, StopKind, StopScope
from andon.host import home as homes
from andon.host.latch import Latch
from andon.store.messages.stops import (
    Attendance,
    Order,
    StopNotice,
    StopRow,
    SupervisorRow,
    TargetReport,
)
from andon.store.store import Store

if TYPE_CHECKING:
    from andon.control_process.main import ControlProcess

log = logging.getLogger("andon")

# A halt that the supervisor has not answered by an event is sent again after this time.
AGAIN_SECONDS = 1.0
# Two clocks are compared, one of them in milliseconds: within this margin the pull counts as newer.
DOUBT_SECONDS = 0.005
# How often, and for how long after a pull, its halt is polled: a person waits for it then.
FOLLOW_SECONDS, FOLLOWED_SECONDS = 0.05, 15.0


class LatchSync:
    """The latch of this host and the fleet's halt in the store, kept in agreement."""

    def __init__(self, own: "ControlProcess", supervisor: SupervisorRow) -> None:
        self._own, self._id = own, supervisor.id
        self._target = f"supervisor:{supervisor.id}"
        self._latch = Latch(supervisor.home)
        # Maps a pull of this host to its halt in the store, which may have another id: two hosts
        # may be pulled at once.
        self._aliases = os.path.join(supervisor.home, "state", "halts")
        self._receipt: dict[str, Any] | None = None
        self._known = ""  # the pull that the store knows of
        self._unproved: set[str] = set()
        self._said: tuple[str, dict[str, Any]] = ("", {})
        self._follow_until = 0.0
        self._sent, self._sent_at = "", 0.0

    def greet(self, receipt: dict[str, Any] | None) -> None:
        self._receipt = receipt

    def halted(self, event: dict[str, Any]) -> None:
        """The supervisor has halted this host, or reports the survivors."""
        self._receipt = receipt = dict(event["receipt"])
        by = f" by {event['by']}" if event.get("by") else ""
        text = f"everything on this host is halted{by}"
        if not receipt.get("proved"):
            text += f"; NOT PROVED: {receipt.get('survivors')} are still alive"
        layer = "halt" if receipt.get("proved") else "unproved"
        self._own.fleet_alerts.local(layer, str(event.get("order")), text, receipt=receipt)

    def look(self) -> None:
        """Notice a pull or a lift on this host; called often."""
        found = self._latch.look()
        if not found.pulled:
            self._known, self._receipt = "", self._kept(found)
        elif found.order != self._known:
            self._own.poll_soon()

    def _kept(self, found: Pulled) -> dict[str, Any] | None:
        """The receipt, kept if its pull never reached the disk: an older latch file is no lift."""
        receipt = self._receipt
        return receipt if receipt is not None and found.epoch < int(receipt["epoch"]) else None

    def said(self) -> dict[str, Any]:
        found = self._latch.look()
        names = ("pulled", "epoch", "at", "by", "why", "via", "order", "unreadable")
        return {name: getattr(found, name) for name in names}

    def reconcile(self, store: Store) -> None:
        """Write this host's pull to the store, or clear the latch if the halt was lifted there."""
        found = self._latch.read()
        if not found.pulled or not found.order or found.unreadable:
            return
        row = store.stop(self._name(found.order))
        if row is None:
            self._order(found, found.order)
        elif row.lifted_at is not None:
            # The time of the pull is by our clock: convert it to the store's, like lifted_at.
            pulled_at = store.now() - (time.time() - found.at)
            if row.lifted_by and pulled_at + DOUBT_SECONDS <= row.lifted_at:
                self._clear(found, row)
            else:  # pulled again since then
                self._order(found, f"{found.order}-{os.urandom(4).hex()}")
        if found.order != self._known:
            self._known, self._follow_until = found.order, time.monotonic() + FOLLOWED_SECONDS

    def _order(self, found: Pulled, name: str) -> None:
        message = Order(
            id=name,
            kind=StopKind.HALT,
            scope=StopScope.FLEET,
            by=found.by,
            why=found.why,
            via=found.via or "the latch of a host",
        )
        ordered = str(self._own.write(message))
        log.warning("halt %s of this host is now the fleet's (%s)", found.order, ordered)
        if ordered != found.order:
            try:  # only the last pull matters
                homes.write(self._aliases, json.dumps({found.order: ordered}).encode())
            except OSError as error:
                log.warning("%s: %s", self._aliases, error)

    def _name(self, order: str) -> str:
        names = homes.read_json(self._aliases)
        return str(names.get(order, order)) if isinstance(names, dict) else order

    def _clear(self, found: Pulled, row: StopRow) -> None:
        by, why = row.lifted_by or "", row.lifted_why or ""
        lifted = self._latch.clear(found.epoch, by, why)
        if lifted.pulled:
            log.warning("the latch of this host stays: %s", lifted.refused)
            return
        log.warning("halt %s was lifted by %s: %s", row.id, by, why)
        self._own.channel.send("cleared", epoch=found.epoch, by=by, why=why)

    def follow(self, store: Store) -> None:
        """Report the state of the fleet's halt to the supervisor: a command may wait for it."""
        if not self._known:
            return
        order = self._name(self._known)
        found = {"state": "answered", "order": order, **store_halt.known(store, order)}
        if (self._known, found) != self._said:
            self._said = (self._known, found)
            self._own.channel.send("fleet", order=self._known, known=found)
        if not found["over"] and time.monotonic() < self._follow_until:
            self._own.poll_soon(FOLLOW_SECONDS)

    def obey(self, store: Store, attendance: Attendance, notices: list[StopNotice]) -> None:
        mine = [one for one in notices if one.target == self._target]
        found = self._latch.look()
        receipt = self._receipt
        if receipt is not None and found.pulled:
            for one in mine:
                self._report(one.stop_id, receipt)
            if receipt.get("proved"):
                for stop_id in sorted(self._unproved):
                    self._report(stop_id, receipt)
                self._unproved.clear()
            return
        wanted = mine[0].stop_id if mine else attendance.halt.id if attendance.halt else ""
        again = time.monotonic() - self._sent_at > AGAIN_SECONDS
        if wanted and (wanted != self._sent or again):
            self._pull(store.stop(wanted))

    def _pull(self, row: StopRow | None) -> None:
        # Read after the latch: reauthorize lifts the store's latch before the host's, so a host
        # latch that was seen lifted is lifted in this row too.
        if row is None or row.lifted_at is not None:
            return
        self._sent, self._sent_at = row.id, time.monotonic()
        self._own.channel.send("halt", order=row.id, by=row.by, why=row.why, via="the store")

    def _report(self, stop_id: str, receipt: dict[str, Any]) -> None:
        proved = bool(receipt.get("proved"))
        number = receipt.get("processes")
        if proved:
            evidence = f"its supervisor ended {number} processes in {receipt.get('verified_ms')} ms"
            evidence += "; nothing is left, and nothing starts"
        else:
            evidence = f"still there: {receipt.get('survivors')}; they are hit again and again"
            self._unproved.add(stop_id)
        self._own.report(
            TargetReport(
                stop_id=stop_id,
                target=self._target,
                stage=Stage.VERIFIED if proved else Stage.UNPROVED,
                evidence=evidence,
                body=json.dumps({self._id: receipt}),
            )
        )
