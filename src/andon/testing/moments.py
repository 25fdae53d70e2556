"""Named points: do something, or die, when the code passes one.

`point` marks a moment of your own inside an agent, a step or an effect; a crash test kills there
too. Otherwise it does nothing.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

from andon import points
from andon.errors import BadInput

# Prefix of users' own points, so that none can be mistaken for one of andon's.
OWN = "own:"


def point(name: str) -> None:
    """Mark a moment in your own code."""
    points.point(OWN + name)


def kill() -> None:
    """Send SIGKILL to this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def freeze() -> None:
    """Send SIGSTOP to this process; SIGCONT lets it continue."""
    os.kill(os.getpid(), signal.SIGSTOP)


@contextlib.contextmanager
def at(name: str, action: Callable[[], Any], *, nth: int = 1) -> Iterator[None]:
    """Inside the block, call `action` when this process passes the point for the nth time."""
    if nth < 1:
        raise BadInput(f"at {name!r}: nth={nth}: expected 1 or more")
    wanted = name if name in points.POINTS else OWN + name
    if ":" in name and wanted != name:
        raise BadInput(f"at {name!r}: there is no such point; docs/reference/points.md has them")
    before, left = points.watch, nth

    def watch(passed: str, about: Any) -> None:
        nonlocal left
        if before is not None:
            before(passed, about)
        if passed == wanted:
            left -= 1
            if left == 0:
                action()

    points.watch = watch
    try:
        yield
    finally:
        points.watch = before
