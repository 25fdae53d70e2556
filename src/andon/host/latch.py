"""The latch of this host: a latch file and a STOP file; either one makes it pulled.

Every process that may write here can pull. A pull is on disk before it is confirmed. Deleting
either file lifts nothing: only `clear` does, and only for a caller who has seen the newest pull.
The state of the files never raises: an unreadable latch counts as pulled and says why.
"""

import contextlib
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator

from andon.core.latch import (
    FREE,
    WINDOW_BYTES,
    Pulled,
    judge,
    may_clear,
    pulled_again,
    record,
    with_stop,
)
from andon.host import home as homes
from andon.host.ids import new_order

# A frozen process may hold the lock. A pull then goes on without it: epochs decide, not order.
PULL_LOCK_SECONDS = 0.25
CLEAR_LOCK_SECONDS = 3.0


class Latch:
    """Reads and writes the latch.

    Reading is cheap, because it happens before every spawn and every 100 ms.
    """

    def __init__(self, home: str) -> None:
        self.home = home
        self.path = os.path.join(home, "latch")
        self.stop = os.path.join(home, "STOP")
        self._id = os.path.join(home, "id")
        self._known = False  # seen before: if it is missing now, it was deleted
        self._judged: tuple[tuple[bytes, bool] | None, Pulled] = (None, FREE)

    def init(self) -> Pulled:
        """Create the latch if this home never had one, and return its state."""
        try:
            homes.make(self.home)
            if not self._known and not os.path.lexists(self._id):
                self._make()
            self._known = True
        except OSError as error:
            return _unreadable(f"{self.home} cannot be made: {_words(error)}")
        return self.read()

    def read(self) -> Pulled:
        """Return the state, after recording a STOP file that has no record yet, if possible."""
        found = self.look()
        if found.pulled and not found.order and not found.unreadable:
            return self._convert()
        return found

    def look(self) -> Pulled:
        """Return the state like `read`, but write nothing."""
        stop, unseen = self._stop()
        return with_stop(self._file(), stop, unseen)

    def _file(self) -> Pulled:
        try:
            wrong = homes.foreign(self.home)
            if wrong:
                return _unreadable(f"{self.home}: {wrong}")
            content = _tail(self.path)
        except FileNotFoundError:
            return self._missing()
        except OSError as error:
            return _unreadable(f"{self.path}: {_words(error)}")
        if content != self._judged[0]:
            self._judged = content, judge(content[0], whole=content[1])
        self._known = True
        found = self._judged[1]
        if found.unreadable:
            return found._replace(unreadable=f"{self.path}: {found.unreadable}")
        return found

    def _missing(self) -> Pulled:
        if self._known or os.path.lexists(self._id):
            return _unreadable(f"{self.path} is missing")
        return FREE  # it has never existed

    def _stop(self) -> tuple[str, str]:
        try:
            found = os.lstat(self.stop)
        except (FileNotFoundError, NotADirectoryError):
            return "", ""
        except OSError as error:
            return "", f"{self.stop}: {_words(error)}"
        return _identity(found), ""

    def pull(self, by: str = "", why: str = "", via: str = "", order: str = "") -> Pulled:
        """Pull the latch. Returns the state, which is on disk unless `unwritten` is set.

        Pulling again adds a new epoch and keeps the first order's id. Pulling again with that same
        order changes nothing.
        """
        new = Pulled(pulled=True, epoch=1, at=time.time(), by=by, why=why, via=via)
        new = new._replace(order=order or new_order())
        with contextlib.suppress(OSError):
            homes.make(self.home)
        with self._locked(PULL_LOCK_SECONDS):
            no_stop = self._write_stop(new)
            stop, _ = self._stop()
            found = self._file()
            written = pulled_again(found, new._replace(stop=stop))
            if found.pulled and written.epoch == found.epoch:
                return found
            missed = self._append(written)
            now = self._file()
        if missed:  # STOP alone holds too, once its name is on disk
            return written._replace(unwritten=missed if no_stop or self._unsynced() else "")
        # Without the lock, a clear of the same epoch may have come in between.
        return now if now.pulled else self.pull(by, why, via, order)

    def _convert(self) -> Pulled:
        """Record the STOP file once, so that deleting it no longer lifts anything."""
        with self._locked(PULL_LOCK_SECONDS):
            found = self.look()
            if not found.pulled or found.order:
                return found
            said = self._stop_says()
            named = found._replace(at=time.time(), order=said.order or new_order())
            named = named._replace(by=said.by, why=said.why, via=said.via or found.via)
            return named._replace(unwritten=self._append(named))

    def _stop_says(self) -> Pulled:
        """Return the pull written in STOP by a process that died before it appended its record."""
        try:
            return judge(_tail(self.stop)[0])
        except OSError:
            return FREE

    def _write_stop(self, new: Pulled) -> str:
        """Create STOP and return why that failed, or an empty string. An existing STOP is kept."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            descriptor = os.open(self.stop, flags, 0o600)
        except FileExistsError:
            return ""
        except OSError as error:
            with contextlib.suppress(OSError):  # a full disk still has room for a rename
                os.rename(f"{self.stop}.ready", self.stop)
                return ""
            return f"{self.stop}: {_words(error)}"
        with contextlib.suppress(OSError):
            os.write(descriptor, record(new))
        os.close(descriptor)
        return ""

    def _unsynced(self) -> bool:
        """Whether the names in this home may not be on disk yet."""
        try:
            _sync_folder(self.home)
        except OSError:
            return True
        return False

    def _append(self, verdict: Pulled) -> str:
        """Append a line durably. Returns why that failed, or an empty string."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(self.path, flags, 0o600)
            try:
                size = _size(descriptor)
                # Do not append to a torn last line: that would tear this record, too.
                apart = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                line = b"\n" * apart + record(verdict)
                if os.write(descriptor, line) != len(line):
                    return f"{self.path}: no space left"
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            _sync_folder(self.home)
        except OSError as error:
            return f"{self.path}: {_words(error)}"
        return ""

    def clear(self, epoch: int, by: str = "", why: str = "") -> Pulled:
        """Lift the latch if `epoch` is still its newest pull, and return the state.

        If the returned state is `pulled`, nothing was lifted; `refused` says why.
        """
        with self._locked(CLEAR_LOCK_SECONDS) as locked:
            if not locked:
                return self.read()._replace(refused=f"{self.home}/lock cannot be had; try again")
            found = self.look()
            taken, kept = self._take_stop()
            refusal = may_clear(found, epoch, taken) or kept
            if not refusal:
                # STOP has been moved aside: from here on, a new STOP is a new pull.
                done = Pulled(pulled=False, epoch=epoch, at=time.time(), by=by, why=why)
                refusal = self._append(done)
            if refusal:
                self._put_back(found, taken)
            else:
                self._forget_stop()
        return self.read()._replace(refused=refusal)

    def _take_stop(self) -> tuple[str, str]:
        """Move STOP aside in one step, so that touching it later creates a new file."""
        try:
            _remove(f"{self.stop}.lifted")
            os.rename(self.stop, f"{self.stop}.lifted")
            return _identity(os.lstat(f"{self.stop}.lifted")), ""
        except FileNotFoundError:
            return "", ""
        except OSError as error:
            return "", f"{self.stop} cannot be removed: {_words(error)}"

    def _put_back(self, found: Pulled, taken: str) -> None:
        """Restore STOP after a refusal, and record a new pull if STOP was touched since."""
        if taken and not os.path.lexists(self.stop):
            with contextlib.suppress(OSError):
                os.rename(f"{self.stop}.lifted", self.stop)
        if found.pulled and taken and taken != found.stop:
            self._append(found._replace(epoch=found.epoch + 1, stop=taken, unreadable=""))

    def _forget_stop(self) -> None:
        with contextlib.suppress(OSError):
            _remove(f"{self.stop}.lifted")
        with contextlib.suppress(OSError):
            self._keep_ready()

    def _make(self) -> None:
        """Create the latch before the id, because an id means that there was a latch."""
        first = record(Pulled(pulled=False, at=time.time(), why="made"))
        temporary = f"{self.path}.{os.getpid()}.{os.urandom(4).hex()}.new"
        try:
            homes.write(temporary, first, durable=True)
            with contextlib.suppress(FileExistsError):
                os.link(temporary, self.path)  # never replaces an existing latch
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        self._keep_ready()
        self._write_id()
        _sync_folder(self.home)

    def _keep_ready(self) -> None:
        """Keep an empty file ready that a rename turns into STOP when the disk is full."""
        os.close(os.open(f"{self.stop}.ready", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def _write_id(self) -> None:
        self._known = True
        if not os.path.lexists(self._id):
            with contextlib.suppress(OSError):
                name = {"id": os.urandom(8).hex(), "made_at": time.time()}
                homes.write(self._id, json.dumps(name).encode())

    @contextlib.contextmanager
    def _locked(self, seconds: float) -> Iterator[bool]:
        """Yield whether the lock was taken within `seconds`."""
        flags = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(os.path.join(self.home, "lock"), flags, 0o600)
        except OSError:
            yield False
            return
        try:
            yield _lock(descriptor, seconds)
        finally:
            os.close(descriptor)


def _lock(descriptor: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= end:
                return False
            time.sleep(0.002)
        else:
            return True


def _tail(path: str) -> tuple[bytes, bool]:
    """Return the end of a file and whether that is all of it. Raises OSError if it is no file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        size = _size(descriptor)
        begin = max(0, size - WINDOW_BYTES)
        return os.pread(descriptor, WINDOW_BYTES, begin), begin == 0
    finally:
        os.close(descriptor)


def _size(descriptor: int) -> int:
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise OSError("it is not a regular file")
    return found.st_size


def _identity(found: os.stat_result) -> str:
    return f"{found.st_ino}.{found.st_mtime_ns}"


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except (IsADirectoryError, PermissionError):
        os.rmdir(path)


def _sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _words(error: OSError) -> str:
    return error.strerror or str(error)


def _unreadable(why: str) -> Pulled:
    return Pulled(pulled=True, epoch=1, unreadable=why)
