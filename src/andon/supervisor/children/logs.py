"""Output of children: kept in files of bounded size, and shown on the terminal on request.

Nothing here may block the loop. On a full disk output is lost, and the lost bytes are counted. A
terminal that does not read blocks the command that prints, as it would without a supervisor, but
never a worker: the watchdog would take the pause for a stall.
"""

import os
import select
import stat
from contextlib import suppress

from andon.host.descriptors import close
from andon.supervisor.poll import READ, WRITE, PollLoop

AT_ONCE = 65_536  # per turn and pipe: a child that prints without end must not take the whole turn
MOST_UNSHOWN = 262_144
PIPE_BUF = 4096


class LogFile:
    """A rotated log: FILE and the one before it, FILE.1, each of at most `limit` bytes."""

    def __init__(self, path: str, limit: int) -> None:
        self.path, self.limit = path, limit
        self.dropped = 0
        self._fd, self._size = -1, 0

    def write(self, content: bytes) -> None:
        try:
            self._write(content)
        except OSError:  # full, read-only or gone: lose the output, not the child
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


class OutputStream:
    """Standard output or error, written without ever blocking."""

    def __init__(self, fd: int) -> None:
        self._unshown = bytearray()
        self._fd, self._own = fd, False
        # A regular file never blocks, and reopening it would write at another offset.
        with suppress(OSError):
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return
        # Reopen it, so that O_NONBLOCK does not affect the shell that shares the descriptor.
        with suppress(OSError):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_APPEND
            self._fd, self._own = os.open(f"/proc/self/fd/{fd}", flags), True

    @property
    def full(self) -> bool:
        return len(self._unshown) > MOST_UNSHOWN

    def show(self, content: bytes) -> None:
        if not self.full:
            self._unshown += content
            self.push()

    def push(self) -> bool:
        """Write as much as the terminal takes; whether nothing is left."""
        while self._unshown:
            part = bytes(self._unshown[: AT_ONCE if self._own else PIPE_BUF])
            if not self._own and not self._takes():
                return False
            try:
                written = os.write(self._fd, part)
            except BlockingIOError:
                return False
            except OSError:  # nothing reads it any more
                self._unshown.clear()
                return True
            del self._unshown[:written]
        return True

    def _takes(self) -> bool:
        poll = select.poll()
        poll.register(self._fd, WRITE)
        return any(event & WRITE for _, event in poll.poll(0))


class Pipe:
    """One output stream of a child, copied to its log file and to the terminal."""

    def __init__(
        self,
        loop: PollLoop,
        fd: int,
        file: LogFile,
        terminal: OutputStream | None,
        *,
        patient: bool,
    ) -> None:
        self.fd, self.file = fd, file
        self._loop, self._terminal, self._patient = loop, terminal, patient
        self.extra: LogFile | None = None  # the evidence file, while a stall is recorded
        self.terminal = 0
        self._waits = False
        loop.watch(fd, self._ready)

    def _ready(self, _event: int) -> None:
        if self._patient and self._terminal is not None and self._terminal.full:
            self._waits = True
            self._loop.change(self.fd, 0)  # the command blocks, as it would without a supervisor
            return
        self.take()

    def take(self) -> bool:
        """Read once; whether there was any output."""
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
        """Read again if the terminal has room."""
        if self._waits and not (self._terminal is not None and self._terminal.full):
            self._waits = False
            self._loop.change(self.fd, READ)

    def close(self) -> None:
        """Read what the pipe of a dead child still holds, and close it."""
        if self.fd < 0:
            return
        for _ in range(32):  # two full pipes; do not wait for a straggler that keeps printing
            if not self.take():
                break
        self._loop.forget(self.fd)
        close(self.fd)
        self.fd = -1
        self.file.close()
