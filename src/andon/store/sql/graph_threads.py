"""LangGraph threads: save, read, copy and drop their checkpoints.

A piece is written once per thread, and dropped when nothing names it any more.
"""

from __future__ import annotations

import json

from andon.errors import Corrupt, Fenced
from andon.store.messages.graphs import GraphFilter, GraphKey, GraphRow
from andon.store.sql.reads import build, fields

TYPE_CHECKING = False  # commands must not pay for imports they do not need
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from andon.core.values.pieces import Value
    from andon.store.messages.graphs import (
        CopyThread,
        DropCheckpoints,
        DropThread,
        SaveCheckpoint,
        SaveWrites,
    )
    from andon.store.sql.reads import Query, Rows

# A checkpoint may be dropped while it is read; reading again then finds it gone.
_TRIES = 3
_EVERY = 2**62
_TABLES = ("checkpoints", "channels", "writes", "pieces")
_COLUMNS = ("thread", "namespace", "id", "parent", "kind", "body", "versions", "metadata")


class GraphThreadHandler:
    """Handles the messages about LangGraph threads."""

    def __init__(self, q: Query) -> None:
        self.q = q

    def save_checkpoint(self, m: SaveCheckpoint) -> None:
        self._save_pieces(m)
        self.q(
            "save_graph_checkpoint",
            thread=m.thread,
            namespace=m.namespace,
            id=m.id,
            parent=m.parent,
            kind=m.kind,
            body=m.body,
            versions=m.versions,
            metadata=m.metadata,
            graph_run=m.graph_run,
        )
        for row in m.channels:
            self.q("save_graph_channel", thread=m.thread, namespace=m.namespace, **fields(row))

    def save_writes(self, m: SaveWrites) -> None:
        self._save_pieces(m)
        place = {"thread": m.thread, "namespace": m.namespace, "checkpoint": m.checkpoint}
        for row in m.writes:
            self.q("save_graph_write", **place, **fields(row))

    def _save_pieces(self, m: SaveCheckpoint | SaveWrites) -> None:
        if m.fence is not None:
            fence = {"fence": m.fence.counter, "epoch": m.fence.epoch}
            if not self.q("graph_fence", run_id=m.run_id, **fence):
                raise Fenced(str(m.run_id), m.fence)
        self.q("share_thread", thread=m.thread)
        if not m.pieces:
            return
        from andon.core.values import pieces

        known = self.q("known_pieces", thread=m.thread, names=_hex(m.asked)) if m.asked else []
        for piece in pieces.missing(m.pieces, frozenset(bytes(name) for (name,) in known)):
            self.q("insert_piece", thread=m.thread, name=piece.name, body=piece.body)

    def drop_thread(self, m: DropThread) -> None:
        self.q("lock_thread", thread=m.thread)
        for table in _TABLES:
            self.q(f"drop_thread_{table}", thread=m.thread)

    def copy_thread(self, m: CopyThread) -> None:
        for thread in sorted({m.source, m.target}):
            self.q("lock_thread", thread=thread)
        for table in _TABLES:
            self.q(f"copy_thread_{table}", source=m.source, target=m.target)

    def drop_checkpoints(self, m: DropCheckpoints) -> None:
        self.q("lock_thread", thread=m.thread)
        for namespace, one in m.checkpoints:
            self.q("drop_graph_checkpoint", thread=m.thread, namespace=namespace, id=one)
            self.q("drop_graph_writes", thread=m.thread, namespace=namespace, id=one)
        self._drop_unused_channels(m.thread)
        self._drop_unused_pieces(m.thread)

    def _drop_unused_channels(self, thread: str) -> None:
        used = {
            (namespace, channel, str(version))
            for namespace, versions in self.q("graph_versions", thread=thread)
            for channel, version in json.loads(versions).items()
        }
        for key in self.q("graph_channel_keys", thread=thread):
            if tuple(key) not in used:
                namespace, channel, version = key
                place = {"thread": thread, "namespace": namespace}
                self.q("drop_graph_channel", **place, channel=channel, version=version)

    def _drop_unused_pieces(self, thread: str) -> None:
        from andon.core.values import pieces

        bodies = {bytes(name): body for name, body in self.q("graph_blocks", thread=thread)}
        todo = [
            name
            for kind, body in self.q("graph_parted", thread=thread)
            for name in pieces.names_in((kind, bytes(body)))
        ]
        used = set()
        while todo:
            name = todo.pop()
            if name not in used:
                used.add(name)
                todo += pieces.names_under(bytes(bodies.get(name) or b""))
        for name in sorted(bodies.keys() - used):
            self.q("drop_graph_piece", thread=thread, name=name)


class GraphThreadReads:
    """Reads checkpoints of LangGraph threads."""

    def __init__(self, read: Query) -> None:
        self.read = read

    def checkpoint(self, which: GraphFilter) -> GraphRow | None:
        """Return the checkpoint of a thread, namespace and id; without an id, the latest."""
        for last in (False,) * (_TRIES - 1) + (True,):
            rows = self._rows(which)
            if not rows:
                return None
            try:
                return self._whole(GraphRow(**dict(zip(_COLUMNS, rows[0], strict=True))))
            except KeyError as gone:
                if last:
                    raise Corrupt(
                        f"thread {which.thread!r}, checkpoint {rows[0][2]}: a part of it is "
                        f"missing ({gone}). Restore the database from a backup."
                    ) from gone
        raise AssertionError("unreachable")

    def _rows(self, which: GraphFilter) -> Rows:
        place = {"thread": which.thread, "namespace": which.namespace}
        if which.id is None:
            return self.read("graph_latest", **place)
        return self.read("graph_checkpoint", **place, id=which.id)

    def _whole(self, row: GraphRow) -> GraphRow:
        place = {"thread": row.thread, "namespace": row.namespace}
        versions = [(name, str(version)) for name, version in json.loads(row.versions).items()]
        channels = [
            (channel, kind, bytes(body))
            for channel, kind, body in self.read(
                "graph_channels", **place, pairs=json.dumps(versions)
            )
        ]
        writes = [
            (task, channel, kind, bytes(body))
            for task, channel, kind, body in self.read("graph_writes", **place, id=row.id)
        ]
        values = [(kind, body) for _, kind, body in channels]
        values += [(kind, body) for _, _, kind, body in writes]
        found = tuple(self._pieces_of(row.thread, values).items())
        return row.but(channels=channels, writes=writes, pieces=found)

    def _pieces_of(self, thread: str, values: Iterable[Value]) -> dict[bytes, bytes]:
        """Read the pieces of the values, level by level. KeyError: they are being dropped."""
        from andon.core.values import pieces

        found: dict[bytes, bytes] = {}
        wanted = {name for value in values for name in pieces.names_in(value)}
        while wanted:
            rows = self.read("graph_pieces", thread=thread, names=_hex(sorted(wanted)))
            new = {bytes(name): bytes(body) for name, body in rows}
            for name in wanted:
                if pieces.named(new[name]) != name:
                    raise Corrupt(
                        f"thread {thread!r}: a piece does not match its hash "
                        f"({name.hex()}). Restore the database from a backup."
                    )
            found.update(new)
            below = {name for body in new.values() for name in pieces.names_under(body)}
            wanted = below - found.keys()
        return found

    def checkpoints(self, which: GraphFilter) -> list[GraphKey]:
        """Return the keys of matching checkpoints, newest first."""
        asked = fields(which) | {"limit": _EVERY if which.limit is None else which.limit}
        if which.thread is None:
            asked = {"before": asked["before"], "limit": asked["limit"]}
            rows = self.read("all_graph_checkpoints", **asked)
        else:
            rows = self.read("graph_checkpoints", **asked)
        return [build(GraphKey, row) for row in rows]

    def checkpoints_of(self, graph_runs: Sequence[str]) -> list[GraphKey]:
        """Return the keys of the checkpoints that the given LangGraph runs have saved."""
        rows = self.read("graph_checkpoints_of", runs=json.dumps(list(graph_runs)))
        return [build(GraphKey, row) for row in rows]


def _hex(names: Iterable[bytes]) -> str:
    return json.dumps([name.hex() for name in names])
