"""Messages and rows for LangGraph threads: save, copy, drop and read.

Values arrive serialized, large ones in pieces (core/values/pieces.py). Inside a run a save carries
the run's fence.
"""

from __future__ import annotations

from andon.core.values.struct import Struct

TYPE_CHECKING = False  # commands must not pay for imports they do not need
if TYPE_CHECKING:
    from collections.abc import Sequence

    from andon.core.lease import Fence
    from andon.core.values.pieces import Piece


class ChannelRow(Struct):
    """The value of a channel at one of its versions."""

    channel: str
    version: str
    kind: str
    body: bytes


class WriteRow(Struct):
    """A value that a task has written and that no checkpoint includes yet."""

    task: str
    idx: int
    channel: str
    path: str
    kind: str
    body: bytes


class Save(Struct):
    """The fields that every save has. `asked`: pieces that the store may have already."""

    thread: str
    namespace: str
    pieces: tuple[Piece, ...] = ()
    asked: tuple[bytes, ...] = ()
    run_id: str | None = None  # the andon run that saves it
    fence: Fence | None = None


class SaveCheckpoint(Save):
    """Save a checkpoint of a thread, with the channel values that are new in it."""

    id: str
    parent: str | None
    kind: str
    body: bytes
    versions: str  # JSON object
    metadata: str  # JSON object
    graph_run: str | None
    channels: tuple[ChannelRow, ...]


class SaveWrites(Save):
    """Save a task's writes on top of a checkpoint. Saving again changes only special writes."""

    checkpoint: str
    writes: tuple[WriteRow, ...]


class DropThread(Struct):
    """Drop everything of a thread."""

    thread: str


class DropCheckpoints(Struct):
    """Drop some checkpoints of a thread, their writes, and data that nothing else needs."""

    thread: str
    checkpoints: tuple[tuple[str, str], ...]  # (namespace, id)


class CopyThread(Struct):
    """Copy everything of a thread to another name."""

    source: str
    target: str


GraphMessage = SaveCheckpoint | SaveWrites | DropThread | DropCheckpoints | CopyThread


class GraphFilter(Struct):
    """Selects checkpoints, of one thread if it is given, else of all threads."""

    thread: str | None = None
    namespace: str | None = None
    id: str | None = None
    before: str | None = None  # older than this one
    limit: int | None = None


class GraphKey(Struct):
    """The key of a checkpoint, and the metadata that people search by."""

    thread: str
    namespace: str
    id: str
    metadata: str


class GraphRow(Struct):
    """A checkpoint with everything that belongs to it."""

    thread: str
    namespace: str
    id: str
    parent: str | None
    kind: str
    body: bytes
    versions: str
    metadata: str
    channels: Sequence[tuple[str, str, bytes]] = ()  # (channel, kind, body)
    writes: Sequence[tuple[str, str, str, bytes]] = ()  # (task, channel, kind, body)
    pieces: tuple[tuple[bytes, bytes], ...] = ()
