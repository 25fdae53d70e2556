"""This host's latch for a program that uses andon as a library: read, never written.

When the latch is pulled, the worker in the program takes no more runs and returns those it has; the
program itself continues.
"""

import asyncio
import os
from pathlib import Path

from andon.core.latch import describe
from andon.errors import Refused
from andon.host.latch import Latch
from andon.runtime.worker.triggers import Latched
from andon.runtime.worker.worker import Worker

# Every run is returned or cut off within this time.
LEAVE_SECONDS = 1.0


def home() -> str:
    """$ANDON_HOME, else ~/.andon, else /tmp/andon-UID if it is the only one that exists."""
    given = os.environ.get("ANDON_HOME")
    if given:
        return os.path.abspath(given)
    try:
        own = str(Path.home() / ".andon")
    except RuntimeError:  # no such user
        own = "/nonexistent"
    other = f"/tmp/andon-{os.geteuid()}"  # noqa: S108
    return other if not os.path.lexists(own) and os.path.lexists(other) else own


def pulled() -> str:
    """The reason why nothing may start on this host; empty if starts are allowed."""
    found = Latch(home()).look()
    return describe(found) if found.pulled else ""


def refuse_if_pulled() -> None:
    found = pulled()
    if found:
        raise Refused(f"{found}. To allow starts again: andon reauthorize")


class EmbeddedLatch:
    """A worker in a program: it leaves when the latch is pulled, or at the end of its block."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.halted = asyncio.Event()
        self.why = ""
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._watch = Latched(pulled, self._pulled)

    def _pulled(self, found: str) -> None:
        """Stop the worker; called from the thread that watches the latch."""
        self.why = found
        self.worker.tell(found, LEAVE_SECONDS)
        self.worker.hurry()
        self.worker.post(self._begin)

    def _begin(self) -> None:
        self.halted.set()
        if self._task is None:
            self._task = self._loop.create_task(self.worker.__aexit__(), name="andon-halted")

    async def leave(self) -> None:
        self._watch.close()
        if self._task is None:
            await self.worker.__aexit__()
        else:
            await self._task
