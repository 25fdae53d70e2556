"""Signals sent through a pidfd, because a pid alone may belong to another process by now."""

import os
import signal
from contextlib import suppress

from andon.host import proc


def open_pidfd(pid: int, ticks: int = 0) -> int:
    """Return a descriptor of exactly that process, or -1."""
    try:
        return proc.open_pidfd(pid, ticks)
    except OSError:
        return -1


def send(pidfd: int, number: int) -> bool:
    """Send a signal. Returns False if the process is gone."""
    if pidfd < 0:
        return False
    try:
        signal.pidfd_send_signal(pidfd, number)
    except OSError:
        return False
    return True


def close(fd: int) -> None:
    if fd >= 0:
        with suppress(OSError):
            os.close(fd)
