"""Progress: what a worker's heartbeats say of it, and its supervisor hears by a pipe.

The tick is made by the event loop itself: a loop that is blocked cannot fake it. The counter of
operations and the steps in hand tell a worker that is busy from one that only ticks.
"""

import asyncio
import contextlib
import faulthandler
import json
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

from andon.runtime.attempt import branch
from andon.runtime.attempt.exit import log

if TYPE_CHECKING:
    from andon.runtime.worker.worker import Worker

TICK_SECONDS = 0.25
# Without a supervisor it is told by heartbeats only.
UNWATCHED_SECONDS = 1.0
# A line that is not longer is written to a pipe as a whole, or not at all.
LINE_BYTES = 4096
# Of those in hand, the ones that take longest; and of their names, the beginning.
MOST_RUNS = 20
MOST_LETTERS = 60

_stacks: list[Any] = []  # the file must stay open: the signal's own code writes to it


class Progress:
    """What one worker is doing, to be read from any thread."""

    def __init__(self, worker: "Worker") -> None:
        self._worker = worker
        self.tick = 0
        self._ticked_at = time.monotonic()
        self._ticking: asyncio.TimerHandle | None = None
        self._pinging = False  # a supervisor listens

    def begin(self) -> None:
        """On the event loop. Pings begin too, if a supervisor wants them."""
        descriptor = os.environ.pop("ANDON_PING_FD", "")  # ours alone, and not our children's
        self._pinging = descriptor.isdigit()
        self._tick()
        if self._pinging:
            _ping(self, int(descriptor))
        dump_stacks_on_request()

    def end(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()

    def _tick(self) -> None:
        self.tick += 1
        self._ticked_at = time.monotonic()
        self._ticking = branch.call_later(
            TICK_SECONDS if self._pinging else UNWATCHED_SECONDS, self._tick
        )

    def facts(self) -> dict[str, Any]:
        return {
            "tick": self.tick,
            "steps": self._worker.operations,
            "runs": dict(sorted(self._runs().items(), key=lambda run: -run[1][1])[:MOST_RUNS]),
        }

    def text(self) -> str:
        """For a heartbeat."""
        lag = round(time.monotonic() - self._ticked_at, 3)
        return json.dumps({**self.facts(), "lag": lag})

    def _runs(self) -> dict[str, tuple[str, float]]:
        """The operation in hand of each run that takes longest, and for how long."""
        found = {}
        for run_id, attempt in list(self._worker.attempts.items()):
            hand = min(list(attempt.hands), key=lambda one: one.since, default=None)
            if hand is None:
                found[run_id] = "", 0.0
            else:
                seconds = max(attempt.loop.time() - hand.since, 0.0)
                found[run_id] = hand.name[:MOST_LETTERS], round(seconds, 3)
        return found


def line(facts: dict[str, Any]) -> bytes:
    """One ping; the steps in hand are left out if they do not fit."""
    found = json.dumps(facts).encode() + b"\n"
    return found if len(found) <= LINE_BYTES else line({**facts, "runs": {}})


def _ping(progress: Progress, descriptor: int) -> None:
    """Say it again and again, from a thread: that one is silent when the process is frozen."""
    try:
        os.set_inheritable(descriptor, False)
        os.set_blocking(descriptor, False)
    except OSError as error:
        log.warning("ANDON_PING_FD=%d: %s", descriptor, error)
        return

    def say() -> None:
        while True:
            try:
                os.write(descriptor, line(progress.facts()))
            except BlockingIOError:
                pass  # nobody has read the last ones yet
            except OSError:
                return  # nobody listens any more
            except Exception:  # noqa: BLE001 (a watchdog must not be what ends the work)
                log.debug("a ping failed", exc_info=True)
            time.sleep(TICK_SECONDS)

    threading.Thread(target=say, name="andon-ping", daemon=True).start()


def dump_stacks_on_request() -> None:
    """SIGRTMIN+4 appends the stacks of all threads to the file of ANDON_STACKS.

    In C, between two machine instructions: also of a thread that never lets go of the interpreter.
    SIGABRT, by which a supervisor ends one that stands still, prints them to stderr.
    """
    path = os.environ.get("ANDON_STACKS")
    if not path or _stacks:
        return
    try:
        _stacks.append(open(path, "a", encoding="utf-8"))  # noqa: SIM115 (for ever)
    except OSError as error:
        log.warning("ANDON_STACKS=%s: %s", path, error)
        return
    faulthandler.register(signal.SIGRTMIN + 4, file=_stacks[0], all_threads=True)
    with contextlib.suppress(ValueError, OSError):  # no stderr
        faulthandler.enable(all_threads=True)


def given_by_supervisor() -> dict[str, str | None]:
    """Who owns this process, and how surely it can stop it."""
    containment = os.environ.get("ANDON_CONTAINMENT") or None
    if containment is not None:
        try:
            json.loads(containment)
        except ValueError:
            log.warning("ANDON_CONTAINMENT: expected JSON, found %r", containment[:100])
            containment = None
    return {"supervisor": os.environ.get("ANDON_SUPERVISOR") or None, "containment": containment}
