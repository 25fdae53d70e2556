"""Progress of a worker: stored with its heartbeats, and sent to its supervisor through a pipe.

The event loop itself makes the tick, so a blocked loop cannot fake it. The counter of operations
and the steps in hand tell a busy worker from one that only ticks.
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
# Without a supervisor only heartbeats report the tick.
UNWATCHED_SECONDS = 1.0
# A write to a pipe of at most this many bytes is atomic.
LINE_BYTES = 4096
# Limits of one report: the runs whose operation takes longest, and the start of its name.
MOST_RUNS = 20
MOST_LETTERS = 60

_stacks: list[Any] = []  # keeps the file open: the signal handler writes to it


class WorkerProgress:
    """Reports what one worker is doing; safe to read from any thread."""

    def __init__(self, worker: "Worker") -> None:
        self._worker = worker
        self.tick = 0
        self._ticked_at = time.monotonic()
        self._ticking: asyncio.TimerHandle | None = None
        self._pinging = False  # a supervisor listens

    def begin(self) -> None:
        """Start ticking on the event loop, and pinging if a supervisor asked for it."""
        descriptor = os.environ.pop("ANDON_PING_FD", "")  # popped: children must not inherit it
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
        """The report for a heartbeat, as JSON."""
        lag = round(time.monotonic() - self._ticked_at, 3)
        return json.dumps({**self.facts(), "lag": lag})

    def _runs(self) -> dict[str, tuple[str, float]]:
        """The longest operation in hand of each run, and its seconds."""
        found = {}
        for run_id, attempt in list(self._worker.attempts.items()):
            hand = min(list(attempt.exit.hands), key=lambda one: one.since, default=None)
            if hand is None:
                found[run_id] = "", 0.0
            else:
                seconds = max(attempt.loop.time() - hand.since, 0.0)
                found[run_id] = hand.name[:MOST_LETTERS], round(seconds, 3)
        return found


def line(facts: dict[str, Any]) -> bytes:
    """Encode one ping, without the steps in hand if they do not fit."""
    found = json.dumps(facts).encode() + b"\n"
    return found if len(found) <= LINE_BYTES else line({**facts, "runs": {}})


def _ping(progress: WorkerProgress, descriptor: int) -> None:
    """Send pings from a thread, which falls silent when the process is frozen."""
    try:
        os.set_inheritable(descriptor, False)
        os.set_blocking(descriptor, False)
    except OSError as error:
        log.warning("ANDON_PING_FD=%d: %s", descriptor, error)
        return

    def send() -> None:
        while True:
            try:
                os.write(descriptor, line(progress.facts()))
            except BlockingIOError:
                pass  # the supervisor has not read the last ones yet
            except OSError:
                return  # the supervisor is gone
            except Exception:  # noqa: BLE001 (a ping must never end the work)
                log.debug("a ping failed", exc_info=True)
            time.sleep(TICK_SECONDS)

    threading.Thread(target=send, name="andon-ping", daemon=True).start()


def dump_stacks_on_request() -> None:
    """Make SIGRTMIN+4 append the stacks of all threads to the file named by ANDON_STACKS.

    faulthandler writes them in C, between two machine instructions, so a thread that never releases
    the interpreter is included. SIGABRT, which a supervisor sends to a process that stands still,
    prints them to stderr.
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
    """The supervisor that owns this process, and its containment: how surely it can stop it."""
    containment = os.environ.get("ANDON_CONTAINMENT") or None
    if containment is not None:
        try:
            json.loads(containment)
        except ValueError:
            log.warning("ANDON_CONTAINMENT: expected JSON, found %r", containment[:100])
            containment = None
    return {"supervisor": os.environ.get("ANDON_SUPERVISOR") or None, "containment": containment}
