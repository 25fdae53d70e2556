"""Events of workers, versions and runs, in the order in which they happened."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from andon.control.changes import Patience, poll
from andon.control.facts import facts
from andon.store.messages.rows import EventRow
from andon.store.store import Store

PAGE = 1000
# Ids are assigned before the commit: an event may become visible after one with a higher id.
LATE_SECONDS = 10.0


def recent(store: Store, since: float) -> list[dict[str, Any]]:
    """Every event since a time."""
    return [as_event(row) for row in _after(store, store.last_event(since))]


def _after(store: Store, number: int) -> Iterator[EventRow]:
    while page := store.events(number, PAGE):
        yield from page
        number = page[-1].id


def as_event(row: EventRow) -> dict[str, Any]:
    return {
        **facts(row, "id at kind"),
        "run": row.run_id,
        "worker": row.worker,
        "about": json.loads(row.body),
    }


def follow(
    store: Store, since: float, patience: Patience, on_event: Callable[[dict[str, Any]], None]
) -> None:
    """Pass on every event since a time, then each new one; never returns."""
    after: int | None = None
    seen: dict[int, float] = {}

    def look() -> bool:
        nonlocal after, seen
        if after is None:
            after = store.last_event(since)
        for row in _after(store, after):
            if row.id not in seen:
                seen[row.id] = row.at
                on_event(as_event(row))
        if seen:
            settled = max(seen.values()) - LATE_SECONDS
            after = max([after, *(n for n, at in seen.items() if at < settled)])
            seen = {number: at for number, at in seen.items() if number > after}
        return False

    poll(store, look, patience, None)


def describe(event: dict[str, Any]) -> str:
    """An event in a few words: its run and worker, then its details."""
    about_whom = [str(event[field]) for field in ("run", "worker") if event[field] is not None]
    return "  ".join([*about_whom, *([_words(event["about"])] if event["about"] else [])])


def _words(about: Any) -> str:
    if not isinstance(about, dict):
        return json.dumps(about, ensure_ascii=False)
    pairs = ((name, _value(name, value)) for name, value in about.items())
    return ", ".join(f"{name.replace('_', ' ')} {text}" for name, text in pairs if text)


def _value(name: str, value: Any) -> str:
    if name == "agents" and isinstance(value, list):
        return ", ".join(" ".join(map(str, one)) for one in value if isinstance(one, list))
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
