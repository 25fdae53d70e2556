"""What children print: kept in files of bounded size, and shown on the terminal when asked.

Nothing here may hold up the loop. A disk that is full loses lines, which are counted; a terminal
that does not read holds up the command that prints, as it would without us, but never a worker,
whose standing still would be taken for a stall.
"""

import os
import select
import stat
from contextlib import suppress

from andon.host.signals import close
from andon.supervisor.poll import READ, WRITE, Loop

AT_ONCE = 65_536  # per turn and pipe: a child that prints without end must not fill the turn
MOST_UNSHOWN = 262_144
PIPE_BUF = 4096


class LogFile:
    """One file and the one before it: FILE and FILE.1, each at most `limit` bytes."""

    def __init__(self, path: str, limit: int) -> None:
        self.path, self.limit = path, limit
        self.dropped = 0
        self._fd, self._size = -1, 0

    def write(self, content: bytes) -> None:
        try:
            self._write(content)
        except OSError:  # full, read-only, gone: output is lost, the child is not
            self.dropped += len(content)
            self.close()

    def _write(self, content: bytes) -> None:
        if self._fd < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(self.path, flags, 0o600)
            self._size = os.fstat(self._fd).st_size
        if self._size + len(content) > self.limit and self._size:
            self.close()
            os.replace(self.path, f"{self.path}.1")
            self._write(content)
            return
        if self.dropped:
            note = f"[andon: {self.dropped} bytes were not kept]\n".encode()
            self._size += os.write(self._fd, note)
            self.dropped = 0
        written = os.write(self._fd, content[: self.limit])
        self._size += written
        self.dropped += len(content) - written

    def close(self) -> None:
        close(self._fd)
        self._fd = -1


class Terminal:
    """Standard output or error: written as far as it takes, never waited for."""

    def __init__(self, fd: int) -> None:
        self.dropped = 0
        self._unshown = bytearray()
        self._fd, self._own = fd, False
        # A file never blocks; and opened anew it would be written from another place in it.
        with suppress(OSError):
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return
        # Opened anew, so that not blocking is our affair and not that of the shell that shares it.
        with suppress(OSError):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_APPEND
            self._fd, self._own = os.open(f"/proc/self/fd/{fd}", flags), True

    @property
    def full(self) -> bool:
        return len(self._unshown) > MOST_UNSHOWN

    def show(self, content: bytes) -> None:
        if self.full:
            self.dropped += len(content)
            return
        self._unshown += content
        self.push()

    def push(self) -> bool:
        """Write what can be written; whether nothing is left."""
        while self._unshown:
            part = bytes(self._unshown[: AT_ONCE if self._own else PIPE_BUF])
            if not self._own and not self._takes():
                return False
            try:
                written = os.write(self._fd, part)
            except BlockingIOError:
                return False
            except OSError:  # nobody reads it any more
                self._unshown.clear()
                return True
            del self._unshown[:written]
        return True

    def _takes(self) -> bool:
        poll = select.poll()
        poll.register(self._fd, WRITE)
        return any(event & WRITE for _, event in poll.poll(0))


class Pipe:
    """One stream of one child, from its descriptor to the file and the terminal."""

    def __init__(
        self, loop: Loop, fd: int, file: LogFile, terminal: Terminal | None, *, patient: bool
    ) -> None:
        self.fd, self.file = fd, file
        self._loop, self._terminal, self._patient = loop, terminal, patient
        self.extra: LogFile | None = None  # evidence, while it is taken
        self.terminal = 0
        self._waits = False
        loop.watch(fd, self._ready)

    def _ready(self, _event: int) -> None:
        if self._patient and self._terminal is not None and self._terminal.full:
            self._waits = True
            self._loop.change(self.fd, 0)  # the command waits, as it would on its own
            return
        self.take()

    def take(self) -> bool:
        """Read once; whether there was anything."""
        try:
            content = os.read(self.fd, AT_ONCE)
        except BlockingIOError:
            return False
        except OSError:
            content = b""
        if not content:
            self._loop.forget(self.fd)
            return False
        self.file.write(content)
        if self.extra is not None:
            self.extra.write(content)
        if self._terminal is not None:
            self._terminal.show(content)
        return True

    def wake(self) -> None:
        """The terminal may take more."""
        if self._waits and not (self._terminal is not None and self._terminal.full):
            self._waits = False
            self._loop.change(self.fd, READ)

    def close(self) -> None:
        """The child is gone: what it still had to say, as far as a pipe can hold it."""
        if self.fd < 0:
            return
        for _ in range(32):  # two full pipes; a straggler that goes on printing is not waited for
            if not self.take():
                break
        self._loop.forget(self.fd)
        close(self.fd)
        self.fd = -1
        self.file.close()
