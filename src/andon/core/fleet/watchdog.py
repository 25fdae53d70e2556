"""Whether a watched process still shows that it is alive.

It must send heartbeats, and the turn count of its event loop must change. A thread that keeps
reporting for a stuck loop proves nothing. A watcher that was itself suspended concludes nothing
from that time.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Watched:
    """Observations of a process, on the watcher's clock."""

    since: float  # when watching began
    heard: float | None = None  # last heartbeat
    tick: int | None = None  # last turn count
    moved: float | None = None  # when the count last changed


@dataclass(frozen=True, slots=True)
class Stall:
    why: str
    seconds: float


def heard(watched: Watched, tick: int, now: float) -> Watched:
    """Record a heartbeat with its turn count."""
    moved = now if tick != watched.tick else watched.moved
    return replace(watched, heard=now, tick=tick, moved=moved)


def excused(watched: Watched, seconds: float) -> Watched:
    """Shift all times by the seconds for which the watcher was away."""
    return Watched(
        since=watched.since + seconds,
        heard=None if watched.heard is None else watched.heard + seconds,
        tick=watched.tick,
        moved=None if watched.moved is None else watched.moved + seconds,
    )


def stall(
    watched: Watched,
    now: float,
    *,
    limit: float,
    start_limit: float,
    still_limit: float | None = None,
) -> Stall | None:
    """Return why the process counts as stalled, or None.

    `still_limit` applies to a loop that may wait for others longer than it may be silent.
    """
    if watched.heard is None or watched.moved is None:
        silent = now - watched.since
        return Stall("has not begun to answer", silent) if silent > start_limit else None
    silent, still = now - watched.heard, now - watched.moved
    if silent > limit:
        return Stall("is silent", silent)
    if still > (limit if still_limit is None else still_limit):
        return Stall("its event loop stands still", still)
    return None
