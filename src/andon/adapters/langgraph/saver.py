"""LangGraph checkpoints in andon's store: the saver of `andon.adapters.langgraph`.

Graphs are compiled with `AndonSaver`. Every save is durable before it returns. A save on behalf of
a run of andon carries the run's fence and raises Fenced once another worker owns the run; the check
and the save are one transaction.

Lists are stored in pieces, so that a conversation takes room in proportion to its length. A stored
value is the value at the time of the save: each save serializes all of it, because code may have
changed an element in place.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.pregel._loop import PregelLoop

from andon.core.lease import Fence
from andon.core.values import pieces
from andon.errors import BadInput, NotStorable
from andon.settings import load as load_settings
from andon.store import open_store
from andon.store.messages.graphs import (
    ChannelRow,
    CopyThread,
    DropCheckpoints,
    DropThread,
    GraphFilter,
    SaveCheckpoint,
    SaveWrites,
    WriteRow,
)
from andon.store.writer.writer import Writer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence

    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata
    from langgraph.checkpoint.serde.base import SerializerProtocol

    from andon.adapters.langgraph.invocation import Invocation
    from andon.core.values.pieces import Piece, Value
    from andon.store.messages.graphs import GraphKey, GraphMessage, GraphRow

T = TypeVar("T")

# Stored beside the checkpoint's body, because the store reads them.
_APART = ("channel_values", "channel_versions")
# Saves are serialized anyway; a few threads let reads overtake them.
_THREADS = 4
_DELTAS = "counters_since_delta_snapshot"


def _threaded(name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return the asynchronous version of that method of AndonSaver, which executes in a thread."""

    async def call(self: AndonSaver, *given: Any, **named: Any) -> Any:
        return await self._in_thread(getattr(self, name), *given, **named)

    return call


class AndonSaver(BaseCheckpointSaver[str]):
    """A checkpointer on andon's own store: SQLite or PostgreSQL, for sync and async graphs."""

    def __init__(
        self, store: str | None = None, *, serde: SerializerProtocol | None = None
    ) -> None:
        super().__init__(serde=serde or JsonPlusSerializer(pickle_fallback=False))
        settings = load_settings({"store": store})
        self._store = open_store(settings.store)
        # Saves made by several threads at the same time share one commit.
        self._writer = Writer(self._store, patience_seconds=settings.patience_seconds)
        # Not asyncio's executor: tools that block there would delay saves.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="andon-saver")

    def __enter__(self) -> AndonSaver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store; every save was durable before it returned."""
        self._threads.shutdown()
        self._writer.close()
        self._store.close()

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        thread, namespace = _place(config)
        invocation = _invocation(config)
        if invocation is not None:
            invocation.refuse_more()
        taken = _Taken(self.serde)
        values = checkpoint["channel_values"]
        channels = tuple(
            ChannelRow(channel=name, version=str(version), kind=kind, body=body)
            for name, version in new_versions.items()
            if name in values
            for kind, body in [taken.value(values[name], f"channel {name!r}")]
        )
        rest = {name: part for name, part in checkpoint.items() if name not in _APART}
        kind, body = taken.plain(rest, "the checkpoint")
        about = get_checkpoint_metadata(config, metadata)
        graph_run = about.get("run_id")
        self._write(
            SaveCheckpoint(
                thread=thread,
                namespace=namespace,
                id=checkpoint["id"],
                parent=get_checkpoint_id(config),
                kind=kind,
                body=body,
                versions=json.dumps(checkpoint["channel_versions"]),
                metadata=_as_json(about),
                graph_run=None if graph_run is None else str(graph_run),
                channels=channels,
                pieces=tuple(taken.pieces),
                asked=tuple(taken.asked),
                **_owner(config),
            )
        )
        return _config(thread, namespace, checkpoint["id"])

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        thread, namespace = _place(config)
        invocation = _invocation(config)
        if invocation is not None and not invocation.keeps(writes):
            return
        taken = _Taken(self.serde)
        rows = tuple(
            WriteRow(
                task=task_id,
                idx=WRITES_IDX_MAP.get(channel, place),
                channel=channel,
                path=task_path,
                kind=kind,
                body=body,
            )
            for place, (channel, value) in enumerate(writes)
            for kind, body in [taken.value(value, f"a write to {channel!r}")]
        )
        self._write(
            SaveWrites(
                thread=thread,
                namespace=namespace,
                checkpoint=str(config["configurable"]["checkpoint_id"]),
                writes=rows,
                pieces=tuple(taken.pieces),
                asked=tuple(taken.asked),
                **_owner(config),
            )
        )

    def get_next_version(self, current: str | int | float | None, channel: None) -> str:
        """Return the next version; equal numbers in two forks of a thread are distinct versions."""
        number = 0 if current is None else int(str(current).partition(".")[0])
        return f"{number + 1:010}.{os.urandom(6).hex()}"

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        loop = sys._getframe(1).f_locals.get("self")  # noqa: SLF001 (see _found)
        return _found(loop, *self._get(config))

    def _get(self, config: RunnableConfig) -> tuple[CheckpointTuple | None, bool]:
        """Return the checkpoint, and whether it already contains the graph's current input."""
        thread, namespace = _place(config)
        one, invocation = get_checkpoint_id(config), _invocation(config)
        if one is None and invocation is not None:
            return self._as_left(invocation, thread, namespace, config)
        return self._read_tuple(thread, namespace, one), False

    def _as_left(
        self, invocation: Invocation, thread: str, namespace: str, config: RunnableConfig
    ) -> tuple[CheckpointTuple | None, bool]:
        """Return the thread as this invocation left it, or as it is when the invocation begins."""
        own = None
        if not namespace or invocation.over:
            keys = self._store.graph_checkpoints_of([invocation.id])
            mine = [key.id for key in keys if (key.thread, key.namespace) == (thread, namespace)]
            own = max(mine, default=None)
        found = self._read_tuple(thread, namespace, own)
        if namespace:
            return None if found is None else invocation.as_left(found), False
        origin = invocation.begin(found, config)
        if own is not None:
            assert found is not None
            return invocation.as_left(found), True
        found = None if origin is None else self._read_tuple(thread, namespace, origin)
        return (None, False) if found is None else invocation.as_begun(found)

    def _read_tuple(self, thread: str, namespace: str, one: str | None) -> CheckpointTuple | None:
        row = self._read(thread, namespace, one)
        return None if row is None else self._tuple(row)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 (LangGraph's name)
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        asked = config["configurable"] if config else {}
        thread = asked.get("thread_id")
        which = GraphFilter(
            thread=None if thread is None else str(thread),
            namespace=asked.get("checkpoint_ns"),
            id=asked.get("checkpoint_id"),
            before=get_checkpoint_id(before) if before else None,
            limit=None if filter else limit,
        )
        keys: Sequence[GraphKey] = self._store.graph_checkpoints(which)
        if filter:
            found = [(key, json.loads(key.metadata)) for key in keys]
            keys = [key for key, metadata in found if metadata | filter == metadata][:limit]
        for key in keys:
            row = self._read(key.thread, key.namespace, key.id)
            if row is not None:  # else it was dropped in the meantime
                yield self._tuple(row)

    def _read(self, thread: str, namespace: str, one: str | None) -> GraphRow | None:
        found: GraphRow | None = self._store.graph_checkpoint(
            GraphFilter(thread=thread, namespace=namespace, id=one)
        )
        return found

    def _tuple(self, row: GraphRow) -> CheckpointTuple:
        parts = dict(row.pieces)
        values = {channel: self._load((kind, body), parts) for channel, kind, body in row.channels}
        checkpoint = {
            **self.serde.loads_typed((row.kind, row.body)),
            "channel_values": values,
            "channel_versions": json.loads(row.versions),
        }
        parent = row.parent and _config(row.thread, row.namespace, row.parent)
        return CheckpointTuple(
            _config(row.thread, row.namespace, row.id),
            checkpoint,  # type: ignore[arg-type]
            json.loads(row.metadata),
            parent or None,
            [
                (task, channel, self._load((kind, body), parts))
                for task, channel, kind, body in row.writes
            ],
        )

    def _load(self, value: Value, parts: dict[bytes, bytes]) -> Any:
        found = pieces.joined(value, parts)
        if isinstance(found, tuple):
            return self.serde.loads_typed(found)
        return [self.serde.loads_typed(one) for one in found]

    def delete_thread(self, thread_id: str) -> None:
        self._write(DropThread(thread=str(thread_id)))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete everything that these LangGraph runs have saved."""
        dropped: dict[str, list[tuple[str, str]]] = {}
        for key in self._store.graph_checkpoints_of([str(one) for one in run_ids]):
            dropped.setdefault(key.thread, []).append((key.namespace, key.id))
        self._write(
            *(
                DropCheckpoints(thread=thread, checkpoints=tuple(keys))
                for thread, keys in sorted(dropped.items())
            )
        )

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self._write(CopyThread(source=str(source_thread_id), target=str(target_thread_id)))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep each namespace's latest checkpoint, and those its delta channels start from."""
        threads = sorted({str(one) for one in thread_ids})
        if strategy == "delete":
            self._write(*(DropThread(thread=thread) for thread in threads))
        elif strategy == "keep_latest":
            self._write(*(self._all_but_latest(thread) for thread in threads))
        else:
            raise BadInput(f"strategy {strategy!r}: expected 'keep_latest' or 'delete'")

    def _all_but_latest(self, thread: str) -> DropCheckpoints:
        dropped: list[tuple[str, str]] = []
        kept: dict[str, set[str]] = {}
        for key in self._store.graph_checkpoints(GraphFilter(thread=thread)):
            if key.namespace not in kept:
                kept[key.namespace] = self._needed(key)
            if key.id not in kept[key.namespace]:
                dropped.append((key.namespace, key.id))
        return DropCheckpoints(thread=thread, checkpoints=tuple(dropped))

    def _needed(self, latest: GraphKey) -> set[str]:
        """The checkpoint, and those before it down to the stored values of its delta channels."""
        needed = {latest.id}
        row = self._read(latest.thread, latest.namespace, latest.id)
        missing = set(json.loads(latest.metadata).get(_DELTAS, ()))
        while row is not None:
            needed.add(row.id)
            missing -= {channel for channel, *_ in row.channels}
            if not missing or row.parent is None:
                break
            row = self._read(row.thread, row.namespace, row.parent)
        return needed

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        loop = sys._getframe(1).f_locals.get("self")  # noqa: SLF001 (see _found)
        return _found(loop, *await self._in_thread(self._get, config))

    async def alist(self, *given: Any, **named: Any) -> AsyncIterator[CheckpointTuple]:
        found = self.list(*given, **named)
        while (one := await self._in_thread(next, found, None)) is not None:
            yield one

    aput, aput_writes = _threaded("put"), _threaded("put_writes")
    adelete_thread, adelete_for_runs = _threaded("delete_thread"), _threaded("delete_for_runs")
    acopy_thread, aprune = _threaded("copy_thread"), _threaded("prune")

    async def _in_thread(self, do: Callable[..., T], *given: Any, **named: Any) -> T:
        call = partial(contextvars.copy_context().run, do, *given, **named)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _write(self, *messages: GraphMessage) -> None:
        for waiting in [self._writer.submit_from_thread(message) for message in messages]:
            waiting.result()


class _Taken:
    """Collects values for a save, and the pieces that they consist of."""

    def __init__(self, serde: SerializerProtocol) -> None:
        self._serde = serde
        self.pieces: list[Piece] = []
        self.asked: list[bytes] = []

    def value(self, value: Any, what: str) -> Value:
        if type(value) is list:
            kept, parts = pieces.listed(self.plain(one, what) for one in value)
        else:
            kept, parts = pieces.whole(self.plain(value, what))
        self.pieces += parts
        self.asked += pieces.in_question(parts)
        return kept

    def plain(self, value: Any, what: str) -> Value:
        try:
            return self._serde.dumps_typed(value)
        except (TypeError, ValueError) as error:
            raise NotStorable(
                f"{what}: a {type(value).__name__} cannot be saved: {error}. Keep values that "
                "LangGraph's serializer knows in the state, or give AndonSaver another serde."
            ) from error


def _found(loop: Any, found: CheckpointTuple | None, spent: bool) -> CheckpointTuple | None:
    """Return the checkpoint; if its input is spent, clear the input of the graph's loop.

    Replayed code gives its graph the same input again. The graph must not take a message or an
    answer that the thread has already for a second one, and LangGraph has no other way to say so.
    """
    if spent and isinstance(loop, PregelLoop):
        loop.input = None  # go on without input
    return found


def _place(config: RunnableConfig) -> tuple[str, str]:
    asked = config["configurable"]
    return str(asked["thread_id"]), asked.get("checkpoint_ns") or ""


def _config(thread: str, namespace: str, one: str) -> RunnableConfig:
    place = {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": one}
    return {"configurable": place}


def _owner(config: RunnableConfig) -> dict[str, Any]:
    """The run of andon on whose behalf the save is made, and its fence."""
    owner = config["configurable"].get("andon")
    if owner is None:
        return {}
    try:
        epoch, counter = owner["fence"]
        return {"run_id": str(owner["run_id"]), "fence": Fence(int(epoch), int(counter))}
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"config['configurable']['andon'] is {owner!r}; expected "
            "{'run_id': …, 'fence': (epoch, counter)}, as the run gives it"
        ) from error


def _invocation(config: RunnableConfig) -> Invocation | None:
    """The invocation through which a run's code called the graph."""
    owner = config["configurable"].get("andon")
    return owner.get("invocation") if isinstance(owner, dict) else None


def _as_json(metadata: CheckpointMetadata) -> str:
    try:
        return json.dumps(metadata)
    except (TypeError, ValueError) as error:
        raise NotStorable(f"the metadata of a checkpoint has to be JSON: {error}") from error
