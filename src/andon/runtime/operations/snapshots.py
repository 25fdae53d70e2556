"""Snapshots: a run's whole state; each writes only the parts that the previous one lacks."""

from typing import Any

from andon.core.journal import Entry, EntryKind, Mark
from andon.core.values import snapshot_parts, value
from andon.errors import Diverged
from andon.runtime.attempt.journal_writer import Draft
from andon.runtime.requests import requests
from andon.store.store import Blob


class RunState:
    """The state of a run's last snapshot, and which of its parts the store has."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._raw = b"null"
        self._parts: frozenset[str] = frozenset()
        self.unread = False  # there is a snapshot, and the code has not read it

    def load(self, store: Any, entry: Entry) -> None:
        """Read the state of a snapshot. Blocks."""
        body = requests.body_of(store, entry)
        names: set[str] = set()

        def fetch(name: str) -> str:
            names.add(name)
            found: str = store.blob(name)
            return found

        parted = entry.name == snapshot_parts.PARTS
        self._raw = snapshot_parts.joined(body, fetch) if parted else body.encode()
        self._parts = frozenset(names)

    def read(self) -> Any:
        self.unread = False
        return value.decode(self._raw.decode())

    def refuse_unread(self) -> None:
        """Raise if the code starts over although it has a snapshot: it would repeat everything."""
        if self.unread:
            raise Diverged(
                f"run {self._run_id}: it has a snapshot, but its code does not read "
                "ctx.restored: it would repeat finished work. Nothing was executed. Start the "
                "code from ctx.restored, and resume the run."
            )

    def save(self, raw: bytes) -> Draft:
        """The entry of a new snapshot, with the parts that the store lacks."""
        found = snapshot_parts.split(raw)
        body, parts = found or (raw, {})
        new = sorted(parts.keys() - self._parts)
        self._raw, self._parts = raw, frozenset(parts)
        return Draft(
            kind=EntryKind.SNAPSHOT,
            state=Mark.DONE,
            name=snapshot_parts.PARTS if found else "",
            body=body,
            parts=tuple(Blob(name=name, body=parts[name].decode()) for name in new),
        )
