"""Snapshots: a run's whole state; each writes only the parts that the previous one lacks."""

from typing import Any

from andon.core.journal import Entry, EntryKind, Mark
from andon.core.values import snapshot_parts
from andon.runtime.attempt.journal import Draft
from andon.runtime.requests import requests
from andon.store.store import Blob


def draft(attempt: Any, raw: bytes) -> Draft:
    """The entry of a snapshot, with the parts that the store does not have from the last one."""
    found = snapshot_parts.split(raw)
    body, parts = found or (raw, {})
    new = [
        Blob(name=name, body=parts[name].decode()) for name in sorted(parts.keys() - attempt.parts)
    ]
    attempt.snapshot, attempt.parts = raw, frozenset(parts)
    return Draft(
        kind=EntryKind.SNAPSHOT,
        state=Mark.DONE,
        name=snapshot_parts.PARTS if found else "",
        body=body,
        parts=tuple(new),
    )


def restored(store: Any, entry: Entry) -> tuple[bytes, frozenset[str]]:
    """The state of a snapshot, and the names of its parts."""
    body = requests.body_of(store, entry)
    if entry.name != snapshot_parts.PARTS:
        return body.encode(), frozenset()
    names: set[str] = set()

    def fetch(name: str) -> str:
        names.add(name)
        found: str = store.blob(name)
        return found

    return snapshot_parts.joined(body, fetch), frozenset(names)
