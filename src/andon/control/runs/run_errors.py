"""The errors of a run, from its journal: each failed attempt of a step, an effect or the agent."""

import json
from collections.abc import Sequence
from typing import Any

from andon.core.journal import Entry, EntryKind

_OF_AGENT = (EntryKind.RETRY, EntryKind.COMPENSATE, EntryKind.END)


def failures_of(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The errors in a journal, oldest first."""
    found: list[dict[str, Any]] = []
    last: dict[str, Any] = {}  # place → its last reported error
    for entry in entries:
        if entry.state == "started":
            last.pop(entry.place, None)
        error = _error(entry)
        if error is None or last.get(entry.place) == error:
            continue
        # The journal repeats some errors, which are listed once. An effect's error is written when
        # it is in doubt and again when it is retried or has failed; the agent's error is written
        # when the run is compensated and again when the run ends.
        last[entry.place] = error if entry.kind in (EntryKind.EFFECT, *_OF_AGENT) else None
        of_agent = entry.kind in _OF_AGENT
        found.append(
            {
                "at": entry.at,
                "kind": "agent" if of_agent else entry.kind,
                "name": "" if of_agent else entry.name,
                "key": entry.key,
                "type": error.get("type", ""),
                "message": error.get("message", ""),
                "traceback": error.get("traceback"),
            }
        )
    return found


def _error(entry: Entry) -> dict[str, Any] | None:
    # A body with a type is an error, and only these entries have errors.
    telling = entry.state in ("retrying", "in_doubt") or entry.kind in _OF_AGENT
    if not (telling or entry.state == "failed") or entry.body is None:
        return None
    body = json.loads(entry.body)
    if not isinstance(body, dict) or entry.state == "succeeded":
        return None
    error = body if isinstance(body.get("type"), str) else body.get("error")
    if not isinstance(error, dict):
        return None
    return {name: error.get(name) for name in ("type", "message", "traceback")}
