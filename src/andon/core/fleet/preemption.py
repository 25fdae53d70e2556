"""Parses the notices by which a cloud announces that it takes a machine away.

EC2 announces in `spot/instance-action`, which does not exist (404) until then. GCE changes
`instance/preempted` to TRUE. Azure lists scheduled events for all machines of a group, so ours must
be among them. An unreadable answer is no notice; the next poll asks again.
"""

import json
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

# GCE gives no time; it promises at least this.
GCE_SECONDS = 30.0
# Reserved for the exit itself and for clock differences.
MARGIN_SECONDS = 5.0
# Even with no time left, the drain saves what it can.
LEAST_SECONDS = 1.0


class Notice(NamedTuple):
    """A notice that this machine goes away; `seconds_left` is None if no time was given."""

    why: str
    seconds_left: float | None


def of_ec2(status: int, body: str, now: float) -> Notice | None:
    """Parse `/latest/meta-data/spot/instance-action`."""
    said = _object(body) if status == 200 else {}
    action = said.get("action")
    if not isinstance(action, str) or not action:
        return None
    why = f"EC2 announced: {action[:20]}"
    if action == "hibernate":  # starts at once, without the two minutes' notice
        return Notice(why, 0.0)
    return Notice(why, _left(datetime.fromisoformat, said.get("time"), now))


def of_gce(status: int, body: str) -> Notice | None:
    """Parse `/computeMetadata/v1/instance/preempted`."""
    if status == 200 and body.strip() == "TRUE":
        return Notice("GCE announced: preempted", GCE_SECONDS)
    return None


def of_azure(status: int, body: str, now: float, names: Collection[str]) -> Notice | None:
    """Parse `/metadata/scheduledevents`; `names` are this machine's, or empty if unknown."""
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
        return Notice(why, _left(parsedate_to_datetime, event.get("NotBefore"), now))
    return None


def names_of_azure(status: int, body: str) -> frozenset[str]:
    """Return this machine's name in events, from `/metadata/instance/compute`; empty if unknown.

    With an unknown name every event applies: one drain too many is better than a missed one.
    """
    name = _object(body).get("name") if status == 200 else None
    return frozenset({name} if isinstance(name, str) and name else ())


def grace(own_seconds: float, notice: Notice) -> float:
    """Return the time for the drain: never above the usual, and over before the machine goes."""
    if notice.seconds_left is None:
        return own_seconds
    return min(own_seconds, max(notice.seconds_left - MARGIN_SECONDS, LEAST_SECONDS))


def _left(parse: Callable[[str], datetime], text: object, now: float) -> float | None:
    """Return the seconds until that time, or None if it cannot be read."""
    try:
        at = parse(str(text))
    except (ValueError, OverflowError):
        return None
    aware = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(aware.timestamp() - now, 0.0)


def _object(body: str) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
