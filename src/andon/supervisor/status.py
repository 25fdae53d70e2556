"""Descriptions of the supervisor for its control process, for users and for the terminal."""

import os
import socket
import time
from typing import TYPE_CHECKING, Any

from andon.core.text import plural
from andon.host import proc

if TYPE_CHECKING:
    from andon.supervisor.supervisor import Supervisor


def hello(own: "Supervisor") -> dict[str, Any]:
    """Return everything that a control process needs to begin."""
    me = os.getpid()
    facts = {
        "id": own.id,
        "host": socket.gethostname(),
        "boot": proc.boot_id(),
        "namespace": proc.pid_namespace(),
        "pid": me,
        "start_ticks": proc.start_ticks(me),
        "home": own.spec.home,
        "grades": own.mechanism.grades,
    }
    return {
        "event": "hello",
        "supervisor": facts,
        "children": [
            {**child.describe(), "containment": own.grades(child)} for child in own.children
        ],
        "latch": own.halt_state.look()._asdict(),
        "receipt": own.halt_state.receipt,
    }


def status(own: "Supervisor") -> dict[str, Any]:
    said = hello(own)
    del said["event"]
    return {
        **said,
        "started_at": own.started_at,
        "held": own.halt_state.held,
        "lost_contact": own.lost,
        "contact_seconds": round(time.monotonic() - own.contact, 3),
        "leaving": own.leaving,
        "events_missed": own.channel.missed,
        "mistakes": own.failures,
    }


def halt_line(receipt: dict[str, Any]) -> str:
    processes = plural(receipt["processes"], "process", "processes")
    children = plural(len(receipt["children"]), "child", "children")
    text = f"HALTED by {receipt['via'] or 'order'}: {processes} of {children}"
    if receipt["proved"]:
        text += f" gone, proved in {receipt['verified_ms']:.0f} ms"
    else:
        text += f"; NOT PROVED: {receipt['survivors']} are still alive"
    if not receipt["latched"]:
        text += f"; the latch could NOT be written: {receipt['latch_error']}"
    return f"{text} ({receipt['id']}). To allow starts again: andon reauthorize"
