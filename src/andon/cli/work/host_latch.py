"""A worker without a supervisor, and the latch of its host.

It is written down there as alive, so that `andon halt` finds it; it does not start while the latch
is pulled, and ends at once when it is. Its runs are taken over or held by others. A worker under a
supervisor leaves all this to it.
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
from andon.runtime.worker.notices import Latched
from andon.store import absolute
from andon.supervisor.halt.command import orders_are_out

HALTED = 1
# For an agent of this process that has pulled the latch itself: others must hear of it.
LAST_SECONDS = 1.0


def supervised() -> bool:
    return bool(os.environ.get("ANDON_PING_FD"))


def refuse_if_halted() -> None:
    """Nothing starts while the latch is pulled, or cannot be read."""
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
def obeying(url: str) -> Iterator[None]:
    """Be known to this host, and end when its latch is pulled."""
    if supervised():
        yield
        return
    home = homes.find()
    latch = Latch(home)
    latch.init()
    name = f"w{os.urandom(5).hex()}"
    store = homes.without_password(absolute(url))
    entry = homes.this_process(name, "worker", store=store, started_at=time.time())
    with contextlib.suppress(OSError):  # then it is the latch alone that ends it
        homes.register(home, entry)

    def pulled() -> str:
        found = latch.read()
        return str(found) if found.pulled else ""

    def end(found: str) -> None:
        note(f"{clean(found)}: ending at once. To allow starts again: andon reauthorize")
        homes.unregister(home, name)
        orders_are_out(LAST_SECONDS)
        exit_now(HALTED)

    # Looked at after it is written down: whoever pulls later finds it there.
    watch = Latched(pulled, end)
    try:
        yield
    finally:
        watch.close()
        homes.unregister(home, name)
