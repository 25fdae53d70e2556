"""This host's latch for a program that uses andon as a library: read, never written.

When the latch is pulled, the worker in the program takes no more runs and returns those it has; the
program itself continues. The core decides what counts as pulled. The supervisor reads the same
files in another module, because neither may depend on the other.
"""

import asyncio
import os
import stat
from pathlib import Path

from andon.core.latch import FREE, WINDOW_BYTES, Pulled, describe, judge, with_stop
from andon.errors import Refused
from andon.runtime.worker.notices import Latched
from andon.runtime.worker.worker import Worker

# Every run is returned or cut off within this time.
LEAVE_SECONDS = 1.0


def home() -> Path:
    """$ANDON_HOME, else ~/.andon, else /tmp/andon-UID if it is the only one that exists."""
    given = os.environ.get("ANDON_HOME")
    if given:
        return Path(given).absolute()
    try:
        own = Path.home() / ".andon"
    except RuntimeError:  # no such user
        own = Path("/nonexistent")
    other = Path(f"/tmp/andon-{os.geteuid()}")  # noqa: S108
    return other if not os.path.lexists(own) and os.path.lexists(other) else own


def pulled() -> str:
    """The reason why nothing may start on this host; empty if starts are allowed."""
    folder = home()
    found = with_stop(_read(folder), *_stop(folder / "STOP"))
    return describe(found) if found.pulled else ""


def _read(folder: Path) -> Pulled:
    path = folder / "latch"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        # A missing latch is free only where no id exists: there, none was ever written.
        return _unreadable(f"{path} is missing") if os.path.lexists(folder / "id") else FREE
    except OSError as error:
        return _unreadable(f"{path}: {error.strerror}")
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return _unreadable(f"{path} is not a regular file")
        begin = max(0, found.st_size - WINDOW_BYTES)
        return judge(os.pread(descriptor, WINDOW_BYTES, begin), whole=begin == 0)
    except OSError as error:
        return _unreadable(f"{path}: {error.strerror}")
    finally:
        os.close(descriptor)


def _stop(path: Path) -> tuple[str, str]:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return "", ""
    except OSError as error:
        return "", f"{path}: {error.strerror}"
    return "there", ""


def _unreadable(why: str) -> Pulled:
    return Pulled(pulled=True, unreadable=why)


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
        self.worker.tell_again()
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
