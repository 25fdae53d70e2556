"""The latch of this host, for a program that has andon as a library: looked at, never written.

Pulled, the worker in the program takes nothing any more and gives back what it has; the program
itself goes on. What counts as pulled is decided in the core; the supervisor's side of the same
files is another module, because neither may depend on the other.
"""

import asyncio
import os
import stat
from pathlib import Path

from andon.core.latch import FREE, WINDOW_BYTES, Pulled, describe, judge, with_stop
from andon.errors import Refused
from andon.runtime.worker.notices import Latched
from andon.runtime.worker.worker import Worker

# All that it holds is given back or cut off by then.
LEAVE_SECONDS = 1.0


def home() -> Path:
    """$ANDON_HOME, else ~/.andon, else /tmp/andon-UID if only that is there."""
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
    """Why nothing may begin on this host; nothing if it may."""
    folder = home()
    found = with_stop(_read(folder), *_stop(folder / "STOP"))
    return describe(found) if found.pulled else ""


def _read(folder: Path) -> Pulled:
    path = folder / "latch"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        # Without an id there has never been one.
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


class Leaving:
    """A worker in a program: it leaves when the latch is pulled, or at the end of its block."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.halted = asyncio.Event()
        self.why = ""
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._watch = Latched(pulled, self._pulled)

    def _pulled(self, found: str) -> None:
        """From the thread that looks."""
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
