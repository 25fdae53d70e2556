"""LangGraph's threads as messages: what is saved, copied and dropped, and what is read.

Values come serialized, the large ones in pieces (core/values/pieces.py). Inside a run a save
carries the run's fence.
"""

from __future__ import annotations

from andon.core.values.struct import Struct

TYPE_CHECKING = False  # so that no command waits for the import of what it does not need
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
    """What a task has written, until the next checkpoint has it."""

    task: str
    idx: int
    channel: str
    path: str
    kind: str
    body: bytes


class Save(Struct):
    """What every save brings. `asked`: pieces that the store may have already."""

    thread: str
    namespace: str
    pieces: tuple[Piece, ...] = ()
    asked: tuple[bytes, ...] = ()
    run_id: str | None = None  # the run of andon in whose name it is saved
    fence: Fence | None = None


class SaveCheckpoint(Save):
    """A checkpoint of a thread, with the values of the channels that are new in it."""

    id: str
    parent: str | None
    kind: str
    body: bytes
    versions: str  # JSON object
    metadata: str  # JSON object
    graph_run: str | None
    channels: tuple[ChannelRow, ...]


class SaveWrites(Save):
    """What a task has written on top of a checkpoint. Written before: only special ones change."""

    checkpoint: str
    writes: tuple[WriteRow, ...]


class DropThread(Struct):
    """Everything of a thread."""

    thread: str


class DropCheckpoints(Struct):
    """Some checkpoints of a thread, their writes, and what only they needed."""

    thread: str
    checkpoints: tuple[tuple[str, str], ...]  # (namespace, id)


class CopyThread(Struct):
    """Everything of a thread, once more under another name."""

    source: str
    target: str


GraphMessage = SaveCheckpoint | SaveWrites | DropThread | DropCheckpoints | CopyThread


class GraphFilter(Struct):
    """Which checkpoints are meant; of one thread if it is given, else of all."""

    thread: str | None = None
    namespace: str | None = None
    id: str | None = None
    before: str | None = None  # older than this one
    limit: int | None = None


class GraphKey(Struct):
    """Which checkpoint it is, and what people look for it by."""

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
