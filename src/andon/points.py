"""Named points at which a test may kill or freeze the process.

Every promise about crashes is tested by dying at each of these points. They do nothing unless
ANDON_FAULTS was set when the process started, e.g. `effect:executed=kill@2` (at the second time),
or a test of andon.testing in this process has set `watch` or `wrap`.
"""

from __future__ import annotations

import os
import signal
from _thread import get_ident  # not `threading`: the supervisor has one thread and stays small

TYPE_CHECKING = False  # stop commands pass points, and must not wait for an import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# `andon crashtest` kills a user's agent at these two families.
BOUNDARY = (
    "attempt:loaded",
    "step:before",
    "step:executed",
    "step:stored",
    "wait:registered",
    "attempt:suspended",
    "attempt:before-settle",
)
EFFECT = (
    "effect:started",
    "effect:executed",
    "effect:confirmed",
    "effect:probed",
    "effect:undone",
    "undo:begun",
    "undo:started",
    "undo:executed",
    "undo:confirmed",
)
POINTS = (
    "writer:before-commit",
    "writer:after-commit",
    "claim:claimed",
    *BOUNDARY,
    *EFFECT,
    "attempt:settled",
    "stop:told",
    "stop:left",
    "stop:ended",
    "drain:announce",
    "drain:boundary",
    "drain:checkpoint",
    "drain:compensate",
    "drain:cleanup",
    "halt:pulled",
    "halt:sent",
    "supervisor:spawned",
    "halt:latched",
    "halt:killing",
    "halt:killed",
    "halt:verified",
    "attend:order",
    "attend:heard",
    "attend:reported",
)

_ACTIONS = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}


class SignalAtPoint:
    """Sends a signal to this process when it passes a point for the nth time."""

    def __init__(self, name: str, action: signal.Signals, nth: int) -> None:
        self.name, self.action, self.left = name, action, nth

    def __call__(self, name: str, about: Any) -> None:
        if name != self.name:
            return
        self.left -= 1
        if self.left == 0:
            # Signal this thread: through another one it would run on until the stop reaches it too.
            signal.pthread_kill(get_ident(), self.action)


def fault(text: str) -> SignalAtPoint | None:
    """Parse ANDON_FAULTS."""
    if not text:
        return None
    name, _, rest = text.partition("=")
    action, _, count = rest.partition("@")
    if name not in POINTS or action not in _ACTIONS or not (count or "1").isdigit():
        raise SystemExit(f"ANDON_FAULTS={text!r}: expected POINT=kill|freeze[@COUNT]")
    return SignalAtPoint(name, _ACTIONS[action], max(int(count or "1"), 1))


# Called at every point that is passed, with the operation that the point is about, if any.
watch: Callable[[str, Any], None] | None = fault(os.environ.get("ANDON_FAULTS", ""))
# Called with every user function before it is called; returns the function to call instead.
wrap: Callable[[Any, Callable[..., Any]], Callable[..., Any]] | None = None


def point(name: str, about: Any = None) -> None:
    """Die or freeze here if a test asked for it."""
    if watch is not None:
        watch(name, about)
