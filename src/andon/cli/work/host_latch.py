"""The host's latch, for a worker without a supervisor.

The worker registers on the host, so that `andon halt` finds it. It refuses to start while the latch
is pulled, and exits at once when the latch is pulled later; its runs are then taken over by other
workers or held. A supervisor does all this for the workers under it.
"""

import contextlib
import os
import time
from collections.abc import Iterator

from andon.cli.output import note
from andon.cli.work.signals import exit_now
from andon.core.text import clean
from andon.errors import Refused
from andon.host import home as homes
from andon.host.latch import Latch
from andon.runtime.worker.triggers import Latched
from andon.store import absolute
from andon.supervisor.halt.command import orders_are_out

HALTED = 1
# Time for other processes to get the order if an agent of this process pulled the latch itself.
LAST_SECONDS = 1.0


def supervised() -> bool:
    return bool(os.environ.get("ANDON_PING_FD"))


def refuse_if_halted() -> None:
    """Refuse to start while the latch is pulled or cannot be read."""
    if supervised():
        return
    found = Latch(homes.find()).init()
    if found.unreadable:
        raise Refused(
            f"the halt latch of this host cannot be read ({found.unreadable}), so nothing starts. "
            "Repair it, or set ANDON_HOME to a folder that can be written; then: "
            "andon reauthorize"
        )
    if found.pulled:
        raise Refused(f"{found}. To allow starts again: andon reauthorize")


@contextlib.contextmanager
def registered(url: str) -> Iterator[None]:
    """Register on this host while the block runs, and exit if the latch is pulled."""
    if supervised():
        yield
        return
    home = homes.find()
    latch = Latch(home)
    latch.init()
    name = f"w{os.urandom(5).hex()}"
    store = homes.without_password(absolute(url))
    entry = homes.this_process(name, "worker", store=store, started_at=time.time())
    with contextlib.suppress(OSError):  # without the entry, only the latch ends this worker
        homes.register(home, entry)

    def pulled() -> str:
        found = latch.read()
        return str(found) if found.pulled else ""

    def end(found: str) -> None:
        note(f"{clean(found)}: ending at once. To allow starts again: andon reauthorize")
        homes.unregister(home, name)
        orders_are_out(LAST_SECONDS)
        exit_now(HALTED)

    # Watch after registering: a halt that pulls the latch from now on finds the entry.
    watch = Latched(pulled, end)
    try:
        yield
    finally:
        watch.close()
        homes.unregister(home, name)
