"""Whether a process that must show signs of life still shows them, seen from outside.

Two signs: that it says anything, and that the count of its event loop's turns moves. A thread that
goes on talking for a loop that stands still is no sign of life. A watcher that was itself away
concludes nothing from what it did not see.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Watched:
    """What has been seen of a process, on the watcher's own clock."""

    since: float  # began to be watched
    heard: float | None = None  # said something for the last time
    tick: int | None = None  # the last count
    moved: float | None = None  # the count changed for the last time


@dataclass(frozen=True, slots=True)
class Stall:
    why: str
    seconds: float


def heard(watched: Watched, tick: int, now: float) -> Watched:
    """It said its count."""
    moved = now if tick != watched.tick else watched.moved
    return replace(watched, heard=now, tick=tick, moved=moved)


def excused(watched: Watched, seconds: float) -> Watched:
    """The watcher was away for so long."""
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
    """Why it is not alive any more as far as anybody can see, or nothing.

    `still_limit`: for a loop that may wait for somebody else for longer than it may be silent.
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
