"""Named moments: do something, or die, when the code comes past one.

`point` marks a moment of your own inside an agent, a step or an effect; a crash test kills there
too. It does nothing otherwise.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

from andon import points
from andon.errors import BadInput

# Before the names of people's own points, so that none can be taken for one of andon's.
OWN = "own:"


def point(name: str) -> None:
    """Mark a moment in your own code."""
    points.point(OWN + name)


def kill() -> None:
    """SIGKILL to this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def freeze() -> None:
    """SIGSTOP to this process; SIGCONT lets it go on."""
    os.kill(os.getpid(), signal.SIGSTOP)


@contextlib.contextmanager
def at(name: str, action: Callable[[], Any], *, nth: int = 1) -> Iterator[None]:
    """Inside the block: call `action` when this process comes past the point for the nth time."""
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
