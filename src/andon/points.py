"""Named moments at which a test may kill or freeze the process.

Every promise about crashes is tested by dying at each of these. Nothing happens unless
ANDON_FAULTS was set when the process started, e.g. `effect:executed=kill@2` (at the second time).
"""

import os
import signal
from _thread import get_ident  # not `threading`: the supervisor has one thread, and stays small

POINTS = (
    "writer:before-commit",
    "writer:after-commit",
    "claim:claimed",
    "attempt:loaded",
    "step:before",
    "step:executed",
    "step:stored",
    "effect:started",
    "effect:executed",
    "effect:confirmed",
    "effect:probed",
    "effect:undone",
    "undo:begun",
    "undo:started",
    "undo:executed",
    "undo:confirmed",
    "wait:registered",
    "attempt:suspended",
    "attempt:before-settle",
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


def _parse(text: str) -> tuple[str, signal.Signals, int] | None:
    if not text:
        return None
    name, _, rest = text.partition("=")
    action, _, count = rest.partition("@")
    if name not in POINTS or action not in _ACTIONS or not (count or "1").isdigit():
        raise SystemExit(f"ANDON_FAULTS={text!r}: expected POINT=kill|freeze[@COUNT]")
    return name, _ACTIONS[action], int(count or "1")


_armed = _parse(os.environ.get("ANDON_FAULTS", ""))


def point(name: str) -> None:
    """Die or freeze here, if a test asked for it."""
    global _armed  # noqa: PLW0603 (one count per process)
    if _armed is not None and _armed[0] == name:
        wanted, action, left = _armed
        _armed = (wanted, action, left - 1) if left > 1 else None
        if left <= 1:
            # To this thread: another one would let it run on until the stop has reached it too.
            signal.pthread_kill(get_ident(), action)
