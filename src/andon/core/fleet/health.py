"""Whether a worker is alive, ready and started.

Liveness covers the path on which work arrives: the event loop responds and the store is reachable.
It fails only if a restart can help: a database that is down makes a worker unready, not dead. A
draining worker counts as alive until its grace period is over.
"""

from typing import NamedTuple


class Vitals(NamedTuple):
    """Observations of a worker from outside its event loop."""

    started: bool
    draining: bool
    loop_silent: float  # seconds since the event loop last responded
    contact_age: float  # seconds since the store last answered the worker
    store_up_for: float | None  # seconds for which the store has answered others; None: it is down


class HealthVerdict(NamedTuple):
    ok: bool
    status: str
    why: str = ""


STARTING = HealthVerdict(False, "starting", "it is not registered yet")


def live(seen: Vitals, limit_seconds: float) -> HealthVerdict:
    """Whether the worker is alive. If not, a restart may help."""
    if seen.draining:
        return HealthVerdict(True, "draining")
    if stuck := _stuck(seen, limit_seconds):
        return stuck
    if seen.store_up_for is None:
        return HealthVerdict(True, "live", "the store is away; a restart would not help")
    return HealthVerdict(True, "live")


def ready(seen: Vitals, limit_seconds: float) -> HealthVerdict:
    """Whether the worker can be expected to take new runs."""
    if seen.draining:
        why = "it is draining: it takes no new runs and requeues its own"
        return HealthVerdict(False, "draining", why)
    if not seen.started:
        return STARTING
    if seen.store_up_for is None:
        return HealthVerdict(False, "store away", "the store does not answer")
    return _stuck(seen, limit_seconds) or HealthVerdict(True, "ready")


def begun(seen: Vitals) -> HealthVerdict:
    """Whether the worker has started; a draining one has."""
    if seen.started or seen.draining:
        return HealthVerdict(True, "started")
    return STARTING


def _stuck(seen: Vitals, limit_seconds: float) -> HealthVerdict | None:
    why = ""
    if seen.loop_silent > limit_seconds:
        why = f"its event loop has not answered for {seen.loop_silent:.0f} s"
    # After an outage the worker needs a moment to reconnect: it is late only if the store was up.
    elif seen.started and min(seen.contact_age, seen.store_up_for or 0.0) > limit_seconds:
        age = f"{seen.contact_age:.0f} s"
        why = f"the store answers, but this worker has not reached it for {age}"
    return HealthVerdict(False, "stuck", why) if why else None
