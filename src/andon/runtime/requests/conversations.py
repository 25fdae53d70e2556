"""Conversations in the store: named lists of items that runs add to.

Each addition has a key, so repeating it adds nothing; one made on behalf of a run carries the run's
fence. A run that continues a conversation takes it over from an interrupted run: that run is
killed, and everything it had received or done but not yet added is recovered from its journal.
"""

import asyncio
import json
import uuid
from collections.abc import Callable
from typing import Any

from andon import transcript
from andon.core.journal import EntryKind, Mark
from andon.core.lease import Fence
from andon.core.run import State
from andon.errors import NotFound
from andon.runtime.requests import requests, tool_ledger
from andon.settings import load as load_settings
from andon.store import open_store
from andon.store.messages.graphs import DropCheckpoints, DropThread, GraphFilter, SaveCheckpoint
from andon.store.writer.writer import Writer

_SPACE = "andon.conversation"
_EMPTY = b"{}"  # readable for LangGraph's serializer, which may list every row


class Conversation:
    """The items of an OpenAI Responses conversation, stored as they were added.

    `nameless` is the placeholder id of items that have no id of their own.
    """

    def __init__(self, name: str, store: str | None = None, *, nameless: str = "") -> None:
        self.thread = f"{_SPACE}/{name}"
        self._url, self._own = load_settings({"store": store}).store, store is None
        self._store: Any = None
        self._nameless = nameless
        self._lock = asyncio.Lock()

    def close(self) -> None:
        """Close the store's connection."""
        if self._store is not None:
            self._writer.close()
            self._store.close()
            self._store = None

    async def items(self, run_id: str | None = None) -> list[Any]:
        """Return all items.

        With `run_id` they are in the form that the provider accepts, and include everything the
        previous run had received and done when it was interrupted.
        """
        rows = await self._do(self._rows)
        if run_id is None or not rows:
            return _items(rows)
        if (before := rows[-1]["run"]) not in (None, run_id):
            known = _items(rows)
            lost = await self._do(self._lost, before, run_id, known)
            await self.add(lost, key=f"{before}/lost/{len(known)}", run_id=run_id)
            rows = await self._do(self._rows)
        found = transcript.repair(_items(rows), format="responses", policy="interrupted")
        return list(found.messages)

    async def add(
        self,
        items: list[Any],
        *,
        key: str | None = None,
        run_id: str | None = None,
        fence: Fence | None = None,
    ) -> None:
        """Add items; an addition whose key exists already is skipped."""
        if items:
            await self._do(self._add, items, key or uuid.uuid4().hex, run_id, fence)

    async def pop(self) -> Any:
        return await self._do(self._pop)

    async def clear(self) -> None:
        await self._do(self._write, DropThread(thread=self.thread))

    async def _do(self, do: Callable[..., Any], *given: Any) -> Any:
        async with self._lock:
            return await asyncio.to_thread(do, *given)

    def _opened(self) -> Any:
        if self._store is None:
            self._store = open_store(self._url)
            self._writer = Writer(self._store, patience_seconds=0)
        return self._store

    def _rows(self) -> list[dict[str, Any]]:
        which = GraphFilter(thread=self.thread, namespace="")
        keys = self._opened().graph_checkpoints(which)
        return [{"id": key.id, **json.loads(key.metadata)} for key in reversed(keys)]

    def _add(self, items: list[Any], key: str, run_id: str | None, fence: Fence | None) -> None:
        rows = self._rows()
        if any(row["key"] == key for row in rows):
            return
        owner = {"run_id": run_id, "fence": fence} if self._own and fence is not None else {}
        number = int(rows[-1]["id"].partition("-")[0]) + 1 if rows else 0
        about = {"key": key, "run": run_id, "items": [self._named(one) for one in items]}
        self._save(f"{number:010}-{key}", about, **owner)

    def _save(self, one: str, about: dict[str, Any], **owner: Any) -> None:
        self._write(
            SaveCheckpoint(
                thread=self.thread,
                namespace="",
                id=one,
                parent=None,
                kind="json",
                body=_EMPTY,
                versions="{}",
                metadata=json.dumps(about),
                graph_run=None,
                channels=(),
                **owner,
            )
        )

    def _pop(self) -> Any:
        rows = self._rows()
        if not rows:
            return None
        one, last = rows[-1].pop("id"), rows[-1]
        *left, item = last["items"]
        if left:
            self._save(one, {**last, "items": left})
        else:
            self._write(DropCheckpoints(thread=self.thread, checkpoints=(("", one),)))
        return item

    def _write(self, message: Any) -> None:
        self._opened()
        self._writer.submit_from_thread(message).result()

    def _lost(self, run_id: str, heir: str, known: list[Any]) -> list[Any]:
        """Return what a run's model and tools produced after its last addition."""
        store = self._opened()
        tool_ledger.take_over(store, run_id, heir)
        try:
            if requests.find(store, run_id).state == State.SUCCEEDED:
                return []
        except NotFound:
            return []
        there = {_name(item) for item in known}
        lost: list[Any] = []
        for entry in requests.journal(store, run_id):
            if (entry.kind, entry.name, entry.state) == (EntryKind.STEP, "model", Mark.DONE):
                output = json.loads(requests.body_of(store, entry)).get("output") or []
                items = [self._named(_given(one)) for one in output]
                lost += [one for one in items if _name(one) not in there]
        found = transcript.repair(
            [*known, *lost],
            format="responses",
            policy="interrupted",
            ledger=tool_ledger.known_calls(store, run_id),
        )
        return list(found.messages[len(known) :])

    def _named(self, item: Any) -> Any:
        if not isinstance(item, dict) or not self._nameless or item.get("id") != self._nameless:
            return item
        return {name: part for name, part in item.items() if name != "id"}


def _items(rows: list[dict[str, Any]]) -> list[Any]:
    return [item for row in rows for item in row["items"]]


def _name(item: dict[str, Any]) -> Any:
    """Return the identity of an item; without an id, its role and texts."""
    content = item.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = tuple(one.get("text") for one in parts if isinstance(one, dict))
    return item.get("call_id") or item.get("id") or (item.get("role"), texts)


def _given(item: dict[str, Any]) -> dict[str, Any]:
    """Strip the empty fields of an answer's item, as the next request expects it."""
    return {name: part for name, part in item.items() if part is not None}
