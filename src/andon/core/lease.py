"""Who may move a run, and until when.

The store's clock decides when a lease ends. The holder trusts its own copy for less: counted from
before the request was sent, minus a margin. A slow answer or a drifting clock makes a worker stop
early, never late.
"""

from typing import NamedTuple

# How the evidence begins when somebody saw a process end: then the time of its end is known.
ENDED = "its process ended"
SUPERVISED_END = "its supervisor saw it end"
KILLED = "SIGKILL by"
WATCHED = (ENDED, SUPERVISED_END, KILLED)


class Fence(NamedTuple):
    """Grows with every claim and accompanies every write.

    The epoch comes first: a restored or promoted database may have forgotten counters.
    """

    epoch: int
    counter: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.counter}"


def trusted_until(asked_at: float, lease_seconds: float) -> float:
    """Local time after which the holder must act as if it had lost its lease.

    A fifth is kept back: clocks of two machines that drift 1 % apart differ by less.
    """
    return asked_at + lease_seconds * 0.8


def renew_every(lease_seconds: float) -> float:
    """Seconds between heartbeats: two may be lost before the trust ends."""
    return lease_seconds / 4


def may_expire_others(in_contact_since: float, now: float, lease_seconds: float) -> bool:
    """Whether a worker may declare silent ones overdue.

    After an outage of the database every lease has ended. Who comes back first must not take the
    runs of those who come back a moment later, so it has to be in contact for one lease itself.
    """
    return now - in_contact_since >= lease_seconds
