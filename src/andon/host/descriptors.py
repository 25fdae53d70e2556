"""File descriptors of this process."""

import contextlib
import os


def close(fd: int) -> None:
    """Close a descriptor, unless it is -1 or closed already."""
    if fd >= 0:
        with contextlib.suppress(OSError):
            os.close(fd)


def open_standard() -> None:
    """Open 0 to 2 if closed: else a file could get the number and receive what is printed."""
    with contextlib.suppress(OSError):
        while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(descriptor)
