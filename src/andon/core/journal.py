"""The journal of a run: its entries, and the answers it gives to a replaying run.

An operation (a step, an effect, a wait, …) has a place: a branch of the run's code and the number
of the operation in that branch. A branch is a chain of `await`s; asyncio.gather, TaskGroup and
anyio start new branches, numbered in the order in which their parent starts them. So parallel code
that finishes in another order on replay still finds its own entries. An operation with a key is
found by its name and key, wherever it stands.

Code and journal must agree on kind, name, key and argument digest at every place; otherwise they
have diverged and nothing is executed.
"""

import hashlib
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from andon.core.effect import EffectState
from andon.errors import Corrupt, Diverged

GENESIS = "0" * 64

_encode = msgspec.json.Encoder().encode


class EntryKind(StrEnum):
    """The kinds of journal entries."""

    START = "start"
    STEP = "step"
    EFFECT = "effect"
    SLEEP = "sleep"
    EVENT = "event"
    ASK = "ask"
    CHILD = "child"
    VALUE = "value"
    SNAPSHOT = "snapshot"
    RETRY = "retry"
    COMPENSATE = "compensate"  # from here on the run's effects are undone
    END = "end"


class Mark(StrEnum):
    """The states of an operation other than an effect (effects have states of their own)."""

    BEGUN = "begun"
    RETRYING = "retrying"
    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"  # by the agent's own code, e.g. by a timeout
    REOPENED = "reopened"


class Entry(msgspec.Struct, kw_only=True, gc=False):
    """One entry of a run's journal."""

    seq: int
    kind: str
    state: str
    place: str = ""
    name: str = ""
    key: str | None = None
    digest: str = ""
    body: str | None = None  # JSON
    blob: str | None = None  # the address of the body, if it is large
    fence: int = 0
    since: float = 0.0  # when the operation began
    at: float = 0.0
    hash: str = ""


def chain(previous: str, entry: Entry) -> str:
    """Return the hash of an entry, which covers everything before it."""
    fields = (
        previous,
        entry.seq,
        entry.kind,
        entry.state,
        entry.place,
        entry.name,
        entry.key,
        entry.digest,
        entry.body,
        entry.blob,
        entry.fence,
        entry.since,
        entry.at,
    )
    return hashlib.sha256(_encode(fields)).hexdigest()


def check_chain(entries: Iterable[Entry], *, run_id: str, previous: str | None = GENESIS) -> str:
    """Verify the hash chain and return its head; `previous` None trusts the first entry."""
    head, expected = previous, None
    for entry in entries:
        if expected is not None and entry.seq != expected:
            raise Corrupt(
                f"run {run_id}: expected journal entry {expected}, found {entry.seq}; "
                "entries are missing. Restore the database from a backup."
            )
        if head is not None and chain(head, entry) != entry.hash:
            raise Corrupt(
                f"run {run_id}: journal entry {entry.seq} ({entry.kind} {entry.name}) does not "
                "match its hash; it was changed outside andon. Restore it from a backup."
            )
        head, expected = entry.hash, entry.seq + 1
    return head if head is not None else GENESIS


class Record(msgspec.Struct, kw_only=True):
    """The current state of one operation, folded from all its entries."""

    kind: str
    name: str
    key: str | None
    digest: str
    place: str
    state: str
    body: str | None = None
    blob: str | None = None
    failures: int = 0
    fence: int  # the claim under which it was last started
    seq: int = 0  # the entry that led to its state
    later: str | None = None  # the ledger's state of an effect that the agent's code has cancelled
    undone: bool = False  # a confirmed effect whose undo has started
    stale: bool = False  # nothing was recorded about it since the code cancelled it
    waits: str | None = None  # for a wait: its target and deadline

    def reopen(self) -> None:
        """Let the code try the operation again; an effect only if it certainly did not happen."""
        if self.kind == EntryKind.EFFECT and self.state == Mark.CANCELLED:
            self.state = _AGAIN.get(self.later or "", EffectState.IN_DOUBT)
        else:
            self.state, self.failures = Mark.REOPENED, 0


_SETTLED = frozenset({"done", "failed", "confirmed", "cancelled"})
_AGAIN: dict[str, str] = {
    EffectState.CONFIRMED: EffectState.CONFIRMED,
    EffectState.COMPENSATED: EffectState.COMPENSATED,
    EffectState.PLANNED: Mark.REOPENED,
    EffectState.FAILED: Mark.REOPENED,
}
ANSWERS = _SETTLED - {"cancelled"}
# Entries about the run rather than about one of its operations.
_ENDS = frozenset({EntryKind.START, EntryKind.END, EntryKind.COMPENSATE})
_UNDOES = frozenset({EffectState.COMPENSATED, EffectState.CONFIRMED})


def split(place: str) -> tuple[str, int]:
    branch, _, number = place.rpartition(":")
    return branch, int(number)


class Replay:
    """The journal of a run since its last snapshot, indexed by place and by key."""

    def __init__(self, entries: Iterable[Entry], *, run_id: str) -> None:
        self.run_id = run_id
        self.snapshot: Entry | None = None
        self.compensation: Entry | None = None  # the run does not continue; its effects are undone
        self.root = ""  # the branch of the agent's main code; after a snapshot, its seq
        self._placed: dict[str, Record] = {}
        self._keyed: dict[tuple[str, str, str], Record] = {}
        self.ends: dict[str, int] = {}  # branch → the number of its last operation
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> None:
        """Fold in one more entry."""
        if entry.kind == EntryKind.SNAPSHOT:
            self.snapshot, self.root = entry, str(entry.seq)
            self._placed.clear()
            self._keyed.clear()
            self.ends.clear()
        elif entry.kind == EntryKind.COMPENSATE:
            self.compensation = entry
        elif entry.kind == EntryKind.RETRY:
            self._reopen(entry)
        elif entry.kind not in _ENDS:
            self._fold(entry)

    def _fold(self, entry: Entry) -> None:
        record = self._lookup(entry.kind, entry.name, entry.key, entry.place)
        if record is None:
            record = Record(
                kind=entry.kind,
                name=entry.name,
                key=entry.key,
                digest=entry.digest,
                place=entry.place,
                state=entry.state,
                fence=entry.fence,
            )
            self._enter(record)
        if entry.state == EffectState.UNDOING or (record.undone and entry.state in _UNDOES):
            record.undone = True  # the code gets the same answer again as before the undo
            return
        if entry.state == Mark.RETRYING:
            record.failures += 1
        if entry.state == EffectState.STARTED:
            # Not every entry sets the fence: a later owner that merely asked about the effect does
            # not execute it, and its end says nothing about the owner that may still act.
            record.fence = entry.fence
        if record.state == Mark.CANCELLED != entry.state and entry.kind == EntryKind.EFFECT:
            # The ledger records this, but the code has seen a cancellation and sees it again.
            record.later, record.body, record.blob = entry.state, entry.body, entry.blob
            record.stale = False
            return
        before, record.state, record.seq = record.state, entry.state, entry.seq
        record.stale = entry.state == Mark.CANCELLED
        if entry.state == Mark.CANCELLED and before == EffectState.CONFIRMED:
            record.later = before  # confirmed while it was being cancelled
            return
        if entry.state == Mark.WAITING:
            record.waits = entry.body
        is_wait = record.waits is not None or record.kind == EntryKind.EVENT
        if is_wait and entry.state == Mark.CANCELLED and before in ANSWERS:
            # The code never saw how the wait ended, so asking again waits again.
            record.body, record.blob = record.waits, None
        if entry.state not in (Mark.BEGUN, Mark.CANCELLED):  # these carry no new body
            record.body, record.blob = entry.body, entry.blob

    def _enter(self, record: Record) -> None:
        if record.key is not None:
            self._keyed[record.kind, record.name, record.key] = record
            return
        self._placed[record.place] = record
        branch, number = split(record.place)
        self.ends[branch] = max(number, self.ends.get(branch, -1))

    def _lookup(self, kind: str, name: str, key: str | None, place: str) -> Record | None:
        if key is not None:
            return self._keyed.get((kind, name, key))
        return self._placed.get(place)

    def _reopen(self, entry: Entry) -> None:
        """Reopen the step that failed the agent, so that a retry executes the step again.

        Operations that the code cancelled after that failure are reopened too, because the failure
        caused it. Otherwise the code would wait for ever for a cancellation that does not recur.
        """
        records = self.records()
        failed = [one for one in records if (one.place, one.state) == (entry.place, Mark.FAILED)]
        answered = max((one.seq for one in records if one.state != Mark.CANCELLED), default=0)
        since = min((one.seq for one in failed), default=answered)
        cancelled = [one for one in records if one.state == Mark.CANCELLED]
        for record in failed + [one for one in cancelled if one.seq > since]:
            record.reopen()

    def answers(self) -> list[int]:
        """Return the entries that answer the code, in the order they were written."""
        answering = (one for one in self.records() if one.state in ANSWERS)
        return sorted(one.seq for one in answering if one.kind != EntryKind.VALUE)

    def find(self, kind: str, name: str, key: str | None, place: str, digest: str) -> Record | None:
        """Return the journal's record of this operation, or None if it is new. Raises Diverged."""
        if key is None and not self.ends:  # fast path of every new step: nothing has a place yet
            return None
        record = self._lookup(kind, name, key, place)
        if record is None:
            if key is None:
                self._refuse_gap(kind, name, place)
            return None
        if (record.kind, record.name, record.digest) != (kind, name, digest):
            raise Diverged(
                f"run {self.run_id}: the journal has {record.kind} {record.name!r} with arguments "
                f"{record.digest or '-'} at {_spot(record)}, the code asks for {kind} {name!r} "
                f"with arguments {digest or '-'}. {self._advice()}"
            )
        return record

    def knows(self, kind: str, name: str, key: str) -> bool:
        """Whether the journal has an operation of that name and key."""
        return (kind, name, key) in self._keyed

    def _refuse_gap(self, kind: str, name: str, place: str) -> None:
        branch, number = split(place)
        if number <= self.ends.get(branch, -1):
            raise Diverged(
                f"run {self.run_id}: the code asks for {kind} {name!r} at place {place}, where the "
                f"journal has nothing although it has later entries. {self._advice()}"
            )

    def _advice(self) -> str:
        advice = "Nothing was executed. "
        if self.snapshot is not None:
            advice += "The run has a snapshot: its code must continue from ctx.restored. "
        return advice + (
            "Give changed code a new version. To continue with the original code: andon resume."
        )

    def replaying(self, branch: str, number: int) -> bool:
        """Whether the branch's next operation is answered from the journal."""
        return number <= self.ends.get(branch, -1)

    def check_end(self, number: int) -> None:
        """Refuse an agent that returns before the journal's end. `number` is the next place."""
        end = self.ends.get(self.root, -1)
        if number <= end:
            record = self._placed[f"{self.root}:{end}"]
            raise Diverged(
                f"run {self.run_id}: the code returned, but the journal goes on with "
                f"{record.kind} {record.name!r} at {_spot(record)}. {self._advice()}"
            )

    def records(self) -> list[Record]:
        return [*self._placed.values(), *self._keyed.values()]


def _spot(record: Record) -> str:
    return f"key {record.key!r}" if record.key is not None else f"place {record.place}"


def settled(record: Record) -> bool:
    return record.state in _SETTLED
