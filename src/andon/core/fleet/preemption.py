"""What a cloud says before it takes a machine away: from an answer to a notice.

EC2 announces in `spot/instance-action`: absent (404) until then. GCE turns `instance/preempted`
to TRUE. Azure lists scheduled events for all machines of a group, so ours must be among them.
What cannot be read is no notice: the next look asks again.
"""

import json
from collections.abc import Collection
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

# GCE gives no time; this is what it promises at least.
GCE_SECONDS = 30.0
# Kept back for the exit itself and for clocks that differ.
MARGIN_SECONDS = 5.0
# Even without any time left, what can be saved is saved.
LEAST_SECONDS = 1.0


class Notice(NamedTuple):
    """This machine goes away. `seconds_left` is None if it was not said when."""

    why: str
    seconds_left: float | None


def of_ec2(status: int, body: str, now: float) -> Notice | None:
    """From `/latest/meta-data/spot/instance-action`."""
    said = _object(body) if status == 200 else {}
    action = said.get("action")
    if not isinstance(action, str) or not action:
        return None
    why = f"EC2 announced: {action[:20]}"
    if action == "hibernate":  # begins at once, without the two minutes
        return Notice(why, 0.0)
    return Notice(why, _left(_iso(said.get("time")), now))


def of_gce(status: int, body: str) -> Notice | None:
    """From `/computeMetadata/v1/instance/preempted`."""
    if status == 200 and body.strip() == "TRUE":
        return Notice("GCE announced: preempted", GCE_SECONDS)
    return None


def of_azure(status: int, body: str, now: float, names: Collection[str]) -> Notice | None:
    """From `/metadata/scheduledevents`; `names` are this machine's, empty if they are not known."""
    events = _object(body).get("Events") if status == 200 else None
    for event in events if isinstance(events, list) else ():
        if not isinstance(event, dict) or event.get("EventType") not in ("Preempt", "Terminate"):
            continue
        meant = event.get("Resources")
        others = meant if isinstance(meant, list) else []
        if names and others and not set(names) & {str(name) for name in others}:
            continue
        why = f"Azure announced: {event['EventType']}"
        if event.get("EventStatus") == "Started":
            return Notice(why, 0.0)
        return Notice(why, _left(_rfc1123(event.get("NotBefore")), now))
    return None


def names_of_azure(status: int, body: str) -> frozenset[str]:
    """From `/metadata/instance/compute`: what events call this machine; empty if it is not said.

    Then every event is about it: a drain too many is better than one that is missed.
    """
    name = _object(body).get("name") if status == 200 else None
    return frozenset({name} if isinstance(name, str) and name else ())


def grace(own_seconds: float, notice: Notice) -> float:
    """How long the drain may take: never longer than usual, and done before the machine is."""
    if notice.seconds_left is None:
        return own_seconds
    return min(own_seconds, max(notice.seconds_left - MARGIN_SECONDS, LEAST_SECONDS))


def _left(at: datetime | None, now: float) -> float | None:
    if at is None:
        return None
    aware = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(aware.timestamp() - now, 0.0)


def _object(body: str) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _iso(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None


def _rfc1123(text: Any) -> datetime | None:
    try:
        return parsedate_to_datetime(str(text))
    except (ValueError, OverflowError):
        return None
