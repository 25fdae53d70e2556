"""Notifications and liveness between processes on one host that share a folder.

Each listener binds a datagram socket in the folder; a notification is one byte sent to every
socket. A worker also holds a lock on a file there for as long as its process lives. The kernel
releases the lock at the moment the process dies, so a free lock proves that its worker is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading

TYPE_CHECKING = False  # commands must not pay for imports they do not need
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any

# The names of listeners' sockets, which workers of older versions look for too.
SUFFIX = ".bell"

_held: dict[str, int] = {}  # lock file → descriptor


def _forget() -> None:
    """Close the locks in a forked child: otherwise they would outlive the parent."""
    for descriptor in _held.values():
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_forget)


def _lock_path(folder: str, worker_id: str) -> str:
    return os.path.join(folder, f"{worker_id}.lock")


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def hold(folder: str, worker_id: str) -> str:
    """Take the worker's lock for the life of this process and return the lock's name."""
    path = _lock_path(folder, worker_id)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    _held[path] = descriptor
    return os.path.basename(path)


def release(folder: str, worker_id: str) -> None:
    path = _lock_path(folder, worker_id)
    descriptor = _held.pop(path, None)
    if descriptor is not None:
        _remove(path)
        os.close(descriptor)


def is_free(folder: str, worker_id: str) -> bool:
    """Return whether nobody holds the worker's lock, and remove the file of a free lock."""
    path = _lock_path(folder, worker_id)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False  # the file cannot be opened, so nothing is proved
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        _remove(path)
        return True
    finally:
        os.close(descriptor)


class HostNotifier:
    """Sends and receives notifications through the sockets in one folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        # A socket address is limited to 107 bytes; a path through a descriptor fits any folder.
        self._at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._sender: socket.socket | None = None

    def _address(self, name: str) -> str:
        return f"/proc/self/fd/{self._at}/{name}"

    def notify(self) -> None:
        """Wake every listener. A listener with a full buffer already has a wake-up pending."""
        with self._lock, contextlib.suppress(OSError):
            for name in os.listdir(self._at):
                if name.endswith(SUFFIX):
                    self._notify_one(name)

    def _open_sender(self) -> socket.socket:
        import socket

        sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sender.setblocking(False)
        return sender

    def _notify_one(self, name: str) -> None:
        self._sender = self._sender or self._open_sender()
        try:
            self._sender.sendto(b"!", self._address(name))
        except (ConnectionRefusedError, FileNotFoundError):  # its process is gone
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self._at)
        except OSError:
            pass

    def _receiver(self) -> tuple[socket.socket, Callable[[], None]]:
        """Bind a listening socket; return it with a function that unlinks its name."""
        import socket

        name = os.urandom(6).hex() + SUFFIX
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        receiver.bind(self._address(name))

        def unname() -> None:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self._at)

        return receiver, unname

    def listen_on(self, loop: Any, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` on the loop at every notification.

        The function returned stops listening; any thread may call it.
        """
        receiver, unname = self._receiver()
        receiver.setblocking(False)

        def receive() -> None:
            with contextlib.suppress(OSError):
                while receiver.recv(16):
                    pass
            callback()

        def close() -> None:
            if receiver.fileno() >= 0:  # else a second `end` has closed it meanwhile
                loop.remove_reader(receiver)
                receiver.close()

        def end() -> None:
            unname()
            try:
                if loop.is_running():
                    loop.call_soon_threadsafe(close)
                else:  # it has stopped, perhaps for good: nothing would call `close`
                    close()
            except RuntimeError:  # the loop is closed and watches nothing
                receiver.close()

        try:
            loop.add_reader(receiver, receive)
        except RuntimeError:  # the loop was closed meanwhile
            end()
            raise
        return end

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` from a thread at every notification; the return value stops listening."""
        import socket

        receiver, unname = self._receiver()
        done = threading.Event()

        def wait() -> None:
            while not done.is_set():
                try:
                    receiver.recv(16)
                except OSError:
                    return
                if not done.is_set():
                    callback()

        def end() -> None:
            done.set()
            unname()
            with contextlib.suppress(OSError):
                receiver.shutdown(socket.SHUT_RDWR)
            thread.join(timeout=1)
            receiver.close()

        thread = threading.Thread(target=wait, name="andon-notifier", daemon=True)
        thread.start()
        return end

    def close(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            if self._sender is not None:
                self._sender.close()
            os.close(self._at)
            self._at = -1
