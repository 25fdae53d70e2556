"""The exit of the supervisor: when it happens, with which code, and in which order.

The control process must receive every event before it is ended:

    children over → the control process gets the last events and reads to the end → SIGTERM →
    SIGKILL → remaining descendants are killed → exit code
"""

import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from andon.host import home as homes
from andon.host import proc
from andon.supervisor.children.child import Child
from andon.supervisor.spec import OVER

if TYPE_CHECKING:
    from andon.supervisor.supervisor import Supervisor

GAVE_UP, NOT_PROVED = 1, 3
FLUSH_SECONDS = 5.0  # for the control process to record what happened
TERM_SECONDS = 2.0
SHOW_SECONDS = 2.0  # for a terminal to take the last lines
REAP_SECONDS = 1.0


class SupervisorExit:
    """Decides when the supervisor exits, and takes it there step by step."""

    def __init__(self, own: "Supervisor") -> None:
        self._own = own
        self.code: int | None = None
        self._wanted: int | None = None
        self._until = 0.0
        self._stage = ""

    @property
    def begun(self) -> bool:
        return bool(self._stage)

    def look(self) -> None:
        now = time.monotonic()
        if self._stage:
            self._go_on(now)
        elif self._over():
            self._begin(now)

    def _over(self) -> bool:
        own = self._own
        if own.halt_state.current is not None and not own.halt_state.current.answered:
            return False  # the caller of the halt must get its receipt first
        if any(not kill.overran for kill in own.kills):
            return False  # whether any process is left is not known yet
        goes = bool(own.leaving) or own.spec.single is not None
        over = all(child.state in OVER or (goes and self._stuck(child)) for child in own.supervised)
        return over and bool(own.supervised or own.leaving)

    def _stuck(self, child: Child) -> bool:
        """Whether it was killed until the deadline passed and is still there."""
        kill = self._own.kill_of(child)
        return kill is not None and kill.overran

    def _begin(self, now: float) -> None:
        own = self._own
        self._wanted = self._decide()
        own.channel.send("ending", code=self._wanted, why=own.leaving or "over")
        self._stage, self._until = "flush", now + FLUSH_SECONDS
        control = own.control
        if control is not None and not control.pid and not own.channel.idle:
            # It is down: start it once more, to receive the last events.
            own.lifecycle.start(control)

    def _decide(self) -> int:
        own = self._own
        if any(kill.survivors for kill in own.kills):
            return NOT_PROVED
        single = own.spec.single
        if single is not None:
            child = next(each for each in own.children if each.spec is single)
            return 1 if child.state == "refused" else child.exit_code()
        failed = [child.state in ("gave_up", "refused") for child in own.supervised]
        if failed and not own.leaving and all(failed):
            return GAVE_UP
        return 0

    def _go_on(self, now: float) -> None:
        control = self._own.control
        if control is None or not control.pid:
            self.code = self._wanted
            return
        control.due = None
        if self._stage == "flush" and self._own.channel.idle:
            self._own.channel.finish()
            self._stage = "read"
        if now < self._until:
            return
        harder = signal.SIGTERM if self._stage in ("flush", "read") else signal.SIGKILL
        proc.send_to(control.pidfd, harder)
        self._stage, self._until = "signalled", now + TERM_SECONDS

    def skip_wait(self) -> None:
        self._until = 0.0

    def finish(self) -> int:
        """Clean up: leave no process, no file and no unshown line behind."""
        own = self._own
        self._sweep()
        end = time.monotonic() + SHOW_SECONDS
        while not all([own.out.push(), own.err.push()]) and time.monotonic() < end:
            time.sleep(0.01)
        if own.server is not None:
            path = own.server.listener.getsockname()
            own.server.close()
            with suppress(OSError):
                os.unlink(path)
        homes.unregister(own.spec.home, own.id)
        with suppress(OSError):
            os.unlink(homes.state_path(own.spec.home, own.id))
        own.mechanism.close()
        return self.code if self.code is not None else GAVE_UP

    def _sweep(self) -> None:
        """Kill what the control process or a probe left; as PID 1, every process."""
        end = time.monotonic() + REAP_SECONDS
        while time.monotonic() < end:
            self._own.lifecycle.reap()
            left = [pid for pid in proc.descendants([os.getpid()]) if proc.alive(pid)]
            if not left:
                return
            if os.getpid() == 1:
                with suppress(OSError):
                    os.kill(-1, signal.SIGKILL)
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)
