"""Leases and fences: which worker may move a run, and until when.

The store's clock decides when a lease ends. The holder trusts it for a shorter time, counted from
before it sent the request and minus a margin. So a slow answer or a drifting clock makes a worker
stop early, never late.
"""

from typing import NamedTuple

# Evidence starts with one of these if somebody saw the process end, so the time is known.
ENDED = "its process ended"
SUPERVISED_END = "its supervisor saw it end"
KILLED = "SIGKILL by"
WATCHED = (ENDED, SUPERVISED_END, KILLED)


class Fence(NamedTuple):
    """A token that grows with every claim and accompanies every write.

    The epoch comes first, because a restored or promoted database may have lost counters.
    """

    epoch: int
    counter: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.counter}"


def trusted_until(asked_at: float, lease_seconds: float) -> float:
    """Return the local time from which the holder must act as if it had lost its lease.

    A fifth is kept back. If the clocks of two machines drift by 1 %, they differ by less than that.
    """
    return asked_at + lease_seconds * 0.8


def renew_every(lease_seconds: float) -> float:
    """Return the seconds between heartbeats: two may be lost before the trust ends."""
    return lease_seconds / 4


def may_expire_others(in_contact_since: float, now: float, lease_seconds: float) -> bool:
    """Whether a worker may declare silent workers overdue.

    After a database outage every lease has ended. The first worker to reconnect must not take the
    runs of workers that reconnect a moment later, so it waits until it has been in contact for one
    lease itself.
    """
    return now - in_contact_since >= lease_seconds
